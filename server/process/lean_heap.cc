#include "server/process/lean_heap.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tryst {
namespace {

constexpr std::chrono::minutes kBetweenLooks(1);

#ifdef __GLIBC__
// Less free memory is not worth trimming: every page that is used again costs a page fault.
constexpr size_t kMuchBytes = size_t{4} << 20;

// Nearly nothing that gRPC reads at once is larger.
constexpr size_t kLargeBlockBytes = size_t{4} << 20;

bool MuchIsFree() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.fordblks > kMuchBytes && heap.fordblks > heap.uordblks / 2;
}
#endif

}  // namespace

LeanHeap::LeanHeap() {
#ifdef __GLIBC__
  if (getenv("MALLOC_ARENA_MAX") == nullptr) mallopt(M_ARENA_MAX, 2);
#endif
  thread_ = std::thread([this] { Run(); });
}

LeanHeap::~LeanHeap() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool LeanHeap::Look() {
#ifdef __GLIBC__
  const bool is_loose = MuchIsFree();
  const bool trims = is_loose && was_loose_;
  was_loose_ = is_loose && !trims;
  return trims && malloc_trim(0) == 1;
#else
  return false;
#endif
}

void KeepLargeBlocks() {
#ifdef __GLIBC__
  void* volatile block = malloc(kLargeBlockBytes);
  free(block);
#endif
}

void GiveFreeHeapBack() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void LeanHeap::Run() {
  for (;;) {
    const auto next = std::chrono::steady_clock::now() + kBetweenLooks;
    {
      MutexLock lock(&mu_);
      while (!ending_ && !changed_.WaitUntil(&mu_, next)) {
      }
      if (ending_) return;
    }
    Look();
  }
}

}  // namespace tryst
