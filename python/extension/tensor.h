#ifndef TRYST_PYTHON_EXTENSION_TENSOR_H_
#define TRYST_PYTHON_EXTENSION_TENSOR_H_

#include "python/extension/python.h"

namespace tryst_python {

// Makes the type `tryst.Tensor`; null with an exception.
PyObject* MakeTensorType();
bool IsTensor(PyObject* object);
// Takes over `tensor`. Returns null with an exception.
PyObject* WrapTensor(tryst_tensor* tensor);
// REQUIRES: IsTensor(object), whose own it is.
tryst_tensor* TensorIn(PyObject* object);

// The library's number for a type, by its name in numpy; 0: there is none.
int32_t TypeNumber(const char* name);

}  // namespace tryst_python

#endif  // TRYST_PYTHON_EXTENSION_TENSOR_H_
