#ifndef TRYST_VERBS_REGION_POOL_H_
#define TRYST_VERBS_REGION_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "verbs/nic.h"

namespace tryst {

// What a pool is sized for: each use by name, so that its bounds are a sum which can be
// read. Uses with chunks of one size share them.
struct RegionPoolUse {
  std::string name;
  uint64_t chunk_bytes = 0;
  size_t chunks = 0;
};

// Told when chunks change hands, by the thread that does it and with no lock held: for
// checkers that watch memory.
class RegionPoolWatcher {
 public:
  virtual ~RegionPoolWatcher() = default;
  virtual void OnTake(void* data, uint64_t bytes) = 0;
  virtual void OnGive(void* data, uint64_t bytes) = 0;
};

struct RegionPoolOptions {
  std::vector<RegionPoolUse> uses;
  uint32_t access = kRemoteWrite;
  uint64_t alignment_bytes = 64;         // Of every chunk; a power of two, 4096 at most.
  uint64_t max_bytes = 1u << 30;         // Of all chunks together.
  RegionPoolWatcher* watcher = nullptr;  // Outlives the last chunk.
};

struct RegionPoolClass {
  uint64_t chunk_bytes = 0;  // As aligned.
  size_t chunks = 0;
  size_t taken = 0;
  size_t taken_max = 0;  // The most there ever were.
  uint64_t takes = 0;    // Ever.
  uint64_t no_room = 0;  // Takes that found none.
};

class RegionPool;

// Memory on loan, given back when this is destroyed, from any thread. The memory, not
// its registration, outlives the pool if it must: a delivered tensor may own it for long.
class RegionChunk {
 public:
  RegionChunk() = default;
  ~RegionChunk() { Reset(); }
  RegionChunk(RegionChunk&& other) noexcept;
  RegionChunk& operator=(RegionChunk&& other) noexcept;
  explicit operator bool() const { return data_ != nullptr; }
  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }  // Of the chunk: what was asked for, or more.
  void Reset();

 private:
  friend class RegionPool;
  class Arena;
  std::shared_ptr<Arena> arena_;
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
  size_t class_index_ = 0;
};

// Memory pinned and registered once, lent out in chunks of a few sizes. Nothing
// registers and nothing allocates when a chunk is taken or given, in O(1). Any thread.
//
// In builds without NDEBUG a chunk that is not on loan is filled with kPoison, and
// AddressSanitizer refuses access to it.
class RegionPool {
 public:
  static constexpr uint8_t kPoison = 0xDB;

  // `nic` outlives the pool. kInvalidArgument when the uses do not add up, with the
  // sum; otherwise fails as RegisterRegion() does.
  static absl::StatusOr<std::unique_ptr<RegionPool>> Create(Nic* nic,
                                                            const RegionPoolOptions& options);
  // Deregisters. REQUIRES: no work of ours names its memory.
  ~RegionPool();
  RegionPool(const RegionPool&) = delete;
  RegionPool& operator=(const RegionPool&) = delete;

  // A chunk of the smallest size that holds `bytes`; empty: no room now, wait in line.
  // Larger ones are not lent instead: they were promised to other uses.
  // REQUIRES: bytes <= max_chunk_bytes().
  RegionChunk Take(uint64_t bytes);

  uint64_t max_chunk_bytes() const;
  const Region& region() const { return *region_; }  // All chunks lie in it.
  std::vector<RegionPoolClass> Classes() const;      // The smallest first.
  size_t taken() const;                              // Chunks on loan.

 private:
  using Arena = RegionChunk::Arena;
  RegionPool(std::shared_ptr<Arena> arena, std::unique_ptr<Region> region);

  const std::shared_ptr<Arena> arena_;
  const std::unique_ptr<Region> region_;
};

// "4 KiB x (acks 8 + eager 64) + ... = 1234 B", for people.
std::string DescribeUses(const std::vector<RegionPoolUse>& uses);

}  // namespace tryst

#endif  // TRYST_VERBS_REGION_POOL_H_
