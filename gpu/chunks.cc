#include "gpu/chunks.h"

#include <sys/random.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

ChunkHandle& ChunkHandle::operator=(ChunkHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(is_fabric_, other.is_fabric_);
  std::swap(fabric_, other.fabric_);
  return *this;
}

ChunkHandle::~ChunkHandle() {
  if (fd_ >= 0) close(fd_);
}

// ---- Out of this process ----

ChunkExporter::ChunkExporter(const Gpu* gpu) : gpu_(gpu) {
  TRYST_CHECK(getrandom(&last_name_, sizeof(last_name_), 0) == sizeof(last_name_));
  last_name_ >>= 1;  // Never comes round to 0.
}

bool ChunkExporter::IsVirtual(cuda::Address address) {
  cuda::Allocation allocation = 0;
  if (!gpu_->Use().ok() || gpu_->calls().cuMemRetainAllocationHandle(
                               &allocation, reinterpret_cast<void*>(address)) != cuda::kSuccess) {
    return false;
  }
  gpu_->calls().cuMemRelease(allocation);
  return true;
}

absl::StatusOr<ChunkExporter::Identity> ChunkExporter::Look(cuda::Address address) const {
  const CudaDriver& driver = gpu_->driver();
  const cuda::Calls& calls = gpu_->calls();
  uint64_t buffer = 0;
  absl::Status status =
      driver.Check("cuPointerGetAttribute",
                   calls.cuPointerGetAttribute(&buffer, cuda::kPointerBufferId, address));
  if (!status.ok()) return status;
  // The physical memory's number; an older driver does not know it.
  uint64_t block = 0;
  if (calls.cuPointerGetAttribute(&block, cuda::kPointerBlockId, address) != cuda::kSuccess) {
    block = 0;
  }
  cuda::Address base = 0;
  size_t bytes = 0;
  status =
      driver.Check("cuMemGetAddressRange", calls.cuMemGetAddressRange_v2(&base, &bytes, address));
  if (!status.ok()) return status;
  return Identity(buffer, block, base, bytes);
}

absl::StatusOr<cuda::AllocationProperties> ChunkExporter::Properties(cuda::Address address) const {
  cuda::Allocation allocation = 0;
  absl::Status status = gpu_->driver().Check(
      "cuMemRetainAllocationHandle",
      gpu_->calls().cuMemRetainAllocationHandle(&allocation, reinterpret_cast<void*>(address)));
  if (!status.ok()) return status;
  cuda::AllocationProperties properties{};
  status = gpu_->driver().Check(
      "cuMemGetAllocationPropertiesFromHandle",
      gpu_->calls().cuMemGetAllocationPropertiesFromHandle(&properties, allocation));
  gpu_->calls().cuMemRelease(allocation);
  if (!status.ok()) return status;
  return properties;
}

absl::StatusOr<uint64_t> ChunkExporter::NameOf(const Identity& identity) {
  auto found = names_.find(identity);
  if (found != names_.end()) return found->second;
  const cuda::Address base = std::get<2>(identity);
  auto properties = Properties(base);
  if (!properties.ok()) return absl::UnimplementedError(properties.status().message());
  if ((properties->handle_types & (cuda::kHandlePosixFd | cuda::kHandleFabric)) == 0) {
    return absl::UnimplementedError(
        "this GPU memory cannot be shared with other processes: make it (cuMemCreate) with a "
        "handle type that can be exported");
  }
  if (names_.size() >= kMostNames) names_.clear();
  return names_[identity] = ++last_name_;
}

absl::StatusOr<const ChunkLayout*> ChunkExporter::Describe(cuda::Address address, uint64_t bytes) {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  answer_.chunks.clear();
  answer_.bytes = 0;
  std::vector<uint64_t> names;
  cuda::Address at = address;
  const cuda::Address end = address + bytes;
  while (answer_.chunks.empty() || at < end) {
    if (answer_.chunks.size() >= kMostChunks) {
      return absl::UnimplementedError(absl::StrCat("the tensor in GPU memory lies in more than ",
                                                   kMostChunks, " pieces of memory (cuMemCreate)"));
    }
    auto identity = Look(at);
    if (!identity.ok()) return identity.status();
    const cuda::Address base = std::get<2>(*identity);
    const uint64_t its_bytes = std::get<3>(*identity);
    const bool follows = answer_.chunks.empty() ? base <= at : base == at;
    if (!follows || base + its_bytes <= at) {
      return absl::InternalError(
          "the pieces of GPU memory that a tensor lies in do not follow each other");
    }
    auto name = NameOf(*identity);
    if (!name.ok()) return name.status();
    if (answer_.chunks.empty()) answer_.base = base;
    answer_.chunks.push_back({*name, its_bytes});
    answer_.bytes += its_bytes;
    names.push_back(*name);
    at = base + its_bytes;
  }
  if (layouts_.size() >= kMostNames) layouts_.clear();
  uint64_t& id = layouts_[std::move(names)];
  if (id == 0) id = ++last_name_;
  answer_.id = id;
  return &answer_;
}

absl::StatusOr<ChunkHandle> ChunkExporter::Export(cuda::Address base) const {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  const CudaDriver& driver = gpu_->driver();
  const cuda::Calls& calls = gpu_->calls();
  cuda::Allocation allocation = 0;
  status =
      driver.Check("cuMemRetainAllocationHandle",
                   calls.cuMemRetainAllocationHandle(&allocation, reinterpret_cast<void*>(base)));
  if (!status.ok()) return status;
  int fd = -1;
  status =
      driver.Check("cuMemExportToShareableHandle",
                   calls.cuMemExportToShareableHandle(&fd, allocation, cuda::kHandlePosixFd, 0));
  cuda::FabricHandle fabric{};
  const bool by_fabric =
      !status.ok() && calls.cuMemExportToShareableHandle(&fabric, allocation, cuda::kHandleFabric,
                                                         0) == cuda::kSuccess;
  calls.cuMemRelease(allocation);
  if (by_fabric) return ChunkHandle(fabric);
  if (!status.ok()) return status;
  return ChunkHandle(fd);
}

