#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_COMPLETION_QUEUE_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_COMPLETION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "verbs/nic.h"

namespace tryst {

class SimNic;
class SimQueuePair;

class SimCompletionQueue final : public CompletionQueue {
 public:
  SimCompletionQueue(SimNic* nic, uint32_t depth) : nic_(nic), depth_(depth) {}
  ~SimCompletionQueue() override;

  absl::StatusOr<size_t> Poll(absl::Span<Completion> out) override;
  absl::Status Arm() override;
  int event_fd() const override { return -1; }

  // What the descriptor would show: something came since Arm().
  bool woken() const { return woken_; }
  size_t waiting() const { return ready_.size(); }

  // Only this folder calls the following.
  bool Reserve(uint32_t works);  // False: they do not fit.
  void Unreserve(uint32_t works) { reserved_ -= works; }
  // It frees the room of `released` works.
  void Push(SimQueuePair* queue_pair, bool receive, const Completion& completion,
            uint32_t released);
  void Forget(const SimQueuePair* queue_pair);  // Drops its completions.
  void Overrun();  // Its completions are lost, and no more come. Its queue pairs must be broken.
  bool overrun() const { return overrun_; }
  SimNic* nic() const { return nic_; }

 private:
  struct Ready {
    SimQueuePair* queue_pair;
    Completion completion;
    uint32_t released;
    bool receive;
  };

  SimNic* const nic_;
  const uint32_t depth_;
  uint32_t reserved_ = 0;
  bool overrun_ = false;
  bool armed_ = false;
  bool woken_ = false;
  std::deque<Ready> ready_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_COMPLETION_QUEUE_H_
