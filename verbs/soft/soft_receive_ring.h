#ifndef TRYST_VERBS_SOFT_SOFT_RECEIVE_RING_H_
#define TRYST_VERBS_SOFT_SOFT_RECEIVE_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "verbs/nic.h"

namespace tryst {

// The receives that were posted to a queue pair and that no message has used.
class SoftReceiveRing {
 public:
  explicit SoftReceiveRing(const QueuePairOptions& options);

  // kInvalidArgument: a work exceeds a limit.
  absl::Status Check(absl::Span<const ReceiveWork> works) const;
  void Post(const ReceiveWork& work);  // REQUIRES: Check() has passed.

  bool empty() const { return oldest_ == end_; }
  // How many were ever posted, and used, as frames count them: both wrap.
  uint32_t posted() const { return static_cast<uint32_t>(end_); }
  uint32_t used() const { return static_cast<uint32_t>(oldest_); }

  // What the oldest has. REQUIRES: not empty.
  uint64_t oldest_bytes() const { return bodies_.empty() ? 0 : bodies_[oldest_ & mask_].total; }
  absl::Span<const Entry> oldest_entries() const;
  uint64_t TakeOldest() { return ids_[oldest_++ & mask_]; }  // Returns its id.

 private:
  struct Body {
    uint64_t total = 0;
    size_t entries = 0;
  };

  const uint32_t max_entries_;
  const uint64_t mask_;
  std::vector<uint64_t> ids_;
  // Both are empty while all receives have no entries: those only count writes with an immediate.
  std::vector<Body> bodies_;
  std::vector<Entry> entries_;
  uint64_t oldest_ = 0;
  uint64_t end_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_RECEIVE_RING_H_
