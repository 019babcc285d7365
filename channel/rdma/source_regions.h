#ifndef TRYST_CHANNEL_RDMA_SOURCE_REGIONS_H_
#define TRYST_CHANNEL_RDMA_SOURCE_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "rendezvous/tensor.h"
#include "verbs/nic.h"

namespace tryst {

class SourceRegions;

// A use of registered memory that a NIC sends from. The region lives as long as this. REQUIRES: it
// ends before the last reference to the tensor.
class SourceRegion {
 public:
  SourceRegion() = default;
  ~SourceRegion() { Reset(); }
  SourceRegion(SourceRegion&& other) noexcept
      : note_(std::exchange(other.note_, nullptr)),
        own_(std::move(other.own_)),
        address_(other.address_),
        local_key_(other.local_key_) {}
  SourceRegion& operator=(SourceRegion&& other) noexcept;
  explicit operator bool() const { return note_ != nullptr || own_ != nullptr; }
  uint64_t address() const { return address_; }  // Where the tensor begins, as a work names it.
  uint32_t local_key() const { return local_key_; }
  void Reset();

 private:
  friend class SourceRegions;
  class Note;
  Note* note_ = nullptr;         // The note with the storage's region,
  std::unique_ptr<Region> own_;  // or a region registered for this use alone.
  uint64_t address_ = 0;
  uint32_t local_key_ = 0;
};

struct SourceRegionsCounters {
  uint64_t found = 0;       // Uses that needed no registration.
  uint64_t kept_ever = 0;   // Registrations that stay with their storage.
  uint64_t single_use = 0;  // Registrations for one use.
  uint64_t evictions = 0;
  uint64_t kept_bytes = 0;  // At present.
  size_t kept_regions = 0;
};

// The registrations of memory that one NIC sends from. A storage is registered whole when it is
// first sent from. The registration stays with it, every tensor that shares the storage finds it,
// and it ends before the bytes are released (StorageNote). So a region never covers memory that
// belongs to somebody else.
//
// Bounded: those not sent from for longest are evicted. If the bounds leave no room, or the NIC
// refuses, only the bytes of this one use are registered.
//
// Poller thread only, except that storages may end on any thread. Finding a registration takes no
// lock.
class SourceRegions {
 public:
  // `nic` outlives it.
  SourceRegions(Nic* nic, uint64_t max_bytes, size_t max_regions);
  ~SourceRegions();  // REQUIRES: nothing is in use. Storages may live on.
  SourceRegions(const SourceRegions&) = delete;
  SourceRegions& operator=(const SourceRegions&) = delete;

  // REQUIRES: not a string tensor. Fails as RegisterRegion() does.
  absl::StatusOr<SourceRegion> Use(const Tensor& tensor);
  // Registers the bytes for one use.
  absl::StatusOr<SourceRegion> UseOnce(const void* from, uint64_t bytes);

  SourceRegionsCounters counters() const;

 private:
  friend class SourceRegion;
  using Note = SourceRegion::Note;
  struct Book;

  absl::StatusOr<std::unique_ptr<Region>> Register(const MemorySpace& space, void* from,
                                                   uint64_t bytes);
  Note* Keep(Storage* storage);
  absl::StatusOr<SourceRegion> UseAlone(const MemorySpace& space, void* from, uint64_t bytes);

  Nic* const nic_;
  const uint64_t max_bytes_;
  const size_t max_regions_;
  const std::shared_ptr<Book> book_;  // Shared with the notes, which may outlive this.
  uint64_t found_ = 0;
  uint64_t single_use_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SOURCE_REGIONS_H_
