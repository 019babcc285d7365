#ifndef TRYST_CHANNEL_OPS_FETCH_PARKING_H_
#define TRYST_CHANNEL_OPS_FETCH_PARKING_H_

#include "channel/ops/fetch_ask.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"

namespace tryst {

class FetchOps;

// Decides when asks that hold a slot and wait for a Send are parked: while others wait for a
// slot (FetchOps says what parking is). Poller thread only.
class FetchParking {
 public:
  explicit FetchParking(FetchOps* ops) : ops_(ops) {}

  // Call it when fetches may have begun to wait for a slot.
  void Watch();
  // Whether to ask the peer to park this request at once, unless the tensor is there.
  bool MayPark(const FetchAsk& ask) const;
  // Call it when no fetch waits for a slot or is parked any more.
  void Relax() { pressed_ = false; }
  // Call it when the connection ends.
  void Stop();

 private:
  void ParkWaiting();

  FetchOps* const ops_;
  bool pressed_ = false;  // Fetches wait in line behind others that wait for a Send.
  MemberTimer<FetchParking> timer_{this, &FetchParking::ParkWaiting};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_PARKING_H_
