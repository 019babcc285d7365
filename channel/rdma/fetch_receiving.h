#ifndef TRYST_CHANNEL_RDMA_FETCH_RECEIVING_H_
#define TRYST_CHANNEL_RDMA_FETCH_RECEIVING_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "channel/ops/fetch_session.h"
#include "channel/rdma/fetch_ask.h"
#include "channel/rdma/fetch_destination.h"
#include "channel/rdma/fetch_sending.h"
#include "channel/rdma/fetch_standing.h"
#include "channel/rdma/key_habits.h"
#include "channel/rdma/wire.h"

namespace tryst {

// Handles what the producer says, and tensors that land. Poller thread only.
class RdmaReceiver {
 public:
  // All outlive it.
  RdmaReceiver(FetchSession* session, RdmaSender* sender, FetchDestinations* destinations,
               StandingReceives* standing, KeyHabits* habits)
      : session_(session),
        sender_(sender),
        destinations_(destinations),
        standing_(standing),
        habits_(habits),
        counters_(*session->counters()) {}

  // An error breaks the link.
  absl::Status OnRecord(const wire::Record& record);
  absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation);
  // A fetch has claimed a standing receive whose tensor is here.
  void TakeAhead(RdmaAsk* ask);
  // It is given up; it was in state `from` until now.
  void OnLeaves(RdmaAsk* ask, FetchState from);

 private:
  absl::Status Act(RdmaAsk* ask, FetchAction action, const wire::Record& record);
  void NoteBytes(const RdmaAsk& ask, uint64_t bytes);
  absl::Status OnTensor(RdmaAsk* ask, const wire::Record& record);
  absl::Status OnLanded(RdmaAsk* ask, const wire::Record& record);
  absl::Status OnNeedDestination(RdmaAsk* ask, const wire::Record& record);
  absl::Status TakeLanded(RdmaAsk* ask);
  // Whether another tensor of its key is to be asked for ahead.
  static bool Recurs(const RdmaAsk& ask) {
    return ask.wants().recurring && !ask.destination().valid();
  }
  void Complete(RdmaAsk* ask, absl::Status&& status, Tensor&& tensor, bool is_dead) {
    Complete(ask, Recurs(*ask), std::move(status), std::move(tensor), is_dead,
             FetchOps::When::kAtEndOfTurn);
  }
  void Complete(RdmaAsk* ask, bool recurs, absl::Status&& status, Tensor&& tensor, bool is_dead,
                FetchOps::When when);
  void LeaveIfOver(RdmaAsk* ask);
  int64_t now_ns() const { return session_->now_ns(); }

  FetchSession* const session_;
  RdmaSender* const sender_;
  FetchDestinations* const destinations_;
  StandingReceives* const standing_;
  KeyHabits* const habits_;
  FetchCounters& counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_RECEIVING_H_
