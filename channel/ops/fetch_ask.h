#ifndef TRYST_CHANNEL_OPS_FETCH_ASK_H_
#define TRYST_CHANNEL_OPS_FETCH_ASK_H_

#include <cstdint>
#include <utility>

#include "channel/ops/fetch_op.h"
#include "channel/ops/fetch_table.h"
#include "channel/ops/linked_line.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor.h"

namespace tryst {

struct FetchKey;

// Whether the peer may let a request wait without its slot.
enum class Parks : uint8_t {
  kNo,       // Over this connection it has not been allowed to.
  kAllowed,  // It has.
  kOver,     // It did, and then said that the outcome is here: that is not parked once more.
};

// What a peer is asked for: the tensor of one key and step, for the fetches of it that wait here.
// There is one for a key and step at a time (docs/decisions/0026-order-with-cancels.md), but for
// those whose CANCEL is out and for which nobody waits. The peer serves whichever fetch is in
// front; when that one ends early the next takes its place, and the peer does not hear of it. Asks
// are reused, never freed. Each kind of link has its own; when a session goes on by another kind,
// one of that takes the place of each. Poller thread only.
class FetchAsk {
 public:
  static constexpr uint16_t kNoSlot = UINT16_MAX;

  virtual ~FetchAsk() = default;
  // Forgets what it asked for, so that it can ask anew; a transport's own with it. Its key, step
  // and fetches stay.
  virtual void Renew() {
    state = FetchState::kQueued;
    order = 0;
    ticket = 0;
    trace_id = 0;
    parks = Parks::kNo;
    said = false;
  }
  // Takes the place of `former`, in all lines, with all that is for every kind of link.
  void TakePlaceOf(FetchAsk* former);

  FetchKey* of = nullptr;  // Its key, as long as it is not free.
  int64_t step = 0;
  FetchOp* front = nullptr;                         // The fetch that gets the tensor. Null: none.
  LinkedLine<FetchOp> behind{&FetchOp::line_link};  // Those that wait for their turn.

  FetchState state = FetchState::kFree;
  uint16_t slot = kNoSlot;
  uint32_t generation = 0;
  uint64_t order = 0;     // Its number in the order in which slots were taken; 0: it never had one.
  uint64_t ticket = 0;    // The number under which the peer parks it; 0: it was never parked.
  uint64_t trace_id = 0;  // By which both ends know the request.
  // Without a fetch: since when it is asked for ahead, or waits for the peer's last word; and when
  // that, or the fetch that it had, began.
  int64_t since_ns = 0;
  int64_t began_ns = 0;
  Parks parks = Parks::kNo;
  // It was requested over a connection that is gone, so the next request is a replay.
  bool said = false;

  bool has_slot() const { return slot != kNoSlot; }
  // It is given up, and the peer may still have to say so.
  bool leaves() const {
    return state == FetchState::kLeaving || state == FetchState::kLeft ||
           state == FetchState::kFencedLeaving;
  }
  // The ask was sent before a fetch came for its tensor.
  bool is_ahead() const { return front == nullptr && state != FetchState::kEnding && !leaves(); }
  // What the fetch at the head of its key's line wants.
  const RecvArgs& wants() const { return front != nullptr ? front->wants() : NoArgs(); }
  const Tensor& destination() const {
    return front != nullptr ? front->destination() : NoArgs().destination;
  }
  // To be moved from, as long as the fetch lasts. REQUIRES: there is one, and the fetch ends with
  // it.
  Tensor&& TakeDestination() { return std::move(front->args.destination); }
  void Enter(WaitsFor what, int64_t now_ns) {
    if (front != nullptr) front->span.Enter(what, now_ns);
  }

  // Its places in the channel's lines: for a slot, for room or for its fetch; for something to
  // send; and among those of its key.
  LineLink<FetchAsk> wait_link;
  LineLink<FetchAsk> send_link;
  LineLink<FetchAsk> key_link;

 private:
  static const RecvArgs& NoArgs();
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_ASK_H_
