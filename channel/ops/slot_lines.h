#ifndef TRYST_CHANNEL_OPS_SLOT_LINES_H_
#define TRYST_CHANNEL_OPS_SLOT_LINES_H_

#include "channel/ops/fetch_op.h"
#include "channel/ops/linked_line.h"

namespace tryst {

// The fetches that wait for a slot, in the order in which they get one: those whose tensor the peer
// has go first.
struct SlotLines {
  // In kQueued, except those that follow another fetch.
  LinkedLine<FetchOp> queued{&FetchOp::wait_link};
  LinkedLine<FetchOp> here{&FetchOp::wait_link};  // In kHere; served before `queued`.

  bool any() const { return !queued.empty() || !here.empty(); }
  LinkedLine<FetchOp>* Next() { return here.empty() ? &queued : &here; }
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SLOT_LINES_H_
