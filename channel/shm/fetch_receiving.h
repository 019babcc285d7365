#ifndef TRYST_CHANNEL_SHM_FETCH_RECEIVING_H_
#define TRYST_CHANNEL_SHM_FETCH_RECEIVING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/ring_line.h"
#include "channel/shm/fetch_ask.h"
#include "channel/shm/fetch_sending.h"
#include "channel/shm/wire.h"

namespace tryst {

// Handles what the producer answers over a link, and puts bytes in their place. Poller thread only.
class ShmReceiver {
 public:
  class User {
   public:
    // Reads the socket until the segment is there, or until all is read that the producer may have
    // sent before.
    virtual absl::Status ReadSocketFor(uint32_t segment) = 0;

   protected:
    ~User() = default;
  };
  // Both outlive it.
  ShmReceiver(ShmSender* link, User* user) : session_(link->session), link_(link), user_(user) {}

  // An error ends the link.
  absl::Status OnCell(const shm_wire::ReplyCell& cell);
  // Copies the next part of the large tensor that is first in line. An error ends the link.
  absl::Status RunCopy();
  bool copies() const { return !copies_.empty(); }
  // Whether the first copy in line reads the producer's memory.
  bool pulls_next() const { return copies_.front()->pulls; }
  void ForgetNextCopy() { copies_.pop_front(); }
  // Call it when another link begins.
  void Reset();
  // It is given up: its copy ends.
  void StopCopy(ShmAsk* ask) { copies_.Remove(ask); }

 private:
  // How many bytes of a large tensor one turn copies; with helpers, which copy much at once, more.
  static constexpr uint64_t kTurnBytes = 512 << 10;
  static constexpr uint64_t kHelpedTurnBytes = 16 << 20;

  absl::Status OnWord(ShmAsk* ask, FetchEvent event, const shm_wire::ReplyCell& cell);
  absl::Status OnInline(ShmAsk* ask, const shm_wire::ReplyCell& cell);
  absl::Status OnPlaced(ShmAsk* ask, const shm_wire::ReplyCell& cell);
  absl::Status OnReference(ShmAsk* ask, const shm_wire::Placed& placed, StorageRef view);
  absl::Status OnPart(ShmAsk* ask, const shm_wire::Placed& placed, StorageRef view,
                      bool has_digest);
  void OnPull(ShmAsk* ask, const shm_wire::Placed& placed);
  absl::Status StartFailedText(ShmAsk* ask, const shm_wire::ReplyCell& cell);
  absl::Status OnFailedText(const uint8_t* text, size_t bytes);
  absl::Status Prepare(ShmAsk* ask);
  absl::Status CopySome(ShmAsk* ask);
  absl::Status ReadPeer(ShmAsk* ask, uint8_t* to, uint64_t bytes);
  absl::Status EndCopy(ShmAsk* ask, absl::Status status);
  absl::StatusOr<Tensor> Finish(ShmAsk* ask);
  absl::Status CompleteWhole(ShmAsk* ask, Tensor&& tensor);
  void Complete(ShmAsk* ask, absl::Status&& status, Tensor&& tensor, bool is_dead);
  int64_t now_ns() const { return link_->hub->poller()->now_ns(); }

  FetchSession* const session_;
  ShmSender* const link_;
  User* const user_;
  RingLine<ShmAsk*> copies_;          // In kCopying.
  shm_wire::CellHead failed_head_{};  // An error text that is still arriving began with it.
  std::string failed_text_;
  size_t failed_bytes_ = 0;
  bool in_failed_text_ = false;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_RECEIVING_H_
