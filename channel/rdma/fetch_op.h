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
  void Renew() override {
    FetchOp::Renew();
    retried = standing = expects = gone_seen = false;
    parts_seen = 0;
    lanes_seen = 0;
    meta_flags = 0;
  }

  bool retried = false;   // The digest was wrong once.
  bool standing = false;  // Made ahead: no fetch has claimed it yet.
  bool expects = false;   // `expected` is what the tensor is thought to be.
  wire::TensorMeta expected;
  int64_t parts_since_ns = 0;  // kParts, or kLeaving with gone_seen: since when.
  uint16_t parts_seen = 0;
  uint32_t lanes_seen = 0;  // Bits: the queue pairs on which a part came.
  wire::TensorMeta meta;    // From the peer's word: kWaitingRoom, kParts.
  uint8_t meta_flags = 0;
  bool gone_seen = false;  // kLeaving: the answer is here, parts may be missing.

  // The destination that the peer may write; none of these: it has none.
  StorageRef landing;
  std::unique_ptr<Region> region;  // Over args.destination.
  uint64_t budget_bytes = 0;       // Taken for `region`.
  uint64_t waiting_bytes = 0;      // Of landing or budget, what counts as lent for waiting.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_OP_H_
