#ifndef TRYST_PLUGINS_TENSORFLOW_TENSORS_H_
#define TRYST_PLUGINS_TENSORFLOW_TENSORS_H_

#include "plugins/tensorflow/asks.h"
#include "plugins/tensorflow/library.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"

namespace tryst_tensorflow {

// Whether it is plain bytes, in host memory as the caller knows.
bool CanTravel(const tensorflow::Tensor& tensor);

// The tensor's own bytes, which stay until Tryst lets go of them. Null when Tryst cannot carry
// its type or shape.
tryst_tensor* Lend(const Library& library, const tensorflow::Tensor& tensor);

// The bytes that Tryst delivered, as they are where TensorFlow can use them so; `copied` tells
// when they had to be moved to memory of TensorFlow's. Takes the reference over. False: that is
// no type or shape of TensorFlow's.
bool Wrap(const Library& library, tryst_tensor* received, tensorflow::Allocator* allocator,
          tensorflow::Tensor* tensor, bool* copied);

// False when it is a tensor. Keeps the reference.
bool IsAnswer(const Library& library, tryst_tensor* received, Answer* answer);

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_TENSORS_H_
