#include "verbs/registration_cache.h"

#include "absl/status/status.h"
#include "base/log.h"

namespace tryst {

struct Registration::Entry {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t access = 0;
  uint64_t users = 0;
  std::unique_ptr<Region> region;
  // Null: it was forgotten, and goes with its last use.
  IntervalTree<Entry*>::Node* node = nullptr;
  std::list<Entry*>::iterator place;  // In idle_ or forgotten_, if it is in either.
  std::list<Entry>::iterator self;
};

Registration& Registration::operator=(Registration&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  cache_ = std::exchange(other.cache_, nullptr);
  entry_ = other.entry_;
  return *this;
}

Region* Registration::region() const { return entry_->region.get(); }

void Registration::Reset() {
  if (cache_ != nullptr) std::exchange(cache_, nullptr)->Give(entry_);
}

RegistrationCache::RegistrationCache(Nic* nic, const RegistrationCacheOptions& options)
    : nic_(nic), options_(options) {}

RegistrationCache::~RegistrationCache() {
  Trim();
  MutexLock lock(&mu_);
  TRYST_CHECK(entries_.empty() && pending_.empty()) << entries_.size() << " regions in use";
}

RegistrationCache::Entry* RegistrationCache::Find(uint64_t begin, uint64_t end, uint32_t access) {
  const Tree::Node* const node = tree_.FindContaining(
      begin, end, [access](const Entry* entry) { return entry->access == access; });
  return node == nullptr ? nullptr : node->value;
}

void RegistrationCache::Use(Entry* entry) {
  if (entry->users++ > 0) return;
  idle_.erase(entry->place);
  counters_.bytes_in_use += entry->end - entry->begin;
  ++counters_.regions_in_use;
}

bool RegistrationCache::Reserve(uint64_t bytes, Regions* evicted) {
  if (bytes > options_.max_bytes || counters_.bytes_in_use > options_.max_bytes - bytes ||
      counters_.regions_in_use >= options_.max_regions) {
    return false;
  }
  while (counters_.bytes > options_.max_bytes - bytes ||
         counters_.regions >= options_.max_regions) {
    EvictOldest(evicted);
  }
  counters_.bytes += bytes;
  counters_.bytes_in_use += bytes;
  ++counters_.regions;
  ++counters_.regions_in_use;
  return true;
}

void RegistrationCache::Unreserve(uint64_t bytes) {
  counters_.bytes -= bytes;
  counters_.bytes_in_use -= bytes;
  --counters_.regions;
  --counters_.regions_in_use;
}

void RegistrationCache::EvictOldest(Regions* evicted) {
  TRYST_CHECK(!idle_.empty());
  ++counters_.evictions;
  Erase(idle_.front(), evicted);
}

void RegistrationCache::Erase(Entry* entry, Regions* evicted) {
  if (entry->node != nullptr) tree_.Remove(entry->node);
  idle_.erase(entry->place);
  counters_.bytes -= entry->end - entry->begin;
  --counters_.regions;
  evicted->push_back(std::move(entry->region));
  entries_.erase(entry->self);
}

absl::StatusOr<std::unique_ptr<Region>> RegistrationCache::Register(void* address, uint64_t bytes,
                                                                    uint32_t access) {
  absl::StatusOr<std::unique_ptr<Region>> region = nic_->RegisterRegion(address, bytes, access);
  if (!absl::IsResourceExhausted(region.status())) return region;
  // The NIC's bound is lower than ours, so release what is merely kept.
  Trim();
  return nic_->RegisterRegion(address, bytes, access);
}

RegistrationCache::Entry* RegistrationCache::Keep(const Pending& pending, uint32_t access,
                                                  std::unique_ptr<Region> region) {
  entries_.emplace_back();
  Entry* const entry = &entries_.back();
  entry->self = std::prev(entries_.end());
  entry->begin = pending.begin;
  entry->end = pending.end;
  entry->access = access;
  entry->users = 1;
  entry->region = std::move(region);
  if (pending.invalidated) {
    entry->place = forgotten_.insert(forgotten_.end(), entry);
  } else {
    entry->node = tree_.Insert(entry->begin, entry->end, entry);
  }
  return entry;
}

absl::StatusOr<Registration> RegistrationCache::Take(void* address, uint64_t bytes,
                                                     uint32_t access) {
  const uint64_t begin = reinterpret_cast<uint64_t>(address);
  const uint64_t end = begin + bytes;
  if (address == nullptr || end <= begin) {
    return absl::InvalidArgumentError(
        "the memory to register is null, empty, or reaches beyond the end of the address space");
  }
  Regions evicted;
  std::list<Pending>::iterator pending;
  {
    MutexLock lock(&mu_);
    if (Entry* const entry = Find(begin, end, access)) {
      ++counters_.hits;
      Use(entry);
      return Registration(this, entry);
    }
    ++counters_.misses;
    if (!Reserve(bytes, &evicted)) {
      ++counters_.no_room;
      return Registration();
    }
    pending = pending_.insert(pending_.end(), {begin, end});
  }
  evicted.clear();
  absl::StatusOr<std::unique_ptr<Region>> region = Register(address, bytes, access);
  // Declared before the lock, so that it is destroyed after the lock is released.
  std::unique_ptr<Region> unwanted;
  MutexLock lock(&mu_);
  const Pending now = *pending;
  pending_.erase(pending);
  if (!region.ok()) {
    ++counters_.failures;
    Unreserve(bytes);
    return region.status();
  }
  if (Entry* const entry = Find(begin, end, access)) {
    ++counters_.raced;
    Unreserve(bytes);
    Use(entry);
    unwanted = *std::move(region);
    return Registration(this, entry);
  }
  return Registration(this, Keep(now, access, *std::move(region)));
}

void RegistrationCache::Give(Entry* entry) {
  Regions evicted;
  MutexLock lock(&mu_);
  if (--entry->users > 0) return;
  counters_.bytes_in_use -= entry->end - entry->begin;
  --counters_.regions_in_use;
  const bool forgotten = entry->node == nullptr;
  if (forgotten) forgotten_.erase(entry->place);
  entry->place = idle_.insert(idle_.end(), entry);
  if (forgotten) Erase(entry, &evicted);
}

size_t RegistrationCache::Invalidate(const void* address, uint64_t bytes) {
  const uint64_t begin = reinterpret_cast<uint64_t>(address);
  const uint64_t end = begin + bytes;
  Regions evicted;
  MutexLock lock(&mu_);
  std::vector<Entry*> found;
  tree_.ForEachOverlapping(begin, end,
                           [&found](const Tree::Node& node) { found.push_back(node.value); });
  counters_.invalidations += found.size();
  for (Entry* entry : found) {
    if (entry->users == 0) {
      Erase(entry, &evicted);
    } else {
      tree_.Remove(entry->node);
      entry->node = nullptr;
      entry->place = forgotten_.insert(forgotten_.end(), entry);
    }
  }
  // Includes those that an earlier call forgot.
  size_t in_use = 0;
  for (const Entry* entry : forgotten_) {
    if (entry->begin < end && entry->end > begin) ++in_use;
  }
  for (Pending& pending : pending_) {
    if (pending.begin >= end || pending.end <= begin) continue;
    pending.invalidated = true;
    ++in_use;
  }
  return in_use;
}

void RegistrationCache::Trim() {
  Regions evicted;
  MutexLock lock(&mu_);
  while (!idle_.empty()) EvictOldest(&evicted);
}

RegistrationCacheCounters RegistrationCache::counters() const {
  MutexLock lock(&mu_);
  return counters_;
}

}  // namespace tryst
