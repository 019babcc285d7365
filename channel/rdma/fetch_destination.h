#ifndef TRYST_CHANNEL_RDMA_FETCH_DESTINATION_H_
#define TRYST_CHANNEL_RDMA_FETCH_DESTINATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "channel/ops/fetch_ops.h"
#include "channel/ops/linked_line.h"
#include "channel/rdma/fetch_ask.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/rdma_options.h"

namespace tryst {

// Where the fetches of one channel let tensors land, and the wait for room. Poller thread only.
class FetchDestinations {
 public:
  // All outlive it.
  FetchDestinations(FetchOps* ops, LandingPool* landings, const RdmaOptions* options)
      : ops_(ops), landings_(landings), options_(*options), writer_(landings->NewWriter()) {}

  LandingPool* landings() const { return landings_; }
  // Chooses a destination before the peer has said what the tensor is: of the size that the caller
  // named, else of the last size (`bytes_last`; 0: unknown), else of a guessed one. A tensor that
  // fits into a message (`inside` bytes) needs none. Without room it gets none, and the peer will
  // ask for one.
  void Choose(RdmaAsk* ask, uint64_t inside, uint64_t bytes_last);
  // A landing for a standing receive. Empty: there is no room now.
  StorageRef TakeAhead(uint64_t bytes) {
    return landings_->Take(bytes, LandingPool::For::kWaiting, writer_);
  }
  // The peer has the tensor: requests it again when room comes and it is its turn. False:
  // there is no room until other fetches give theirs up.
  bool WaitForRoom(RdmaAsk* ask);
  void StopWaiting(RdmaAsk* ask);  // Does nothing if it does not wait.
  // Call it when room came back: the fetch that has waited longest takes some, or ends. False:
  // no fetch waits, or the room was not enough.
  bool TakeRoom();
  bool any_wait() const { return !room_line_.empty(); }
  // The memory of the ask no longer counts as lent for waiting, unless it is a standing receive.
  void EndWaitingCharge(RdmaAsk* ask) {
    // That may wait long for its fetch, so it stays within the bound for waiting ones.
    if (!ask->is_ahead()) EndStandingCharge(ask);
  }
  void EndStandingCharge(RdmaAsk* ask) {
    if (ask->waiting_bytes > 0) landings_->EndWaiting(std::exchange(ask->waiting_bytes, 0));
  }
  void Drop(RdmaAsk* ask);
  // A landing that the peer may write can go to the next fetch of the key; the caller's own memory
  // cannot.
  bool MayPass(const RdmaAsk& ask, const FetchOp& next) const;

 private:
  bool Give(RdmaAsk* ask, uint64_t bytes, LandingPool::For what);

  FetchOps* const ops_;
  LandingPool* const landings_;
  const RdmaOptions& options_;
  const uint64_t writer_;  // Our number in the pool, as the writer of these landings.
  LinkedLine<FetchAsk> room_line_{&FetchAsk::wait_link};  // kWaitingRoom.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_DESTINATION_H_
