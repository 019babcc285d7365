#include "channel/shm/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tryst {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status SystemError(absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", strerror(errno));
  return errno == EINVAL || errno == ENOSYS ? absl::UnimplementedError(text)
                                            : absl::ResourceExhaustedError(text);
}

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  fd_ = other.release();
  return *this;
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

int OwnedFd::release() { return std::exchange(fd_, -1); }

uint64_t SharedMemory::Rounded(uint64_t bytes) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(uint64_t bytes,
                                                                   Writers writers) {
  bytes = Rounded(bytes);
  OwnedFd fd(memfd_create("tryst", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return SystemError("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return SystemError(absl::StrCat("a shared memory of ", bytes, " bytes"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError("mmap");
  std::unique_ptr<SharedMemory> memory(
      new SharedMemory(std::move(fd), static_cast<uint8_t*>(data), bytes));
  madvise(data, bytes, MADV_HUGEPAGE);  // Where the kernel gives them to shared memory.
  // Pages that are there cannot be missing when they are first touched.
  if (madvise(data, bytes, MADV_POPULATE_WRITE) != 0 &&
      fallocate(memory->fd(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return SystemError(absl::StrCat("pages for a shared memory of ", bytes, " bytes"));
  }
  const int seals = kSizeSeals | (writers == Writers::kCreator ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(memory->fd(), F_ADD_SEALS, seals) != 0) return SystemError("sealing a memfd");
  return memory;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Map(OwnedFd fd, uint64_t bytes,
                                                                bool writable) {
  struct stat file {};
  struct statfs system {};
  if (fstat(fd.get(), &file) != 0 || fstatfs(fd.get(), &system) != 0) {
    return absl::DataLossError(absl::StrCat("the peer's memory: ", strerror(errno)));
  }
  // A hole in huge pages could fault for want of reserved ones; ordinary pages cannot.
  if (!S_ISREG(file.st_mode) || static_cast<uint64_t>(system.f_type) != TMPFS_MAGIC) {
    return absl::DataLossError("the peer sent a descriptor that is no memfd");
  }
  if (bytes == 0 || static_cast<uint64_t>(file.st_size) != bytes) {
    return absl::DataLossError(absl::StrCat("the peer's memory has ", file.st_size,
                                            " bytes and was announced with ", bytes));
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::DataLossError("the peer's memory is not sealed: it could be truncated");
  }
  void* data =
      mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError("mapping the peer's memory");
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(OwnedFd(), static_cast<uint8_t*>(data), bytes));
}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

}  // namespace tryst
