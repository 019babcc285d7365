#include <cstring>
#include <utility>

#include "channel/ops/fetch_ops.h"
#include "channel/ops/peer_words.h"
#include "channel/string_codec.h"

// What FetchOps does with a tensor that lies inside a word of the peer.
namespace tryst {

bool FetchOps::FillDestination(const FetchAsk& ask, const TensorInside& inside) {
  if (!Fill(ask.destination(), inside)) return false;
  NoteInside(inside);
  return true;
}

absl::Status FetchOps::TakeInside(FetchAsk* ask, const TensorInside& inside, Tensor* tensor) {
  if (ask->of->is_run()) return TakeRun(ask, inside.payload, tensor);
  absl::Status unwanted;
  const absl::Status copied = Copy(ask->destination(), inside, tensor, &unwanted);
  if (!unwanted.ok()) {
    EndAsk(ask, unwanted);  // The tensor stays with the producer.
  } else if (copied.ok()) {
    NoteInside(inside);
  }
  return copied;
}

// Into the caller's memory or new memory. `*unwanted`: it is a tensor that the caller cannot have.
absl::Status FetchOps::Copy(const Tensor& wanted, const TensorInside& inside, Tensor* tensor,
                            absl::Status* unwanted) {
  const absl::string_view payload = inside.payload;
  if (!TakeSmall(wanted, inside, tensor)) {
    auto shape = TensorShape::Make(inside.dims);
    if (!shape.ok()) return absl::DataLossError(shape.status().message());
    *unwanted = MayTake(wanted, inside.dtype, *shape, payload.size());
    if (inside.dtype == DType::kString) {
      auto decoded = DecodeStrings(payload, *shape);
      if (!decoded.ok()) return decoded.status();
      if (unwanted->ok()) *tensor = *std::move(decoded);
    } else {
      auto bytes = TensorBytes(inside.dtype, *shape);
      if (!bytes.ok() || *bytes != payload.size()) {
        return absl::DataLossError(
            "the producer broke the protocol: a tensor's length does not match its type and shape");
      }
      if (unwanted->ok() && wanted.valid() && wanted.on_host()) {
        *tensor = wanted;
      } else if (unwanted->ok()) {
        auto made = Tensor::Allocate(inside.dtype, *shape);
        *unwanted = made.status();
        if (made.ok()) *tensor = *std::move(made);
      }
      if (unwanted->ok() && !payload.empty()) {
        memcpy(tensor->mutable_data(), payload.data(), payload.size());
      }
    }
  }
  return absl::OkStatus();
}

// The caller gave no memory: copies it into a reused block.
bool FetchOps::TakeSmall(const Tensor& wanted, const TensorInside& inside, Tensor* tensor) {
  const uint64_t bytes = inside.payload.size();
  if (wanted.valid() || inside.dtype == DType::kString || bytes > SmallStorage::kBytes ||
      bytes > ops_options_.max_tensor_bytes) {
    return false;
  }
  StorageRef memory = small_->Take();
  if (!tensor->TakeView(&memory, inside.dtype, inside.dims) || tensor->bytes() != bytes) {
    *tensor = Tensor();
    return false;
  }
  if (bytes > 0) memcpy(tensor->mutable_data(), inside.payload.data(), bytes);
  return true;
}

}  // namespace tryst
