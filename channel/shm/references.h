#ifndef TRYST_CHANNEL_SHM_REFERENCES_H_
#define TRYST_CHANNEL_SHM_REFERENCES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/fork_count.h"
#include "channel/arena/arena.h"
#include "channel/arena/shared_memory.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/wire.h"
#include "rendezvous/tensor.h"

// Tensors that two processes share by reference: the producer's list of what a consumer holds, and
// the consumer's views.
namespace tryst {

// The producer's side of a link's memory and socket, and the blocks that the consumer refers to.
// Used by one thread at a time. It outlives its channel while the consumer holds anything, because
// a block must not be reused while it is read.
class GivenReferences {
 public:
  GivenReferences(std::shared_ptr<LocalSocket> socket, std::shared_ptr<SharedMemory> memory,
                  const shm_wire::LinkSizes& sizes);

  // This many references are reserved for parts of tensors, which always come back soon.
  static constexpr uint32_t kForParts = 4;
  bool HasFree(bool for_part) const { return free_.size() > (for_part ? 0 : kForParts); }
  // Keeps `storage` until the consumer returns the reference. `charge` is added to charged_bytes().
  // REQUIRES: HasFree().
  void Give(StorageRef storage, uint64_t charge, uint16_t* reference, uint16_t* generation);
  // Like Give(), for a part of a tensor in memory of the link that nobody else uses afterwards.
  void GivePart(StorageRef storage, uint16_t* reference, uint16_t* generation);
  bool given(uint16_t reference, uint16_t generation) const {
    return entries_[reference].storage && entries_[reference].generation == generation;
  }

  // Releases what the consumer has returned; returns how many. kDataLoss: it returned something
  // that it does not hold.
  absl::StatusOr<int> TakeReturned();
  // Whether there are any; costs one load. AsleepFlag says why its order is what it is.
  bool HasReturned() const {
    const uint64_t word =
        view_.releases[next_return_ & (sizes_.references - 1)].load(std::memory_order_seq_cst);
    return static_cast<uint32_t>(word >> 32) == next_return_ + 1;
  }
  // The consumer is gone, so everything is released.
  void DropAll();
  // The link is over, and nothing is given any more. What is read of its own memory now is of no
  // use, but it does no harm.
  void DropParts();
  size_t held() const { return sizes_.references - free_.size(); }
  uint64_t charged_bytes() const { return charged_bytes_; }
  // For Arena::KeepWhile(): whether nothing is held any more. Reads a few packets of the socket, to
  // see whether the consumer has gone.
  bool Over();

  const shm_wire::LinkView& view() const { return view_; }
  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

 private:
  struct Entry {
    StorageRef storage;
    uint64_t charge = 0;
    uint16_t generation = 0;
    bool is_part = false;
    bool was_dropped = false;  // By DropParts(), and not returned since.
  };
  void TakeBack(uint16_t reference);
  bool WasDropped(uint16_t reference, uint16_t generation);

  const std::shared_ptr<LocalSocket> socket_;
  const std::shared_ptr<SharedMemory> memory_;
  const shm_wire::LinkSizes sizes_;
  const shm_wire::LinkView view_;
  const uint16_t nothing_;      // Stands for every reference that does not exist. Never given.
  std::vector<Entry> entries_;  // Also of nothing_, which is the last.
  std::vector<uint16_t> free_;
  uint32_t next_return_ = 0;
  uint64_t charged_bytes_ = 0;
};

// The consumer's side: the link's memory, the producer's segments, mapped for reading, and a view
// for each tensor that was delivered by reference. Every view holds a reference to this object, so
// the bytes stay readable while anything refers to them, whatever becomes of the producer.
class HeldReferences {
 public:
  // `watcher` may be null.
  HeldReferences(std::shared_ptr<LocalSocket> socket, std::unique_ptr<SharedMemory> memory,
                 const shm_wire::LinkSizes& sizes,
                 std::shared_ptr<SegmentWatcher> watcher = nullptr);
  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref();

  // ---- Poller thread only ---- Adds a segment, which comes over the socket. That its old index is
  // free is told in the ring. Either may come first; the segment waits for both.
  absl::Status AddSegment(const shm_wire::Packet& packet, OwnedFd fd);
  absl::Status DropSegment(uint32_t index);
  // A storage for what lies there. kDataLoss: it is outside its segment, or is held already.
  absl::StatusOr<StorageRef> View(const shm_wire::Placed& placed, uint64_t bytes);
  bool has_segment(uint32_t index) const {
    return index < segments_.size() && segments_[index] != nullptr;
  }
  uint64_t mapped_bytes() const { return mapped_bytes_; }

  // ---- Any thread ----
  // Whether anybody but the link refers to it.
  bool has_views() const { return refs_.load(std::memory_order_relaxed) > 1; }
  const shm_wire::LinkView& view() const { return view_; }
  LocalSocket* socket() const { return socket_.get(); }

 private:
  class Held;
  struct Segment {
    ~Segment() {
      if (watcher != nullptr) watcher->OnUnmapping(memory->data());
    }
    std::unique_ptr<SharedMemory> memory;
    std::shared_ptr<SegmentWatcher> watcher;
    uint64_t id = 0;
    std::atomic<uint32_t> views{0};
  };
  ~HeldReferences() = default;
  void Return(uint16_t reference, uint16_t generation, uint64_t bytes);

  const int forks_ = ForkCount();
  const std::shared_ptr<LocalSocket> socket_;
  const std::unique_ptr<SharedMemory> memory_;
  const shm_wire::LinkSizes sizes_;
  const shm_wire::LinkView view_;
  const std::shared_ptr<SegmentWatcher> watcher_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::pair<shm_wire::Packet, OwnedFd>> early_;  // Their indices are still in use.
  uint64_t mapped_bytes_ = 0;
  std::unique_ptr<uint8_t[]> room_;              // For one Held for each reference.
  std::unique_ptr<std::atomic<bool>[]> in_use_;  // By reference.
  std::atomic<uint32_t> unannounced_{0};         // Returned since the producer was last woken.
  std::atomic<uint64_t> refs_{1};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_REFERENCES_H_
