#include "rendezvous/packed_tensor.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// 1 byte of type, 1 of rank, 6 unused, the dimensions; then the elements, at the next multiple of
// the alignment.
constexpr size_t kDimsAt = 8;

size_t ElementsAt(size_t rank) {
  const size_t end = kDimsAt + rank * sizeof(int64_t);
  return (end + Tensor::kAlignment - 1) / Tensor::kAlignment * Tensor::kAlignment;
}

}  // namespace

absl::StatusOr<Tensor> Pack(const Tensor& tensor) {
  const TensorShape& shape = tensor.shape();
  if (tensor.dtype() == DType::kString || !tensor.on_host()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor of ", tensor.on_host() ? "strings" : "device memory", " with ", shape.rank(),
        " dimensions cannot be sent to another worker, for which it may have at most ",
        static_cast<int>(TensorShape::kMaxRank),
        ": reshape it before Send, and back after the receive"));
  }
  const size_t begin = ElementsAt(static_cast<size_t>(shape.rank()));
  auto packed = Tensor::Allocate(DType::kPacked, {static_cast<int64_t>(begin + tensor.bytes())});
  if (!packed.ok()) return packed.status();
  uint8_t* out = static_cast<uint8_t*>(packed->mutable_data());
  memset(out, 0, begin);
  out[0] = static_cast<uint8_t>(tensor.dtype());
  out[1] = static_cast<uint8_t>(shape.rank());
  memcpy(out + kDimsAt, shape.dims().data(), shape.dims().size() * sizeof(int64_t));
  if (tensor.bytes() > 0) memcpy(out + begin, tensor.data(), tensor.bytes());
  return packed;
}

absl::StatusOr<Tensor> Unpack(const Tensor& packed) {
  const absl::Status wrong = absl::DataLossError(
      "the peer broke the protocol: a tensor of more than 8 dimensions is malformed");
  if (packed.dtype() != DType::kPacked || packed.bytes() < kDimsAt) return wrong;
  if (!packed.on_host()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor of more than ", static_cast<int>(TensorShape::kMaxRank),
        " dimensions has come into a device's memory, where it cannot be unpacked: receive it into "
        "host memory"));
  }
  const uint8_t* in = static_cast<const uint8_t*>(packed.data());
  const DType dtype = static_cast<DType>(in[0]);
  const size_t rank = in[1];
  const size_t begin = ElementsAt(rank);
  if (rank > static_cast<size_t>(TensorShape::kMaxLocalRank) || packed.bytes() < begin)
    return wrong;
  int64_t dims[TensorShape::kMaxLocalRank];
  memcpy(dims, in + kDimsAt, rank * sizeof(int64_t));
  const auto shape = TensorShape::Make(absl::MakeConstSpan(dims, rank));
  if (!shape.ok()) return wrong;
  const auto bytes = TensorBytes(dtype, *shape);
  if (!bytes.ok() || dtype == DType::kPacked || *bytes != packed.bytes() - begin) return wrong;
  return Tensor::FromStorage(packed.storage(), packed.storage_offset() + begin, dtype, *shape);
}

}  // namespace tryst
