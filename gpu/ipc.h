#ifndef TRYST_GPU_IPC_H_
#define TRYST_GPU_IPC_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/gpu.h"

namespace tryst {

// Where memory of this process's GPU lies, for another process of the same host.
struct IpcReference {
  cuda::IpcHandle handle{};    // Of the allocation.
  uint64_t allocation_id = 0;  // Never used again in the exporting process.
  uint64_t offset = 0;         // Of the tensor in the allocation.
  uint64_t allocation_bytes = 0;
  cuda::Address allocation_at = 0;  // In the exporting process.
};

// Names memory for other processes. Handles are kept by allocation. One thread.
class IpcExporter {
 public:
  explicit IpcExporter(const Gpu* gpu) : gpu_(gpu) {}
  // kUnimplemented: the memory cannot be exported this way (virtual memory, a driver in a
  // container without it). kInternal: no device memory.
  absl::StatusOr<IpcReference> Export(cuda::Address address, uint64_t bytes);

 private:
  static constexpr size_t kMost = 4096;  // Then the cache begins anew.
  const Gpu* const gpu_;
  absl::flat_hash_map<uint64_t, IpcReference> by_allocation_;
};

// Maps other processes' memory, and keeps it mapped for the next time: opening takes
// long. Bounded; what was not used longest is unmapped first. One thread.
class IpcMappings {
 public:
  IpcMappings(const Gpu* gpu, size_t most_idle) : gpu_(gpu), most_idle_(most_idle) {}
  ~IpcMappings();  // REQUIRES: no reference is open.

  class Mapping {
   public:
    cuda::Address base() const { return base_; }

   private:
    friend class IpcMappings;
    std::string key_;
    cuda::Address base_ = 0;
    cuda::Address there_ = 0;  // In the exporting process, with its bytes.
    uint64_t bytes_ = 0;
    std::string exporter_;
    uint64_t id_ = 0;  // The allocation's.
    cuda::IpcHandle handle_{};
    int users_ = 0;
    std::list<Mapping*>::iterator idle_;
  };

  // The allocation's mapping, used until Close(). `exporter` is unique to the exporting
  // process. kUnavailable, kUnimplemented: it cannot be mapped here.
  absl::StatusOr<Mapping*> Open(const std::string& exporter, const IpcReference& reference);
  void Close(Mapping* mapping);
  // Unmaps what is idle of a process that is gone.
  void Forget(const std::string& exporter);
  size_t mapped() const { return mappings_.size(); }

 private:
  Mapping* Use(Mapping* mapping);
  void Unmap(Mapping* mapping);
  void UnmapFreed(const std::string& exporter, const IpcReference& anew);

  const Gpu* const gpu_;
  const size_t most_idle_;
  std::map<std::string, std::unique_ptr<Mapping>> mappings_;
  std::list<Mapping*> idle_;  // The longest idle first.
  Mapping* last_ = nullptr;   // Opened; asked for again, mostly.
};

}  // namespace tryst

#endif  // TRYST_GPU_IPC_H_
