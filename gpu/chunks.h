#ifndef TRYST_GPU_CHUNKS_H_
#define TRYST_GPU_CHUNKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu/gpu.h"

// Memory of the driver's virtual memory management, as PyTorch's expandable segments use it: chunks
// of physical memory are mapped side by side into a range of addresses, and more may follow later.
// Such a range has no IPC handle, so each chunk is exported alone.
namespace tryst {

// The most chunks of one tensor; a tensor in more is not shared.
inline constexpr uint32_t kMostChunks = 4096;

// A chunk as the exporting process has mapped it.
struct MemoryChunk {
  uint64_t id = 0;  // Names this memory at this place; never used again in that process.
  uint64_t bytes = 0;
};
inline bool operator==(const MemoryChunk& a, const MemoryChunk& b) {
  return a.id == b.id && a.bytes == b.bytes;
}

// What another process needs to map a chunk: a descriptor, or the bytes of a fabric handle.
class ChunkHandle {
 public:
  ChunkHandle() = default;
  explicit ChunkHandle(int fd) : fd_(fd) {}  // Closed with it.
  explicit ChunkHandle(const cuda::FabricHandle& fabric) : is_fabric_(true), fabric_(fabric) {}
  ChunkHandle(ChunkHandle&& other) noexcept { *this = std::move(other); }
  ChunkHandle& operator=(ChunkHandle&& other) noexcept;
  ~ChunkHandle();
  int fd() const { return fd_; }  // -1: none.
  bool is_fabric() const { return is_fabric_; }
  const cuda::FabricHandle& fabric() const { return fabric_; }

 private:
  int fd_ = -1;
  bool is_fabric_ = false;
  cuda::FabricHandle fabric_{};
};

struct OfferedChunk {
  MemoryChunk chunk;
  ChunkHandle handle;
};

// The chunks that one tensor lies in.
struct ChunkLayout {
  uint64_t id = 0;         // Stays with these chunks at this place; never used for others.
  cuda::Address base = 0;  // The first chunk's.
  uint64_t bytes = 0;      // All of them together.
  std::vector<MemoryChunk> chunks;
};

// Describes virtual memory of this process, and exports its chunks. It remembers only names and
// keeps no memory alive, so every call asks the driver anew. One thread.
class ChunkExporter {
 public:
  explicit ChunkExporter(const Gpu* gpu);
  // Whether the driver says that `address` lies in virtual memory.
  bool IsVirtual(cuda::Address address);
  // The chunks in which [address, address + bytes) lies; valid until the next call. kUnimplemented:
  // the memory was made without a way to share it, or there are too many chunks.
  absl::StatusOr<const ChunkLayout*> Describe(cuda::Address address, uint64_t bytes);
  // The memory that is mapped at `base`.
  absl::StatusOr<ChunkHandle> Export(cuda::Address base) const;

 private:
  static constexpr size_t kMostNames = 1 << 16;
  // The driver's two numbers of a chunk, its address and its size. Memory that moved, or other
  // memory at the same address, differs in at least one of them.
  using Identity = std::tuple<uint64_t, uint64_t, cuda::Address, uint64_t>;

  absl::StatusOr<Identity> Look(cuda::Address address) const;
  absl::StatusOr<uint64_t> NameOf(const Identity& identity);
  absl::StatusOr<cuda::AllocationProperties> Properties(cuda::Address address) const;

  const Gpu* const gpu_;
  std::map<Identity, uint64_t> names_;
  std::map<std::vector<uint64_t>, uint64_t> layouts_;  // By their chunks' names.
  // The last name given to a chunk or layout. It begins at a random number, because peers may still
  // know memory by the names of an earlier exporter of this process.
  uint64_t last_name_;
  ChunkLayout answer_;
};

// Other processes' chunks, mapped side by side. A chunk that several windows show is held once. One
// thread.
class ChunkImports {
 public:
  explicit ChunkImports(const Gpu* gpu) : gpu_(gpu) {}
  ~ChunkImports();  // REQUIRES: every window is gone.
  ChunkImports(const ChunkImports&) = delete;
  ChunkImports& operator=(const ChunkImports&) = delete;

  class Window {
   public:
    ~Window();
    cuda::Address base() const { return base_; }
    const std::vector<MemoryChunk>& chunks() const { return chunks_; }

   private:
    friend class ChunkImports;
    Window(ChunkImports* owner, std::string exporter)
        : owner_(owner), exporter_(std::move(exporter)) {}
    ChunkImports* const owner_;
    const std::string exporter_;
    cuda::Address base_ = 0;
    uint64_t reserved_ = 0;
    uint64_t mapped_ = 0;
    std::vector<MemoryChunk> chunks_;  // Held; those up to mapped_ are mapped.
  };

  // `exporter` is unique to the exporting process, which is not trusted. kDataLoss: its description
  // is inconsistent. Otherwise the driver's error.
  absl::StatusOr<std::unique_ptr<Window>> Map(const std::string& exporter,
                                              absl::Span<const OfferedChunk> chunks);
  size_t held() const { return held_.size(); }

 private:
  struct Held {
    cuda::Allocation allocation = 0;
    uint64_t bytes = 0;
    int windows = 0;
  };
  using Key = std::pair<std::string, uint64_t>;

  absl::StatusOr<uint64_t> Granularity();
  absl::Status Hold(const std::string& exporter, const OfferedChunk& offered, Window* window);
  absl::Status MapAll(Window* window);
  void Unmap(Window* window);

  const Gpu* const gpu_;
  uint64_t granularity_ = 0;
  std::map<Key, Held> held_;
};

}  // namespace tryst

#endif  // TRYST_GPU_CHUNKS_H_
