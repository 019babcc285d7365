#include "verbs/soft/soft_receive_ring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "verbs/soft/soft_ring.h"

namespace tryst {

SoftReceiveRing::SoftReceiveRing(const QueuePairOptions& options)
    : max_entries_(options.max_entries), mask_(RingMask(options.receive_depth)), ids_(mask_ + 1) {}

absl::Status SoftReceiveRing::Check(absl::Span<const ReceiveWork> works) const {
  uint64_t total = 0;
  for (const ReceiveWork& work : works) {
    if (work.entries.size() > max_entries_ || !AddUp(work.entries, ~uint64_t{0}, &total)) {
      return absl::InvalidArgumentError(absl::StrCat(
          work.entries.size(), " pieces of memory are in a receive, and the queue pair takes ",
          max_entries_));
    }
  }
  return absl::OkStatus();
}

void SoftReceiveRing::Post(const ReceiveWork& work) {
  const uint64_t slot = end_ & mask_;
  ids_[slot] = work.id;
  if (!work.entries.empty() && bodies_.empty()) {
    bodies_.resize(mask_ + 1);
    entries_.resize((mask_ + 1) * max_entries_);
  }
  if (!bodies_.empty()) {
    bodies_[slot].entries = work.entries.size();
    AddUp(work.entries, ~uint64_t{0}, &bodies_[slot].total);
    std::copy(work.entries.begin(), work.entries.end(), &entries_[slot * max_entries_]);
  }
  ++end_;
}

absl::Span<const Entry> SoftReceiveRing::oldest_entries() const {
  if (bodies_.empty()) return {};
  const uint64_t slot = oldest_ & mask_;
  return {&entries_[slot * max_entries_], bodies_[slot].entries};
}

}  // namespace tryst
