#include "server/regions/mapped_segments.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tryst {

uint64_t MappedSegments::CountAndForget() {
  uint64_t bytes = 0;
  for (auto each = segments_.begin(); each != segments_.end();) {
    const std::shared_ptr<const SharedMemory> segment = each->second.lock();
    if (segment == nullptr) {
      each = segments_.erase(each);
    } else {
      bytes += segment->bytes();
      ++each;
    }
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const SharedMemory>> MappedSegments::Map(OwnedFd fd,
                                                                        uint64_t bytes) {
  struct stat found {};
  if (fstat(fd.get(), &found) != 0) {
    return absl::DataLossError(absl::StrCat("the owner's segment: fstat: ", strerror(errno)));
  }
  const File file(found.st_dev, found.st_ino);
  MutexLock lock(&mu_);
  const uint64_t mapped = CountAndForget();
  const auto known = segments_.find(file);
  if (known != segments_.end()) {
    auto segment = known->second.lock();
    if (segment != nullptr && segment->bytes() == bytes) return segment;
  }
  if (bytes > kMostBytes - mapped) {
    return absl::ResourceExhaustedError("too much memory of other processes is mapped already");
  }
  auto memory = SharedMemory::Map(std::move(fd), bytes, /*writable=*/false);
  if (!memory.ok()) return memory.status();
  const std::shared_ptr<const SharedMemory> segment = *std::move(memory);
  // A child of this process would keep its pages for as long as it lives.
  (void)madvise(segment->data(), segment->bytes(), MADV_DONTFORK);
  segments_[file] = segment;
  return segment;
}

uint64_t MappedSegments::bytes() {
  MutexLock lock(&mu_);
  return CountAndForget();
}

}  // namespace tryst
