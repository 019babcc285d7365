#include "plugins/nccl/memory.h"

#include <algorithm>
#include <utility>

namespace tryst::nccl {
namespace {

// Flushing device memory needs READ (flusher.h).
uint32_t AccessTo(bool on_device) {
  return kLocalWrite | kRemoteWrite | kRelaxedOrdering | (on_device ? uint32_t{kRemoteRead} : 0);
}

}  // namespace

RegisteredMemory::RegisteredMemory(const void* data, uint64_t bytes, bool on_device)
    : begin_(reinterpret_cast<uint64_t>(data)), end_(begin_ + bytes), on_device_(on_device) {}

RegisteredMemory::~RegisteredMemory() {
  cached_.clear();
  for (RegistrationCache* cache : caches_) cache->Trim();
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RegisteredMemory::Register(
    const std::vector<Rail*>& rails, void* data, uint64_t bytes, bool on_device) {
  bytes = std::max<uint64_t>(bytes, 1);
  std::unique_ptr<RegisteredMemory> out(new RegisteredMemory(data, bytes, on_device));
  for (Rail* rail : rails) {
    absl::StatusOr<Registration> taken = rail->cache->Take(data, bytes, AccessTo(on_device));
    if (!taken.ok()) return taken.status();
    out->caches_.push_back(rail->cache.get());
    out->regions_.push_back(taken->region());
    out->cached_.push_back(*std::move(taken));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RegisteredMemory::RegisterDmaBuf(
    const std::vector<Rail*>& rails, void* data, uint64_t bytes, uint64_t offset, int fd) {
  std::unique_ptr<RegisteredMemory> out(new RegisteredMemory(data, bytes, /*on_device=*/true));
  for (Rail* rail : rails) {
    absl::StatusOr<std::unique_ptr<Region>> region = rail->nic->RegisterDmaBuf(
        fd, offset, bytes, reinterpret_cast<uint64_t>(data), AccessTo(/*on_device=*/true));
    if (!region.ok()) return region.status();
    out->regions_.push_back(region->get());
    out->own_.push_back(*std::move(region));
  }
  return out;
}

}  // namespace tryst::nccl
