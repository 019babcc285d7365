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

// While it lives, what this thread defers waits for its end, which gives it back. Without it each
// such thread asks the main one to do so, and that takes longer than the rest of a conversion.
// REQUIRES: the interpreter's lock at both ends.
class GivesBack {
 public:
  GivesBack();
  ~GivesBack();
  GivesBack(const GivesBack&) = delete;
  GivesBack& operator=(const GivesBack&) = delete;
};

// The interpreter ends: items deferred from now on are leaked.
void StopDeferring();

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_DEFERRED_H_
