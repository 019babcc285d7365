#ifndef TRYST_CHANNEL_ARENA_ARENA_H_
#define TRYST_CHANNEL_ARENA_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/arena/buddy.h"
#include "channel/arena/segment_watcher.h"
#include "channel/arena/shared_memory.h"
#include "rendezvous/allocator.h"
#include "rendezvous/tensor.h"

namespace tryst {

struct ArenaOptions {
  uint64_t cap_bytes = uint64_t{1} << 30;  // All segments together.
  uint64_t segment_bytes = uint64_t{64}
                           << 20;  // One segment has at most this, unless one tensor is larger.
  // The first segment's size; each further one is twice as large.
  uint64_t first_segment_bytes = 4 << 20;
  uint64_t seed = 1;  // For the segments' ids.
};

struct ArenaCounters {
  uint64_t allocations = 0;
  uint64_t refusals = 0;       // Requests over the cap.
  uint64_t used_bytes = 0;     // Lent out.
  uint64_t kept_bytes = 0;     // Kept, to be lent again in the same size.
  uint64_t segment_bytes = 0;  // What the process has taken from the system.
  uint64_t huge_bytes = 0;     // The part of it in reserved huge pages.
  uint64_t segments = 0;
  uint64_t segments_made = 0;
};

// The Allocator over segments of shared memory that only this process can write. Bounded; blocks
// have size classes and are reused without a system call. Segments that are unused for a while go
// back to the system. Lives until its last block has come back.
class Arena final : public Allocator, public std::enable_shared_from_this<Arena> {
 public:
  // Who has what this returns may allocate. When nobody has it any more nothing is lent again, so
  // nothing is kept for peers (KeepWhile) either: they have mapped the memory themselves.
  static std::shared_ptr<Arena> Make(const ArenaOptions& options);
  ~Arena() override;

  absl::StatusOr<StorageRef> Allocate(uint64_t bytes) override;
  absl::StatusOr<Tensor> AllocateTensor(DType dtype, const TensorShape& shape) override;
  void* AllocateRaw(uint64_t bytes) override;
  void Free(void* memory) override;
  MemorySpace SpaceOf(const void* memory) const override;

  // The memory behind `segment_id`; null: it is not ours, or was given back.
  std::shared_ptr<SharedMemory> FindSegment(uint64_t segment_id) const;
  // Changes whenever a segment is given back to the system.
  uint64_t segments_dropped() const { return dropped_.load(std::memory_order_acquire); }

  // Gives back to the system what was not used since the last call.
  void Trim();
  ArenaCounters counters() const;
  // How much is used and available, and in which kind of pages.
  std::string Explain() const;
  uint64_t cap_bytes() const { return options_.cap_bytes; }

  // While it is on, something waits for room, and a peer that gives back even one block wakes us.
  // Calls are counted; thread-safe.
  void SetAwaited(bool on) { awaited_.fetch_add(on ? 1 : -1); }
  bool awaited() const { return awaited_.load() > 0; }

  // The watcher is told of peers' segments, which may stay mapped as long as ours. Set it before
  // the arena is shared; may be null.
  void SetPeerWatcher(std::shared_ptr<SegmentWatcher> watcher) { watcher_ = std::move(watcher); }
  const std::shared_ptr<SegmentWatcher>& peer_watcher() const { return watcher_; }

  // Keeps `holder` until nobody allocates here any more, or until `over`, asked when room is
  // needed, says that it need not be kept: for a peer that still reads our memory after its channel
  // has ended.
  void KeepWhile(std::shared_ptr<void> holder, absl::AnyInvocable<bool()> over);

 private:
  struct Segment;
  class Block;
  struct Kept {
    std::shared_ptr<void> holder;
    absl::AnyInvocable<bool()> over;
  };

  explicit Arena(const ArenaOptions& options);
  static size_t ClassOf(uint64_t rounded);
  Block* TakeBlock(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Block* CutBlock(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Segment* AddSegment(uint64_t bytes, bool whole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBack(Block* block);
  void Dissolve(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees kept blocks until `bytes` more fit under the cap.
  bool MakeWay(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropEmptySegments(uint64_t until_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropKept();
  void StopKeeping();

  const ArenaOptions options_;
  std::shared_ptr<SegmentWatcher> watcher_;
  std::atomic<int> awaited_{0};
  std::atomic<uint64_t> dropped_{0};

  mutable Mutex mu_;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Segment>> segments_ ABSL_GUARDED_BY(mu_);
  // By class; kept, to be lent again.
  std::vector<std::vector<Block*>> ready_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> class_used_ ABSL_GUARDED_BY(mu_);  // Since the last Trim().
  absl::flat_hash_map<const void*, Block*> raw_ ABSL_GUARDED_BY(mu_);
  ArenaCounters counters_ ABSL_GUARDED_BY(mu_);
  Mutex kept_mu_;
  CondVar asked_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(kept_mu_);
  std::thread::id asker_ ABSL_GUARDED_BY(kept_mu_);  // Has them; no thread: they are in kept_.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_ARENA_ARENA_H_
