#include "verbs/soft/soft_waits.h"

#include <algorithm>

#include "absl/time/time.h"

namespace tryst {
namespace {

int64_t ReceiveBudget(const SoftNicOptions& nic, const QueuePairOptions& options) {
  if (options.rnr_retry_count == 7) return Patience::kForEver;
  return absl::ToInt64Nanoseconds(nic.rnr_timer) * (options.rnr_retry_count + 1);
}

}  // namespace

int64_t SoftWaits::PeerBudgetNs(const QueuePairOptions& options) {
  if (options.ack_timeout == 0) return Patience::kForEver;  // As in the InfiniBand specification.
  return (int64_t{4096} << options.ack_timeout) * (options.retry_count + 1);
}

SoftWaits::SoftWaits(const SoftNicOptions& nic, const QueuePairOptions& options)
    : for_answers_(PeerBudgetNs(options)),
      for_receives_(ReceiveBudget(nic, options)),
      for_connections_(PeerBudgetNs(options)) {}

void SoftWaits::Feed() {
  starved_ = false;
  for_receives_.Restart();
}

void SoftWaits::Restart() {
  for_answers_.Restart();
  for_connections_.Restart();
  for_receives_.Restart();
}

SoftWaits::TooLong SoftWaits::OnTimer(int64_t now_ns, For what) {
  if (moved_ || !what.answers) for_answers_.Restart();
  if (!what.connection) for_connections_.Restart();
  if (!starved_) for_receives_.Restart();
  moved_ = false;
  if ((what.answers && for_answers_.Exhausted(now_ns)) ||
      (what.connection && for_connections_.Exhausted(now_ns))) {
    return TooLong::kPeer;
  }
  return starved_ && for_receives_.Exhausted(now_ns) ? TooLong::kReceive : TooLong::kNothing;
}

int64_t SoftWaits::next_ns(int64_t now_ns, For what) const {
  int64_t at_ns = Patience::kForEver;
  if (what.answers) at_ns = std::min(at_ns, for_answers_.next_ns(now_ns));
  if (what.connection) at_ns = std::min(at_ns, for_connections_.next_ns(now_ns));
  if (starved_) at_ns = std::min(at_ns, for_receives_.next_ns(now_ns));
  return at_ns;
}

}  // namespace tryst
