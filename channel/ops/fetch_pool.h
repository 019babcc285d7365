#ifndef TRYST_CHANNEL_OPS_FETCH_POOL_H_
#define TRYST_CHANNEL_OPS_FETCH_POOL_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/paged_blocks.h"

namespace tryst {

// The ops of a channel, which are reused. It does not own them.
class FetchPool {
 public:
  FetchOp* Take(absl::FunctionRef<FetchOp*()> make) {
    if (free_.empty()) {
      all_.push_back(make());
      free_.push_back(all_.back());
    }
    FetchOp* op = free_.back();
    free_.pop_back();
    op->Renew();
    return op;
  }
  void Free(FetchOp* op) { free_.push_back(op); }
  const std::vector<FetchOp*>& all() const { return all_; }  // All that were ever made.
  // Many were out, and none is any more.
  bool is_idle_and_large() const { return all_.size() > kMostIdleObjects && live() == 0; }
  // Forgets all of them. REQUIRES: none is out.
  void Clear() {
    all_ = {};
    free_ = {};
  }
  size_t live() const { return all_.size() - free_.size(); }
  std::string Explain() const;  // How many are out, by state.

 private:
  std::vector<FetchOp*> all_;
  std::vector<FetchOp*> free_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_POOL_H_
