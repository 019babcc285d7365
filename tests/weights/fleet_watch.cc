#include "tests/weights/fleet_watch.h"

#include <algorithm>

namespace tryst {

void FleetWatch::OnTrouble(int64_t begin_ns, int64_t end_ns) {
  begin_ns_ = begin_ns;
  end_ns_ = end_ns;
  for (auto& [number, version] : versions_) {
    version.timed = false;
    if (version.switched.size() < members_) wished_ = number;
  }
}

void FleetWatch::OnPrepare(uint64_t number, int64_t now_ns) {
  const auto [at, first] = versions_.try_emplace(number);
  if (!first) return;
  at->second.prepared_ns = now_ns;
  at->second.timed = !troubled(now_ns);
  if (begin_ns_ >= 0 && wished_ == 0) wished_ = number;
}

void FleetWatch::OnSwitched(uint64_t member, uint64_t number, int64_t now_ns) {
  Version& version = versions_[number];
  version.switched.insert(member);
  if (version.switched.size() != members_) return;
  if (version.timed) {
    report_->switched_ns = std::max(report_->switched_ns, now_ns - version.prepared_ns);
    ++report_->switches_timed;
  }
  if (number != wished_) return;
  if (troubled(now_ns)) {
    wished_ = 0;  // It was chosen before.
  } else if (report_->active_again_ns < 0) {
    report_->active_again_ns = now_ns - end_ns_;
  }
}

void FleetWatch::OnPermit(uint64_t member, int64_t sent_ns, int64_t now_ns) {
  if (begin_ns_ < 0 || sent_ns <= end_ns_) return;
  permitted_.insert(member);
  if (permitted_.size() == members_ && report_->permits_again_ns < 0) {
    report_->permits_again_ns = now_ns - end_ns_;
  }
}

void FleetWatch::OnConfirmed(int64_t now_ns) {
  if (troubled(now_ns)) report_->last_confirmed_ns = now_ns - begin_ns_;
}

void FleetWatch::OnUnconfirmed(uint64_t member) {
  unconfirmed_.insert(member);
  report_->unconfirmed = unconfirmed_.size();
}

}  // namespace tryst
