#include "server/members/announcer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <set>
#include <utility>

#include "absl/types/optional.h"
#include "base/mutex.h"

namespace tryst {
namespace {

constexpr absl::Duration kAttemptTimeout = absl::Seconds(2);
constexpr int kQuickAttempts = 5;
constexpr absl::Duration kPause = absl::Seconds(1);
constexpr absl::Duration kPauseMost = absl::Seconds(30);
// Members that are called at the same time; others wait. gRPC makes a connection for each:
// thousands at once kept a server that has dead members from starting, and from stopping, for half
// a minute.
constexpr int kMostAtOnce = 256;
// One list is followed so far. That of the most members (16,384) has nine, as heartbeat.cc cuts it.
constexpr int kMostPages = 16;

absl::Duration PauseAfter(int attempt) {
  absl::Duration pause = kPause;
  for (; attempt > kQuickAttempts && pause < kPauseMost; --attempt) pause *= 2;
  return std::min(pause, kPauseMost);
}

}  // namespace

class Announcer::State : public std::enable_shared_from_this<State> {
 public:
  struct Call {
    std::string worker;
    int attempt = 1;
    std::string after;  // It is asked for the members behind this name.
    uint64_t knew = 0;  // The peer's incarnation when the first attempt failed.
    int page = 1;       // It is this one of the peer's list.
  };

  State(Member self, Membership* members, HeartbeatCalls* calls, Alarms* alarms)
      : self_(std::move(self)),
        members_(members),
        calls_(calls),
        alarms_(alarms),
        // A closed cluster's members are all configured, so nobody asks for the list: in a cluster
        // of a thousand that would be a thousand lists of a thousand names.
        first_after_(members->open() ? "" : kBehindAll) {}

  void Announce(const std::string& worker) { Announce(Call{worker, 1, first_after_}); }

  // One call at a time to each worker, however often it is asked for.
  void Greet(const std::string& worker, HeartbeatWord word) {
    if (worker == self_.worker) return;
    {
      MutexLock lock(&mu_);
      if (closing_ || !greeting_.insert(worker).second) return;
      ++under_way_;
    }
    auto self = shared_from_this();
    calls_->StartHeartbeat(worker, self_, word, kAttemptTimeout, "",
                           [self, worker](absl::StatusOr<Heard> heard) {
                             {
                               MutexLock lock(&self->mu_);
                               self->greeting_.erase(worker);
                             }
                             self->OnHeard(Call{worker, 1, ""}, std::move(heard));
                           });
  }

  void Announce(Call call) {
    if (call.worker == self_.worker) return;
    {
      MutexLock lock(&mu_);
      if (closing_) return;
      (call.attempt == 1 ? to_call_ : to_call_again_).push_back(std::move(call));
    }
    CallSome();
  }

  // A call may end inside StartHeartbeat(), so one loop makes all of them.
  void CallSome() {
    {
      MutexLock lock(&mu_);
      if (std::exchange(calling_, true)) return;
    }
    for (Call call; TakeCall(&call);) {
      auto self = shared_from_this();
      calls_->StartHeartbeat(call.worker, self_, HeartbeatWord::kHere, kAttemptTimeout, call.after,
                             [self, call](absl::StatusOr<Heard> heard) {
                               {
                                 MutexLock lock(&self->mu_);
                                 --self->announcing_;
                               }
                               self->OnHeard(call, std::move(heard));
                               self->CallSome();
                             });
    }
  }

  void OnHeard(const Call& call, absl::StatusOr<Heard> heard) {
    if (heard.ok()) {
      // The peer at that address has proved its name, as far as our security mode can prove it.
      if (heard->self.worker == call.worker) {
        (void)members_->Announce({call.worker, "", heard->self.incarnation});
      }
      for (const Member& member : heard->members) {
        if (members_->Hear(member)) Announce(member.worker);
      }
      // Names come in ascending order. An answer whose names do not ascend is taken as the last, so
      // that a faulty peer cannot keep us asking; nor can one whose list has no end.
      if (heard->rest_after > call.after && !heard->members.empty() && call.page < kMostPages) {
        Announce(Call{call.worker, 1, heard->rest_after, call.knew, call.page + 1});
      }
    } else if (absl::IsUnavailable(heard.status()) || absl::IsDeadlineExceeded(heard.status())) {
      TryAgain(call.worker, call.attempt, call.knew);
    }
    MutexLock lock(&mu_);
    if (--under_way_ == 0) idle_.NotifyAll();
  }

