#ifndef TRYST_CHANNEL_POOL_KEYS_OUT_H_
#define TRYST_CHANNEL_POOL_KEYS_OUT_H_

#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// Which keys are being fetched on which path. Fetches of one key must meet its sends in order,
// which two paths at once would not keep. So while a key is out on one path, its next fetches go
// there, too.
//
// It exists from a change of path until all fetches are on one path again. It counts the fetches
// made since then, and is told which were out before. Thread-safe, because a fetch may end on any
// thread.
class KeysOut {
 public:
  using Paths = absl::flat_hash_map<TensorKey, size_t>;

  // The path for the next fetch of `key`: `path`, unless the key is out on another.
  size_t Add(const TensorKey& key, size_t path) {
    MutexLock lock(&mu_);
    auto before = before_.find(key);
    if (before != before_.end()) path = before->second;
    Out& out = out_.try_emplace(key, Out{0, path}).first->second;
    ++out.fetches;
    return out.path;
  }
  // The next fetch of `key` goes by `path`, and so do those after it.
  void AddTo(const TensorKey& key, size_t path) {
    MutexLock lock(&mu_);
    Out& out = out_.try_emplace(key, Out{0, path}).first->second;
    out.path = path;
    ++out.fetches;
  }
  void Remove(const TensorKey& key) {
    MutexLock lock(&mu_);
    auto at = out_.find(key);
    if (--at->second.fetches == 0) out_.erase(at);
  }
  void Move(size_t from, size_t to) {
    MutexLock lock(&mu_);
    for (auto& out : out_) {
      if (out.second.path == from) out.second.path = to;
    }
    for (auto& before : before_) {
      if (before.second == from) before.second = to;
    }
  }
  // Sets the fetches that were on other paths than the best one before counting began.
  void SetBefore(Paths before) {
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
    size_t path;
  };
  Mutex mu_;
  absl::flat_hash_map<TensorKey, Out> out_ ABSL_GUARDED_BY(mu_);
  Paths before_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POOL_KEYS_OUT_H_
