#ifndef TRYST_SERVER_REGIONS_GRANT_TABLE_H_
#define TRYST_SERVER_REGIONS_GRANT_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "rendezvous/tensor_key.h"
#include "server/regions/granted_memory.h"
#include "server/regions/mapped_segments.h"

namespace tryst {

// The grants that a worker has of others, by the key of the region, and which of them are of no
// use. Thread-safe.
class GrantTable {
 public:
  // `uses`: whether this worker copies by grants at all.
  explicit GrantTable(bool uses) : uses_(uses) {}

  struct Found {
    std::shared_ptr<const GrantedMemory> memory;  // Null: it is asked as without grants,
    bool asks = false;                            // but first, for a grant, by this caller alone.
  };
  // Whoever is to ask calls Set() with what became of that. Without `at_first` the first call for a
  // region is not: a region of which much is fetched is often fetched once.
  Found Find(const TensorKey& region, bool at_first = true);
  void Set(const TensorKey& region, absl::StatusOr<std::shared_ptr<const GrantedMemory>> granted);
  // A copy by `memory` has failed, so it is not used again.
  void Failed(const TensorKey& region, const GrantedMemory* memory, const absl::Status& why);

  using Memories = std::vector<std::shared_ptr<const GrantedMemory>>;
  // Forgets regions that nobody has used since the last call, but for memory that is read by calls
  // of the kernel. What was mapped is so from now on: its pages would outlive their owner. The
  // caller drops the result, which may take long.
  [[nodiscard]] Memories Sweep();
  // Lets go of all of them, and takes no others.
  void Close();
  MappedSegments* segments() { return &segments_; }

  // Where a range of a region comes to, before the wanted bytes are taken out of it. There is one.
  class Room {
   public:
    static constexpr uint64_t kBytes = 256 << 10;
    explicit Room(GrantTable* table);
    ~Room();
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    uint8_t* data() const { return data_; }  // Null: another thread has it.

   private:
    GrantTable* const table_;
    uint8_t* data_ = nullptr;
  };

  void Count(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // That were copied.
  // A line for each owner; an empty `peer`: for all.
  std::string Explain(absl::string_view peer) const;

 private:
  // So many regions and owners are kept. Others are asked again.
  static constexpr size_t kMost = 4096;

  struct Known {
    std::shared_ptr<const GrantedMemory> memory;  // Null: it is being asked for, or is of no use,
    bool asked = true;                            // or nobody has asked.
    bool used = true;                             // Since the last sweep.
  };
  struct Owner {
    uint64_t incarnation = 0;
    bool gives_none = false;  // None that is of use.
    std::string why;
  };
  // What goes is moved to `gone`, which its caller drops without the lock.
  void SetLocked(const TensorKey& region, const absl::Status& status,
                 std::shared_ptr<const GrantedMemory> memory, Memories* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Add(const TensorKey& region, Known known, Memories* gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const bool uses_;
  MappedSegments segments_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> room_taken_{false};
  std::unique_ptr<uint8_t[]> room_;  // Whoever has taken it uses it.
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<TensorKey, Known> regions_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Owner, std::less<>> owners_ ABSL_GUARDED_BY(mu_);  // By name.
};

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_GRANT_TABLE_H_
