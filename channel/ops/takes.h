#ifndef TRYST_CHANNEL_OPS_TAKES_H_
#define TRYST_CHANNEL_OPS_TAKES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "channel/ops/paged_blocks.h"
#include "channel/ops/told_keys.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/trace/live_ops.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

class ServeTake;

// The request on one slot, which takes a tensor.
struct TakingOp {
  ServeTake* take = nullptr;  // The take that is under way for it.
};

class ServeTakeOwner {
 public:
  virtual ~ServeTakeOwner() = default;
  virtual void OnTaken(ServeTake* take) = 0;
};

// One take from the local rendezvous, from its start until the poller has seen its end. A request
// that no longer wants its take drops it at once, so that the slot is free for the next request.
// Belongs to a pool. Poller thread only, except for End().
class ServeTake final : public PollerTask {
 public:
  ServeTake(ServeTakeOwner* owner, Poller* poller) : owner_(owner), poller_(poller) {}

  // On any thread.
  void End(Received&& received) {
    taken = std::move(received);
    // The call that starts the take checks `ended` itself, so nobody needs to be told.
    const bool looks = poller_->OnThread() && in_call_;
    if (looks) ended_in_call_ = true;
    ended.store(true, std::memory_order_release);
    if (!looks) poller_->Post(this);
  }

  TakingOp* op = nullptr;  // Its request; null: it is parked, or was dropped.
  uint64_t ticket = 0;     // If parked: the number under which the consumer waits for it.
  uint64_t epoch = 0;      // The epoch in which the consumer last named the ticket.
  int64_t since_ns = 0;    // If parked: when the request began to wait.
  bool dropped = false;    // Nobody wants it; the next take of its key waits for its end.
  bool here = false;       // If parked: `taken` is written, and the poller has seen that.
  int64_t step = 0;
  TensorKey key;
  absl::optional<Cancellation> cancellation;
  std::atomic<bool> ended{false};  // `taken` is written; the poller may not know it yet.
  Received taken;

 private:
  friend class Takes;
  void RunOnPoller() override { owner_->OnTaken(this); }

  ServeTakeOwner* const owner_;
  Poller* const poller_;
  // Poller thread only.
  bool in_call_ = false;  // The call that starts it has not returned.
  bool ended_in_call_ = false;
};

// The user of Takes, which they call when a take ends.
class TakesUser {
 public:
  virtual ~TakesUser() = default;
  // The take of `op` has ended, perhaps inside Start(). `op` keeps what it needs of it.
  virtual void OnTakeEnded(TakingOp* op, ServeTake* take) = 0;
  // There are tickets of which the consumer must be told.
  virtual void OnHere() = 0;
  // No take is under way any more.
  virtual void OnTakesIdle() = 0;
};

// The takes of a producer for one consumer. Each tensor is taken once, and given back in its old
// place when nobody wants it. Holds the parked takes, too, which wait for their Send without a slot
// (docs/WIRE.md, "Parking"). Poller thread only.
class Takes final : private ServeTakeOwner {
 public:
  Takes(Poller* poller, TensorSource* source, TakesUser* user, std::string consumer,
        uint32_t max_parked, uint64_t* given_back)
      : poller_(poller),
        source_(source),
        user_(user),
        consumer_(std::move(consumer)),
        max_parked_(max_parked),
        given_back_(given_back) {}
  ~Takes() {
    if (idle_timer_.is_set()) poller_->CancelTimer(&idle_timer_);
  }

  // Takes for `op`. The hello has authenticated the consumer, so it gets only tensors meant for it.
  // `looked`: Here() has just found nothing.
  void Start(int64_t step, const TensorKey& key, TakingOp* op, bool looked = false);
  // Whether a take of `key` must wait until a dropped one has ended.
  bool MustWait(const TensorKey& key) const {
    return !dropping_.empty() && dropping_.contains(key);
  }
  // Takes a tensor that is already here, without making a take; nearly all requests end so. `*key`
  // is as in TensorSource::TakeHere(). False: it changed nothing, and the caller needs Start().
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool Here(int64_t step, ToldKey* known, Received* taken) {
    if (!known->may_take) {
      known->may_take = known->for_consumer && source_->MayTake(known->key);
      if (!known->may_take) return false;
    }
    return !MustWait(known->key) && source_->TakeHere(step, &known->key, &place_, taken);
  }
  // Releases the step in which Here() last found a tensor.
  void ForgetPlace() { place_ = TensorSource::Place(); }
  // `op` no longer wants its take. REQUIRES: op->take != nullptr.
  void Drop(TakingOp* op);

  // Parks the take of `op`. False: the take is about to end, or `op` must keep its slot.
  bool Park(TakingOp* op, uint64_t ticket, int64_t since_ns);
  // `op` continues the take that is parked under the ticket. False: none of that key and step is.
  bool Unpark(uint64_t ticket, int64_t step, const TensorKey& key, TakingOp* op);
  // The consumer says, in a new epoch, that it still waits under the ticket. False: too many are
  // parked.
  bool Waits(uint64_t ticket, int64_t step, const TensorKey& key);
  // The epoch of the connection over which tickets are told. 0: there is no connection.
  void SetEpoch(uint64_t epoch);
  // Drops the takes under the tickets; returns how many were parked here.
  size_t DropTickets(absl::Span<const uint64_t> tickets);
  void DropUnspoken();  // Drops parked takes that the consumer did not name in this epoch.
  // Calls `tell` with at most `most` tickets whose takes have ended, in the order of the Sends. It
  // returns how many of them it has told.
  bool TellHere(size_t most, absl::FunctionRef<bool(absl::Span<const uint64_t>)> tell);
  bool has_here() const { return !here_.empty(); }

  void ListOps(LiveOp like, LiveOps* ops) const;
  size_t parked() const { return parked_.size(); }
  // How many of those have a tensor, for which the consumer has to ask.
  size_t parked_here() const;
  bool idle() const { return free_.size() == takes_.size(); }

 private:
  ServeTake* New(int64_t step, const TensorKey& key);
  bool TakeHere(ServeTake* take);
  void Ask(ServeTake* take, bool looked);
  void LetGo(ServeTake* take);
  void GiveBack(ServeTake* take);
  void End(ServeTake* take, TakingOp* op);
  void Free(ServeTake* take);
  void GiveMemoryBack();
  void OnTaken(ServeTake* take) override;
  void OnParkedTaken(ServeTake* take);
  void ForgetStaleHere();
  void DropParked(ServeTake* take);

  Poller* const poller_;
  TensorSource* const source_;
  TakesUser* const user_;
  const std::string consumer_;
  const uint32_t max_parked_;
  uint64_t* const given_back_;  // A counter.

  TensorSource::Place place_;
  PagedBlocks<ServeTake> takes_;
  std::vector<ServeTake*> free_;
  // How many dropped takes of each key have not ended; and the requests that wait for that.
  absl::flat_hash_map<TensorKey, uint32_t> dropping_;
  std::vector<ServeTake*> deferred_;
  absl::flat_hash_map<uint64_t, ServeTake*> parked_;  // By ticket.
  std::vector<uint64_t> here_;                        // Tickets of which the consumer must be told.
  uint64_t epoch_ = 0;
  // Set when the last of many takes has ended.
  MemberTimer<Takes> idle_timer_{this, &Takes::GiveMemoryBack};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_TAKES_H_
