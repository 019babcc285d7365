// Faults of the FaultPlan that do not concern single works.

#include <algorithm>

#include "tests/doubles/sim_nic/sim_completion_queue.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

void SimWorld::SetFaultPlan(const FaultPlan& plan) {
  faults_.set_plan(plan);
  ++plan_version_;
  for (int kind = 0; kind <= static_cast<int>(Outage::kJump); ++kind) {
    PlanNext(static_cast<Outage>(kind));
  }
}

int64_t SimWorld::MeanNs(Outage kind) const {
  const FaultPlan& plan = faults_.plan();
  switch (kind) {
    case Outage::kPort:
      return plan.port_flap_ns;
    case Outage::kAddress:
      return plan.address_change_ns;
    case Outage::kSilence:
      return plan.silence_ns;
    case Outage::kSlow:
      return plan.slow_link_ns;
    case Outage::kLossy:
      return plan.lossy_link_ns;
    case Outage::kFatal:
      return plan.device_fatal_ns;
    case Outage::kOverrun:
      return plan.overrun_ns;
    case Outage::kJump:
      return plan.jump_ns;
  }
  return 0;
}

void SimWorld::PlanNext(Outage kind) {
  const int64_t mean_ns = MeanNs(kind);
  if (mean_ns <= 0) return;
  At(NowNs() + outage_random_.Between(1, 2 * mean_ns), [this, kind, version = plan_version_] {
    if (version != plan_version_) return;
    Strike(kind);
    PlanNext(kind);
  });
}

SimNic* SimWorld::DrawNic() {
  if (nics_.empty()) return nullptr;
  SimNic* const drawn = nics_[outage_random_.Below(nics_.size())];
  return drawn == nullptr || drawn->lost() ? nullptr : drawn;
}

void SimWorld::Strike(Outage kind) {
  SimNic* const struck = DrawNic();
  if (struck == nullptr) return;
  const uint32_t place = struck->place();
  const int64_t until_ns = NowNs() + outage_random_.Between(1, faults_.plan().outage_ns_max);
  switch (kind) {
    case Outage::kPort: {
      const auto port = static_cast<uint8_t>(1 + outage_random_.Below(struck->options().ports));
      SetPort(place, port, false);
      At(until_ns, [this, place, port] { SetPort(place, port, true); });
      return;
    }
    case Outage::kAddress:
      return ChangeAddress(place);
    case Outage::kSilence:
      SetSilent(place, true);
      At(until_ns, [this, place] { SetSilent(place, false); });
      return;
    case Outage::kSlow:
    case Outage::kLossy:
      return StrikeLink(kind);
    case Outage::kFatal:
      return DeviceFatal(place);
    case Outage::kOverrun:
      if (struck->completion_queues() == 0) return;
      return Overrun(*struck->completion_queue(outage_random_.Below(struck->completion_queues())));
    case Outage::kJump:
      Count(FaultKind::kJump);
      return Jump(until_ns - NowNs());
  }
}

void SimWorld::StrikeLink(Outage kind) {
  const auto from = static_cast<uint32_t>(outage_random_.Below(nics_.size()));
  const auto to = static_cast<uint32_t>(outage_random_.Below(nics_.size()));
  const LinkModel before = fabric_.link(from, to);
  // A link that is struck already would later be "mended" to its present bad state.
  if (!struck_links_.insert({from, to}).second) return;
  LinkModel now = before;
  if (kind == Outage::kSlow) {
    now.bytes_per_second = std::max<int64_t>(1, now.bytes_per_second / 1000);
  } else {
    now.loss_ppm = 100'000;
  }
  Count(kind == Outage::kSlow ? FaultKind::kSlowLink : FaultKind::kLossyLink);
  Note(TraceKind::kFault, from, to, static_cast<uint64_t>(kind));
  SetLink(from, to, now);
  At(NowNs() + outage_random_.Between(1, faults_.plan().outage_ns_max), [this, from, to, before] {
    SetLink(from, to, before);
    struck_links_.erase({from, to});
  });
}

}  // namespace tryst
