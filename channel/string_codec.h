#ifndef TRYST_CHANNEL_STRING_CODEC_H_
#define TRYST_CHANNEL_STRING_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/tensor.h"

namespace tryst {

// String tensors on the wire: the length of every element in 8 bytes, little-endian, then the bytes
// of all elements in order.
std::string EncodeStrings(const Tensor& tensor);  // REQUIRES: kString.

// kDataLoss: the bytes are not exactly the elements of `shape`.
absl::StatusOr<Tensor> DecodeStrings(absl::string_view bytes, const TensorShape& shape);

}  // namespace tryst

#endif  // TRYST_CHANNEL_STRING_CODEC_H_
