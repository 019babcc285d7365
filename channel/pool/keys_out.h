#ifndef TRYST_CHANNEL_POOL_KEYS_OUT_H_
#define TRYST_CHANNEL_POOL_KEYS_OUT_H_

#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// Which keys are being fetched by which way. Fetches of one key meet its sends in their order,
// which two ways at once would not keep: as long as a key is out on one, it stays there.
//
// It exists from when the way changes until all is on one way again, so it counts what comes,
// and is told what was out before. Thread-safe: a fetch may end on any thread.
class KeysOut {
 public:
  using Ways = absl::flat_hash_map<TensorKey, size_t>;

  // The way for the next fetch of `key`: `way`, unless it is out on another.
  size_t Add(const TensorKey& key, size_t way) {
    MutexLock lock(&mu_);
    auto before = before_.find(key);
    if (before != before_.end()) way = before->second;
    Out& out = out_.try_emplace(key, Out{0, way}).first->second;
    ++out.fetches;
    return out.way;
  }
  void Remove(const TensorKey& key) {
    MutexLock lock(&mu_);
    auto at = out_.find(key);
    if (--at->second.fetches == 0) out_.erase(at);
  }
  void Move(size_t from, size_t to) {
    MutexLock lock(&mu_);
    for (auto& out : out_) {
      if (out.second.way == from) out.second.way = to;
    }
    for (auto& before : before_) {
      if (before.second == from) before.second = to;
    }
  }
  // What is out on ways but the best, and may not have been counted.
  void SetBefore(Ways before) {
    MutexLock lock(&mu_);
    before_ = std::move(before);
  }
  bool has_before() {
    MutexLock lock(&mu_);
    return !before_.empty();
  }
  bool empty() {
    MutexLock lock(&mu_);
    return out_.empty() && before_.empty();
  }

 private:
  struct Out {
    size_t fetches;
    size_t way;
  };
  Mutex mu_;
  absl::flat_hash_map<TensorKey, Out> out_ ABSL_GUARDED_BY(mu_);
  Ways before_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POOL_KEYS_OUT_H_
