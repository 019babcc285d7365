#include "server/idle_channels.h"

#include "base/mutex.h"

namespace tryst {

class IdleChannels::State : public std::enable_shared_from_this<State> {
 public:
  State(absl::Duration period, Membership* members, Alarms* alarms)
      : period_(period), members_(members), alarms_(alarms) {}

  void Schedule() {
    auto self = weak_from_this();
    MutexLock lock(&mu_);
    if (closing_) return;
    token_ = alarms_->Set(Deadline::After(alarms_->clock(), period_), [self] {
      if (auto state = self.lock()) state->Sweep();
    });
  }

  void Close() {
    Alarms::Token token;
    {
      MutexLock lock(&mu_);
      closing_ = true;
      token = token_;
    }
    alarms_->Cancel(token);
    MutexLock lock(&sweeping_);  // One that runs is the last.
  }

 private:
  void Sweep() {
    {
      MutexLock lock(&sweeping_);
      members_->DropIdleChannels();
    }
    Schedule();
  }

  const absl::Duration period_;
  Membership* const members_;
  Alarms* const alarms_;
  Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  Alarms::Token token_ ABSL_GUARDED_BY(mu_) = Alarms::kNoToken;
  Mutex sweeping_;
};

IdleChannels::IdleChannels(absl::Duration period, Membership* members, Alarms* alarms)
    : state_(std::make_shared<State>(period, members, alarms)) {
  state_->Schedule();
}

IdleChannels::~IdleChannels() { state_->Close(); }

}  // namespace tryst
