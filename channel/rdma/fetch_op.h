#ifndef TRYST_CHANNEL_RDMA_FETCH_OP_H_
#define TRYST_CHANNEL_RDMA_FETCH_OP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "channel/ops/linked_line.h"
#include "channel/poller.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/wire.h"
#include "channel/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"
#include "verbs/nic.h"

namespace tryst {

// What a fetch waits for.
enum class FetchState : uint8_t {
  kFree,         // In the pool.
  kQueued,       // For a slot, or for a connection.
  kAsked,        // For the peer: it has the request and may write the destination.
  kParked,       // For the peer's Send, without a slot: the peer holds its ticket.
  kWaitingRoom,  // For landing room: the peer has the tensor and said how large it is.
  kParts,        // For tensor immediates of other queue pairs: the peer's word is here.
  kAhead,        // For its fetch: the tensor came before anybody asked, and is not accepted.
  kLeaving,      // For the answer to our CANCEL, the peer's last word on the slot.
  kFenced,       // For the broken queue pair to drain; then as kQueued, or ended.
  kEnding,       // For `done` to have run.
};
inline constexpr size_t kFetchStateCount = static_cast<size_t>(FetchState::kEnding) + 1;
const char* FetchStateName(FetchState state);

class FetchOp;
struct KeyLine;

// What ops call: their channel.
class FetchOpOwner {
 public:
  virtual ~FetchOpOwner() = default;
  virtual void OnOpCancelled(FetchOp* op) = 0;
  virtual void OnOpDeadline(FetchOp* op) = 0;
  virtual void OnOpDelivered(FetchOp* op) = 0;
};

// One fetch from Fetch() to `done`. A slot of a pool: it is not freed, only reused.
// Poller thread only, but for Cancel() and Deliver().
class FetchOp final : public PollerTimer {
 public:
  explicit FetchOp(FetchOpOwner* owner)
      : owner_(owner), cancel_task_(this), delivered_task_(this) {}

  // What the caller gave.
  int64_t step = 0;
  TensorKey key;
  Args args;
  DoneFn done;

  // Where it stands.
  FetchState state = FetchState::kFree;
  TraceSpan span;      // The same with times.
  uint64_t order = 0;  // In which slots were taken: what the peer sees as the order of asking.
  bool has_slot = false;
  uint16_t slot = 0;
  uint16_t generation = 0;
  bool send_request = false;  // A request, or the second one, is to be sent.
  bool send_cancel = false;
  bool in_send_line = false;
  bool asked_before = false;     // In an epoch that broke: the next request is a replay.
  bool ordered = false;          // `order` is set.
  uint64_t ticket = 0;           // Under which the peer parks it; 0: it has never been parked.
  bool send_park = false;        // A request to park it is to be sent,
  bool park_asked = false;       // or has been, in this epoch.
  bool send_waits = false;       // That it is still parked is to be said.
  bool here = false;             // kQueued and later: the peer holds the outcome under the ticket.
  KeyLine* behind = nullptr;     // kQueued: in this line, for the fetch before it of its key.
  KeyLine* followers = nullptr;  // Those that are behind it; null: none.
  bool moves = false;            // kLeaving: it goes to another path then, and does not end.
  bool reported = false;         // `done` has its result, although the slot is not free yet.
  bool delivered = false;        // `done` has run.
  bool retried = false;          // The digest was wrong once.
  bool standing = false;         // Made ahead: no fetch has claimed it yet.
  bool expects = false;          // `expected` is what the tensor is thought to be.
  wire::TensorMeta expected;
  int64_t parts_since_ns = 0;  // kParts, or kLeaving with gone_seen: since when.
  uint16_t parts_seen = 0;
  uint32_t lanes_seen = 0;  // Bits: the queue pairs on which a part came.
  absl::Status end_status;  // kLeaving, kFenced with `ending`: what to report.
  bool ending = false;
  wire::TensorMeta meta;  // From the peer's word: kWaitingRoom, kParts.
  uint8_t meta_flags = 0;
  bool gone_seen = false;  // kLeaving: the answer is here, parts may be missing.

  // The destination that the peer may write; none of these: it has none.
  StorageRef landing;
  std::unique_ptr<Region> region;  // Over args.destination.
  uint64_t budget_bytes = 0;       // Taken for `region`.
  uint64_t waiting_bytes = 0;      // Of landing or budget, what counts as lent for waiting.

  // Cancellation: a token while registered.
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  std::atomic<bool> cancel_posted{false};  // In the inbox: not to be reused until it has run.

  // Places in the channel's lines: for a slot or for room, with something to say, at the end.
  LineLink<FetchOp> wait_link;
  LineLink<FetchOp> send_link;
  LineLink<FetchOp> end_link;

  // Result, from kAhead or Report to Deliver.
  absl::Status result_status;
  Tensor result;
  bool result_is_dead = false;
  absl::StatusCode traced_code = absl::StatusCode::kOk;  // Of both, once they are given away.
  uint64_t traced_bytes = 0;

  // Any thread: asks the poller to end it early.
  void Cancel(Poller* poller) {
    if (!cancel_posted.exchange(true)) poller->Post(&cancel_task_);
  }
  // Runs `done`, on the thread it is called on.
  void Deliver();
  // The same on another thread than the poller's, which is told.
  void DeliverFrom(Poller* poller) {
    Deliver();
    poller->Post(&delivered_task_);
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
  void OnTimer() override { owner_->OnOpDeadline(this); }

  FetchOpOwner* const owner_;
  CancelTask cancel_task_;
  DeliveredTask delivered_task_;
};

// The fetches of one key of one step behind the one that has been asked for.
struct KeyLine {
  LinkedLine<FetchOp> line{&FetchOp::wait_link};
  FetchOp* first = nullptr;  // Whom they follow.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_OP_H_
