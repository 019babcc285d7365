#include "tests/doubles/sim_nic/faults.h"

#include "base/log.h"

namespace tryst {

FaultKind KindOf(FaultAction action) {
  switch (action) {
    case FaultAction::kBreakRequester:
    case FaultAction::kBreakResponder:
      return FaultKind::kBreak;
    case FaultAction::kFail:
    case FaultAction::kFailReceive:
      return FaultKind::kFail;
    case FaultAction::kDelay:
      return FaultKind::kDelay;
    case FaultAction::kLose:
      return FaultKind::kLose;
    case FaultAction::kLoseForEver:
      return FaultKind::kLoseForEver;
    case FaultAction::kDuplicate:
      return FaultKind::kDuplicate;
    case FaultAction::kFlip:
      return FaultKind::kFlip;
    case FaultAction::kNone:
      break;
  }
  TRYST_CHECK(false) << "nothing is no kind of fault";
  return FaultKind::kBreak;
}

void WorkFaults::Inject(uint32_t queue_pair, uint64_t nth_send, const WorkFault& fault) {
  switch (fault.action) {
    case FaultAction::kFail:
      TRYST_CHECK(fault.point <= FaultPoint::kAcknowledged && fault.point != FaultPoint::kReceived);
      break;
    case FaultAction::kFailReceive:
      TRYST_CHECK(fault.point == FaultPoint::kLanded);
      break;
    case FaultAction::kDelay:
    case FaultAction::kLose:
    case FaultAction::kLoseForEver:
    case FaultAction::kDuplicate:
      TRYST_CHECK(fault.point == FaultPoint::kReceived || fault.point == FaultPoint::kCompleted);
      break;
    case FaultAction::kFlip:
      TRYST_CHECK(fault.point == FaultPoint::kArrived);
      break;
    case FaultAction::kNone:
    case FaultAction::kBreakRequester:
    case FaultAction::kBreakResponder:
      break;
  }
  injected_[{queue_pair, nth_send}] = fault;
}

WorkFault WorkFaults::Of(uint32_t queue_pair, uint64_t nth_send) {
  if (!injected_.empty()) {
    const auto found = injected_.find({queue_pair, nth_send});
    if (found != injected_.end()) {
      const WorkFault fault = found->second;
      injected_.erase(found);
      return fault;
    }
  }
  return Draw();
}

WorkFault WorkFaults::Draw() {
  const uint32_t all = plan_.break_ppm + plan_.fail_ppm + plan_.delay_ppm + plan_.lose_ppm +
                       plan_.lose_for_ever_ppm + plan_.duplicate_ppm;
  WorkFault fault;
  if (plan_.flip_ppm > 0 && random_.Chance(plan_.flip_ppm)) {
    fault.action = FaultAction::kFlip;
    fault.point = FaultPoint::kArrived;
    fault.delay_ns = random_.Between(0, INT64_MAX - 1);  // Selects the bit.
    return fault;
  }
  if (!random_.Chance(all)) return fault;
  // Selects one of them: a draw below their sum walks down the list.
  uint64_t draw = random_.Below(all);
  const auto is = [&draw](uint32_t ppm) {
    if (draw < ppm) return true;
    draw -= ppm;
    return false;
  };
  const bool responder = random_.Below(2) == 1;
  const FaultPoint completion = responder ? FaultPoint::kReceived : FaultPoint::kCompleted;
  fault.delay_ns = random_.Between(0, plan_.delay_ns_max);
  fault.status = static_cast<CompletionStatus>(random_.Between(1, kCompletionStatusCount - 1));
  if (is(plan_.break_ppm)) {
    fault.action = responder ? FaultAction::kBreakResponder : FaultAction::kBreakRequester;
    fault.point = static_cast<FaultPoint>(random_.Below(kFaultPointCount));
  } else if (is(plan_.fail_ppm)) {
    static constexpr FaultPoint kPoints[] = {FaultPoint::kTaken,       FaultPoint::kHalfSent,
                                             FaultPoint::kSent,        FaultPoint::kArrived,
                                             FaultPoint::kHalfLanded,  FaultPoint::kLanded,
                                             FaultPoint::kAcknowledged};
    fault.action = responder ? FaultAction::kFailReceive : FaultAction::kFail;
    fault.point = responder ? FaultPoint::kLanded : kPoints[random_.Below(7)];
  } else {
    fault.point = completion;
    fault.action = is(plan_.delay_ppm)           ? FaultAction::kDelay
                   : is(plan_.lose_ppm)          ? FaultAction::kLose
                   : is(plan_.lose_for_ever_ppm) ? FaultAction::kLoseForEver
                                                 : FaultAction::kDuplicate;
  }
  return fault;
}

}  // namespace tryst
