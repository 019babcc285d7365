#ifndef TRYST_RENDEZVOUS_DTYPE_H_
#define TRYST_RENDEZVOUS_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tryst {

// TensorFlow's numbers, so that an embedding runtime casts. They travel on the wire:
// never renumber.
enum class DType : uint8_t {
  kInvalid = 0,
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kQint8 = 11,  // Quantised: carried as the integers that they are kept in.
  kQuint8 = 12,
  kQint32 = 13,
  kBfloat16 = 14,
  kQint16 = 15,
  kQuint16 = 16,
  kUint16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
  kFloat8E5m2 = 24,
  kFloat8E4m3fn = 25,
  kInt4 = 29,   // One element a byte, as TensorFlow keeps it in memory.
  kUint4 = 30,  // Likewise.
  // Not one of TensorFlow's types, and used on wires alone: carries as bytes a tensor that has more
  // dimensions than a wire's description has room for (rendezvous/packed_tensor.h).
  kPacked = 62,
};

struct DTypeSizes {
  uint8_t of[256];  // By number.
};
extern const DTypeSizes kDTypeSizes;

// Bytes of one element; 0 for kString, kInvalid and any number that is no DType (a
// peer may have sent it).
inline uint32_t DTypeBytes(DType dtype) { return kDTypeSizes.of[static_cast<uint8_t>(dtype)]; }

// True for every type with a fixed size and for kString.
bool DTypeValid(DType dtype);

absl::string_view DTypeName(DType dtype);  // "float", "int4"; "invalid" for anything else.

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_DTYPE_H_
