#include "gpu/device_memory.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr uint64_t kSmallestBlock = 64 << 10;

// An eighth of a power of two at most is wasted.
uint64_t BlockBytes(uint64_t bytes) {
  if (bytes <= kSmallestBlock) return kSmallestBlock;
  uint64_t step = kSmallestBlock / 8;
  while (step * 16 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

}  // namespace

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(virtual_, other.virtual_);
  std::swap(mapped_, other.mapped_);
  std::swap(allocation_, other.allocation_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (gpu_ == nullptr || !gpu_->Use().ok()) return;
  const cuda::Calls& calls = gpu_->calls();
  if (!virtual_) {
    if (address_ != 0) calls.cuMemFree_v2(address_);
    return;
  }
  if (mapped_) calls.cuMemUnmap(address_, bytes_);
  if (address_ != 0) calls.cuMemAddressFree(address_, bytes_);
  if (allocation_ != 0) calls.cuMemRelease(allocation_);
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(const Gpu* gpu, uint64_t bytes) {
  absl::Status status = gpu->Use();
  if (!status.ok()) return status;
  DeviceMemory memory;
  memory.gpu_ = gpu;
  memory.bytes_ = bytes;
  status = gpu->driver().Check("cuMemAlloc", gpu->calls().cuMemAlloc_v2(&memory.address_, bytes));
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(absl::StrCat("GPU ", gpu->ordinal(),
                                                     " is out of memory: it has no ", bytes,
                                                     " bytes left: ", status.message()));
  }
  if (!status.ok()) return status;
  return memory;
}

cuda::AllocationProperties DeviceMemory::Properties(const Gpu& gpu) {
  cuda::AllocationProperties properties{};
  properties.type = cuda::kAllocationPinned;
  properties.handle_types = cuda::kHandlePosixFd;
  properties.location = {cuda::kLocationDevice, gpu.ordinal()};
  properties.flags.gpu_direct_rdma = gpu.device().gpu_direct_rdma ? 1 : 0;
  return properties;
}

absl::Status DeviceMemory::Map() {
  const cuda::Calls& calls = gpu_->calls();
  const CudaDriver& driver = gpu_->driver();
  absl::Status status =
      driver.Check("cuMemAddressReserve", calls.cuMemAddressReserve(&address_, bytes_, 0, 0, 0));
  if (!status.ok()) return status;
  status = driver.Check("cuMemMap", calls.cuMemMap(address_, bytes_, 0, allocation_, 0));
  if (!status.ok()) return status;
  mapped_ = true;
  const cuda::AccessDescription access{{cuda::kLocationDevice, gpu_->ordinal()},
                                       cuda::kAccessReadWrite};
  return driver.Check("cuMemSetAccess", calls.cuMemSetAccess(address_, bytes_, &access, 1));
}

absl::StatusOr<DeviceMemory> DeviceMemory::AllocateShareable(const Gpu* gpu, uint64_t bytes) {
  if (!gpu->device().shareable_memory) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", gpu->ordinal(),
                     " cannot share its memory with other processes by a file descriptor"));
  }
  absl::Status status = gpu->Use();
  if (!status.ok()) return status;
  const cuda::AllocationProperties properties = Properties(*gpu);
  size_t granularity = 0;
  status = gpu->driver().Check("cuMemGetAllocationGranularity",
                               gpu->calls().cuMemGetAllocationGranularity(
                                   &granularity, &properties, cuda::kGranularityMinimum));
  if (!status.ok()) return status;
  DeviceMemory memory;
  memory.gpu_ = gpu;
  memory.virtual_ = true;
  memory.bytes_ = (bytes + granularity - 1) / granularity * granularity;
  status = gpu->driver().Check(
      "cuMemCreate", gpu->calls().cuMemCreate(&memory.allocation_, memory.bytes_, &properties, 0));
  if (status.ok()) status = memory.Map();
  if (!status.ok()) return status;
  return memory;
}

absl::StatusOr<DeviceMemory> DeviceMemory::Import(const Gpu* gpu, int fd, uint64_t bytes) {
  absl::Status status = gpu->Use();
  if (!status.ok()) return status;
  DeviceMemory memory;
  memory.gpu_ = gpu;
  memory.virtual_ = true;
  memory.bytes_ = bytes;
  status = gpu->driver().Check(
      "cuMemImportFromShareableHandle",
      gpu->calls().cuMemImportFromShareableHandle(
          &memory.allocation_, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
          cuda::kHandlePosixFd));
  if (status.ok()) status = memory.Map();
  if (!status.ok()) return status;
  return memory;
}

