#include "server/weights/part_source.h"

#include <cstring>
#include <string>

#include "weights/delta.h"

namespace tryst {

absl::StatusOr<Tensor> AllocateShared(Server* server, DType dtype, const TensorShape& shape) {
  if (server->allocator() != nullptr) {
    auto tensor = server->allocator()->AllocateTensor(dtype, shape);
    if (tensor.ok() || !absl::IsResourceExhausted(tensor.status())) return tensor;
  }
  return Tensor::Allocate(dtype, shape);
}

absl::StatusOr<Tensor> BytesTensor(Server* server, absl::string_view bytes, uint64_t more) {
  const TensorShape shape = {static_cast<int64_t>(bytes.size() + more)};
  auto tensor = AllocateShared(server, DType::kUint8, shape);
  if (tensor.ok() && !bytes.empty()) memcpy(tensor->mutable_data(), bytes.data(), bytes.size());
  return tensor;
}

namespace {

// Where the part lies dense: `to`, if that is not where it is already.
const void* MakeDense(const PartSource& source, const Tensor& box, void* to) {
  if (source.whole) return box.data();
  RunCopy(source.copy, box.data(), static_cast<char*>(to));
  return to;
}

}  // namespace

absl::StatusOr<Digest> DigestOfPart(const PartSource& source) {
  const uint64_t bytes = source.copy.bytes();
  const auto room = Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes)});
  if (!room.ok()) return room.status();
  return DigestOf(MakeDense(source, source.box, room->mutable_data()), bytes);
}

absl::StatusOr<Tensor> MakePart(Server* server, const PartSource& source,
                                std::atomic<uint64_t>* sent) {
  const uint64_t bytes = source.copy.bytes();
  absl::StatusOr<Tensor> answer = absl::UnknownError("");
  std::string digest;
  const void* now = source.box.data();
  if (source.whole) {
    answer = Tensor::Adopt(source.box.mutable_data(), DType::kUint8, {static_cast<int64_t>(bytes)},
                           source.box.space(), [box = source.box] {});
  } else {
    answer = BytesTensor(server, "", bytes + Digest::kBytes);
    if (!answer.ok()) return answer;
    char* const to = static_cast<char*>(answer->mutable_data());
    now = MakeDense(source, source.box, to);
    digest = EncodeDigests({DigestOf(to, bytes)});
    memcpy(to + bytes, digest.data(), digest.size());
  }
  if (answer.ok() && source.base.valid() && bytes > 0) {
    const auto room =
        Tensor::Allocate(DType::kUint8, {source.whole ? int64_t{0} : static_cast<int64_t>(bytes)});
    if (!room.ok()) return room;
    const void* const base = MakeDense(source, source.base, room->mutable_data());
    std::string coded;
    coded.reserve(MaxDeltaBytes(bytes) + digest.size());
    EncodeDelta(base, now, bytes, source.element_bytes, &coded);
    if (coded.size() < bytes) answer = BytesTensor(server, coded.append(digest));
  }
  if (answer.ok()) sent->fetch_add(answer->bytes() - digest.size(), std::memory_order_relaxed);
  return answer;
}

}  // namespace tryst
