#include "server/weights/weight_calls.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "rendezvous/own_steps.h"
#include "rendezvous/rendezvous.h"
#include "server/members/peer_calls.h"

namespace tryst {
namespace {

constexpr char kDevice[] = "/device:CPU:0";
constexpr absl::Duration kCancelCheck = absl::Milliseconds(250);
constexpr absl::Duration kPause = absl::Milliseconds(50);

absl::StatusOr<Tensor> BytesOf(Received received) {
  if (!received.status.ok()) return received.status;
  const DType dtype = received.tensor.dtype();
  if (received.is_dead || (dtype != DType::kUint8 && dtype != DType::kInt8) ||
      received.tensor.shape().rank() != 1 || !received.tensor.on_host()) {
    return absl::DataLossError(
        "the owner of weights answered with a tensor that is not a row of bytes: run the same "
        "release on both");
  }
  return std::move(received.tensor);
}

}  // namespace

// The incarnations of owners.
class WeightCalls::Known {
 public:
  absl::StatusOr<uint64_t> Find(Server* server, const std::string& owner,
                                const Patience& patience) {
    {
      MutexLock lock(&mu_);
      there_.erase(owner);
      const auto found = incarnations_.find(owner);
      if (found != incarnations_.end()) return found->second;
      lost_.insert(owner);
    }
    for (;;) {
      const absl::Duration left = patience.left();
      const auto heard = server->calls()->Ping(owner, std::min(left, kCancelCheck));
      if (heard.ok()) {
        MutexLock lock(&mu_);
        there_.insert(owner);
        lost_.erase(owner);
        return incarnations_[owner] = heard->self.incarnation;
      }
      const bool may_come =
          absl::IsDeadlineExceeded(heard.status()) || absl::IsUnavailable(heard.status());
      if (patience.cancelled()) return absl::CancelledError("cancelled");
      if (!may_come || left <= kCancelCheck) return heard.status();
    }
  }
  void Forget(const std::string& owner) {
    MutexLock lock(&mu_);
    incarnations_.erase(owner);
  }
  bool WasThere(const std::string& owner) {
    MutexLock lock(&mu_);
    return there_.count(owner) > 0;
  }
  bool WasFound(const std::string& owner) {
    MutexLock lock(&mu_);
    return lost_.count(owner) == 0;
  }

 private:
  Mutex mu_;
  std::map<std::string, uint64_t> incarnations_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> there_ ABSL_GUARDED_BY(mu_);  // Those that the last Find() has pinged,
  std::set<std::string> lost_ ABSL_GUARDED_BY(mu_);  // and those that it looks for or did not find.
};

WeightCalls::WeightCalls(Server* server, std::string set)
    : server_(server), set_(std::move(set)), known_(std::make_shared<Known>()) {}

bool WeightCalls::WasThere(const std::string& owner) const { return known_->WasThere(owner); }

bool WeightCalls::WasFound(const std::string& owner) const { return known_->WasFound(owner); }

absl::StatusOr<TensorKey> WeightCalls::KeyOf(const Call& call, const Patience& patience) {
  const Patience reach(std::min(call.reach, patience.left()), patience.cancellation);
  const auto incarnation = call.incarnation != 0 ? absl::StatusOr<uint64_t>(call.incarnation)
                                                 : known_->Find(server_, call.owner, reach);
  if (!incarnation.ok() && absl::IsDeadlineExceeded(incarnation.status()) &&
      patience.left() > absl::ZeroDuration()) {
    return absl::UnavailableError(incarnation.status().message());
  }
  if (!incarnation.ok()) return incarnation.status();
  return TensorKey::Parse(absl::StrFormat(
      "%s%s;%016x;%s%s;%s;0:%d", call.owner, kDevice, *incarnation, server_->worker(), kDevice,
      EdgeOf(set_, call.ask), asked_.fetch_add(1, std::memory_order_relaxed)));
}

void WeightCalls::Start(const Call& call, const Patience& patience, AnswerFn done) {
  StepRegistry* const steps = server_->steps();
  // Answers come whatever the step; the asker's own end needs one that nobody cleans up.
  auto step = steps != nullptr ? steps->StartStep(kWeightsStep)
                               : absl::FailedPreconditionError("the server has not started");
  if (!step.ok()) return std::move(done)(step.status());
  const auto key = KeyOf(call, patience);
  if (!key.ok()) return std::move(done)(key.status());
  RecvArgs args;
  args.executor = server_->own_executor();
  args.deadline = patience.deadline;
  args.cancellation = patience.cancellation;
  args.by_reference = true;
  (*step)->RecvAsync(
      *key, args,
      [known = known_, owner = call.owner, done = std::move(done)](Received&& received) mutable {
        // It may have restarted: its next incarnation is asked for anew.
        const absl::Status& status = received.status;
        if (absl::IsAborted(status) || absl::IsUnavailable(status) ||
            absl::IsDeadlineExceeded(status)) {
          known->Forget(owner);
        }
        std::move(done)(BytesOf(std::move(received)));
      });
}

std::vector<absl::StatusOr<Tensor>> WeightCalls::Ask(absl::Span<const Call> calls,
                                                     const Patience& patience) {
  auto answers = AskOnce(calls, patience);
  for (size_t i = 0; i < calls.size(); ++i) {
    // Perhaps the owner's former life was asked.
    if (!absl::IsAborted(answers[i].status())) continue;
    auto again = std::move(AskOnce(calls.subspan(i, 1), patience)[0]);
    if (again.ok()) answers[i] = std::move(again);
  }
  return answers;
}

std::vector<absl::StatusOr<Tensor>> WeightCalls::AskUntilThere(absl::Span<const Call> calls,
                                                               const Patience& patience) {
  auto answers = Ask(calls, patience);
  for (;;) {
    std::vector<Call> missing;
    std::vector<size_t> places;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (!absl::IsUnavailable(answers[i].status())) continue;
      missing.push_back(calls[i]);
      places.push_back(i);
    }
    if (missing.empty() || patience.cancelled() || patience.left() <= kPause) return answers;
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(kPause));
    auto again = Ask(missing, patience);
    for (size_t i = 0; i < missing.size(); ++i) answers[places[i]] = std::move(again[i]);
  }
}

std::vector<absl::StatusOr<Tensor>> WeightCalls::AskOnce(absl::Span<const Call> calls,
                                                         const Patience& patience) {
  struct Answers {
    explicit Answers(size_t count) : came(count, absl::UnknownError("")), left(count) {}
    Mutex mu;
    CondVar changed;
    std::vector<absl::StatusOr<Tensor>> came ABSL_GUARDED_BY(mu);
    size_t left ABSL_GUARDED_BY(mu);
  };
  const auto answers = std::make_shared<Answers>(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    Start(calls[i], patience, [answers, i](absl::StatusOr<Tensor> answer) {
      MutexLock lock(&answers->mu);
      answers->came[i] = std::move(answer);
      if (--answers->left == 0) answers->changed.NotifyAll();
    });
  }
  MutexLock lock(&answers->mu);
  while (answers->left > 0) answers->changed.Wait(&answers->mu);
  return std::move(answers->came);
}

}  // namespace tryst