absl::StatusOr<int> DeviceMemory::ExportFd() const {
  if (allocation_ == 0) {
    return absl::FailedPreconditionError(
        "this GPU memory cannot be shared with other processes: allocate it with "
        "AllocateShareable()");
  }
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  int fd = -1;
  status = gpu_->driver().Check(
      "cuMemExportToShareableHandle",
      gpu_->calls().cuMemExportToShareableHandle(&fd, allocation_, cuda::kHandlePosixFd, 0));
  if (!status.ok()) return status;
  return fd;
}

absl::StatusOr<DmaBuf> ExportDmaBuf(const Gpu& gpu, cuda::Address address, uint64_t bytes) {
  if (!gpu.device().dma_buf) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", gpu.ordinal(),
                     " cannot give its memory to NICs as a dma-buf: install the open kernel "
                     "modules of NVIDIA's driver, and CUDA 11.7 or later"));
  }
  absl::Status status = gpu.Use();
  if (!status.ok()) return status;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = address / page * page;
  const uint64_t end = (address + bytes + page - 1) / page * page;
  DmaBuf made;
  made.offset = address - begin;
  status = gpu.driver().Check("cuMemGetHandleForAddressRange",
                              gpu.calls().cuMemGetHandleForAddressRange(
                                  &made.fd, begin, end - begin, cuda::kRangeDmaBuf, 0));
  if (!status.ok()) return status;
  return made;
}

DevicePool::~DevicePool() {
  MutexLock lock(&mu_);
  TRYST_CHECK(lent_bytes_ == 0) << lent_bytes_ << " bytes of device memory are still lent";
}

absl::StatusOr<DevicePool::Block*> DevicePool::Take(uint64_t bytes) {
  const uint64_t wanted = BlockBytes(bytes);
  std::vector<std::unique_ptr<Block>> evicted;  // Freed without the lock.
  {
    MutexLock lock(&mu_);
    auto found = kept_.lower_bound(wanted);
    if (found != kept_.end() && found->first <= wanted + wanted / 4) {
      Block* block = found->second.release();
      kept_.erase(found);
      lent_bytes_ += block->bytes();
      return block;
    }
    while (held_bytes_ + wanted > cap_bytes_ && !kept_.empty()) {
      auto largest = std::prev(kept_.end());
      held_bytes_ -= largest->first;
      evicted.push_back(std::move(largest->second));
      kept_.erase(largest);
    }
    if (held_bytes_ + wanted > cap_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("GPU ", gpu_->ordinal(), "'s pool of ", cap_bytes_, " bytes has lent out ",
                       lent_bytes_, " of them and lacks room for ", wanted,
                       " more: raise gpu_pool_bytes, or release tensors"));
    }
    held_bytes_ += wanted;
    lent_bytes_ += wanted;
  }
  evicted.clear();
  auto memory = DeviceMemory::Allocate(gpu_, wanted);
  auto event = gpu_->MakeEvent();
  if (!memory.ok() || !event.ok()) {
    MutexLock lock(&mu_);
    held_bytes_ -= wanted;
    lent_bytes_ -= wanted;
    return memory.ok() ? event.status() : memory.status();
  }
  auto block = std::make_unique<Block>();
  block->memory_ = *std::move(memory);
  block->last_use_ = *std::move(event);
  return block.release();
}

void DevicePool::Give(Block* block, cuda::Stream stream) {
  std::unique_ptr<Block> owned(block);
  const bool recorded = block->last_use_.Record(stream).ok();
  block->used_ = true;
  const uint64_t bytes = block->bytes();
  MutexLock lock(&mu_);
  lent_bytes_ -= bytes;
  if (recorded) {
    kept_.emplace(bytes, std::move(owned));
  } else {
    held_bytes_ -= bytes;  // The GPU is lost; so is the block.
  }
}

uint64_t DevicePool::lent_bytes() const {
  MutexLock lock(&mu_);
  return lent_bytes_;
}

}  // namespace tryst
