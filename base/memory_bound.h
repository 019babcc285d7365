#ifndef TRYST_BASE_MEMORY_BOUND_H_
#define TRYST_BASE_MEMORY_BOUND_H_

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>

namespace tryst {

// For tests. While it lives, this process gets so many more bytes of memory, and no more. Small
// allocations need some of them. A sanitizer ends a process that has no more memory.
class MemoryBound {
 public:
  explicit MemoryBound(uint64_t bytes) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    if (getrlimit(RLIMIT_AS, &before_) != 0) abort();
    const rlim_t most = pages * static_cast<uint64_t>(getpagesize()) + bytes;
    const rlimit limit = {most, before_.rlim_max};
    if (setrlimit(RLIMIT_AS, &limit) != 0) abort();
  }
  ~MemoryBound() {
    if (setrlimit(RLIMIT_AS, &before_) != 0) abort();
  }
  MemoryBound(const MemoryBound&) = delete;
  MemoryBound& operator=(const MemoryBound&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace tryst

#endif  // TRYST_BASE_MEMORY_BOUND_H_
