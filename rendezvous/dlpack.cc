#include "rendezvous/dlpack.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

using dlpack::DLDataType;
using dlpack::DLDevice;
using dlpack::DLManagedTensorVersioned;
using dlpack::DLTensor;

struct TypeRow {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};

constexpr TypeRow kTypes[] = {
    {DType::kBool, dlpack::kDLBool, 8},
    {DType::kInt4, dlpack::kDLInt, 4},
    {DType::kInt8, dlpack::kDLInt, 8},
    {DType::kInt16, dlpack::kDLInt, 16},
    {DType::kInt32, dlpack::kDLInt, 32},
    {DType::kInt64, dlpack::kDLInt, 64},
    {DType::kUint4, dlpack::kDLUInt, 4},
    {DType::kUint8, dlpack::kDLUInt, 8},
    {DType::kUint16, dlpack::kDLUInt, 16},
    {DType::kUint32, dlpack::kDLUInt, 32},
    {DType::kUint64, dlpack::kDLUInt, 64},
    {DType::kHalf, dlpack::kDLFloat, 16},
    {DType::kFloat, dlpack::kDLFloat, 32},
    {DType::kDouble, dlpack::kDLFloat, 64},
    {DType::kBfloat16, dlpack::kDLBfloat, 16},
    {DType::kComplex64, dlpack::kDLComplex, 64},
    {DType::kComplex128, dlpack::kDLComplex, 128},
    {DType::kFloat8E4m3fn, dlpack::kDLFloat8_e4m3fn, 8},
    {DType::kFloat8E5m2, dlpack::kDLFloat8_e5m2, 8},
};

absl::StatusOr<DType> TypeOf(const DLDataType& type, uint64_t flags) {
  if (type.lanes != 1) {
    return absl::UnimplementedError(
        absl::StrCat("DLPack tensors whose elements are vectors cannot be sent; this one's have ",
                     type.lanes, " lanes"));
  }
  for (const TypeRow& row : kTypes) {
    if (row.code != type.code || row.bits != type.bits) continue;
    if (row.bits < 8 && (flags & dlpack::kFlagSubbyteTypePadded) == 0) {
      return absl::InvalidArgumentError("A 4-bit DLPack tensor must have one element in each byte");
    }
    return row.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("This DLPack tensor has a type that Tryst does not know: code ", type.code, ", ",
                   type.bits, " bits"));
}

absl::StatusOr<MemorySpace> SpaceOf(const DLDevice& device) {
  MemorySpace space;
  switch (device.device_type) {
    case dlpack::kDLCPU:
      return space;
    case dlpack::kDLCUDAHost:
      space.kind = MemorySpace::Kind::kPinned;
      break;
    case dlpack::kDLCUDA:
    case dlpack::kDLCUDAManaged:
      space.kind = MemorySpace::Kind::kDevice;
      break;
    default:
      return absl::UnimplementedError(
          absl::StrCat("This DLPack tensor is on a kind of device that Tryst does not know: ",
                       device.device_type));
  }
  if (device.device_id < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "This DLPack tensor is on a device with a negative number: ", device.device_id));
  }
  space.device_ordinal = device.device_id;
  return space;
}

DLDevice DeviceOf(const MemorySpace& space) {
  switch (space.kind) {
    case MemorySpace::Kind::kDevice:
      return {dlpack::kDLCUDA, space.device_ordinal};
    case MemorySpace::Kind::kPinned:
      return {dlpack::kDLCUDAHost, std::max(space.device_ordinal, 0)};
    case MemorySpace::Kind::kHost:
    case MemorySpace::Kind::kShared:
      break;
  }
  return {dlpack::kDLCPU, 0};
}

absl::StatusOr<TensorShape> ShapeOf(const DLTensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > TensorShape::kMaxLocalRank) {
    return absl::InvalidArgumentError(absl::StrCat("This DLPack tensor has ", tensor.ndim,
                                                   " dimensions, and may have at most ",
                                                   TensorShape::kMaxLocalRank));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return absl::InvalidArgumentError("This DLPack tensor has dimensions and no shape (null)");
  }
  return TensorShape::Make(absl::MakeConstSpan(tensor.shape, tensor.ndim));
}

// The stride of a dimension of one element, or of none, has no meaning.
bool Compact(const DLTensor& tensor, const TensorShape& shape) {
  if (tensor.strides == nullptr || shape.elements() == 0) return true;
  int64_t expected = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape.dim(i) != 1 && tensor.strides[i] != expected) return false;
    expected *= shape.dim(i);
  }
  return true;
}

// A complex number is two floats, and aligned as one of them is.
uint64_t AlignmentOf(const DLDataType& type) {
  return type.code == dlpack::kDLComplex ? type.bits / 16 : std::max(type.bits / 8, 1);
}

