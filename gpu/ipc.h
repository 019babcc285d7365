#ifndef TRYST_GPU_IPC_H_
#define TRYST_GPU_IPC_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/chunks.h"
#include "gpu/gpu.h"

namespace tryst {

// Where memory of this process's GPU lies; for another process of the same host.
struct IpcReference {
  cuda::IpcHandle handle{};    // The allocation's; memory in chunks has none.
  uint32_t chunks = 0;         // Not 0: virtual memory, whose chunks the reader must ask for.
  uint64_t allocation_id = 0;  // Never used again in the exporting process.
  uint64_t offset = 0;         // Where the tensor begins in the allocation, or in its chunks.
  uint64_t allocation_bytes = 0;
  cuda::Address allocation_at = 0;  // In the exporting process.
};

// Names memory for other processes. Handles are kept by allocation. One thread.
class IpcExporter {
 public:
  explicit IpcExporter(const Gpu* gpu) : gpu_(gpu), chunks_(gpu) {}
  // kUnimplemented: the memory cannot be exported; the message says why (a pool's, virtual memory
  // made without sharing, a driver in a container without IPC). kInternal: not device memory.
  absl::StatusOr<IpcReference> Export(cuda::Address address, uint64_t bytes);
  // Exports the chunks of virtual memory.
  ChunkExporter* chunks() { return &chunks_; }
  // Memory of ours was, or is about to be, given back to the driver. Forgets all handles. A peer
  // that sees the new count unmaps what it keeps of our memory.
  void Forget();
  // How often any exporter of this process has called Forget().
  static uint64_t forgotten();

 private:
  static constexpr size_t kMost = 4096;  // More handles, and the cache begins anew.
  absl::StatusOr<bool> Remember(uint64_t id, cuda::Address base, uint64_t bytes);
  absl::StatusOr<IpcReference> ExportChunks(uint64_t id, cuda::Address address, uint64_t bytes);

  const Gpu* const gpu_;
  ChunkExporter chunks_;
  absl::flat_hash_map<uint64_t, IpcReference> by_allocation_;
  absl::flat_hash_set<uint64_t> virtual_;  // Allocations that have chunks in place of a handle.
};

// Maps other processes' memory, and keeps it mapped for the next use, because mapping takes long.
// Bounded: the mapping idle for longest is unmapped first. One thread.
class IpcMappings {
 public:
  // This many idle windows on chunks are kept for each kept mapping. Tensors that begin or end in
  // different chunks need a window each, but the windows share the memory.
  static constexpr size_t kWindowsPerMapping = 16;

  IpcMappings(const Gpu* gpu, size_t most_idle) : gpu_(gpu), most_idle_(most_idle), imports_(gpu) {}
  ~IpcMappings();  // REQUIRES: no reference is open.

  class Mapping {
   public:
    cuda::Address base() const { return base_; }

   private:
    friend class IpcMappings;
    bool is_window() const { return window_ != nullptr; }
    std::string key_;
    std::unique_ptr<ChunkImports::Window> window_;  // Null: one allocation.
    cuda::Address base_ = 0;
    cuda::Address there_ = 0;  // In the exporting process, with its bytes.
    uint64_t bytes_ = 0;
    uint64_t mapped_bytes_ = 0;  // From base_ on, as the driver says; not of a window.
    std::string exporter_;
    uint64_t id_ = 0;  // The allocation's.
    cuda::IpcHandle handle_{};
    int users_ = 0;
    std::list<Mapping*>::iterator idle_;
  };

  // The allocation's mapping, used until Close(). `exporter` is unique to the exporting
  // process. kUnavailable, kUnimplemented: it cannot be mapped here. kDataLoss: it is smaller than
  // the reference says, and a copy that believed that would end our context.
  absl::StatusOr<Mapping*> Open(const std::string& exporter, const IpcReference& reference);
  // Like Open(), for chunks that are mapped already; null: the caller must ask for them.
  Mapping* FindChunks(const std::string& exporter, const IpcReference& reference);
  // Maps what the exporter has handed on. kDataLoss: it is not what the reference says.
  absl::StatusOr<Mapping*> OpenChunks(const std::string& exporter, const IpcReference& reference,
                                      absl::Span<const OfferedChunk> chunks);
  void Close(Mapping* mapping);
  // Unmaps the idle memory of a process that has ended or has freed memory.
  void Forget(const std::string& exporter);
  // Unmaps all idle memory; returns how many mappings that were.
  size_t ForgetAll();
  size_t mapped() const { return mappings_.size(); }

 private:
  static absl::Status CheckInside(const Mapping& mapping, const IpcReference& reference);
  absl::Status MapAllocation(const std::string& exporter, const IpcReference& reference,
                             Mapping* mapping);
  Mapping* Use(Mapping* mapping);
  Mapping* Keep(std::unique_ptr<Mapping> made, const std::string& exporter,
                const IpcReference& reference);
  void Unmap(Mapping* mapping);
  void UnmapFreed(const std::string& exporter, const IpcReference& anew,
                  absl::Span<const OfferedChunk> chunks);
  std::list<Mapping*>& IdleOf(const Mapping& mapping) {
    return mapping.is_window() ? idle_windows_ : idle_;
  }

  const Gpu* const gpu_;
  const size_t most_idle_;
  ChunkImports imports_;
  std::map<std::string, std::unique_ptr<Mapping>> mappings_;
  std::list<Mapping*> idle_;          // Allocations; the longest idle first.
  std::list<Mapping*> idle_windows_;  // Ditto.
  Mapping* last_ = nullptr;           // The mapping opened last; often the next one, too.
};

}  // namespace tryst

#endif  // TRYST_GPU_IPC_H_
