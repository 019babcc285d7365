#ifndef TRYST_CHANNEL_OPS_FETCH_OP_H_
#define TRYST_CHANNEL_OPS_FETCH_OP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "channel/ops/fetch_table.h"
#include "channel/ops/linked_line.h"
#include "channel/poller/poller.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

class FetchOp;
struct FetchKey;

// The fetches of one key and step that wait behind the one that was requested.
struct FetchFollowers;

// Several fetches with one callback. Recycled with its vector.
struct FetchJoin {
  Args args;
  ManyDoneFn done;
  std::vector<Received> results;
  size_t left = 0;
};

// The channel to which an op belongs, as the op calls it.
class FetchOpOwner {
 public:
  virtual ~FetchOpOwner() = default;
  virtual void OnOpCancelled(FetchOp* op) = 0;
  virtual void OnOpTimer(FetchOp* op) = 0;
  virtual void OnOpDelivered(FetchOp* op) = 0;
};

// One fetch, from Fetch() to `done`, over any transport. Ops are reused, never freed. Poller thread
// only, except for Cancel() and DeliverFrom().
class FetchOp : public PollerTimer {
 public:
  explicit FetchOp(FetchOpOwner* owner)
      : owner_(owner), cancel_task_(this), delivered_task_(this) {}

  // What the caller gave. For a fetch of many, `join` and `index` take the place of done and of
  // args, but for the destination.
  int64_t step = 0;
  TensorKey key;
  Args args;
  DoneFn done;
  FetchJoin* join = nullptr;
  size_t index = 0;
  int64_t begun_ns = 0;
  bool plain = false;  // No deadline, cancellation or executor: nothing to undo at its end.

  // Its state, and since when.
  FetchState state = FetchState::kFree;
  TraceSpan span;      // The times of its states.
  uint64_t order = 0;  // Its number in the order in which slots were taken; 0: it never had one.
  bool has_slot = false;
  uint16_t slot = 0;
  uint32_t generation = 0;
  bool send_request = false;  // The first or the second request is to be sent.
  bool send_cancel = false;
  // It was requested over a connection that is gone, so the next request is a replay.
  bool asked_before = false;
  uint64_t ticket = 0;      // The number under which the peer parks it; 0: it was never parked.
  bool send_park = false;   // A request to park it is to be sent.
  bool park_asked = false;  // That request has been sent over this connection.
  bool send_waits = false;  // The peer must be told that it is still parked.
  bool here = false;        // From kHere on: the peer holds the outcome under the ticket.
  bool ending = false;      // In kLeaving and kFenced: it ends next.
  bool moves = false;       // In kLeaving: it then moves to another path, and does not end.
  absl::Status end_status;  // In kLeaving and kFenced: what to report.
  bool reported = false;    // `done` has its result, although the slot is not free yet.
  bool delivered = false;   // `done` has run.
  // Nobody is told here how it ends: another channel has it, or it was asked for ahead, in vain.
  bool untold = false;

  // Its key, while it is requested; and its place among the fetches of the same key and step.
  FetchKey* asked_of = nullptr;
  FetchFollowers* behind = nullptr;
  FetchFollowers* followers = nullptr;

  // Cancellation: a token while registered.
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  // The inbox holds it: it must not be reused before the cancel has run.
  std::atomic<bool> cancel_posted{false};

  // Its places in the channel's lines: for a slot or for room; for something to send; at its end;
  // and among the fetches of its key.
  LineLink<FetchOp> wait_link;
  LineLink<FetchOp> send_link;
  LineLink<FetchOp> end_link;
  LineLink<FetchOp> key_link;

  // Its result, from its end until Deliver().
  absl::Status result_status;
  Tensor result;
  bool result_is_dead = false;
  // The code of the result, kept after the result is given away.
  absl::StatusCode traced_code = absl::StatusCode::kOk;
  uint64_t traced_bytes = 0;

  // Makes it as new.
  virtual void Renew();
  // The caller's Args; all fetches of a join have the same. Without their destination.
  const Args& wants() const { return join != nullptr ? join->args : args; }
  const Tensor& destination() const { return args.destination; }
  // Any thread: asks the poller to end it early.
  void Cancel(Poller* poller) {
    if (!cancel_posted.exchange(true)) poller->Post(&cancel_task_);
  }
  // Runs `done` on the calling thread. `no_args` stands for the sender's Args where there was no
  // Send.
  void Deliver(const Args& no_args);
  // Deliver() on an executor's thread; tells the poller if that is another thread.
  void DeliverFrom(Poller* poller) {
    Deliver(Args());
    if (poller->OnThread()) {
      owner_->OnOpDelivered(this);
    } else {
      poller->Post(&delivered_task_);
    }
  }

 private:
  struct CancelTask final : PollerTask {
    explicit CancelTask(FetchOp* op) : op(op) {}
    void RunOnPoller() override {
      op->cancel_posted.store(false);
      op->owner_->OnOpCancelled(op);
    }
    FetchOp* const op;
  };
  struct DeliveredTask final : PollerTask {
    explicit DeliveredTask(FetchOp* op) : op(op) {}
    void RunOnPoller() override { op->owner_->OnOpDelivered(op); }
    FetchOp* const op;
  };
  void OnTimer() override { owner_->OnOpTimer(this); }

  FetchOpOwner* const owner_;
  CancelTask cancel_task_;
  DeliveredTask delivered_task_;
};

struct FetchFollowers {
  LinkedLine<FetchOp> line{&FetchOp::wait_link};
  FetchOp* first = nullptr;  // The fetch that the others follow.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_OP_H_
