#include "rendezvous/cancellation.h"

#include <utility>

#include "rendezvous/all_run.h"

namespace tryst {
namespace {

Cancellation::Token MakeToken(uint32_t slot, uint32_t generation) {
  return uint64_t{generation} << 32 | slot;
}

}  // namespace

CancellationState::Token CancellationState::Register(Callback callback) {
  MutexLock lock(&mu_);
  if (cancelled()) return Cancellation::kNoToken;
  uint32_t index = first_free_;
  if (index == kNoSlot) {
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    first_free_ = slots_[index].next;
  }
  Slot& slot = slots_[index];
  slot.callback = std::move(callback);
  slot.used = true;
  slot.next = kNoSlot;
  slot.prev = last_;
  (last_ == kNoSlot ? first_ : slots_[last_].next) = index;
  last_ = index;
  return MakeToken(index, slot.generation);
}

CancellationState::Callback CancellationState::TakeOut(uint32_t index) {
  Slot& slot = slots_[index];
  slot.used = false;
  (slot.prev == kNoSlot ? first_ : slots_[slot.prev].next) = slot.next;
  (slot.next == kNoSlot ? last_ : slots_[slot.next].prev) = slot.prev;
  return std::move(slot.callback);
}

bool CancellationState::TryDeregister(Token token) {
  Callback dead;  // Its captures are destroyed after the lock is gone.
  MutexLock lock(&mu_);
  const uint32_t index = static_cast<uint32_t>(token);
  if (index >= slots_.size()) return false;
  Slot& slot = slots_[index];
  if (!slot.used || slot.generation != token >> 32) return false;
  dead = TakeOut(index);
  if (++slot.generation == 0) slot.generation = 1;
  slot.next = first_free_;
  first_free_ = index;
  return true;
}

// The others may wait for whatever their receivers do, and perhaps for the caller.
bool CancellationState::Deregister(Token token) {
  if (TryDeregister(token)) return true;
  MutexLock lock(&mu_);
  while (running_ == token && token != Cancellation::kNoToken) done_.Wait(&mu_);
  return false;
}

bool CancellationState::TakeNext(Callback* callback) {
  MutexLock lock(&mu_);
  if (std::exchange(running_, Cancellation::kNoToken) != Cancellation::kNoToken) {
    done_.NotifyAll();
  }
  if (first_ == kNoSlot) {
    slots_ = std::vector<Slot>();
    return false;
  }
  running_ = MakeToken(first_, slots_[first_].generation);
  *callback = TakeOut(first_);
  return true;
}

void CancellationState::StartCancel() {
  {
    MutexLock lock(&mu_);
    if (cancelled()) return;
    Ref();  // A callback may destroy the Cancellation.
    cancelled_.store(true, std::memory_order_release);
  }
  AllRun all;
  for (Callback callback; TakeNext(&callback); callback = nullptr) all.Run(std::move(callback));
  Unref();
  all.ThrowFirst();
}

}  // namespace tryst
