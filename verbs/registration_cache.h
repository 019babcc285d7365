#ifndef TRYST_VERBS_REGISTRATION_CACHE_H_
#define TRYST_VERBS_REGISTRATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "verbs/interval_tree.h"
#include "verbs/nic.h"

namespace tryst {

class RegistrationCache;

struct RegistrationCacheOptions {
  // Bounds of what is registered, in use or kept.
  uint64_t max_bytes = uint64_t{4} << 30;
  size_t max_regions = 4096;
};

struct RegistrationCacheCounters {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t evictions = 0;
  uint64_t invalidations = 0;  // Regions that Invalidate() forgot.
  uint64_t no_room = 0;
  uint64_t failures = 0;  // Failed registrations.
  // Two threads registered the same at once, and the later region was dropped.
  uint64_t raced = 0;
  // At present:
  uint64_t bytes = 0;
  uint64_t bytes_in_use = 0;
  size_t regions = 0;
  size_t regions_in_use = 0;
};

// A use of a cached region; the region lives as long as this. Empty: there was no room.
class Registration {
 public:
  Registration() = default;
  ~Registration() { Reset(); }
  Registration(Registration&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), entry_(other.entry_) {}
  Registration& operator=(Registration&& other) noexcept;
  explicit operator bool() const { return cache_ != nullptr; }
  // It contains what was asked for, and may be larger. REQUIRES: not empty.
  Region* region() const;
  void Reset();  // Ends the use. It may deregister, so do not call it on the data path's thread.

 private:
  friend class RegistrationCache;
  struct Entry;
  Registration(RegistrationCache* cache, Entry* entry) : cache_(cache), entry_(entry) {}
  RegistrationCache* cache_ = nullptr;
  Entry* entry_ = nullptr;
};

// Keeps callers' memory registered, because they tend to use it again. Entries are found by address
// range and access. Their total is bounded; the entry unused for longest is dropped first. A kept
// region outlives the memory under it, so call Invalidate() before you free memory that may have
// been registered.
//
// Thread-safe. The NIC is called without the lock, because a registration of large memory takes
// milliseconds, and other threads' hits must not wait for it.
class RegistrationCache {
 public:
  // `nic` outlives the cache.
  RegistrationCache(Nic* nic, const RegistrationCacheOptions& options);
  ~RegistrationCache();  // REQUIRES: nothing is in use.
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // A region that contains [address, address + bytes) with exactly the rights in `access`: a kept
  // one, or a new one for just that range. Empty: there is no room now, because regions in use fill
  // the bounds. Fails as RegisterRegion() does.
  absl::StatusOr<Registration> Take(void* address, uint64_t bytes, uint32_t access);

  // Forgets every region with a byte of [address, address + bytes): none is found again, and those
  // not in use are deregistered before it returns. Returns how many are still in use, or about to
  // be. They end with their last use; until then the memory may be accessed and must stay.
  size_t Invalidate(const void* address, uint64_t bytes);

  // Deregisters what is not in use.
  void Trim();

  RegistrationCacheCounters counters() const;

 private:
  friend class Registration;
  using Entry = Registration::Entry;
  using Tree = IntervalTree<Entry*>;
  using Regions = std::vector<std::unique_ptr<Region>>;  // To be destroyed without the lock.
  // A registration under way.
  struct Pending {
    uint64_t begin;
    uint64_t end;
    bool invalidated = false;
  };

  Entry* Find(uint64_t begin, uint64_t end, uint32_t access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Use(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reserves room, and evicts as needed. False: the regions in use leave none.
  bool Reserve(uint64_t bytes, Regions* evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unreserve(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictOldest(Regions* evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Erase(Entry* entry, Regions* evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::unique_ptr<Region>> Register(void* address, uint64_t bytes, uint32_t access);
  Entry* Keep(const Pending& pending, uint32_t access, std::unique_ptr<Region> region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Give(Entry* entry);

  // Constant after construction.
  Nic* const nic_;
  const RegistrationCacheOptions options_;

  mutable Mutex mu_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mu_);     // All entries.
  Tree tree_ ABSL_GUARDED_BY(mu_);                    // Those that can be found.
  std::list<Entry*> idle_ ABSL_GUARDED_BY(mu_);       // Not in use; the longest unused first.
  std::list<Entry*> forgotten_ ABSL_GUARDED_BY(mu_);  // In use, but no longer to be found.
  std::list<Pending> pending_ ABSL_GUARDED_BY(mu_);
  // `bytes` and `regions`, and the counts of those in use, include what is reserved for pending_.
  RegistrationCacheCounters counters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_VERBS_REGISTRATION_CACHE_H_
