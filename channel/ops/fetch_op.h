#ifndef TRYST_CHANNEL_OPS_FETCH_OP_H_
#define TRYST_CHANNEL_OPS_FETCH_OP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "channel/ops/linked_line.h"
#include "channel/poller/poller.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_fetcher.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

class FetchAsk;
class FetchOp;
struct FetchRun;

// Several fetches with one callback. Recycled with its vector.
struct FetchJoin {
  RecvArgs args;
  ManyFetchedFn done;
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

// How far a fetch has come for its caller.
enum class FetchPhase : uint8_t {
  kFree,       // It is in the pool.
  kWaits,      // In the line of an ask, or about to be.
  kReported,   // It has its result.
  kDelivered,  // `done` has run.
  kMoved,      // Another channel has it and its `done`.
};

// One fetch, from Fetch() to `done`, over any transport: what its caller wants. What the peer is
// asked for it is a FetchAsk. Ops are reused, never freed. Poller thread only, except for Cancel()
// and DeliverFrom().
class FetchOp final : public PollerTimer {
 public:
  explicit FetchOp(FetchOpOwner* owner)
      : owner_(owner), cancel_task_(this), delivered_task_(this) {}

  // What the caller gave. For a fetch of many, `join` and `index` take the place of done and of
  // args, but for the destination.
  int64_t step = 0;
  TensorKey key;
  RecvArgs args;
  FetchedFn done;
  FetchJoin* join = nullptr;
  size_t index = 0;
  FetchRun* run = nullptr;      // It fetches all keys of this run, for its fetches.
  FetchRun* part_of = nullptr;  // It is one of the fetches of this run.
  bool by_run = false;          // It has its result by a run, which is in the trace.
  int64_t begun_ns = 0;

  FetchPhase phase = FetchPhase::kFree;
  FetchAsk* ask = nullptr;  // In kWaits, once it is in a line.
  TraceSpan span;           // What it waited for, and when.
  // Its ask is given up: what to report when nobody can write its memory any more.
  absl::Status end_status;

  // Cancellation: a token while registered.
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  // The inbox holds it: it must not be reused before the cancel has run.
  std::atomic<bool> cancel_posted{false};

  LineLink<FetchOp> line_link;  // Its place behind another fetch of its key and step,
  LineLink<FetchOp> end_link;   // and among those whose result is to be delivered.

  Received received;  // Its result, from its end until Deliver().
  // The code of the result, kept after the result is given away.
  absl::StatusCode traced_code = absl::StatusCode::kOk;
  uint64_t traced_bytes = 0;

  void Renew();  // Makes it as new.
  // The caller's RecvArgs; all fetches of a join have the same. Without their destination.
  const RecvArgs& wants() const { return join != nullptr ? join->args : args; }
  const Tensor& destination() const { return args.destination; }
  // Any thread: asks the poller to end it early.
  void Cancel(Poller* poller) {
    if (!cancel_posted.exchange(true)) poller->Post(&cancel_task_);
  }
  void Deliver() {  // Runs `done` on the calling thread.
    FetchedFn run = std::move(done);
    done = nullptr;
    std::move(run)(std::move(received));
    received.tensor.Reset();  // If it was not moved on.
    args.DropReferences();
  }
  // Deliver() on an executor's thread; tells the poller if that is another thread.
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

// What the fetches of a channel count.
struct FetchCounters {
  uint64_t fetches = 0;
  uint64_t ended_ok = 0;
  uint64_t ended_failed = 0;
  uint64_t cancels_sent = 0;
  uint64_t replays = 0;  // Asked again over another connection.
  uint64_t moved = 0;    // Asks that came here from another kind of link.
  uint64_t parked = 0;   // Gave their slot to others while they waited for a Send.
  uint64_t runs = 0;     // Runs of keys that were asked for,
  uint64_t in_runs = 0;  // and tensors that came by them.
  uint64_t bytes = 0;
  uint64_t in_message = 0;  // Tensors that came inside a message or cell.
  uint64_t links = 0;       // Connections made.
  uint64_t breaks = 0;
  uint64_t digests_wrong = 0;
  // Over a NIC.
  uint64_t ghosts = 0;            // Messages about a slot that has been used again since.
  uint64_t standing = 0;          // Standing receives made.
  uint64_t standing_claimed = 0;  // Standing receives that a fetch claimed.
  // Standing receives given up; their tensors went back to the producer.
  uint64_t standing_dropped = 0;
  // Over shared memory.
  uint64_t by_reference = 0;  // Tensors delivered as a view.
  uint64_t copied = 0;        // Tensors copied from a segment into the caller's memory.
  uint64_t pulled = 0;        // Tensors read from the producer's own memory.
  uint64_t in_parts = 0;
  uint64_t messages = 0;  // Cells written.

  FetchCounters& operator+=(const FetchCounters& other);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_OP_H_
