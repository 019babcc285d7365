#ifndef TRYST_VERBS_SOFT_SOFT_BLOCKS_H_
#define TRYST_VERBS_SOFT_SOFT_BLOCKS_H_

#include <cstddef>
#include <new>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace tryst {

// Memory for objects of one size, which is reused. Thread-safe.
class SoftBlocks {
 public:
  ~SoftBlocks() {
    MutexLock lock(&mu_);
    for (void* block : free_) ::operator delete(block);
  }
  void* Take(size_t bytes) {  // `bytes` must be the same in every call.
    {
      MutexLock lock(&mu_);
      if (!free_.empty()) {
        void* block = free_.back();
        free_.pop_back();
        return block;
      }
    }
    return ::operator new(bytes);
  }
  void Give(void* block) {
    MutexLock lock(&mu_);
    free_.push_back(block);
  }

 private:
  Mutex mu_;
  std::vector<void*> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_BLOCKS_H_
