#include "channel/ops/run_wire.h"

#include <cstring>

namespace tryst {

std::string EncodeRun(absl::Span<const uint32_t> numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()),
                     numbers.size() * sizeof(uint32_t));
}

absl::StatusOr<std::vector<uint32_t>> DecodeRun(absl::string_view text) {
  if (text.empty() || text.size() % sizeof(uint32_t) != 0 ||
      text.size() > kMostInRun * sizeof(uint32_t)) {
    return absl::DataLossError(
        "the consumer broke the protocol: it names a run of no keys, or of too many");
  }
  std::vector<uint32_t> numbers(text.size() / sizeof(uint32_t));
  memcpy(numbers.data(), text.data(), text.size());
  return numbers;
}

uint64_t RunItemBytes(const Tensor& tensor) {
  if (!tensor.valid() || tensor.dtype() == DType::kString || !tensor.on_host()) return 0;
  if (tensor.bytes() > kRunTensorBytes) return 0;
  return RunItemBytes(static_cast<size_t>(tensor.shape().rank()), tensor.bytes());
}

uint8_t* PutRunItem(RunItemKind kind, uint8_t* to) {
  const RunItemHead head = {static_cast<uint8_t>(kind), 0, 0, 0, 0};
  memcpy(to, &head, sizeof(head));
  return to + sizeof(head);
}

uint8_t* PutRunTensor(const Tensor& tensor, uint8_t* to) {
  const size_t rank = static_cast<size_t>(tensor.shape().rank());
  const uint32_t bytes = static_cast<uint32_t>(tensor.bytes());
  const RunItemHead head = {static_cast<uint8_t>(RunItemKind::kTensor),
                            static_cast<uint8_t>(tensor.dtype()), static_cast<uint8_t>(rank), 0,
                            bytes};
  memcpy(to, &head, sizeof(head));
  to += sizeof(head);
  for (size_t i = 0; i < rank; ++i, to += 8) memcpy(to, tensor.shape().dims().data() + i, 8);
  uint8_t* const next = to + (bytes + 7) / 8 * 8;
  if (next != to) memset(next - 8, 0, 8);  // Behind the bytes nothing of ours may lie.
  if (bytes > 0) memcpy(to, tensor.data(), bytes);
  return next;
}

absl::Status RunReader::Broken() {
  return absl::DataLossError(
      "the producer broke the protocol: it answers a run with items that are none");
}

}  // namespace tryst
