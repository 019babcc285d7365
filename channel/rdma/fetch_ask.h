#ifndef TRYST_CHANNEL_RDMA_FETCH_ASK_H_
#define TRYST_CHANNEL_RDMA_FETCH_ASK_H_

#include <cstdint>
#include <memory>

#include "channel/ops/fetch_ask.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/wire.h"
#include "rendezvous/tensor.h"
#include "verbs/nic.h"

namespace tryst {

// What an ask over rdma has beside what every ask has.
class RdmaAsk final : public FetchAsk {
 public:
  static RdmaAsk* Of(FetchAsk* ask) { return static_cast<RdmaAsk*>(ask); }
  static const RdmaAsk& Of(const FetchAsk& ask) { return static_cast<const RdmaAsk&>(ask); }
  void Renew() override {
    FetchAsk::Renew();
    announced = false;
    attempt = 0;
    parts_seen = 0;
    lanes_seen = 0;
    meta_flags = 0;
    expected.bytes = 0;
  }

  uint8_t attempt = 0;         // How often the tensor came with a wrong digest.
  bool announced = false;      // Over this link the peer has said what it is.
  wire::TensorMeta expected;   // What the tensor probably is; no bytes: unknown.
  int64_t parts_since_ns = 0;  // In kParts, kLeaving and kLeft: since when.
  uint16_t parts_seen = 0;
  uint32_t lanes_seen = 0;  // One bit for each queue pair on which a part came.
  wire::TensorMeta meta;    // What the peer said of the tensor; in kWaitingRoom and kParts.
  uint8_t meta_flags = 0;
  Tensor early;  // In kAhead: the tensor; none: it is dead.

  // The destination that the peer may write: a landing or a region. Neither: there is none.
  StorageRef landing;
  std::unique_ptr<Region> region;  // Over the caller's destination.
  uint64_t budget_bytes = 0;       // The budget taken for `region`.
  uint64_t waiting_bytes = 0;      // The part of landing or budget that counts as lent for waiting.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_ASK_H_
