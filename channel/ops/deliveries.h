#ifndef TRYST_CHANNEL_OPS_DELIVERIES_H_
#define TRYST_CHANNEL_OPS_DELIVERIES_H_

#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/linked_line.h"
#include "channel/ops/ring_line.h"
#include "channel/poller/poller.h"

namespace tryst {

// Gives results to callers, each once: in place or on the caller's executor, now or at the end of
// the turn, and again in the next turn where the executor had no room. A join gets its results
// together. Poller thread only.
class Deliveries final : private PollerFlush {
 public:
  // At the end of a turn: never inside Fetch(), nor while a list is walked through.
  enum class When { kNow, kAtEndOfTurn };

  Deliveries(Poller* poller, FetchOpOwner* owner) : poller_(poller), owner_(owner) {}
  ~Deliveries() override { poller_->ForgetFlush(this); }

  // One callback for so many fetches, which are to be made with it. At once if there are none.
  FetchJoin* NewJoin(size_t count, const Args& args, ManyDoneFn done);
  // True: nothing keeps `op` from its result now, in place. Then In() gives it.
  bool InPlace(const FetchOp& op) const {
    return op.join == nullptr && op.plain && op.args.executor == nullptr && undelivered_.empty() &&
           !op.is_set();
  }
  void In(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void Deliver(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead, When when);
  // Of a fetch that belongs to a join and has gone to another channel: its callback there.
  DoneFn BackToJoin(FetchOp* op);
  bool idle() const { return free_joins_.size() == joins_.size() && undelivered_.empty(); }

 private:
  void Flush() override;
  bool TryDeliver(FetchOp* op);
  bool TryDeliver(FetchJoin* join);
  void NoteResult(FetchJoin* join, size_t index, Received received, When when);

  const Args no_args_;
  Poller* const poller_;
  FetchOpOwner* const owner_;
  LinkedLine<FetchOp> undelivered_{&FetchOp::end_link};
  RingLine<FetchJoin*> undelivered_joins_;
  std::deque<FetchJoin> joins_;  // All there ever were; addresses stay.
  std::vector<FetchJoin*> free_joins_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_DELIVERIES_H_
