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

// Registered memory, as the table knows it. Owned by its SoftRegion.
struct SoftRegionRecord {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  int pins = 0;                   // Guarded by the table's lock, as is windows.
  std::vector<uint32_t> windows;  // Remote keys bound over it.
};

// All keys of a Nic, and what they open. Any thread.
class SoftRegionTable {
 public:
  explicit SoftRegionTable(std::function<void(absl::Span<uint8_t>)> random);

  // Gives `record` its keys: random, never 0, and none that was in use lately.
  void Add(SoftRegionRecord* record);
  // Waits for the pins, each of which lasts at most for one system call or copy. When
  // it has returned no key of the region or of its windows opens anything.
  void Remove(SoftRegionRecord* record);

  // Gives it another remote key. Waits for the pins, too, and then the former opens nothing.
  void Renew(SoftRegionRecord* record);

  // Whether [address, address + bytes) may be read, or also written, locally.
  bool LocalRangeAllowed(uint32_t local_key, uint64_t address, uint64_t bytes, bool to_write) const;

  // Keeps the region from being removed until Unpin(), if `queue_pair` may do `access`
  // to all of [address, address + bytes); null if not.
  SoftRegionRecord* PinRemote(uint32_t remote_key, uint32_t queue_pair, uint64_t address,
                              uint64_t bytes, uint32_t access);
  void Unpin(SoftRegionRecord* record);

  // A key that nothing has yet.
  uint32_t NewKey() ABSL_LOCKS_EXCLUDED(mu_);
  // False unless the region may be bound over and has all of the range and of `access`.
  bool BindWindow(uint32_t window_key, uint32_t queue_pair, uint32_t region_local_key,
                  uint64_t address, uint64_t bytes, uint32_t access);
  bool IsWindowBound(uint32_t window_key) const;
  // False if the key opens no window.
  bool UnbindWindow(uint32_t window_key);

 private:
  struct Grant {
    SoftRegionRecord* region = nullptr;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t access = 0;
    uint32_t queue_pair = 0;  // 0: any.
    bool window = false;
  };

  void OpenTo(SoftRegionRecord* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t DrawKey() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Retire(uint32_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<void(absl::Span<uint8_t>)> random_;
  mutable Mutex mu_;
  CondVar unpinned_;
  absl::flat_hash_map<uint32_t, SoftRegionRecord*> local_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, Grant> remote_ ABSL_GUARDED_BY(mu_);
  // Keys in use, given out for a window, or retired lately.
  absl::flat_hash_set<uint32_t> taken_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> retired_ ABSL_GUARDED_BY(mu_);  // A ring, once it is full.
  size_t oldest_retired_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> drawn_ ABSL_GUARDED_BY(mu_);  // Random numbers not used yet.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_REGION_TABLE_H_
