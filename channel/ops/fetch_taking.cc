#include <algorithm>
#include <cstring>
#include <utility>

#include "channel/ops/fetch_ops.h"
#include "channel/ops/peer_words.h"
#include "channel/string_codec.h"

// What FetchOps does with a tensor that lies inside a word of the peer.
namespace tryst {
namespace {

// Never a string tensor.
bool IsAsSaid(const Tensor& wanted, DType dtype, absl::Span<const int64_t> dims, uint64_t bytes) {
  const absl::Span<const int64_t> have = wanted.shape().dims();
  return wanted.dtype() == dtype && wanted.bytes() == bytes && have.size() == dims.size() &&
         std::equal(have.begin(), have.end(), dims.begin());
}

}  // namespace

absl::Status FetchOps::TakeInside(FetchAsk* ask, DType dtype, absl::Span<const int64_t> dims,
                                  absl::string_view payload, Tensor* tensor) {
  const Tensor& wanted = ask->destination();
  if (dtype != DType::kString && payload.size() <= ops_options_.max_tensor_bytes) {
    // The fast ways, of nearly all tensors: the type and shape are those that the caller announced,
    // or the tensor is small and the caller gave no memory.
    if (!wanted.valid()) {
      if (TakeSmall(dtype, dims, payload, tensor)) return absl::OkStatus();
    } else if (wanted.on_host() && IsAsSaid(wanted, dtype, dims, payload.size())) {
      if (!payload.empty()) memcpy(wanted.mutable_data(), payload.data(), payload.size());
      *tensor = ask->TakeDestination();
      return absl::OkStatus();
    }
  }
  auto shape = TensorShape::Make(dims);
  if (!shape.ok()) return absl::DataLossError(shape.status().message());
  absl::Status status = MayTake(*ask, dtype, *shape, payload.size());
  if (dtype == DType::kString) {
    auto decoded = DecodeStrings(payload, *shape);
    if (!decoded.ok()) return decoded.status();
    if (status.ok()) *tensor = *std::move(decoded);
  } else {
    auto bytes = TensorBytes(dtype, *shape);
    if (!bytes.ok() || *bytes != payload.size()) {
      return absl::DataLossError(
          "the producer broke the protocol: a tensor's length does not match its type and shape");
    }
    if (status.ok() && wanted.valid() && wanted.on_host()) {
      *tensor = wanted;
    } else if (status.ok()) {
      auto made = Tensor::Allocate(dtype, *shape);
      status = made.status();
      if (made.ok()) *tensor = *std::move(made);
    }
    if (status.ok() && !payload.empty()) {
      memcpy(tensor->mutable_data(), payload.data(), payload.size());
    }
  }
  if (!status.ok()) EndAsk(ask, status);  // The tensor stays with the producer.
  return absl::OkStatus();
}

// Copies it into a reused block.
bool FetchOps::TakeSmall(DType dtype, absl::Span<const int64_t> dims, absl::string_view payload,
                         Tensor* tensor) {
  if (payload.size() > SmallStorage::kBytes) return false;
  StorageRef memory = small_->Take();
  Tensor small;
  if (!small.TakeView(&memory, dtype, dims) || small.bytes() != payload.size()) return false;
  if (!payload.empty()) memcpy(small.mutable_data(), payload.data(), payload.size());
  *tensor = std::move(small);
  return true;
}

}  // namespace tryst
