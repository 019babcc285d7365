#ifndef TRYST_CHANNEL_OPS_SLOT_WORDS_H_
#define TRYST_CHANNEL_OPS_SLOT_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tryst {

// What a producer has to say of slots, when there is room: PARKED and GONE, PARKED first.
class SlotWords {
 public:
  void Parked(uint16_t slot, uint32_t generation) { parked_.push_back({slot, generation}); }
  void Gone(uint16_t slot, uint32_t generation) { gone_.push_back({slot, generation}); }
  bool empty() const { return parked_.empty() && gone_.empty(); }
  void clear() {
    parked_.clear();
    gone_.clear();
  }
  // Of a slot at most PARKED and GONE can be due: it is used again when they have been read.
  absl::Status MayHearMore(size_t slots) const {
    if (gone_.size() + parked_.size() <= 2 * slots) return absl::OkStatus();
    return absl::DataLossError("the consumer uses slots whose last word it has not read");
  }
  // `say(is_parked, slot, generation)` is false where there is no room; so is this then.
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
