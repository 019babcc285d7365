#include "server/weights/weight_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"
#include "server/members/peer_calls.h"

namespace tryst {
namespace {

// Keys of weights belong to no step of the program's. Answers come whatever the step; the asker's
// own end needs one that nobody cleans up.
constexpr int64_t kWeightsStep = INT64_MIN + 45;
constexpr char kDevice[] = "/device:CPU:0";

absl::StatusOr<Tensor> BytesOf(Received received) {
  if (!received.status.ok()) return received.status;
  if (received.is_dead || received.tensor.dtype() != DType::kUint8 ||
      received.tensor.shape().rank() != 1 || !received.tensor.on_host()) {
    return absl::DataLossError(
        "the owner of weights answered with a tensor that is not a row of bytes: run the same "
        "release on both");
  }
  return std::move(received.tensor);
}

}  // namespace

absl::StatusOr<uint64_t> WeightCalls::IncarnationOf(const std::string& owner,
                                                    absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    const auto found = incarnations_.find(owner);
    if (found != incarnations_.end()) return found->second;
  }
  const auto heard = server_->calls()->Ping(owner, timeout);
  if (!heard.ok()) return heard.status();
  MutexLock lock(&mu_);
  return incarnations_[owner] = heard->self.incarnation;
}

void WeightCalls::Forget(const std::string& owner) {
  MutexLock lock(&mu_);
  incarnations_.erase(owner);
}

std::vector<absl::StatusOr<Tensor>> WeightCalls::Ask(absl::Span<const Call> calls,
                                                     absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  std::vector<absl::StatusOr<Tensor>> answers(
      calls.size(), absl::UnknownError("the owner of weights was not asked"));
  StepRegistry* const steps = server_->steps();
  auto step = steps != nullptr
                  ? steps->StartStep(kWeightsStep)
                  : absl::FailedPreconditionError("the server has not started: start it first");
  std::vector<TensorKey> keys;
  std::vector<size_t> places;  // The call of each key.
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!step.ok()) {
      answers[i] = step.status();
      continue;
    }
    const auto incarnation = IncarnationOf(calls[i].owner, until - absl::Now());
    if (!incarnation.ok()) {
      answers[i] = incarnation.status();
      continue;
    }
    auto key = TensorKey::Parse(absl::StrFormat(
        "%s%s;%016x;%s%s;%s;0:%d", calls[i].owner, kDevice, *incarnation, server_->worker(),
        kDevice, EdgeOf(set_, calls[i].ask), asked_.fetch_add(1, std::memory_order_relaxed)));
    if (!key.ok()) {
      answers[i] = key.status();
      continue;
    }
    keys.push_back(*std::move(key));
    places.push_back(i);
  }
  if (keys.empty()) return answers;
  RecvArgs args;
  args.executor = server_->executor();
  args.deadline = Deadline::After(SteadyClock(), until - absl::Now());
  args.by_reference = true;
  absl::Notification ended;
  (*step)->RecvManyAsync(keys, args, [&](const absl::Status&, absl::Span<Received> results) {
    for (size_t i = 0; i < results.size(); ++i) {
      answers[places[i]] = BytesOf(std::move(results[i]));
    }
    ended.Notify();
  });
  ended.WaitForNotification();
  for (size_t i = 0; i < calls.size(); ++i) {
    // It may have restarted: its next incarnation is asked for anew.
    if (absl::IsAborted(answers[i].status()) || absl::IsUnavailable(answers[i].status())) {
      Forget(calls[i].owner);
    }
  }
  return answers;
}

}  // namespace tryst
