#include "server/announcer.h"

#include <chrono>
#include <set>
#include <utility>

#include "base/mutex.h"

namespace tryst {
namespace {

constexpr int kAttempts = 5;
constexpr absl::Duration kAttemptTimeout = absl::Seconds(2);
constexpr absl::Duration kPause = absl::Seconds(1);

}  // namespace

class Announcer::State : public std::enable_shared_from_this<State> {
 public:
  State(Member self, Membership* members, PeerCalls* calls, grpc::CompletionQueue* queue,
        Alarms* alarms)
      : self_(std::move(self)), members_(members), calls_(calls), queue_(queue), alarms_(alarms) {}

  void Announce(const std::string& worker, int attempt, const std::string& after = "") {
    if (worker == self_.worker) return;
    {
      MutexLock lock(&mu_);
      if (closing_) return;
      ++under_way_;
    }
    auto self = shared_from_this();
    calls_->StartHeartbeat(
        queue_, worker, self_, false, kAttemptTimeout,
        [self, worker, attempt, after](absl::StatusOr<PeerCalls::Heard> heard) {
          self->OnHeard(worker, attempt, after, std::move(heard));
        },
        after);
  }

  void OnHeard(const std::string& worker, int attempt, const std::string& after,
               absl::StatusOr<PeerCalls::Heard> heard) {
    if (heard.ok()) {
      // Whoever answers at that address has proved to be the worker, as far as we can tell.
      if (heard->self.worker == worker) {
        (void)members_->Announce({worker, "", heard->self.incarnation});
      }
      for (const Member& member : heard->members) {
        if (members_->Hear(member)) Announce(member.worker, 1);
      }
      // Names come in their order: an answer that does not go on is the last one.
      if (heard->rest_after > after && !heard->members.empty()) {
        Announce(worker, 1, heard->rest_after);
      }
    } else if (attempt < kAttempts && absl::IsUnavailable(heard.status())) {
      auto self = weak_from_this();
      MutexLock lock(&mu_);
      if (!closing_) {
        const Alarms::Token token =
            alarms_->Set(Deadline::After(alarms_->clock(), kPause), [self, worker, attempt] {
              if (auto state = self.lock()) state->OnPauseOver(worker, attempt);
            });
        pauses_.insert(token);
      }
    }
    MutexLock lock(&mu_);
    if (--under_way_ == 0) idle_.NotifyAll();
  }

  void OnPauseOver(const std::string& worker, int attempt) { Announce(worker, attempt + 1); }

  void Leave(absl::Duration timeout) {
    std::set<Alarms::Token> pauses;
    {
      MutexLock lock(&mu_);
      if (closing_) return;
      closing_ = true;
      pauses.swap(pauses_);
    }
    for (Alarms::Token token : pauses) alarms_->Cancel(token);
    for (const Member& member : members_->Members()) {
      if (member.worker == self_.worker || member.incarnation == 0) continue;  // Not up.
      {
        MutexLock lock(&mu_);
        ++under_way_;
      }
      auto self = shared_from_this();
      calls_->StartHeartbeat(queue_, member.worker, self_, true, timeout,
                             [self](const absl::StatusOr<PeerCalls::Heard>&) {
                               MutexLock lock(&self->mu_);
                               if (--self->under_way_ == 0) self->idle_.NotifyAll();
                             });
    }
    WaitUntilIdle();
  }

  Membership* members() const { return members_; }

 private:
  void WaitUntilIdle() {
    MutexLock lock(&mu_);
    while (under_way_ > 0) idle_.Wait(&mu_);
  }

  const Member self_;
  Membership* const members_;
  PeerCalls* const calls_;
  grpc::CompletionQueue* const queue_;
  Alarms* const alarms_;
  Mutex mu_;
  CondVar idle_;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::set<Alarms::Token> pauses_ ABSL_GUARDED_BY(mu_);  // Some have fired.
};

Announcer::Announcer(Member self, Membership* members, PeerCalls* calls,
                     grpc::CompletionQueue* queue, Alarms* alarms)
    : state_(std::make_shared<State>(std::move(self), members, calls, queue, alarms)) {}

Announcer::~Announcer() { Leave(absl::Milliseconds(200)); }

void Announcer::Start() {
  for (const Member& member : state_->members()->Members()) state_->Announce(member.worker, 1);
}

void Announcer::Leave(absl::Duration timeout) { state_->Leave(timeout); }

}  // namespace tryst
