#include "rendezvous/alarm_queue.h"

#include <utility>

namespace tryst {

Alarms::Token AlarmQueue::Push(Deadline at, Alarms::Callback callback) {
  uint32_t index = first_free_;
  if (index == kNoSlot) {
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    first_free_ = slots_[index].heap_index;
  }
  Slot& slot = slots_[index];
  slot.callback = std::move(callback);
  slot.at_ns = at.at_ns();
  slot.order = next_order_++;
  slot.used = true;
  heap_.push_back(index);
  Place(heap_.size() - 1, index);
  SiftUp(heap_.size() - 1);
  return uint64_t{slot.generation} << 32 | index;
}

bool AlarmQueue::Remove(Alarms::Token token, Alarms::Callback* callback) {
  const uint32_t index = static_cast<uint32_t>(token);
  if (index >= slots_.size()) return false;
  const Slot& slot = slots_[index];
  if (!slot.used || slot.generation != token >> 32) return false;
  RemoveAt(slot.heap_index, callback);
  return true;
}

bool AlarmQueue::PopPassed(int64_t now_ns, Alarms::Callback* callback) {
  if (heap_.empty() || slots_[heap_[0]].at_ns > now_ns) return false;
  RemoveAt(0, callback);
  return true;
}

Deadline AlarmQueue::Earliest() const {
  return heap_.empty() ? Deadline::Never() : Deadline::AtNs(slots_[heap_[0]].at_ns);
}

bool AlarmQueue::Before(uint32_t a, uint32_t b) const {
  if (slots_[a].at_ns != slots_[b].at_ns) return slots_[a].at_ns < slots_[b].at_ns;
  return slots_[a].order < slots_[b].order;
}

void AlarmQueue::Place(size_t heap_index, uint32_t slot) {
  heap_[heap_index] = slot;
  slots_[slot].heap_index = static_cast<uint32_t>(heap_index);
}

void AlarmQueue::SiftUp(size_t heap_index) {
  const uint32_t slot = heap_[heap_index];
  while (heap_index > 0) {
    const size_t parent = (heap_index - 1) / 2;
    if (!Before(slot, heap_[parent])) break;
    Place(heap_index, heap_[parent]);
    heap_index = parent;
  }
  Place(heap_index, slot);
}

void AlarmQueue::SiftDown(size_t heap_index) {
  const uint32_t slot = heap_[heap_index];
  for (;;) {
    size_t child = 2 * heap_index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], slot)) break;
    Place(heap_index, heap_[child]);
    heap_index = child;
  }
  Place(heap_index, slot);
}

void AlarmQueue::RemoveAt(size_t heap_index, Alarms::Callback* callback) {
  const uint32_t index = heap_[heap_index];
  Slot& slot = slots_[index];
  *callback = std::move(slot.callback);
  slot.callback = nullptr;
  slot.used = false;
  if (++slot.generation == 0) slot.generation = 1;
  slot.heap_index = first_free_;
  first_free_ = index;
  const uint32_t last = heap_.back();
  heap_.pop_back();
  if (heap_index == heap_.size()) return;
  Place(heap_index, last);
  SiftUp(heap_index);
  SiftDown(slots_[last].heap_index);
}

}  // namespace tryst
