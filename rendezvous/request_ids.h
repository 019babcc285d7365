#ifndef TRYST_RENDEZVOUS_REQUEST_IDS_H_
#define TRYST_RENDEZVOUS_REQUEST_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace tryst {

// The last `capacity` request ids. Needs external synchronisation.
class RequestIds {
 public:
  explicit RequestIds(size_t capacity) : capacity_(capacity) {}
  // False when `id` is among them already.
  bool Add(uint64_t id) {
    if (!ids_.insert(id).second) return false;
    if (ring_.size() < capacity_) {
      ring_.push_back(id);
      return true;
    }
    ids_.erase(ring_[oldest_]);
    ring_[oldest_] = id;
    oldest_ = (oldest_ + 1) % capacity_;
    return true;
  }

 private:
  const size_t capacity_;
  absl::flat_hash_set<uint64_t> ids_;
  std::vector<uint64_t> ring_;
  size_t oldest_ = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_REQUEST_IDS_H_
