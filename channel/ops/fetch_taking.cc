#include <cstring>
#include <utility>

#include "channel/ops/fetch_ops.h"
#include "channel/ops/peer_words.h"
#include "channel/string_codec.h"

// What FetchOps does with a tensor that lies inside a word of the peer.
namespace tryst {

bool FetchOps::FillDestination(const FetchAsk& ask, const TensorInside& inside) {
  const Tensor& wanted = ask.destination();
  const uint64_t bytes = inside.payload.size();
  // Never a string tensor.
  if (!wanted.valid() || !wanted.on_host() || wanted.dtype() != inside.dtype ||
      inside.dtype == DType::kString || wanted.bytes() != bytes ||
      bytes > ops_options_.max_tensor_bytes || wanted.shape().dims() != inside.dims) {
    return false;
  }
  if (bytes > 0) memcpy(wanted.mutable_data(), inside.payload.data(), bytes);
  ++counters_.in_message;
  counters_.bytes += bytes;
  return true;
}

absl::Status FetchOps::TakeInside(FetchAsk* ask, const TensorInside& inside, Tensor* tensor) {
  const absl::string_view payload = inside.payload;
  if (!TakeSmall(*ask, inside, tensor)) {
    auto shape = TensorShape::Make(inside.dims);
    if (!shape.ok()) return absl::DataLossError(shape.status().message());
    absl::Status status = MayTake(*ask, inside.dtype, *shape, payload.size());
    if (inside.dtype == DType::kString) {
      auto decoded = DecodeStrings(payload, *shape);
      if (!decoded.ok()) return decoded.status();
      if (status.ok()) *tensor = *std::move(decoded);
    } else {
      auto bytes = TensorBytes(inside.dtype, *shape);
      if (!bytes.ok() || *bytes != payload.size()) {
        return absl::DataLossError(
            "the producer broke the protocol: a tensor's length does not match its type and shape");
      }
      const Tensor& wanted = ask->destination();
      if (status.ok() && wanted.valid() && wanted.on_host()) {
        *tensor = wanted;
      } else if (status.ok()) {
        auto made = Tensor::Allocate(inside.dtype, *shape);
        status = made.status();
        if (made.ok()) *tensor = *std::move(made);
      }
      if (status.ok() && !payload.empty()) {
        memcpy(tensor->mutable_data(), payload.data(), payload.size());
      }
    }
    if (!status.ok()) {
      EndAsk(ask, status);  // The tensor stays with the producer.
      return absl::OkStatus();
    }
  }
  ++counters_.in_message;
  counters_.bytes += payload.size();
  return absl::OkStatus();
}

// The caller gave no memory: copies it into a reused block.
bool FetchOps::TakeSmall(const FetchAsk& ask, const TensorInside& inside, Tensor* tensor) {
  const uint64_t bytes = inside.payload.size();
  if (ask.destination().valid() || inside.dtype == DType::kString || bytes > SmallStorage::kBytes ||
      bytes > ops_options_.max_tensor_bytes) {
    return false;
  }
  StorageRef memory = small_->Take();
  Tensor small;
  if (!small.TakeView(&memory, inside.dtype, inside.dims) || small.bytes() != bytes) return false;
  if (bytes > 0) memcpy(small.mutable_data(), inside.payload.data(), bytes);
  *tensor = std::move(small);
  return true;
}

}  // namespace tryst
