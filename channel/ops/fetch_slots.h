#ifndef TRYST_CHANNEL_OPS_FETCH_SLOTS_H_
#define TRYST_CHANNEL_OPS_FETCH_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "channel/ops/fetch_ask.h"

namespace tryst {

// The slots of a channel: how many fetches may be under way at once. On the wire a slot and its
// generation identify a fetch.
class FetchSlots {
 public:
  // Makes all slots free and never used. Their generations begin with `first`.
  void Reset(size_t count, uint16_t first) {
    asks_.assign(count, nullptr);
    generations_.assign(count, first);
    free_.clear();
    for (size_t slot = count; slot-- > 0;) free_.push_back(static_cast<uint16_t>(slot));
  }
  size_t size() const { return asks_.size(); }
  size_t free() const { return free_.size(); }
  bool any_free() const { return !free_.empty(); }
  FetchAsk* at(size_t slot) const { return asks_[slot]; }  // Null: it is free.
  // The fetch that has the slot has it, or the next one will. What came before is over.
  uint16_t generation(size_t slot) const { return generations_[slot]; }
  const std::vector<FetchAsk*>& all() const { return asks_; }

  void Take(FetchAsk* ask) {  // REQUIRES: free() > 0.
    ask->slot = free_.back();
    free_.pop_back();
    ask->generation = generations_[ask->slot];
    asks_[ask->slot] = ask;
  }
  // The ask has the place of another one.
  void Replace(FetchAsk* ask) { asks_[ask->slot] = ask; }
  void Free(FetchAsk* ask) {
    const uint16_t slot = std::exchange(ask->slot, FetchAsk::kNoSlot);
    asks_[slot] = nullptr;
    ++generations_[slot];
    free_.push_back(slot);
  }

 private:
  std::vector<FetchAsk*> asks_;
  std::vector<uint16_t> generations_;
  std::vector<uint16_t> free_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_SLOTS_H_
