#ifndef TRYST_RENDEZVOUS_WAITING_H_
#define TRYST_RENDEZVOUS_WAITING_H_

#include <cstddef>
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

// Collects the `most` that have waited longest.
class WaitingItems {
 public:
  explicit WaitingItems(size_t most) : most_(most) {}

  // Adds what `make()` returns, which waits since `since_ns`. Does not call it for one that is left
  // out.
  template <typename Make>
  void Add(int64_t since_ns, Make make) {
    if (items_.size() == most_) {
      ++left_out_;
      if (most_ == 0 || since_ns >= items_.front().since_ns) return;
      DropYoungest();
    }
    Put(make());
  }
  size_t left_out() const { return left_out_; }
  // Returns them, longest wait first, and leaves this empty.
  std::vector<WaitingItem> Take();

 private:
  void DropYoungest();
  void Put(WaitingItem item);

  const size_t most_;
  std::vector<WaitingItem> items_;  // A heap with the youngest in front.
  size_t left_out_ = 0;
};

// One line each, longest wait first, and one for those left out.
std::string WaitingText(WaitingItems items, int64_t now_ns);
// {"waiting":[{"step":1,"kind":"receive","key":"...","waits_for":"/job:...","ms":3.5,...}],
//  "waiting_left_out":0}
std::string WaitingJson(WaitingItems items, int64_t now_ns);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_WAITING_H_
