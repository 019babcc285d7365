#include "rendezvous/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/delivering.h"

namespace tryst {
namespace {

absl::Status WouldNeverEnd(const TensorKey& key) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Recv of ", key.text(),
      " would wait for ever: it was called in a `done` callback, on the thread that has to bring "
      "the tensor. There use RecvAsync, or give the outer receive an executor "
      "(RecvArgs::executor)"));
}

}  // namespace

void EndReceive(Executor* executor, Received&& received, DoneFn done) {
  if (executor == nullptr) return std::move(done)(std::move(received));
  executor->RunWithoutWaiting([received = std::move(received), done = std::move(done)]() mutable {
    std::move(done)(std::move(received));
  });
}

void FailReceive(absl::Status status, Executor* executor, DoneFn done) {
  EndReceive(executor, {std::move(status)}, std::move(done));
}

absl::Status Rendezvous::SendSelected(const TensorKey& /*key*/, const SendArgs& /*args*/,
                                      const Tensor& /*tensor*/, const Selection& /*selection*/) {
  return absl::UnimplementedError("selections are for steps of a StepRegistry");
}

void Rendezvous::RecvSelectedAsync(const TensorKey& /*key*/, const RecvArgs& args,
                                   const SelectedLanding& /*landing*/, DoneFn done) {
  if (!done) done = [](Received&&) {};
  FailReceive(absl::UnimplementedError("selections are for steps of a StepRegistry"), args.executor,
              std::move(done));
}

DoneFn Rendezvous::FromFiveArguments(const RecvArgs& args, FiveArgumentDoneFn done) {
  if (!done) return nullptr;
  return [args = ArgsOfBoth{args}, done = std::move(done)](Received&& received) mutable {
    ArgsOfBoth send_args;
    send_args.device_context = std::move(received.send_context);
    send_args.alloc_attrs = received.send_attrs;
    std::move(done)(std::move(received.status), send_args, args, std::move(received.tensor),
                    received.is_dead);
  };
}

absl::StatusOr<Received> Rendezvous::Recv(const TensorKey& key, const RecvArgs& args,
                                          absl::Duration timeout) {
  RecvArgs own = args;
  own.executor = nullptr;  // A busy executor must not delay the answer.
  const bool must_not_wait = DeliversForOthers();
  if (must_not_wait) {
    if (EndsElsewhere(key, args)) return WouldNeverEnd(key);
    own.deadline = Deadline::AtNs(0);  // A tensor that is here is delivered even so.
  } else {
    const Deadline until = Deadline::After(clock(), timeout);
    own.deadline = Deadline::AtNs(std::min(args.deadline.at_ns(), until.at_ns()));
  }
  Waiter waiter(TurnsFor(key));
  Received received;
  {
    WaitScope scope(&waiter);
    RecvAsync(key, own, [&](Received&& its) {
      received = std::move(its);
      waiter.End();
    });
    scope.Until(Waiter::kForever);
  }
  if (must_not_wait && absl::IsDeadlineExceeded(received.status)) return WouldNeverEnd(key);
  if (!received.status.ok()) return received.status;
  return received;
}

}  // namespace tryst
