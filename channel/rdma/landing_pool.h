#ifndef TRYST_CHANNEL_RDMA_LANDING_POOL_H_
#define TRYST_CHANNEL_RDMA_LANDING_POOL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "base/mutex.h"
#include "rendezvous/tensor.h"
#include "verbs/nic.h"

namespace tryst {

class LandingPool;

// Registered host memory that one producer may write, and that then becomes the tensor's storage.
// The last reference gives it back to the pool, on any thread.
//
// Where the NIC can revoke keys, a landing's key is revoked after the producer's last word, before
// its bytes are read. Where it cannot, the landing is lent again only to the same producer
// (docs/decisions/0050-landing-keys-end.md).
class Landing final : public Storage {
 public:
  ~Landing() override;
  uint64_t address() const { return region_->address(); }
  // Returns the key, for the producer. REQUIRES: the landing is lent.
  uint32_t TellKey() {
    key_told_ = true;
    return region_->remote_key();
  }
  // The producer has said its last word. If the NIC can revoke keys, the producer can no longer
  // write. Idempotent.
  void EndKey() {
    if (std::exchange(key_told_, false)) region_->RenewRemoteKey();
  }

 private:
  friend class LandingPool;
  Landing(LandingPool* pool, void* memory, uint64_t bytes, size_t size_class, uint64_t writer,
          std::unique_ptr<Region> region)
      : Storage(memory, bytes, MemorySpace{}),
        pool_(pool),
        size_class_(size_class),
        writer_(writer),
        region_(std::move(region)) {
    KeepNotes();
  }
  void OnUnused() override;

  LandingPool* const pool_;
  const size_t size_class_;
  const uint64_t writer_;
  std::unique_ptr<Region> region_;
  bool key_told_ = false;
  bool counts_ = true;                 // Against the pool's bound. Written with its lock.
  std::shared_ptr<LandingPool> keep_;  // Set while it is lent.
};

// The consumer's memory for tensors without a destination of the caller's, and the budget for
// everything that peers may write at one time. Each landing is a region of its own, so a peer's key
// reaches only one tensor. Landings stay registered, and are used again.
//
// Bounds, at any moment:
//   landings (in flight + delivered and still referred to + kept for later)
//   + caller's destinations in flight                           <= cap_bytes
//   of these, what is lent before the producer has the tensor   <= cap_bytes / 2
// A caller's destination that is larger than the cap takes the whole budget, so it is alone in
// flight. The second bound leaves room for tensors that exist, and while a fetch of one of them
// waits for room, nothing is lent for others. One that needs more than half has room although half
// is lent: then the first bound is one and a half cap_bytes. So fetches that wait for a Send can
// never starve a tensor that exists.
//
// Where the NIC pins no memory, what was delivered is the program's own and does not count, and a
// landing that is larger than the cap is made like such a destination: alone in flight. Where it
// pins, such a landing is beside the bound, one at a time, and is no longer pinned when it was
// delivered.
// Thread-safe. The pool and its NIC live as long as any of its tensors.
class LandingPool : public std::enable_shared_from_this<LandingPool> {
 public:
  LandingPool(std::shared_ptr<Nic> nic, uint64_t cap_bytes)
      : nic_(std::move(nic)), cap_bytes_(cap_bytes) {}
  ~LandingPool();
  LandingPool(const LandingPool&) = delete;
  LandingPool& operator=(const LandingPool&) = delete;

  // Whether the tensor exists already, or may be waited for without limit.
  enum class For { kWaiting, kReady };

  // A number for a producer to which landings are lent.
  uint64_t NewWriter() { return ends_keys() ? 0 : next_writer_.fetch_add(1); }
  // A landing of at least `bytes`; empty: there is no room now.
  StorageRef Take(uint64_t bytes, For what, uint64_t writer);
  static Landing* AsLanding(const StorageRef& storage) {
    return static_cast<Landing*>(storage.get());
  }
  // Takes room for `bytes` of the caller's own memory; false: there is none now.
  bool TakeBudget(uint64_t bytes, For what);
  void GiveBudget(uint64_t bytes, For what);
  // The tensor of a landing or budget that was taken for kWaiting has come, or was given up.
  void EndWaiting(uint64_t bytes);
  // A caller gets the tensor. `storage` may be other memory than a landing.
  void NoteDelivered(const StorageRef& storage);

  // A fetch of a tensor that exists waits for room. Returns whether others waited already.
  bool BeginWaitForRoom() { return waits_for_room_.fetch_add(1) > 0; }
  void EndWaitForRoom() { waits_for_room_.fetch_sub(1); }

  // `on_room` is called, on any thread, when something was given back after a Take failed, and by
  // TellRoom(). It may only post a task, because it runs under a lock. That lock also ensures that
  // no call runs after null was set.
  void SetRoomCallback(absl::AnyInvocable<void()> on_room) ABSL_LOCKS_EXCLUDED(room_mu_);
  void TellRoom() ABSL_LOCKS_EXCLUDED(room_mu_);

  // Whether a landing that is larger than the cap is in flight, beside the bound.
  bool large_is_lent() const;
  // Whether a landing's key can be revoked. If not, landings are kept for each producer.
  bool ends_keys() const { return nic_->limits().renews_keys; }
  uint64_t cap_bytes() const { return cap_bytes_; }
  uint64_t pinned_bytes() const;
  // The part that is not free for another tensor: it is in flight, or still referred to.
  uint64_t in_use_bytes() const;
  uint64_t pinned_bytes_most() const;  // The high-water mark.
  uint64_t waiting_bytes() const;      // Lent before the producer has the tensor.
  size_t writers() const;              // For how many of them something may be kept.
  Nic* nic() const { return nic_.get(); }

 private:
  friend class Landing;
  // Powers of two and three quarters of them, from 4 KiB.
  static constexpr size_t kClasses = 72;
  static size_t ClassOf(uint64_t bytes);
  static uint64_t ClassBytes(size_t size_class);

  // Whether a tensor that its producer may not have yet may get `bytes`.
  bool MayLendAhead(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Give(Landing* landing);
  void EndCharge(const Landing& landing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees kept landings, into `evicted`, until `bytes` more fit under the cap.
  bool MakeWay(uint64_t bytes, For what, std::vector<Landing*>* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Keep(Landing* landing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StorageRef Make(size_t size_class, uint64_t writer);
  bool pins() const { return nic_->limits().pins_memory; }
  bool IsBeside(uint64_t bytes) const { return bytes > cap_bytes_ && pins(); }
  uint64_t ChargeOf(size_t size_class) const {
    const uint64_t bytes = ClassBytes(size_class);
    return IsBeside(bytes) ? 0 : std::min(bytes, cap_bytes_);
  }

  const std::shared_ptr<Nic> nic_;
  const uint64_t cap_bytes_;
  std::atomic<uint64_t> next_writer_{1};
  std::atomic<int64_t> waits_for_room_{0};

  mutable Mutex mu_;
  using ByWriter = absl::flat_hash_map<uint64_t, std::vector<Landing*>>;
  ByWriter kept_[kClasses] ABSL_GUARDED_BY(mu_);
  uint64_t pinned_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t pinned_bytes_most_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // The part of pinned_bytes_ that nothing uses.
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t lent_ ABSL_GUARDED_BY(mu_) = 0;
  bool large_is_lent_ ABSL_GUARDED_BY(mu_) = false;
  bool refused_ ABSL_GUARDED_BY(mu_) = false;
  Mutex room_mu_;
  absl::AnyInvocable<void()> on_room_ ABSL_GUARDED_BY(room_mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_LANDING_POOL_H_
