#ifndef TRYST_PYTHON_EXTENSION_DEFERRED_H_
#define TRYST_PYTHON_EXTENSION_DEFERRED_H_

#include "python/extension/python.h"

namespace tryst_python {

// A reference to a Python object that the library releases on a thread that must not run Python.
// Another thread, which may, gives it back.
struct Deferred {
  virtual ~Deferred() = default;
  // Runs with the interpreter's lock held.
  virtual void GiveBack() = 0;
  Deferred* next = nullptr;
};

// Takes over `item`. Call it on any thread, without the interpreter's lock.
void Defer(Deferred* item);
// Gives back the deferred items. REQUIRES: the interpreter's lock.
void GiveBackDeferred();
// The interpreter ends: items deferred from now on are leaked.
void StopDeferring();

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_DEFERRED_H_
