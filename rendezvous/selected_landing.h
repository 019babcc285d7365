#ifndef TRYST_RENDEZVOUS_SELECTED_LANDING_H_
#define TRYST_RENDEZVOUS_SELECTED_LANDING_H_

#include <cstdint>
#include <vector>

#include "rendezvous/selection.h"

namespace tryst {

// What a receive into a selection says of its spans, by their numbers (SpanCursor).
struct GatherResult {
  // Those that are not there as a whole, or came with a wrong digest; ascending. What they hold is
  // not known. Valid where the receive failed, too, unless its lists were refused.
  std::vector<uint32_t> failed;
  // The CRC-32C of each, where digests were asked for. 0 of one that has failed.
  std::vector<uint32_t> digests;
};

// Where in a destination a receive lands, and what it wants to know of that. A selection alone will
// do for one.
struct SelectedLanding {
  SelectedLanding(const Selection& selection)  // NOLINT(google-explicit-constructor)
      : selection(selection) {}

  Selection selection;
  // The bytes have digests, and are checked; a sender has to say so, too (SendArgs). What comes
  // right lands, and what does not makes the receive fail with kDataLoss, which names spans.
  bool digests = false;
  // With `digests`: it does not fail then. `result` says what is missing.
  bool partial = false;
  GatherResult* result = nullptr;  // Written before `done`, until which it lasts. May be null.
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_SELECTED_LANDING_H_