  void TryAgain(const std::string& worker, int attempt, uint64_t knew) {
    const absl::optional<Member> member = members_->Find(worker);
    if (!member.has_value() || member->address.empty()) return;
    if (attempt == 1) knew = member->incarnation;
    if (member->incarnation != knew) return;  // The peer has announced itself meanwhile.
    auto self = weak_from_this();
    MutexLock lock(&mu_);
    if (closing_) return;
    auto token = std::make_shared<Alarms::Token>();
    *token = alarms_->Set(Deadline::After(alarms_->clock(), PauseAfter(attempt)),
                          [self, worker, attempt, knew, token] {
                            if (auto state = self.lock()) {
                              state->OnPauseOver(worker, attempt, knew, token.get());
                            }
                          });
    pauses_.insert(*token);
  }

  void OnPauseOver(const std::string& worker, int attempt, uint64_t knew,
                   const Alarms::Token* pause) {
    {
      // TryAgain() holds the lock until it has stored the token that is read here.
      MutexLock lock(&mu_);
      pauses_.erase(*pause);
    }
    Announce(Call{worker, attempt + 1, first_after_, knew});
  }

  void Leave(absl::Duration timeout) {
    std::set<Alarms::Token> pauses;
    {
      MutexLock lock(&mu_);
      if (closing_) return;
      closing_ = true;
      pauses.swap(pauses_);
    }
    for (Alarms::Token token : pauses) alarms_->Cancel(token);
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
    for (const Member& member : members_->Members()) {
      // A channel to each has to be made, which takes long where thousands have died.
      if (std::chrono::steady_clock::now() >= until) break;
      if (member.worker == self_.worker || member.incarnation == 0) continue;  // It is not up.
      {
        MutexLock lock(&mu_);
        ++under_way_;
      }
      auto self = shared_from_this();
      calls_->StartHeartbeat(member.worker, self_, HeartbeatWord::kLeaving, timeout, kBehindAll,
                             [self](const absl::StatusOr<Heard>&) {
                               MutexLock lock(&self->mu_);
                               if (--self->under_way_ == 0) self->idle_.NotifyAll();
                             });
    }
    MutexLock lock(&mu_);
    while (under_way_ > 0 && !idle_.WaitUntil(&mu_, until)) {
    }
  }

  Membership* members() const { return members_; }

 private:
  // The next call to make. False: none may be made now.
  bool TakeCall(Call* call) {
    MutexLock lock(&mu_);
    // Who was not called yet comes before those that have not answered.
    std::deque<Call>& line = to_call_.empty() ? to_call_again_ : to_call_;
    calling_ = !closing_ && announcing_ < kMostAtOnce && !line.empty();
    if (!calling_) return false;
    *call = std::move(line.front());
    line.pop_front();
    ++announcing_;
    ++under_way_;
    return true;
  }

  const Member self_;
  Membership* const members_;
  HeartbeatCalls* const calls_;
  Alarms* const alarms_;
  const std::string first_after_;  // Peers list the members after this name.
  Mutex mu_;
  CondVar idle_;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Call> to_call_ ABSL_GUARDED_BY(mu_);
  std::deque<Call> to_call_again_ ABSL_GUARDED_BY(mu_);
  int announcing_ ABSL_GUARDED_BY(mu_) = 0;    // How many are under way.
  bool calling_ ABSL_GUARDED_BY(mu_) = false;  // A thread is in CallSome().
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::set<Alarms::Token> pauses_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> greeting_ ABSL_GUARDED_BY(mu_);
};

Announcer::Announcer(Member self, Membership* members, HeartbeatCalls* calls, Alarms* alarms)
    : state_(std::make_shared<State>(std::move(self), members, calls, alarms)) {
  members->OnGreet(
      [state = std::weak_ptr<State>(state_)](const std::string& worker, HeartbeatWord word) {
        if (auto alive = state.lock()) alive->Greet(worker, word);
      });
}

Announcer::~Announcer() { Leave(absl::Milliseconds(200)); }

void Announcer::Start() {
  for (const Member& member : state_->members()->Members()) state_->Announce(member.worker);
}

void Announcer::Leave(absl::Duration timeout) { state_->Leave(timeout); }

}  // namespace tryst
