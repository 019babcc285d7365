#ifndef TRYST_CHANNEL_OPS_SLOT_LINES_H_
#define TRYST_CHANNEL_OPS_SLOT_LINES_H_

#include "channel/ops/fetch_ask.h"
#include "channel/ops/linked_line.h"

namespace tryst {

// The asks that wait for a slot, in the order in which they get one: those whose tensor the peer
// has go first.
struct SlotLines {
  LinkedLine<FetchAsk> queued{&FetchAsk::wait_link};  // In kQueued.
  LinkedLine<FetchAsk> here{&FetchAsk::wait_link};    // In kHere; served before `queued`.

  bool any() const { return !queued.empty() || !here.empty(); }
  LinkedLine<FetchAsk>* Next() { return here.empty() ? &queued : &here; }
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SLOT_LINES_H_
