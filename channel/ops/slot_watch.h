#ifndef TRYST_CHANNEL_OPS_SLOT_WATCH_H_
#define TRYST_CHANNEL_OPS_SLOT_WATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "channel/ops/fetch_table.h"
#include "channel/ops/serve_table.h"

namespace tryst {

class FetchAsk;

// Hears every event on the slots of both ends of rdma channels, on their poller. Tests compare them
// with a model (tests/model). Null in production. `end` identifies one end of one channel. Of one
// that is closed nothing is told but how a producer's slots end, after OnEndGone().
class SlotWatch {
 public:
  virtual ~SlotWatch() = default;
  // An event of the state table. The ask is in its new state already; it may have no slot.
  virtual void OnFetchEvent(const void* end, const FetchAsk& ask, FetchState from,
                            FetchEvent event) = 0;
  virtual void OnSlotFreed(const void* end, uint16_t slot) = 0;
  // An event of the state table, before the slot changes.
  virtual void OnServeEvent(const void* end, uint16_t slot, ServeState from, ServeEvent event) = 0;
  virtual void OnServeEpoch(const void* end) = 0;     // A new connection.
  virtual void OnServeFarewell(const void* end) = 0;  // All slots are let go of.
  virtual void OnEndGone(const void* end) = 0;
  // The link of an end is over. kDataLoss: its peer has broken a rule, which an honest one never
  // does.
  virtual void OnLinkBroken(const absl::Status& /*why*/) {}
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SLOT_WATCH_H_
