#ifndef TRYST_CHANNEL_OPS_RUN_WIRE_H_
#define TRYST_CHANNEL_OPS_RUN_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rendezvous/tensor.h"

// A run of keys: small tensors that are asked for, and answered, together. docs/WIRE.md describes
// both texts. All fields are little-endian.
namespace tryst {

inline constexpr size_t kMostInRun = 64;
// The largest tensor of a run, and the most that one answer has.
inline constexpr uint64_t kRunTensorBytes = 1024;
inline constexpr uint64_t kRunBytes = 32 << 10;

// What a consumer tells in place of a key's text: the numbers under which it has told the keys.
std::string EncodeRun(absl::Span<const uint32_t> numbers);
// kDataLoss: it is none. A number may be anything.
absl::StatusOr<std::vector<uint32_t>> DecodeRun(absl::string_view text);

// A tensor as it lies inside a word of the peer, or inside the answer of a run.
struct TensorInside {
  DType dtype;
  absl::Span<const int64_t> dims;
  absl::string_view payload;
};

// ---- The answer: an item for each key, in their order ----

// What an item takes. A tensor that is not here, or is dead, takes kRunItemBytes.
inline constexpr uint64_t kRunItemBytes = 8;
constexpr uint64_t RunItemBytes(size_t rank, uint64_t bytes) {
  return kRunItemBytes + 8 * rank + (bytes + 7) / 8 * 8;
}
// What `tensor` takes; 0: it is none for a run.
uint64_t RunItemBytes(const Tensor& tensor);

enum class RunItemKind : uint8_t {
  kNotHere = 0,  // It is to be asked for alone.
  kTensor = 1,
  kDead = 2,
};

struct RunItemHead {
  uint8_t kind;
  uint8_t dtype;
  uint8_t rank;
  uint8_t zero;
  uint32_t bytes;
};
static_assert(sizeof(RunItemHead) == kRunItemBytes, "");

// Each returns where the next item goes. REQUIRES: there is room for it.
uint8_t* PutRunItem(RunItemKind kind, uint8_t* to);
uint8_t* PutRunTensor(const Tensor& tensor, uint8_t* to);

// Reads what a peer wrote, and may still be writing: every field is read once.
class RunReader {
 public:
  explicit RunReader(absl::string_view answer) : left_(answer) {}
  // The next item. Of a tensor `inside` points into the answer and into this reader. kDataLoss: it
  // is none.
  absl::Status Next(RunItemKind* kind, TensorInside* inside) {
    RunItemHead head;
    *kind = RunItemKind::kNotHere;
    if (left_.size() < sizeof(head)) return Broken();
    memcpy(&head, left_.data(), sizeof(head));
    left_.remove_prefix(sizeof(head));
    *kind = static_cast<RunItemKind>(head.kind);
    if (*kind == RunItemKind::kNotHere || *kind == RunItemKind::kDead) return absl::OkStatus();
    if (*kind != RunItemKind::kTensor || head.rank > TensorShape::kMaxRank ||
        head.bytes > kRunTensorBytes ||
        left_.size() < RunItemBytes(head.rank, head.bytes) - sizeof(head)) {
      return Broken();
    }
    for (size_t i = 0; i < head.rank; ++i) memcpy(&dims_[i], left_.data() + 8 * i, 8);
    const char* const payload = left_.data() + 8 * size_t{head.rank};
    inside->dtype = static_cast<DType>(head.dtype);
    inside->dims = absl::MakeConstSpan(dims_, head.rank);
    inside->payload = absl::string_view(payload, head.bytes);
    left_.remove_prefix(RunItemBytes(head.rank, head.bytes) - sizeof(head));
    return absl::OkStatus();
  }
  bool at_end() const { return left_.empty(); }
  static absl::Status Broken();

 private:
  absl::string_view left_;
  int64_t dims_[TensorShape::kMaxRank];
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_RUN_WIRE_H_
