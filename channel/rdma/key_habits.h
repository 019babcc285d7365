#ifndef TRYST_CHANNEL_RDMA_KEY_HABITS_H_
#define TRYST_CHANNEL_RDMA_KEY_HABITS_H_

#include <cstdint>
#include <vector>

#include "channel/ops/fetch_keys.h"
#include "channel/rdma/wire.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// What earlier fetches of each key were like. Poller thread only.
class KeyHabits {
 public:
  struct Habit {
    TensorKey key;
    uint64_t bytes_last = 0;  // The last tensor's; 0: none was seen.
    // For keys that recur:
    int64_t step_last = 0;
    uint64_t stride = 0;    // Steps between the last two fetches.
    uint32_t regular = 0;   // How often in a row the stride was the same.
    wire::TensorMeta like;  // The last tensor's type and shape; no bytes: unknown.
  };
  // REQUIRES: the key has a number.
  Habit* Of(const FetchKey& key);
  void NoteBytes(const FetchKey& key, uint64_t bytes);
  void NoteStep(const FetchKey& key, int64_t step_id);
  void NoteTensor(const FetchKey& key, const Tensor& tensor);

 private:
  std::vector<Habit> habits_;  // By the key's number.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_KEY_HABITS_H_
