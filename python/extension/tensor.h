#ifndef TRYST_PYTHON_EXTENSION_TENSOR_H_
#define TRYST_PYTHON_EXTENSION_TENSOR_H_

#include "python/extension/python.h"

namespace tryst_python {

// The type `tryst.Tensor`; null with an exception.
PyObject* MakeTensorType();
bool IsTensor(PyObject* object);
// Takes `tensor` over. Null with an exception.
PyObject* WrapTensor(tryst_tensor* tensor);
// What `object` holds: of a Tensor its own; of anything with a buffer or with __dlpack__ a
// reference to the same memory, which keeps it alive. Whether the caller is to free it is in
// `*owned`. Null with an exception.
tryst_tensor* TensorOf(PyObject* object, bool* owned);

// The library's number of a type, by numpy's name of it; 0: there is none.
int32_t TypeNumber(const char* name);

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_TENSOR_H_
