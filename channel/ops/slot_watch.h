#ifndef TRYST_CHANNEL_OPS_SLOT_WATCH_H_
#define TRYST_CHANNEL_OPS_SLOT_WATCH_H_

#include <cstdint>

#include "channel/ops/fetch_table.h"
#include "channel/ops/serve_table.h"

namespace tryst {

class FetchOp;

// What a producer does with a slot.
enum class ServeStep : uint8_t {
  kRequest,     // A request for a new use of the slot came.
  kRepeat,      // A request for the same use came again.
  kCancel,      // A cancel of this use came.
  kLateCancel,  // A cancel of an earlier use came.
  kAccepted,
  kMet,        // The tensor was taken from the rendezvous.
  kAnswered,   // It answered with the tensor, or with why there is none.
  kAskedRoom,  // It answered with how large the tensor is.
  kParked,
  kGivenUp,  // The consumer did not request it again after a break.
};

// Hears every event on the slots of both ends of rdma channels, on their poller. Tests compare them
// with a model (tests/model). Null in production. `end` identifies one end of one channel; no event
// of a closed end is told.
class SlotWatch {
 public:
  virtual ~SlotWatch() = default;
  // An event of the state table. The op is in its new state already; it may have no slot.
  virtual void OnFetchEvent(const void* end, const FetchOp& op, FetchState from,
                            FetchEvent event) = 0;
  virtual void OnSlotFreed(const void* end, uint16_t slot) = 0;
  virtual void OnServeStep(const void* end, uint16_t slot, ServeStep step) = 0;
  // A word of the consumer, before the slot does what it asks for.
  virtual void OnServeEvent(ServeState from, ServeEvent event) = 0;
  virtual void OnServeEpoch(const void* end) = 0;     // A new connection.
  virtual void OnServeFarewell(const void* end) = 0;  // All slots are let go of.
  virtual void OnEndGone(const void* end) = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SLOT_WATCH_H_
