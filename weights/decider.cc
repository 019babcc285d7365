#include "weights/decider.h"

#include <algorithm>

namespace tryst {

DeciderAnswer LogStore::Say(DeciderOutcome outcome) const {
  DeciderAnswer answer;
  answer.outcome = outcome;
  answer.log = life_;
  answer.length = log_.state().length;
  return answer;
}

DeciderAnswer LogStore::Append(uint64_t length, uint64_t lease, const LogEntry& entry) {
  if (lease != lease_) return Say(DeciderOutcome::kNoLease);
  if (length != log_.state().length) return Say(DeciderOutcome::kOtherLength);
  // A leader checks before it asks. What is refused here is never decided.
  if (!log_.Append(entry).ok()) return Say(DeciderOutcome::kOtherLength);
  return Say(DeciderOutcome::kDone);
}

DeciderAnswer LogStore::ReadFrom(uint64_t index) const {
  DeciderAnswer answer = Say(DeciderOutcome::kDone);
  answer.slice = log_.ReadFrom(index, kKeptEntries);
  return answer;
}

DeciderAnswer LogStore::TakeLease(int64_t now_ns) {
  if (now_ns < until_ns_) return Say(DeciderOutcome::kNoLease);
  ++lease_;
  until_ns_ = now_ns + lease_ns_;
  DeciderAnswer answer = Say(DeciderOutcome::kDone);
  answer.lease = lease_;
  return answer;
}

DeciderAnswer LogStore::KeepLease(uint64_t lease, int64_t now_ns) {
  if (lease != lease_) return Say(DeciderOutcome::kNoLease);
  until_ns_ = std::max(until_ns_, now_ns + lease_ns_);
  DeciderAnswer answer = Say(DeciderOutcome::kDone);
  answer.lease = lease_;
  return answer;
}

}  // namespace tryst