// The storage of an imported tensor.
class Imported final : public Storage {
 public:
  Imported(void* data, uint64_t bytes, const MemorySpace& space, DLManagedTensorVersioned* managed)
      : Storage(data, bytes, space, (managed->flags & dlpack::kFlagReadOnly) != 0),
        managed_(managed) {}

 private:
  ~Imported() override {
    if (managed_->deleter != nullptr) managed_->deleter(managed_);
  }
  DLManagedTensorVersioned* const managed_;
};

// The block that an exported tensor and its shape are in.
struct Exported {
  DLManagedTensorVersioned managed;
  Tensor tensor;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

}  // namespace

absl::StatusOr<Tensor> FromDLPack(DLManagedTensorVersioned* managed) {
  if (managed == nullptr) return absl::InvalidArgumentError("null was given for a DLPack tensor");
  if (managed->version.major != dlpack::kMajorVersion) {
    return absl::UnimplementedError(
        absl::StrCat("This DLPack tensor is of version ", managed->version.major, ".",
                     managed->version.minor, ", and Tryst takes ", dlpack::kMajorVersion, ".x"));
  }
  const DLTensor& from = managed->dl_tensor;
  absl::StatusOr<DType> dtype = TypeOf(from.dtype, managed->flags);
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<MemorySpace> space = SpaceOf(from.device);
  if (!space.ok()) return space.status();
  absl::StatusOr<TensorShape> shape = ShapeOf(from);
  if (!shape.ok()) return shape.status();
  if (!Compact(from, *shape)) {
    return absl::InvalidArgumentError(
        "This DLPack tensor has strides, and Tryst takes only elements that lie one behind the "
        "other, row by row: make it contiguous first (numpy.ascontiguousarray, torch's "
        "contiguous)");
  }
  absl::StatusOr<uint64_t> bytes = TensorBytes(*dtype, *shape);
  if (!bytes.ok()) return bytes.status();
  uintptr_t begin;
  uintptr_t end;
  if ((from.data == nullptr && *bytes != 0) ||
      __builtin_add_overflow(reinterpret_cast<uintptr_t>(from.data), from.byte_offset, &begin) ||
      __builtin_add_overflow(begin, *bytes, &end)) {
    return absl::InvalidArgumentError(
        absl::StrCat("This DLPack tensor of ", *bytes, " bytes lies at null, or its offset ",
                     from.byte_offset, " reaches out of the address space"));
  }
  if (*bytes != 0 && begin % AlignmentOf(from.dtype) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "This DLPack tensor of ", DTypeName(*dtype), " at offset ", from.byte_offset,
        " is not aligned: its address should be a multiple of ", AlignmentOf(from.dtype)));
  }
  return Tensor::FromStorage(
      StorageRef::Own(new Imported(reinterpret_cast<void*>(begin), *bytes, *space, managed)), 0,
      *dtype, *shape);
}

absl::StatusOr<DLManagedTensorVersioned*> ToDLPack(const Tensor& tensor) {
  const TypeRow* row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const TypeRow& r) { return r.dtype == tensor.dtype(); });
  if (row == std::end(kTypes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DLPack cannot hold tensors of the type ", DTypeName(tensor.dtype())));
  }
  auto exported = std::make_unique<Exported>();
  exported->tensor = tensor;
  const TensorShape& shape = tensor.shape();
  exported->shape.assign(shape.dims().begin(), shape.dims().end());
  exported->strides.resize(shape.rank());
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    exported->strides[i] = stride;
    // The strides of an empty tensor have no meaning, and their product may overflow.
    if (shape.elements() != 0) stride *= shape.dim(i);
  }
  DLManagedTensorVersioned& managed = exported->managed;
  managed.version = {dlpack::kMajorVersion, dlpack::kMinorVersion};
  managed.manager_ctx = exported.get();
  managed.deleter = [](DLManagedTensorVersioned* self) {
    delete static_cast<Exported*>(self->manager_ctx);
  };
  managed.flags =
      dlpack::kFlagReadOnly | (row->bits < 8 ? dlpack::kFlagSubbyteTypePadded : uint64_t{0});
  managed.dl_tensor.data = const_cast<void*>(tensor.data());
  managed.dl_tensor.device = DeviceOf(tensor.space());
  managed.dl_tensor.ndim = shape.rank();
  managed.dl_tensor.dtype = {row->code, row->bits, 1};
  managed.dl_tensor.shape = exported->shape.data();
  managed.dl_tensor.strides = exported->strides.data();
  managed.dl_tensor.byte_offset = 0;
  return &exported.release()->managed;
}

}  // namespace tryst
