#ifndef TRYST_CHANNEL_RDMA_FETCH_STANDING_H_
#define TRYST_CHANNEL_RDMA_FETCH_STANDING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "channel/ops/fetch_ops.h"
#include "channel/ops/linked_line.h"
#include "channel/poller/member_timer.h"
#include "channel/rdma/fetch_ask.h"
#include "channel/rdma/fetch_destination.h"
#include "channel/rdma/key_habits.h"
#include "channel/rdma/rdma_options.h"

namespace tryst {

// Standing receives: a key that recurs in step after step is requested before its fetch comes, so
// that the producer writes the tensor as soon as it is sent. The tensor is accepted only when a
// fetch claims it; if none does, a CANCEL gives it back to the producer. Poller thread only.
class StandingReceives {
 public:
  // All outlive it.
  StandingReceives(FetchOps* ops, FetchDestinations* destinations, KeyHabits* habits,
                   const RdmaOptions* options)
      : ops_(ops),
        destinations_(destinations),
        habits_(habits),
        options_(*options),
        counters_(*ops->counters()) {}

  // The standing receive that this fetch claims; null if there is none.
  FetchAsk* Foreseen(const FetchKey& key, int64_t step_id);
  // Requests the tensor of the next step, if one is foreseen and there is room.
  void ArmNext(FetchKey* key);
  void End(RdmaAsk* ask, bool claimed);
  // Gives up one standing receive, because fetches need its slot or its memory.
  void DropOne();
  void DropAll(const absl::Status& why);
  size_t count() const { return waiting_.size(); }  // Standing receives that no fetch has claimed.

 private:
  static RdmaAsk* Of(const FetchKey& key);
  void OnTimer();

  FetchOps* const ops_;
  FetchDestinations* const destinations_;
  KeyHabits* const habits_;
  const RdmaOptions& options_;
  FetchCounters& counters_;
  // The oldest first. They wait neither for a slot nor for room, so the link is free.
  LinkedLine<FetchAsk> waiting_{&FetchAsk::wait_link};
  MemberTimer<StandingReceives> timer_{this, &StandingReceives::OnTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_STANDING_H_
