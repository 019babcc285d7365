#include "gpu/pinned_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tryst {

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(kind_, other.kind_);
  std::swap(registered_, other.registered_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (gpu_ == nullptr) return;
  const bool usable = gpu_->Use().ok();
  if (kind_ == Kind::kAllocated) {
    if (usable) gpu_->calls().cuMemFreeHost(data_);
    return;
  }
  if (registered_ && usable) gpu_->calls().cuMemHostUnregister(data_);
  if (fd_ >= 0) {
    munmap(data_, bytes_);
    close(fd_);
  }
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(const Gpu* gpu, uint64_t bytes) {
  absl::Status status = gpu->Use();
  if (!status.ok()) return status;
  void* data = nullptr;
  status = gpu->driver().Check(
      "cuMemHostAlloc",
      gpu->calls().cuMemHostAlloc(&data, bytes, cuda::kHostPortable | cuda::kHostDeviceMap));
  if (!status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("cannot pin ", bytes, " bytes of host memory for a GPU: ", status.message()));
  }
  PinnedMemory memory;
  memory.gpu_ = gpu;
  memory.data_ = data;
  memory.bytes_ = bytes;
  return memory;
}

absl::StatusOr<PinnedMemory> PinnedMemory::Register(const Gpu* gpu, void* data, uint64_t bytes) {
  return RegisterAs(gpu, data, bytes, 0);
}

absl::StatusOr<PinnedMemory> PinnedMemory::RegisterReadOnly(const Gpu* gpu, const void* data,
                                                            uint64_t bytes) {
  if (!gpu->device().read_only_host) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", gpu->ordinal(), " cannot register memory that may only be read"));
  }
  return RegisterAs(gpu, const_cast<void*>(data), bytes, cuda::kHostReadOnly);
}

absl::StatusOr<PinnedMemory> PinnedMemory::RegisterAs(const Gpu* gpu, void* data, uint64_t bytes,
                                                      unsigned flags) {
  absl::Status status = gpu->Use();
  if (!status.ok()) return status;
  status = gpu->driver().Check(
      "cuMemHostRegister", gpu->calls().cuMemHostRegister_v2(
                               data, bytes, cuda::kHostPortable | cuda::kHostDeviceMap | flags));
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("cannot register ", bytes,
                                                    " bytes of host memory: ", status.message()));
  }
  PinnedMemory memory;
  memory.gpu_ = gpu;
  memory.kind_ = Kind::kRegistered;
  memory.registered_ = true;
  memory.data_ = data;
  memory.bytes_ = bytes;
  return memory;
}

absl::StatusOr<PinnedMemory> PinnedMemory::AllocateShared(const Gpu* gpu, uint64_t bytes) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  bytes = (bytes + page - 1) / page * page;
  const int fd = memfd_create("tryst-staging", MFD_CLOEXEC);
  if (fd < 0)
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make shared memory: memfd_create: ", strerror(errno)));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("the host has no ", bytes, " bytes of shared memory left: ", strerror(error)));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes of shared memory: ", strerror(error)));
  }
  auto memory = Register(gpu, data, bytes);
  if (!memory.ok()) {
    munmap(data, bytes);
    close(fd);
    return memory.status();
  }
  memory->fd_ = fd;
  return memory;
}

}  // namespace tryst
