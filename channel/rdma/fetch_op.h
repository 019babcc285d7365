#ifndef TRYST_CHANNEL_RDMA_FETCH_OP_H_
#define TRYST_CHANNEL_RDMA_FETCH_OP_H_

#include <cstdint>
#include <memory>

#include "channel/ops/fetch_op.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/wire.h"
#include "verbs/nic.h"

namespace tryst {

// What a fetch over rdma has beside what every fetch has.
class RdmaFetchOp final : public FetchOp {
 public:
  using FetchOp::FetchOp;
  static RdmaFetchOp* Of(FetchOp* op) { return static_cast<RdmaFetchOp*>(op); }
  static const RdmaFetchOp& Of(const FetchOp& op) { return static_cast<const RdmaFetchOp&>(op); }
  void Renew() override {
    FetchOp::Renew();
    retried = standing = expects = announced = gone_seen = false;
    parts_seen = 0;
    lanes_seen = 0;
    meta_flags = 0;
  }

  bool retried = false;    // The digest was wrong once, and the tensor was requested again.
  bool standing = false;   // Made ahead: no fetch has claimed it yet.
  bool expects = false;    // `expected` says what the tensor probably is.
  bool announced = false;  // Over this link the peer has said what it is.
  wire::TensorMeta expected;
  int64_t parts_since_ns = 0;  // In kParts, or in kLeaving with gone_seen: since when.
  uint16_t parts_seen = 0;
  uint32_t lanes_seen = 0;  // One bit for each queue pair on which a part came.
  wire::TensorMeta meta;    // What the peer said of the tensor; in kWaitingRoom and kParts.
  uint8_t meta_flags = 0;
  bool gone_seen = false;  // In kLeaving: the answer is here, and parts may be missing.

  // The destination that the peer may write: a landing or a region. Neither: there is none.
  StorageRef landing;
  std::unique_ptr<Region> region;  // Over args.destination.
  uint64_t budget_bytes = 0;       // The budget taken for `region`.
  uint64_t waiting_bytes = 0;      // The part of landing or budget that counts as lent for waiting.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_OP_H_
