#ifndef TRYST_CHANNEL_OPS_SLOT_WORDS_H_
#define TRYST_CHANNEL_OPS_SLOT_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tryst {

// Statements about slots that a producer sends when there is room: PARKED and GONE, PARKED first.
class SlotWords {
 public:
  void Parked(uint16_t slot, uint32_t generation) { parked_.push_back({slot, generation}); }
  void Gone(uint16_t slot, uint32_t generation) { gone_.push_back({slot, generation}); }
  bool empty() const { return parked_.empty() && gone_.empty(); }
  void clear() {
    parked_.clear();
    gone_.clear();
  }
  // Whether the consumer may still send requests. Each slot can have at most one PARKED and one
  // GONE due, because it is used again only after they were read.
  absl::Status MayHearMore(size_t slots) const {
    if (gone_.size() + parked_.size() <= 2 * slots) return absl::OkStatus();
    return absl::DataLossError(
        "the consumer broke the protocol: it uses slots again before it has read their answers");
  }
  // Calls `say(is_parked, slot, generation)` for each. It returns false if there is no room; then
  // SayAll() does, too.
  bool SayAll(absl::FunctionRef<bool(bool, uint16_t, uint32_t)> say) {
    for (std::vector<Word>* line : {&parked_, &gone_}) {
      for (; !line->empty(); line->pop_back()) {
        if (!say(line == &parked_, line->back().slot, line->back().generation)) return false;
      }
    }
    return true;
  }

 private:
  struct Word {
    uint16_t slot;
    uint32_t generation;
  };
  std::vector<Word> parked_;
  std::vector<Word> gone_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SLOT_WORDS_H_
