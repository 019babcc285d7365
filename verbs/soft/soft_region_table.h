#ifndef TRYST_VERBS_SOFT_SOFT_REGION_TABLE_H_
#define TRYST_VERBS_SOFT_SOFT_REGION_TABLE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "verbs/nic.h"

namespace tryst {

// Registered memory, as the table knows it. Its SoftRegion owns it.
struct SoftRegionRecord {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  int pins = 0;  // Guarded by the table's lock.
};

// All keys of a Nic, and what they open. Thread-safe.
class SoftRegionTable {
 public:
  explicit SoftRegionTable(std::function<void(absl::Span<uint8_t>)> random);

  // Gives `record` its keys: random, never 0, and not used recently.
  void Add(SoftRegionRecord* record);
  // Waits for the pins, each of which lasts for one system call or copy at most. When it has
  // returned, no key of the region opens anything.
  void Remove(SoftRegionRecord* record);

  // Gives it another remote key. Waits for the pins, too; after that the old key opens nothing.
  void Renew(SoftRegionRecord* record);

  // Whether [address, address + bytes) may be read locally, and, if `to_write`, written.
  bool LocalRangeAllowed(uint32_t local_key, uint64_t address, uint64_t bytes, bool to_write) const;

  // If the key allows `access` to all of [address, address + bytes): pins the region, which then
  // cannot be removed until Unpin(). Null: it does not.
  SoftRegionRecord* PinRemote(uint32_t remote_key, uint64_t address, uint64_t bytes,
                              uint32_t access);
  void Unpin(SoftRegionRecord* record);

 private:
  uint32_t DrawKey() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Retire(uint32_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<void(absl::Span<uint8_t>)> random_;
  mutable Mutex mu_;
  CondVar unpinned_;
  absl::flat_hash_map<uint32_t, SoftRegionRecord*> local_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, SoftRegionRecord*> remote_ ABSL_GUARDED_BY(mu_);
  // Keys in use or retired recently.
  absl::flat_hash_set<uint32_t> taken_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> retired_ ABSL_GUARDED_BY(mu_);  // A ring; 0 is no key.
  size_t oldest_retired_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> drawn_ ABSL_GUARDED_BY(mu_);  // Random numbers that were not used yet.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_REGION_TABLE_H_
