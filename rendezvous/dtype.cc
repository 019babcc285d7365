#include "rendezvous/dtype.h"

namespace tryst {
namespace {

struct Row {
  absl::string_view name = "invalid";
  uint32_t bytes = 0;
};

constexpr Row RowOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat:
      return {"float", 4};
    case DType::kDouble:
      return {"double", 8};
    case DType::kInt32:
      return {"int32", 4};
    case DType::kUint8:
      return {"uint8", 1};
    case DType::kInt16:
      return {"int16", 2};
    case DType::kInt8:
      return {"int8", 1};
    case DType::kString:
      return {"string", 0};
    case DType::kComplex64:
      return {"complex64", 8};
    case DType::kInt64:
      return {"int64", 8};
    case DType::kBool:
      return {"bool", 1};
    case DType::kQint8:
      return {"qint8", 1};
    case DType::kQuint8:
      return {"quint8", 1};
    case DType::kQint32:
      return {"qint32", 4};
    case DType::kBfloat16:
      return {"bfloat16", 2};
    case DType::kQint16:
      return {"qint16", 2};
    case DType::kQuint16:
      return {"quint16", 2};
    case DType::kUint16:
      return {"uint16", 2};
    case DType::kComplex128:
      return {"complex128", 16};
    case DType::kHalf:
      return {"half", 2};
    case DType::kUint32:
      return {"uint32", 4};
    case DType::kUint64:
      return {"uint64", 8};
    case DType::kFloat8E5m2:
      return {"float8_e5m2", 1};
    case DType::kFloat8E4m3fn:
      return {"float8_e4m3fn", 1};
    case DType::kInt4:
      return {"int4", 1};
    case DType::kUint4:
      return {"uint4", 1};
    case DType::kPacked:
      return {"packed", 1};
    case DType::kInvalid:
      break;
  }
  return {};
}

// Looked up several times for each tensor that moves.
constexpr DTypeSizes MakeSizes() {
  DTypeSizes sizes{};
  for (int i = 0; i < 256; ++i) {
    sizes.of[i] = static_cast<uint8_t>(RowOf(static_cast<DType>(i)).bytes);
  }
  return sizes;
}

}  // namespace

const DTypeSizes kDTypeSizes = MakeSizes();

bool DTypeValid(DType dtype) { return dtype == DType::kString || DTypeBytes(dtype) != 0; }

absl::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

}  // namespace tryst
