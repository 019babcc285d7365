#ifndef TRYST_CHANNEL_OPS_REUSE_POOL_H_
#define TRYST_CHANNEL_OPS_REUSE_POOL_H_

#include <cstddef>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/functional/function_ref.h"
#include "base/release_memory.h"
#include "channel/ops/paged_blocks.h"

namespace tryst {

// Objects that are used again, each made new by its Renew(). It does not own them.
template <typename T>
class ReusePool {
 public:
  ABSL_ATTRIBUTE_ALWAYS_INLINE T* Take(absl::FunctionRef<T*()> make) {
    if (ABSL_PREDICT_FALSE(free_.empty())) Grow(make);
    T* one = free_.back();
    free_.pop_back();
    ++live_;
    one->Renew();
    return one;
  }
  void Free(T* one) {
    --live_;
    free_.push_back(one);
  }
  const std::vector<T*>& all() const { return all_; }  // All that were ever made.
  size_t live() const { return live_; }
  // Many were out, and none is any more.
  bool is_idle_and_large() const { return all_.size() > kMostIdleObjects && live() == 0; }
  // Forgets all of them, those that are out, too.
  void Clear() {
    ReleaseMemory(&all_);
    ReleaseMemory(&free_);
    live_ = 0;
  }

 private:
  ABSL_ATTRIBUTE_NOINLINE void Grow(absl::FunctionRef<T*()> make) {
    all_.push_back(make());
    free_.push_back(all_.back());
  }

  std::vector<T*> all_;
  std::vector<T*> free_;
  size_t live_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_REUSE_POOL_H_
