#ifndef TRYST_CHANNEL_SHM_FETCH_OP_H_
#define TRYST_CHANNEL_SHM_FETCH_OP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "channel/poller/poller.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// What a fetch waits for.
enum class ShmFetchState : uint8_t {
  kFree,     // In the pool.
  kQueued,   // For a slot, room in the ring, or a connection.
  kWanted,   // For the producer to say that the tensor is here; without a slot.
  kHere,     // For a slot to claim it with.
  kAsked,    // For the producer's answer.
  kCopying,  // For its bytes to be copied to where they belong, a part in each turn.
  kLeaving,  // For the producer's last word after our CANCEL.
  kEnding,   // For `done` to have run.
};
inline constexpr size_t kShmFetchStateCount = static_cast<size_t>(ShmFetchState::kEnding) + 1;
const char* ShmFetchStateName(ShmFetchState state);

// Several fetches with one callback. Recycled with its vector.
struct ShmManyFetch {
  Args args;
  ManyDoneFn done;
  std::vector<Received> results;
  size_t left = 0;
};

class ShmFetchOp;

// What ops call: their channel.
class ShmFetchOpOwner {
 public:
  virtual ~ShmFetchOpOwner() = default;
  virtual void OnOpCancelled(ShmFetchOp* op) = 0;
  virtual void OnOpTimer(ShmFetchOp* op) = 0;
  virtual void OnOpDelivered(ShmFetchOp* op) = 0;
};

// One fetch from Fetch() to `done`. A slot of a pool: it is not freed, only reused.
// Poller thread only, but for Cancel() and DeliverFrom().
class ShmFetchOp final : public PollerTimer {
 public:
  explicit ShmFetchOp(ShmFetchOpOwner* owner)
      : owner_(owner), cancel_task_(this), delivered_task_(this) {}

  // What the caller gave. Of one of many: `many` and `index` instead of args and done.
  int64_t step = 0;
  TensorKey key;
  Args args;
  DoneFn done;
  ShmManyFetch* many = nullptr;
  size_t index = 0;
  int64_t begun_ns = 0;
  bool plain = false;  // No deadline, cancellation or executor: nothing to undo at its end.

  // Where it stands.
  ShmFetchState state = ShmFetchState::kFree;
  TraceSpan span;  // The same with times.
  bool has_slot = false;
  uint16_t slot = 0;
  uint64_t serial = 0;        // Of the want, until it is claimed; 0: none.
  bool was_here = false;      // The producer has said so.
  bool unwanted = false;      // UNWANT was said,
  bool at_any_rate = false;   // with that flag,
  bool passed = false;        // and by then a later fetch of its key had been asked for.
  uint64_t order = 0;         // Of asking, over all links.
  uint32_t key_id = 0;        // By which the producer was asked.
  bool may_stay = false;      // It was cancelled or is late: what it is answered may still be its.
  bool asked_before = false;  // Over a link that is gone.
  uint8_t misanswered = 0;    // How often its answer made no sense.
  bool reported = false;      // `done` has its result, although the slot is not free yet.
  bool delivered = false;     // `done` has run.
  bool taken_over = false;    // By another channel, which will say how it ends.
  absl::Status end_status;    // kLeaving: what to report.

  // kCopying: from where to where.
  Tensor into;  // The caller's memory, or what becomes the tensor.
  Tensor from;  // A view; else the producer's own memory is read, or parts come.
  uint64_t from_address = 0;
  bool pulls = false;
  uint32_t cell = 0;  // Of the reply ring: what it was answered in.
  uint64_t position = 0;
  uint64_t bytes = 0;
  uint32_t digest = 0;  // What it should be,
  uint32_t digest_so_far = 0;
  bool has_digest = false;
  DType dtype = DType::kInvalid;  // Of the tensor; kString: `into` is its encoding.
  TensorShape shape;

  // Cancellation: a token while registered.
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  std::atomic<bool> cancel_posted{false};  // In the inbox: not to be reused until it has run.

  // Result, from Report to Deliver.
  absl::Status result_status;
  Tensor result;
  bool result_is_dead = false;
  absl::StatusCode traced_code = absl::StatusCode::kOk;  // Of it, once it is given away.
  uint64_t traced_bytes = 0;

  // Any thread: asks the poller to end it early.
  void Cancel(Poller* poller) {
    if (!cancel_posted.exchange(true)) poller->Post(&cancel_task_);
  }
  // Runs `done`, on the thread it is called on.
  void Deliver();
  // Lets go of what the caller gave.
  void DropArgs() {
    args.destination = Tensor();
    args.device_context = nullptr;
  }
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
    explicit CancelTask(ShmFetchOp* op) : op(op) {}
    void RunOnPoller() override {
      op->cancel_posted.store(false);
      op->owner_->OnOpCancelled(op);
    }
    ShmFetchOp* const op;
  };
  struct DeliveredTask final : PollerTask {
    explicit DeliveredTask(ShmFetchOp* op) : op(op) {}
    void RunOnPoller() override { op->owner_->OnOpDelivered(op); }
    ShmFetchOp* const op;
  };
  void OnTimer() override { owner_->OnOpTimer(this); }

  ShmFetchOpOwner* const owner_;
  CancelTask cancel_task_;
  DeliveredTask delivered_task_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_OP_H_
