#ifndef TRYST_CHANNEL_POLLER_MEMBER_TIMER_H_
#define TRYST_CHANNEL_POLLER_MEMBER_TIMER_H_

#include "channel/poller/poller.h"

namespace tryst {

// A timer that calls a method of its owner.
template <typename Owner>
class MemberTimer final : public PollerTimer {
 public:
  using Method = void (Owner::*)();
  MemberTimer(Owner* owner, Method method) : owner_(owner), method_(method) {}

 private:
  void OnTimer() override { (owner_->*method_)(); }

  Owner* const owner_;
  const Method method_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POLLER_MEMBER_TIMER_H_
