#ifndef TRYST_RENDEZVOUS_TOMBSTONES_H_
#define TRYST_RENDEZVOUS_TOMBSTONES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace tryst {

// The final statuses of steps that are over: of at most `capacity` steps, each kept for `ttl_ns`.
// Needs external synchronisation.
class Tombstones {
 public:
  Tombstones(size_t capacity, int64_t ttl_ns) : capacity_(capacity), ttl_ns_(ttl_ns) {}

  // The first status of a step stays.
  void Add(int64_t step_id, absl::Status status, int64_t now_ns) {
    DropExpired(now_ns);
    if (capacity_ == 0 || !statuses_.emplace(step_id, std::move(status)).second) return;
    by_age_.push_back({step_id, now_ns});
    if (by_age_.size() > capacity_) DropOldest();
  }
  // Null when there is none. Valid until the next call.
  const absl::Status* Find(int64_t step_id, int64_t now_ns) {
    DropExpired(now_ns);
    const auto found = statuses_.find(step_id);
    return found == statuses_.end() ? nullptr : &found->second;
  }
  size_t size() const { return by_age_.size(); }

 private:
  struct Grave {
    int64_t step_id;
    int64_t since_ns;
  };
  void DropOldest() {
    statuses_.erase(by_age_.front().step_id);
    by_age_.pop_front();
  }
  void DropExpired(int64_t now_ns) {
    while (!by_age_.empty() && now_ns - by_age_.front().since_ns >= ttl_ns_) DropOldest();
  }

  const size_t capacity_;
  const int64_t ttl_ns_;
  absl::flat_hash_map<int64_t, absl::Status> statuses_;
  std::deque<Grave> by_age_;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TOMBSTONES_H_
