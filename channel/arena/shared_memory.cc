#include "channel/arena/shared_memory.h"

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
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
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

// Whether an ordinary page lies behind each byte, as Create() leaves them. Those that are swapped
// out count.
bool HasAllPages(int fd, uint64_t bytes) {
  struct stat file {};
  return fstat(fd, &file) == 0 && static_cast<uint64_t>(file.st_blocks) >= (bytes + 511) / 512;
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
  if (writers == Writers::kCreator && bytes % kHugePageBytes == 0) {
    auto memory = CreateOf(bytes, writers, /*huge=*/true);
    if (memory.ok()) return memory;  // Otherwise none are left, or none were reserved.
  }
  return CreateOf(bytes, writers, /*huge=*/false);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::CreateOf(uint64_t bytes,
                                                                     Writers writers, bool huge) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  OwnedFd fd(memfd_create("tryst", flags));
  if (!fd.valid()) return SystemError("cannot make shared memory: memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return SystemError(absl::StrCat("cannot make a shared memory of ", bytes, " bytes"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError("cannot map shared memory: mmap");
  std::unique_ptr<SharedMemory> memory(
      new SharedMemory(std::move(fd), static_cast<uint8_t*>(data), bytes, huge));
  // Has an effect where the kernel allows them for shared memory.
  if (!huge) madvise(data, bytes, MADV_HUGEPAGE);
  // Allocates every page now, because a page that is missing later would kill us when it is
  // touched.
  if (madvise(data, bytes, MADV_POPULATE_WRITE) != 0 &&
      (huge || fallocate(memory->fd(), 0, 0, static_cast<off_t>(bytes)) != 0)) {
    return SystemError(absl::StrCat("no pages are left for a shared memory of ", bytes, " bytes"));
  }
  const int seals = kSizeSeals | (writers == Writers::kCreator ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(memory->fd(), F_ADD_SEALS, seals) != 0)
    return SystemError("cannot make shared memory: sealing a memfd");
  return memory;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Map(OwnedFd fd, uint64_t bytes,
                                                                bool writable) {
  struct stat file {};
  struct statfs system {};
  if (fstat(fd.get(), &file) != 0 || fstatfs(fd.get(), &system) != 0) {
    return absl::DataLossError(
        absl::StrCat("the peer's shared memory cannot be used: ", strerror(errno)));
  }
  const bool huge = static_cast<uint64_t>(system.f_type) == HUGETLBFS_MAGIC;
  if (!S_ISREG(file.st_mode) || (!huge && static_cast<uint64_t>(system.f_type) != TMPFS_MAGIC)) {
    return absl::DataLossError(
        "the peer broke the protocol: it sent a descriptor that is not shared memory (a memfd)");
  }
  if (bytes == 0 || static_cast<uint64_t>(file.st_size) != bytes) {
    return absl::DataLossError(absl::StrCat("the peer broke the protocol: its shared memory has ",
                                            file.st_size, " bytes, and it announced ", bytes));
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  // The seal against writers also prevents holes.
  const int wanted = kSizeSeals | (writable ? 0 : F_SEAL_FUTURE_WRITE);
  if (seals < 0 || (seals & wanted) != wanted || (huge && writable)) {
    return absl::DataLossError(
        "the peer broke the protocol: its shared memory is not sealed, so the peer could shrink it "
        "while it is read");
  }
  // Whoever pins a hole, as a GPU does with all of a segment, allocates its pages and pays for
  // them. Sealed as it is now, none can appear any more.
  if (!huge && !writable && !HasAllPages(fd.get(), bytes)) {
    return absl::DataLossError(
        "the peer broke the protocol: pages of its shared memory are missing");
  }
  void* data =
      mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError("cannot map the peer's shared memory");
  std::unique_ptr<SharedMemory> memory(
      new SharedMemory(OwnedFd(), static_cast<uint8_t*>(data), bytes, huge));
  // If a page is missing, this fails; reading it later would kill us.
  if (huge && madvise(data, bytes, MADV_POPULATE_READ) != 0) {
    return absl::DataLossError(
        "the peer broke the protocol: pages of its shared memory are missing");
  }
  return memory;
}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

}  // namespace tryst
