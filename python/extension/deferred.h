#ifndef TRYST_PYTHON_EXTENSION_DEFERRED_H_
#define TRYST_PYTHON_EXTENSION_DEFERRED_H_

#include "python/extension/python.h"

namespace tryst_python {

// Something of Python's that the library lets go of, on a thread that must not run Python. It is
// given back on a thread that does.
struct Deferred {
  virtual ~Deferred() = default;
  // Holds the interpreter's lock.
  virtual void GiveBack() = 0;
  Deferred* next = nullptr;
};

// Any thread, without the lock. Takes `item` over.
void Defer(Deferred* item);
// Gives back what has been deferred. REQUIRES: the interpreter's lock.
void GiveBackDeferred();
// The interpreter ends: what is deferred from now on is left alone.
void StopDeferring();

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_DEFERRED_H_
