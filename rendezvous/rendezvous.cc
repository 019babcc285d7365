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
      "the tensor. There use RecvAsync, or give the outer receive an executor (Args::executor)"));
}

}  // namespace

void FailReceive(absl::Status status, const Args& args, DoneFn done) {
  if (args.executor == nullptr) {
    std::move(done)(std::move(status), Args(), args, Tensor(), false);
    return;
  }
  args.executor->RunWithoutWaiting(
      [status = std::move(status), args, done = std::move(done)]() mutable {
        std::move(done)(std::move(status), Args(), args, Tensor(), false);
      });
}

absl::StatusOr<Received> Rendezvous::Recv(const TensorKey& key, const Args& args,
                                          absl::Duration timeout) {
  Args own = args;
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
    RecvAsync(
        key, own,
        [&](absl::Status status, const Args& send_args, const Args&, Tensor tensor, bool is_dead) {
          received = {std::move(status), std::move(tensor), is_dead, send_args.device_context,
                      send_args.alloc_attrs};
          waiter.End();
        });
    scope.Until(Waiter::kForever);
  }
  if (must_not_wait && absl::IsDeadlineExceeded(received.status)) return WouldNeverEnd(key);
  if (!received.status.ok()) return received.status;
  return received;
}

}  // namespace tryst
