#ifndef TRYST_CHANNEL_OPS_TAKES_H_
#define TRYST_CHANNEL_OPS_TAKES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "channel/poller/poller.h"
#include "channel/trace/live_ops.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

class ServeTake;

// What takes a tensor: the request on one slot.
struct TakingOp {
  ServeTake* take = nullptr;  // Under way for it.
};

class ServeTakeOwner {
 public:
  virtual ~ServeTakeOwner() = default;
  virtual void OnTaken(ServeTake* take) = 0;
};

// One take from the local rendezvous, from its start until the poller has seen its end. An op that
// no longer wants it lets go of it at once, so that what follows on the slot has its turn now. Of a
// pool. Poller thread only, but for End().
class ServeTake final : public PollerTask {
 public:
  ServeTake(ServeTakeOwner* owner, Poller* poller) : owner_(owner), poller_(poller) {}

  // On any thread.
  void End(absl::Status its_status, const Args& send_args, Tensor tensor, bool is_dead) {
    status = std::move(its_status);
    taken.tensor = std::move(tensor);
    taken.is_dead = is_dead;
    taken.send_args = send_args;
    // In the call that starts it there is nobody to be told: it looks.
    const bool looks = poller_->OnThread() && in_call_;
    if (looks) ended_in_call_ = true;
    ended.store(true, std::memory_order_release);
    if (!looks) poller_->Post(this);
  }

  TakingOp* op = nullptr;  // Whose it is; null: it is parked, or nobody wants it any more.
  uint64_t ticket = 0;     // Parked: the number under which the consumer waits for it.
  uint64_t epoch = 0;      // In which the consumer last spoke of the ticket.
  int64_t since_ns = 0;    // Parked: since when the request waits.
  bool dropped = false;    // Nobody wants it: what follows waits for its end.
  bool here = false;       // Parked, and what follows is written and seen.
  int64_t step = 0;
  TensorKey key;
  absl::optional<Cancellation> cancellation;
  std::atomic<bool> ended{false};  // What follows is written, although nobody has heard of it.
  absl::Status status;
  Taken taken;

 private:
  friend class Takes;
  void RunOnPoller() override { owner_->OnTaken(this); }

  ServeTakeOwner* const owner_;
  Poller* const poller_;
  // Poller thread only.
  bool in_call_ = false;  // The call that starts it has not returned,
  bool ended_in_call_ = false;
};

// The user of Takes, which they call when a take ends.
class TakesUser {
 public:
  virtual ~TakesUser() = default;
  // The take of `op` has ended: the op keeps what it wants of it. Perhaps inside Start().
  virtual void OnTakeEnded(TakingOp* op, ServeTake* take) = 0;
  // There are tickets to be told.
  virtual void OnHere() = 0;
  // No take is under way any more.
  virtual void OnTakesIdle() = 0;
};

// What a producer takes for one consumer: each tensor once, given back in its place when nobody
// wants it; and the takes that wait for their Send without a slot (docs/WIRE.md, "Parking").
// Poller thread only.
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

  // Takes for `op`. The hello has authenticated the consumer: it gets what is meant for it.
  void Start(int64_t step, const TensorKey& key, TakingOp* op);
  // Whether a take of `key` would have to wait for one that nobody wants any more.
  bool MustWait(const TensorKey& key) const {
    return !dropping_.empty() && dropping_.contains(key);
  }
  // The op no longer wants it. REQUIRES: op->take != nullptr.
  void Drop(TakingOp* op);

  // Parks what `op` waits for. False: it is about to end, or keeps its slot.
  bool Park(TakingOp* op, uint64_t ticket, int64_t since_ns);
  // Goes on for `op` with what is parked under the ticket. False: nothing of that key and step.
  bool Unpark(uint64_t ticket, int64_t step, const TensorKey& key, TakingOp* op);
  // The consumer says, in a new epoch, that it waits on. False: more than may be parked.
  bool Waits(uint64_t ticket, int64_t step, const TensorKey& key);
  // Of the connection, over which tickets are told. 0: there is none.
  void SetEpoch(uint64_t epoch);
  // How many of them were parked here.
  size_t DropTickets(absl::Span<const uint64_t> tickets);
  void DropUnspoken();  // Those that the consumer has not spoken of in this epoch.
  // The tickets to be told, in the order of the Sends. `tell` says how many of them it has told.
  bool TellHere(size_t most, absl::FunctionRef<bool(absl::Span<const uint64_t>)> tell);
  bool has_here() const { return !here_.empty(); }

  void ListOps(LiveOp like, LiveOps* ops) const;
  size_t parked() const { return parked_.size(); }
  bool idle() const { return free_.size() == takes_.size(); }

 private:
  ServeTake* New(int64_t step, const TensorKey& key);
  bool TakeHere(ServeTake* take);
  void Ask(ServeTake* take);
  void LetGo(ServeTake* take);
  void GiveBack(ServeTake* take);
  void End(ServeTake* take, TakingOp* op);
  void Free(ServeTake* take);
  void OnTaken(ServeTake* take) override;
  void OnParkedTaken(ServeTake* take);
  void ForgetStaleHere();
  void DropParked(ServeTake* take);

  Poller* const poller_;
  TensorSource* const source_;
  TakesUser* const user_;
  const std::string consumer_;
  const uint32_t max_parked_;
  uint64_t* const given_back_;  // Counts.

  TensorSource::Place place_;
  std::deque<ServeTake> takes_;  // All there ever were; addresses stay.
  std::vector<ServeTake*> free_;
  // Let go of and not ended yet, by key; and those that wait for their end.
  absl::flat_hash_map<TensorKey, uint32_t> dropping_;
  std::vector<ServeTake*> deferred_;
  absl::flat_hash_map<uint64_t, ServeTake*> parked_;  // By ticket.
  std::vector<uint64_t> here_;                        // Tickets to be told.
  uint64_t epoch_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_TAKES_H_
