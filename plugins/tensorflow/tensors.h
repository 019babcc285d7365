#ifndef TRYST_PLUGINS_TENSORFLOW_TENSORS_H_
#define TRYST_PLUGINS_TENSORFLOW_TENSORS_H_

#include "plugins/tensorflow/asks.h"
#include "plugins/tensorflow/library.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"

namespace tryst_tensorflow {

// Whether it is plain bytes. REQUIRES: it lies in host memory.
bool CanTravel(const tensorflow::Tensor& tensor);

// The tensor's own bytes, which stay until Tryst releases them. Null: Tryst cannot carry its type
// or shape.
tryst_tensor* Lend(const Library& library, const tensorflow::Tensor& tensor);

// Makes a TensorFlow tensor of the bytes that Tryst delivered, without a copy where TensorFlow can
// use them as they lie; `copied` tells. Takes over the reference. False: TensorFlow has no such
// type or shape.
bool Wrap(const Library& library, tryst_tensor* received, tensorflow::Allocator* allocator,
          tensorflow::Tensor* tensor, bool* copied);

// False: it is a tensor. Does not take over the reference.
bool IsAnswer(const Library& library, tryst_tensor* received, Answer* answer);

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_TENSORS_H_
