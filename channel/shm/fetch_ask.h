#ifndef TRYST_CHANNEL_SHM_FETCH_ASK_H_
#define TRYST_CHANNEL_SHM_FETCH_ASK_H_

#include <cstdint>

#include "channel/ops/fetch_ask.h"

namespace tryst {

// The fields of an ask that only shared memory needs: where its bytes are copied from, and to.
class ShmAsk final : public FetchAsk {
 public:
  static ShmAsk* Of(FetchAsk* ask) { return static_cast<ShmAsk*>(ask); }
  static const ShmAsk& Of(const FetchAsk& ask) { return static_cast<const ShmAsk&>(ask); }
  void Renew() override {
    FetchAsk::Renew();
    misanswered = 0;
    announced = false;
  }

  // Lets go of the memory on both sides, so that no later answer finds it.
  void DropTensor() {
    if (into.valid()) into = Tensor();
    if (from.valid()) from = Tensor();
    announced = false;
  }

  uint8_t misanswered = 0;  // How many invalid answers it got.
  bool announced = false;   // The producer has the tensor, and parts of it are to come.
  Tensor into;              // The caller's memory, or the memory of the tensor to be delivered.
  // A view of the bytes; empty: they are read from the producer's own memory, or come in parts.
  Tensor from;
  uint64_t from_address = 0;
  bool pulls = false;
  uint64_t position = 0;
  uint64_t bytes = 0;
  uint32_t digest = 0;  // The digest that the producer sent,
  uint32_t digest_so_far = 0;
  bool has_digest = false;
  DType dtype = DType::kInvalid;  // The tensor's; kString: `into` is its encoding.
  TensorShape shape;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_ASK_H_
