#ifndef TRYST_CHANNEL_RDMA_FETCH_RECEIVING_H_
#define TRYST_CHANNEL_RDMA_FETCH_RECEIVING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/ops/fetch_ops.h"
#include "channel/ops/small_storage.h"
#include "channel/rdma/fetch_ask.h"
#include "channel/rdma/fetch_destination.h"
#include "channel/rdma/fetch_options.h"
#include "channel/rdma/fetch_sending.h"
#include "channel/rdma/fetch_standing.h"
#include "channel/rdma/key_habits.h"
#include "channel/rdma/wire.h"

namespace tryst {

// Handles what the producer says, and tensors that land. Poller thread only.
class FetchReceiver {
 public:
  class User {
   public:
    virtual void OnHeard() = 0;    // The peer was heard through the link.
    virtual void OnPong() = 0;     // It has answered a PING.
    virtual void OnBrought() = 0;  // Some of a tensor has come, or a failure in its place.
    // The producer no longer holds the request, and the tensor is too large for this path: another
    // path brings it.
    virtual void MoveAway(FetchAsk* ask) = 0;

   protected:
    ~User() = default;
  };
  // All outlive it.
  FetchReceiver(FetchOps* ops, FetchSender* sender, FetchDestinations* destinations,
                StandingReceives* standing, KeyHabits* habits, const FetchChannelOptions* options,
                FetchCounters* counters, User* user)
      : ops_(ops),
        sender_(sender),
        destinations_(destinations),
        standing_(standing),
        habits_(habits),
        options_(*options),
        counters_(*counters),
        user_(user),
        small_(new SmallStorage(ops->poller()->shared_thread())) {}
  ~FetchReceiver() { small_->Unref(); }

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
  bool TakeSmall(RdmaAsk* ask, const wire::TensorMeta& meta, absl::string_view payload);
  absl::Status OnLanded(RdmaAsk* ask, const wire::Record& record);
  absl::Status OnNeedDestination(RdmaAsk* ask, const wire::Record& record);
  absl::Status TakeLanded(RdmaAsk* ask);
  void Complete(RdmaAsk* ask, absl::Status status, Tensor&& tensor, bool is_dead,
                FetchOps::When when = FetchOps::When::kAtEndOfTurn);
  void LeaveIfOver(RdmaAsk* ask);
  int64_t now_ns() const { return ops_->now_ns(); }

  FetchOps* const ops_;
  FetchSender* const sender_;
  FetchDestinations* const destinations_;
  StandingReceives* const standing_;
  KeyHabits* const habits_;
  const FetchChannelOptions& options_;
  FetchCounters& counters_;
  User* const user_;
  SmallStorage* const small_;  // Has a count of references, one of which is ours.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_RECEIVING_H_
