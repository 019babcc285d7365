#include "verbs/ofi/ofi_region_table.h"

#include "absl/status/status.h"

namespace tryst {

OfiRegionTable::Row* OfiRegionTable::RowAt(uint32_t index) const {
  Row* const chunk = chunks_[index >> kChunkBits].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &chunk[index & (kChunk - 1)];
}

absl::StatusOr<uint32_t> OfiRegionTable::Add(uint64_t address, uint64_t bytes, uint32_t access,
                                             void* descriptor) {
  MutexLock lock(&mu_);
  if (free_.empty()) {
    if (owned_.size() == kChunks) {
      return absl::ResourceExhaustedError(
          "one libfabric NIC cannot have more than a million memory regions");
    }
    const uint32_t chunk = static_cast<uint32_t>(owned_.size());
    owned_.push_back(std::make_unique<Row[]>(kChunk));
    chunks_[chunk].store(owned_.back().get(), std::memory_order_release);
    for (uint32_t i = kChunk; i > 0; --i) {
      free_.push_back((1u << kIndexBits) | ((chunk << kChunkBits) + i - 1));
    }
  }
  const uint32_t key = free_.back();
  free_.pop_back();
  Row* const row = RowAt(key & ((1u << kIndexBits) - 1));
  row->access.store(access, std::memory_order_relaxed);
  row->address.store(address, std::memory_order_relaxed);
  row->bytes.store(bytes, std::memory_order_relaxed);
  row->descriptor.store(descriptor, std::memory_order_relaxed);
  row->key.store(key, std::memory_order_release);
  return key;
}

void OfiRegionTable::Remove(uint32_t key) {
  MutexLock lock(&mu_);
  RowAt(key & ((1u << kIndexBits) - 1))->key.store(0, std::memory_order_release);
  uint32_t next = key + (1u << kIndexBits);
  if ((next >> kIndexBits) == 0) next |= 1u << kIndexBits;
  free_.push_back(next);
}

bool OfiRegionTable::Find(const Entry& entry, bool to_write, void** descriptor) const {
  const Row* const row = RowAt(entry.local_key & ((1u << kIndexBits) - 1));
  if (row == nullptr || row->key.load(std::memory_order_acquire) != entry.local_key) return false;
  const uint64_t address = row->address.load(std::memory_order_relaxed);
  const uint64_t bytes = row->bytes.load(std::memory_order_relaxed);
  if (entry.address < address || entry.bytes > bytes ||
      entry.address - address > bytes - entry.bytes) {
    return false;
  }
  constexpr uint32_t kWritable = kLocalWrite | kRemoteWrite;
  if (to_write && (row->access.load(std::memory_order_relaxed) & kWritable) == 0) return false;
  *descriptor = row->descriptor.load(std::memory_order_relaxed);
  return true;
}

}  // namespace tryst
