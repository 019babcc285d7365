#include "rendezvous/cancellation.h"

#include <algorithm>
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
    first_free_ = slots_[index].next_free;
  }
  Slot& slot = slots_[index];
  slot.callback = std::move(callback);
  slot.used = true;
  slot.order = next_order_++;
  return MakeToken(index, slot.generation);
}

bool CancellationState::TryDeregister(Token token) {
  Callback dead;  // Its captures are destroyed after the lock is gone.
  MutexLock lock(&mu_);
  const uint32_t index = static_cast<uint32_t>(token);
  if (cancelled() || index >= slots_.size()) return false;
  Slot& slot = slots_[index];
  if (!slot.used || slot.generation != token >> 32) return false;
  dead = std::move(slot.callback);
  slot.used = false;
  if (++slot.generation == 0) slot.generation = 1;
  slot.next_free = first_free_;
  first_free_ = index;
  return true;
}

bool CancellationState::Deregister(Token token) {
  if (TryDeregister(token)) return true;
  MutexLock lock(&mu_);
  while (running_) done_.Wait(&mu_);
  return false;
}

void CancellationState::StartCancel() {
  std::vector<Slot> slots;
  {
    MutexLock lock(&mu_);
    if (cancelled()) return;
    Ref();  // A callback may destroy the Cancellation.
    cancelled_.store(true, std::memory_order_release);
    running_ = true;
    slots.swap(slots_);
  }
  std::sort(slots.begin(), slots.end(),
            [](const Slot& a, const Slot& b) { return a.order < b.order; });
  AllRun all;
  for (Slot& slot : slots) {
    if (slot.used) all.Run(std::move(slot.callback));
  }
  slots.clear();
  {
    MutexLock lock(&mu_);
    running_ = false;
    done_.NotifyAll();
  }
  Unref();
  all.ThrowFirst();
}

}  // namespace tryst
