#ifndef TRYST_CHANNEL_OPS_DELIVERIES_H_
#define TRYST_CHANNEL_OPS_DELIVERIES_H_

#include <deque>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
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
  // kAtEndOfTurn: for a caller that is inside Fetch() or walks through a list.
  enum class When { kNow, kAtEndOfTurn };

  Deliveries(Poller* poller, FetchOpOwner* owner) : poller_(poller), owner_(owner) {}
  ~Deliveries() override { poller_->ForgetFlush(this); }

  // A join of `count` fetches with one callback; the caller makes the fetches. With none, `done`
  // runs at once.
  FetchJoin* NewJoin(size_t count, const RecvArgs& args, ManyFetchedFn done);
  // Whether the result of `op` may be delivered now, by In().
  bool InPlace(const FetchOp& op) const {
    return op.join == nullptr && op.args.executor == nullptr && undelivered_.empty() &&
           !op.is_set() && op.cancel_token == Cancellation::kNoToken;
  }
  // In place, which is usual: there is nothing to undo. The caller is the owner of `op`, and need
  // not be told that it is delivered.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void In(FetchOp* op, absl::Status&& status, Tensor&& tensor,
                                              bool is_dead) {
    std::move(op->done)({std::move(status), std::move(tensor), is_dead});
    op->done = nullptr;
    op->args.DropReferences();
  }
  void Deliver(FetchOp* op, absl::Status&& status, Tensor&& tensor, bool is_dead, When when);
  // So many results of the join, which the caller has written there, have come.
  void NoteResults(FetchJoin* join, size_t count, When when);
  // For a fetch of a join that moves to another channel: the callback that returns its result here.
  FetchedFn BackToJoin(FetchOp* op);
  bool idle() const { return free_joins_.size() == joins_.size() && undelivered_.empty(); }

 private:
  void Flush() override;
  bool TryDeliver(FetchOp* op);
  bool TryDeliver(FetchJoin* join);

  Poller* const poller_;
  FetchOpOwner* const owner_;
  LinkedLine<FetchOp> undelivered_{&FetchOp::end_link};
  RingLine<FetchJoin*> undelivered_joins_;
  std::deque<FetchJoin> joins_;  // All that were ever made; addresses stay.
  std::vector<FetchJoin*> free_joins_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_DELIVERIES_H_
