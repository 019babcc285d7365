#ifndef TRYST_RENDEZVOUS_WAITING_H_
#define TRYST_RENDEZVOUS_WAITING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/tensor_key.h"

namespace tryst {

// One send or receive that waits, as shown to a person who asks why a job hangs. A receive whose
// tensor another worker was asked for is among the operations of the channels (live_ops.h).
struct WaitingItem {
  enum class Kind : uint8_t {
    kSend,     // A tensor that nobody has received.
    kReceive,  // A receive or take whose tensor nobody of this worker has sent.
  };
  int64_t step_id = 0;
  TensorKey key;
  Kind kind = Kind::kSend;
  bool is_dead = false;
  uint64_t bytes = 0;
  int64_t since_ns = 0;
};

// One line each, longest wait first.
std::string WaitingText(std::vector<WaitingItem> items, int64_t now_ns);
// {"waiting":[{"step":1,"kind":"receive","key":"...","waits_for":"/job:...","ms":3.5,...}]}
std::string WaitingJson(std::vector<WaitingItem> items, int64_t now_ns);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_WAITING_H_
