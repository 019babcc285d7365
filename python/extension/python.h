#ifndef TRYST_PYTHON_EXTENSION_PYTHON_H_
#define TRYST_PYTHON_EXTENSION_PYTHON_H_

// The stable ABI of CPython 3.11 and everything after it.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <python3.11/Python.h>

#include <utility>

#include "server/c/tryst.h"
#include "server/c/tryst_v1.h"

namespace tryst_python {

// Owns a reference to a Python object.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* object) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Releases the interpreter's lock while it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* const state_;
};

// A string of a text of the library's. Such a text may be cut inside a character, so what is no
// UTF-8 is replaced.
PyObject* MakeString(const char* text);
// The UTF-8 of a str, for as long as that lives. Null with an exception, also where a NUL would cut
// it.
const char* TextOf(PyObject* text);
// Raises the error in `status`, and frees it; false when it is null.
bool Raised(tryst_status* status);
// Sets what makes exceptions: it is called with (code, message, is_derived). Kept.
void SetErrorMaker(PyObject* maker);

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_PYTHON_H_
