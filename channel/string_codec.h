#ifndef TRYST_CHANNEL_STRING_CODEC_H_
#define TRYST_CHANNEL_STRING_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/tensor.h"

namespace tryst {

// String tensors on the wire: the length of every element as 8 bytes, little-endian,
// then all their bytes, in order.
std::string EncodeStrings(const Tensor& tensor);  // REQUIRES: kString.

// kDataLoss when the bytes are not exactly `shape` elements.
absl::StatusOr<Tensor> DecodeStrings(absl::string_view bytes, const TensorShape& shape);

}  // namespace tryst

#endif  // TRYST_CHANNEL_STRING_CODEC_H_
