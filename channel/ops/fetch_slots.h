#ifndef TRYST_CHANNEL_OPS_FETCH_SLOTS_H_
#define TRYST_CHANNEL_OPS_FETCH_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "channel/ops/fetch_op.h"

namespace tryst {

// The slots of a channel: how many fetches may be under way at once. On the wire a slot and its
// generation identify a fetch.
class FetchSlots {
 public:
  // Makes all slots free and never used.
  void Reset(size_t count) {
    ops_.assign(count, nullptr);
    generations_.assign(count, 0);
    free_.clear();
    for (size_t slot = count; slot-- > 0;) free_.push_back(static_cast<uint16_t>(slot));
  }
  size_t size() const { return ops_.size(); }
  size_t free() const { return free_.size(); }
  FetchOp* at(size_t slot) const { return ops_[slot]; }  // Null: it is free.
  uint32_t generation(size_t slot) const { return generations_[slot]; }
  const std::vector<FetchOp*>& all() const { return ops_; }

  void Take(FetchOp* op) {  // REQUIRES: free() > 0.
    op->slot = free_.back();
    free_.pop_back();
    op->generation = generations_[op->slot];
    op->has_slot = true;
    ops_[op->slot] = op;
  }
  void Free(FetchOp* op) {
    op->has_slot = false;
    ops_[op->slot] = nullptr;
    ++generations_[op->slot];
    free_.push_back(op->slot);
  }
  void Pass(FetchOp* from, FetchOp* to) {
    to->slot = from->slot;
    to->generation = from->generation;
    to->has_slot = from->has_slot;
    from->has_slot = false;
    if (to->has_slot) ops_[to->slot] = to;
  }

 private:
  std::vector<FetchOp*> ops_;
  std::vector<uint32_t> generations_;
  std::vector<uint16_t> free_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_SLOTS_H_
