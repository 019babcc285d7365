#ifndef TRYST_RENDEZVOUS_ALARM_QUEUE_H_
#define TRYST_RENDEZVOUS_ALARM_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "rendezvous/alarms.h"

namespace tryst {

// The alarms that are set: earliest first, and equal times in the order of setting. Needs external
// synchronisation. Allocates only when more are set than ever before.
class AlarmQueue {
 public:
  // REQUIRES: !at.is_never().
  Alarms::Token Push(Deadline at, Alarms::Callback callback);
  // Hands out the callback, so that the caller destroys it without its lock. False when
  // the alarm is not set (any more).
  bool Remove(Alarms::Token token, Alarms::Callback* callback);
  // Hands out the earliest alarm, if its time has passed.
  bool PopPassed(int64_t now_ns, Alarms::Callback* callback);
  Deadline Earliest() const;  // Never when empty.
  size_t size() const { return heap_.size(); }

 private:
  struct Slot {
    Alarms::Callback callback;
    int64_t at_ns = 0;
    uint64_t order = 0;
    uint32_t generation = 1;
    uint32_t heap_index = 0;  // If unused: the next free slot.
    bool used = false;
  };

  bool Before(uint32_t a, uint32_t b) const;
  void Place(size_t heap_index, uint32_t slot);
  void SiftUp(size_t heap_index);
  void SiftDown(size_t heap_index);
  void RemoveAt(size_t heap_index, Alarms::Callback* callback);

  static constexpr uint32_t kNoSlot = UINT32_MAX;
  std::vector<Slot> slots_;
  std::vector<uint32_t> heap_;  // Indices of slots.
  uint32_t first_free_ = kNoSlot;
  uint64_t next_order_ = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_ALARM_QUEUE_H_
