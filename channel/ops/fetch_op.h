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

// Fetches of one key and step behind the one that has been asked for.
struct FetchFollowers;

// Several fetches with one callback. Recycled with its vector.
struct FetchJoin {
  Args args;
  ManyDoneFn done;
  std::vector<Received> results;
  size_t left = 0;
};

// What ops call: their channel.
class FetchOpOwner {
 public:
  virtual ~FetchOpOwner() = default;
  virtual void OnOpCancelled(FetchOp* op) = 0;
  virtual void OnOpTimer(FetchOp* op) = 0;
  virtual void OnOpDelivered(FetchOp* op) = 0;
};

// One fetch from Fetch() to `done`, whatever transport carries it. A slot of a pool: it is not
// freed, only reused. Poller thread only, but for Cancel() and DeliverFrom().
class FetchOp : public PollerTimer {
 public:
  explicit FetchOp(FetchOpOwner* owner)
      : owner_(owner), cancel_task_(this), delivered_task_(this) {}

  // What the caller gave. Of one of many: `join` and `index` instead of args and done.
  int64_t step = 0;
  TensorKey key;
  Args args;
  DoneFn done;
  FetchJoin* join = nullptr;
  size_t index = 0;
  int64_t begun_ns = 0;
  bool plain = false;  // No deadline, cancellation or executor: nothing to undo at its end.

  // Where it stands.
  FetchState state = FetchState::kFree;
  TraceSpan span;      // The same with times.
  uint64_t order = 0;  // In which slots were taken: the order of asking. 0: it has had none.
  bool has_slot = false;
  uint16_t slot = 0;
  uint32_t generation = 0;
  bool send_request = false;  // A request, or the second one, is to be sent.
  bool send_cancel = false;
  bool asked_before = false;  // Over a connection that is gone: the next request is a replay.
  uint64_t ticket = 0;        // Under which the peer parks it; 0: it has never been parked.
  bool send_park = false;     // A request to park it is to be sent,
  bool park_asked = false;    // or has been, over this connection.
  bool send_waits = false;    // That it is still parked is to be said.
  bool here = false;          // kHere and later: the peer holds the outcome under the ticket.
  bool ending = false;        // kLeaving, kFenced: it is over.
  bool moves = false;         // kLeaving: it goes to another path then, and does not end.
  absl::Status end_status;    // The same: what to report.
  bool reported = false;      // `done` has its result, although the slot is not free yet.
  bool delivered = false;     // `done` has run.
  bool taken_over = false;    // By another channel, which will say how it ends.

  // Its key, while it has been asked for; and whom it follows, or who follow it.
  FetchKey* asked_of = nullptr;
  FetchFollowers* behind = nullptr;
  FetchFollowers* followers = nullptr;

  // Cancellation: a token while registered.
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  std::atomic<bool> cancel_posted{false};  // In the inbox: not to be reused until it has run.

  // Places in the channel's lines: for a slot or for room, with something to say, at the end, and
  // among those of its key.
  LineLink<FetchOp> wait_link;
  LineLink<FetchOp> send_link;
  LineLink<FetchOp> end_link;
  LineLink<FetchOp> key_link;

  // Result, from its end to Deliver().
  absl::Status result_status;
  Tensor result;
  bool result_is_dead = false;
  absl::StatusCode traced_code = absl::StatusCode::kOk;  // Of it, once it is given away.
  uint64_t traced_bytes = 0;

  // Back to what it was at first.
  virtual void Renew();
  // What its caller said: all of a join say the same.
  const Args& wants() const { return join != nullptr ? join->args : args; }
  // Any thread: asks the poller to end it early.
  void Cancel(Poller* poller) {
    if (!cancel_posted.exchange(true)) poller->Post(&cancel_task_);
  }
  // Runs `done`, on the thread it is called on.
  void Deliver();
  // The same on an executor's thread; tells the poller unless it is its own.
  void DeliverFrom(Poller* poller) {
    Deliver();
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
  FetchOp* first = nullptr;  // Whom they follow.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_OP_H_