// ---- Into this process ----

ChunkImports::~ChunkImports() {
  TRYST_CHECK(held_.empty()) << held_.size() << " chunks of a peer's memory are still mapped";
}

ChunkImports::Window::~Window() { owner_->Unmap(this); }

absl::StatusOr<uint64_t> ChunkImports::Granularity() {
  if (granularity_ != 0) return granularity_;
  cuda::AllocationProperties properties{};
  properties.type = cuda::kAllocationPinned;
  properties.handle_types = cuda::kHandlePosixFd;
  properties.location = {cuda::kLocationDevice, gpu_->ordinal()};
  size_t granularity = 0;
  const absl::Status status = gpu_->driver().Check(
      "cuMemGetAllocationGranularity", gpu_->calls().cuMemGetAllocationGranularity(
                                           &granularity, &properties, cuda::kGranularityMinimum));
  if (!status.ok()) return status;
  granularity_ = granularity;
  return granularity_;
}

absl::StatusOr<std::unique_ptr<ChunkImports::Window>> ChunkImports::Map(
    const std::string& exporter, absl::Span<const OfferedChunk> chunks) {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  auto granularity = Granularity();
  if (!granularity.ok()) return granularity.status();
  uint64_t bytes = 0;
  for (const OfferedChunk& offered : chunks) {
    const uint64_t more = offered.chunk.bytes;
    if (more == 0 || more % *granularity != 0 || bytes + more < bytes) {
      return absl::DataLossError(absl::StrCat(
          "a piece of ", more,
          " bytes of another process's GPU memory cannot be mapped: its size is malformed"));
    }
    bytes += more;
  }
  if (chunks.empty() || chunks.size() > kMostChunks) {
    return absl::DataLossError(absl::StrCat(
        chunks.size(), " pieces of another process's GPU memory cannot be mapped: from 1 to ",
        kMostChunks, " can"));
  }
  std::unique_ptr<Window> window(new Window(this, exporter));
  for (const OfferedChunk& offered : chunks) {
    status = Hold(exporter, offered, window.get());
    if (!status.ok()) return status;
  }
  window->reserved_ = bytes;
  status = MapAll(window.get());
  if (!status.ok()) return status;
  return window;
}

// What is held under the chunk's name already is the same memory.
absl::Status ChunkImports::Hold(const std::string& exporter, const OfferedChunk& offered,
                                Window* window) {
  const Key key(exporter, offered.chunk.id);
  auto found = held_.find(key);
  if (found == held_.end()) {
    Held held;
    held.bytes = offered.chunk.bytes;
    cuda::FabricHandle fabric = offered.handle.fabric();
    void* const handle = offered.handle.is_fabric()
                             ? static_cast<void*>(&fabric)
                             : reinterpret_cast<void*>(static_cast<intptr_t>(offered.handle.fd()));
    const absl::Status status = gpu_->driver().Check(
        "cuMemImportFromShareableHandle",
        gpu_->calls().cuMemImportFromShareableHandle(
            &held.allocation, handle,
            offered.handle.is_fabric() ? cuda::kHandleFabric : cuda::kHandlePosixFd));
    if (!status.ok()) return status;
    found = held_.emplace(key, held).first;
  }
  if (found->second.bytes != offered.chunk.bytes) {
    return absl::DataLossError(
        "the producer broke the protocol: it gave two pieces of GPU memory the same name");
  }
  ++found->second.windows;
  window->chunks_.push_back(offered.chunk);
  return absl::OkStatus();
}

absl::Status ChunkImports::MapAll(Window* window) {
  const CudaDriver& driver = gpu_->driver();
  const cuda::Calls& calls = gpu_->calls();
  absl::Status status = driver.Check(
      "cuMemAddressReserve", calls.cuMemAddressReserve(&window->base_, window->reserved_, 0, 0, 0));
  if (!status.ok()) return status;
  for (const MemoryChunk& chunk : window->chunks_) {
    const Held& held = held_.at(Key(window->exporter_, chunk.id));
    status = driver.Check("cuMemMap", calls.cuMemMap(window->base_ + window->mapped_, chunk.bytes,
                                                     0, held.allocation, 0));
    if (!status.ok()) return status;
    window->mapped_ += chunk.bytes;
  }
  const cuda::AccessDescription access{{cuda::kLocationDevice, gpu_->ordinal()},
                                       cuda::kAccessReadWrite};
  return driver.Check("cuMemSetAccess",
                      calls.cuMemSetAccess(window->base_, window->reserved_, &access, 1));
}

void ChunkImports::Unmap(Window* window) {
  const bool reachable = gpu_->Use().ok();
  const cuda::Calls& calls = gpu_->calls();
  uint64_t at = 0;
  for (const MemoryChunk& chunk : window->chunks_) {
    if (reachable && at < window->mapped_) calls.cuMemUnmap(window->base_ + at, chunk.bytes);
    at += chunk.bytes;
  }
  if (reachable && window->base_ != 0) calls.cuMemAddressFree(window->base_, window->reserved_);
  for (const MemoryChunk& chunk : window->chunks_) {
    auto held = held_.find(Key(window->exporter_, chunk.id));
    if (--held->second.windows > 0) continue;
    if (reachable) calls.cuMemRelease(held->second.allocation);
    held_.erase(held);
  }
}

}  // namespace tryst
