#ifndef TRYST_CHANNEL_DEVICE_STAGING_POOL_H_
#define TRYST_CHANNEL_DEVICE_STAGING_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/arena/arena.h"
#include "gpu/pinned_memory.h"
#include "rendezvous/tensor.h"

namespace tryst {

// A fixed number of equal slots of pinned memory, through which device tensors pass. A slot becomes
// a tensor's storage; the last reference gives it back, on any thread. Bound: slots() *
// slot_bytes(). Thread-safe; lives as long as any slot that it lent.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // kResourceExhausted: the memory cannot be pinned.
  static absl::StatusOr<std::shared_ptr<StagingPool>> Create(const Gpu* gpu, uint64_t slot_bytes,
                                                             uint32_t slots);
  // In one piece of `arena`, registered with the driver, so that other processes of the host, and
  // their GPUs, read the slots in place.
  static absl::StatusOr<std::shared_ptr<StagingPool>> CreateShared(const Gpu* gpu,
                                                                   uint64_t slot_bytes,
                                                                   uint32_t slots,
                                                                   Allocator* arena);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Empty when all are lent; `on_room` then runs once one is back.
  StorageRef Take();
  // Sets a callback that runs, on any thread, when a slot was given back after a Take that found
  // none. It may only post a task. After a call with null it does not run any more.
  void SetRoomCallback(absl::AnyInvocable<void()> on_room) ABSL_LOCKS_EXCLUDED(room_mu_);

  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t slots() const { return slots_; }
  size_t lent() const;

 private:
  class Slot;
  StagingPool(StorageRef shared, PinnedMemory memory, const MemorySpace& space, uint64_t slot_bytes,
              uint32_t slots);
  void Give(Slot* slot);

  const StorageRef shared_;  // The memory under memory_, if it was registered; may be empty.
  const PinnedMemory memory_;
  const uint64_t slot_bytes_;
  const uint32_t slots_;
  mutable Mutex mu_;
  std::vector<Slot*> free_ ABSL_GUARDED_BY(mu_);
  bool refused_ ABSL_GUARDED_BY(mu_) = false;
  Mutex room_mu_;
  absl::AnyInvocable<void()> on_room_ ABSL_GUARDED_BY(room_mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_STAGING_POOL_H_
