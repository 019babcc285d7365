#include "server/members/repeating.h"

#include <utility>

#include "base/mutex.h"

namespace tryst {

// The alarm shares it, because an alarm that is about to run can no longer be cancelled.
class Repeating::State : public std::enable_shared_from_this<State> {
 public:
  State(absl::Duration period, Alarms* alarms, std::function<void()> what)
      : period_(period), alarms_(alarms), what_(std::move(what)) {}

  void Schedule() {
    auto self = weak_from_this();
    MutexLock lock(&mu_);
    if (closing_) return;
    token_ = alarms_->Set(Deadline::After(alarms_->clock(), period_), [self] {
      if (auto state = self.lock()) state->Run();
    });
  }

  // If a call runs at this moment, its end schedules the next one as ever.
  void Soon() {
    auto self = weak_from_this();
    MutexLock lock(&mu_);
    if (closing_ || !alarms_->Cancel(token_)) return;
    token_ = alarms_->Set(Deadline::After(alarms_->clock(), absl::ZeroDuration()), [self] {
      if (auto state = self.lock()) state->Run();
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
    MutexLock lock(&running_);  // Waits for a call that runs; none follows it.
  }

 private:
  bool closing() {
    MutexLock lock(&mu_);
    return closing_;
  }
  void Run() {
    {
      MutexLock lock(&running_);
      if (closing()) return;  // The alarm was about to run when it was cancelled.
      what_();
    }
    Schedule();
  }

  const absl::Duration period_;
  Alarms* const alarms_;
  const std::function<void()> what_;
  Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  Alarms::Token token_ ABSL_GUARDED_BY(mu_) = Alarms::kNoToken;
  Mutex running_;
};

Repeating::Repeating(absl::Duration period, Alarms* alarms, std::function<void()> what)
    : state_(std::make_shared<State>(period, alarms, std::move(what))) {
  state_->Schedule();
}

void Repeating::Soon() { state_->Soon(); }

Repeating::~Repeating() { state_->Close(); }

}  // namespace tryst
