#ifndef TRYST_WEIGHTS_LAYOUT_WIRE_H_
#define TRYST_WEIGHTS_LAYOUT_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weights/layout.h"

// The one encoding of what a set declares (proto/weights.proto). Its digest, DigestOf() the bytes,
// says whether all owners have declared alike.
namespace tryst {

struct DeclaredLayouts {
  uint32_t owners = 0;
  std::vector<TensorLayout> tensors;
};

// 70,000 tensors with names of 60 bytes and 256 owners take 5 MB.
inline constexpr size_t kMaxLayoutBytes = size_t{16} << 20;

// Equal for equal arguments. kInvalidArgument, as CheckLayouts(); kResourceExhausted: it would have
// more than kMaxLayoutBytes.
absl::StatusOr<std::string> EncodeLayouts(absl::Span<const TensorLayout> layouts, uint32_t owners);

// Reads what a stranger sent, and checks all of it. It takes memory for the message, which is at
// most 16 times its bytes while its columns grow (256 MiB), and for what it becomes: kMaxTensors of
// 440 bytes, a name and a spread (142 MiB), kMaxOwnerNumbers of 4 bytes (128 MiB), kMaxBoxes of 176
// bytes (44 MiB), and at one time kMaxCorners of 100 bytes (100 MiB): 670 MiB at most.
// kInvalidArgument says what is wrong.
absl::StatusOr<DeclaredLayouts> DecodeLayouts(absl::string_view bytes);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_LAYOUT_WIRE_H_
