#ifndef TRYST_CHANNEL_SHM_FETCH_OP_H_
#define TRYST_CHANNEL_SHM_FETCH_OP_H_

#include <cstdint>

#include "channel/ops/fetch_op.h"

namespace tryst {

// What a fetch over shared memory has beside what every fetch has: from where its bytes are copied,
// and to where.
class ShmFetchOp final : public FetchOp {
 public:
  using FetchOp::FetchOp;
  void Renew() override {
    FetchOp::Renew();
    misanswered = 0;
  }

  uint8_t misanswered = 0;  // How often its answer made no sense.
  Tensor into;              // The caller's memory, or what becomes the tensor.
  Tensor from;              // A view; else the producer's own memory is read, or parts come.
  uint64_t from_address = 0;
  bool pulls = false;
  uint32_t cell = 0;  // Of the reply ring: what it was answered in.
  uint64_t position = 0;
  uint64_t bytes = 0;
  uint32_t digest = 0;  // What it should be,
  uint32_t digest_so_far = 0;
  bool has_digest = false;
  DType dtype = DType::kInvalid;  // Of the tensor; kString: `into` is its encoding.
  TensorShape shape;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_OP_H_
