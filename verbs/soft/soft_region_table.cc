#include "verbs/soft/soft_region_table.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tryst {
namespace {

// Few enough to be small, and reached soon, so that the table does not grow for long.
constexpr size_t kRetiredKeysKept = 1 << 12;
// One system call brings the random bytes for this many keys.
constexpr size_t kKeysPerDraw = 64;

bool Contains(uint64_t address, uint64_t bytes, uint64_t inner, uint64_t inner_bytes) {
  return inner >= address && inner_bytes <= bytes && inner - address <= bytes - inner_bytes;
}

}  // namespace

SoftRegionTable::SoftRegionTable(std::function<void(absl::Span<uint8_t>)> random)
    : random_(std::move(random)), retired_(kRetiredKeysKept) {
  taken_.reserve(2 * kRetiredKeysKept);
}

uint32_t SoftRegionTable::DrawKey() {
  for (;;) {
    if (drawn_.empty()) {
      drawn_.resize(kKeysPerDraw);
      random_(absl::MakeSpan(reinterpret_cast<uint8_t*>(drawn_.data()),
                             drawn_.size() * sizeof(uint32_t)));
    }
    const uint32_t key = drawn_.back();
    drawn_.pop_back();
    if (key != 0 && taken_.insert(key).second) return key;
  }
}

void SoftRegionTable::Add(SoftRegionRecord* record) {
  MutexLock lock(&mu_);
  record->local_key = DrawKey();
  record->remote_key = DrawKey();
  local_[record->local_key] = record;
  remote_[record->remote_key] = record;
}

void SoftRegionTable::Renew(SoftRegionRecord* record) {
  MutexLock lock(&mu_);
  remote_.erase(record->remote_key);
  Retire(record->remote_key);
  record->remote_key = DrawKey();
  remote_[record->remote_key] = record;
  // The peer does not know the new key yet, so every pin was made with the old one.
  while (record->pins > 0) unpinned_.Wait(&mu_);
}

void SoftRegionTable::Remove(SoftRegionRecord* record) {
  MutexLock lock(&mu_);
  local_.erase(record->local_key);
  remote_.erase(record->remote_key);
  Retire(record->local_key);
  Retire(record->remote_key);
  while (record->pins > 0) unpinned_.Wait(&mu_);
}

bool SoftRegionTable::LocalRangeAllowed(uint32_t local_key, uint64_t address, uint64_t bytes,
                                        bool to_write) const {
  MutexLock lock(&mu_);
  const auto found = local_.find(local_key);
  if (found == local_.end()) return false;
  const SoftRegionRecord& region = *found->second;
  if (to_write && (region.access & (kLocalWrite | kRemoteWrite)) == 0) return false;
  return Contains(region.address, region.bytes, address, bytes);
}

SoftRegionRecord* SoftRegionTable::PinRemote(uint32_t remote_key, uint64_t address, uint64_t bytes,
                                             uint32_t access) {
  MutexLock lock(&mu_);
  const auto found = remote_.find(remote_key);
  if (found == remote_.end()) return nullptr;
  SoftRegionRecord* const region = found->second;
  if ((region->access & access) != access) return nullptr;
  if (!Contains(region->address, region->bytes, address, bytes)) return nullptr;
  ++region->pins;
  return region;
}

void SoftRegionTable::Unpin(SoftRegionRecord* record) {
  MutexLock lock(&mu_);
  TRYST_CHECK(record->pins > 0);
  // After the lock is released the record may be gone.
  if (--record->pins == 0) unpinned_.NotifyAll();
}

void SoftRegionTable::Retire(uint32_t key) {
  taken_.erase(retired_[oldest_retired_]);
  retired_[oldest_retired_] = key;
  oldest_retired_ = (oldest_retired_ + 1) % kRetiredKeysKept;
}

}  // namespace tryst
