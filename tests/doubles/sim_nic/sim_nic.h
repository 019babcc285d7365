#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_NIC_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_NIC_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/doubles/sim_nic/sim_region.h"
#include "verbs/nic.h"

namespace tryst {

class SimCompletionQueue;
class SimQueuePair;
class SimWorld;

struct SimNicOptions {
  NicLimits limits = DefaultLimits();
  uint8_t ports = 1;
  uint64_t max_region_bytes = uint64_t{1} << 40;  // All registered memory together.
  uint32_t max_regions = 1u << 19;
  // Called when there is a completion or an event to poll, for a caller that turns many pollers and
  // does not want to poll them all. Null: not called.
  std::function<void()> on_work;

  static NicLimits DefaultLimits();
};

// A NIC of a SimWorld. It does what verbs/nic.h says, but only on the world's one thread. Like
// hardware, it returns a flushed or failed work even if that was unsignaled.
class SimNic final : public Nic {
 public:
  // `salt` mixes its keys; `number` is its place.
  SimNic(SimWorld* world, uint32_t place, uint32_t salt, const SimNicOptions& options);
  ~SimNic() override;

  std::string name() const override;
  const NicLimits& limits() const override { return options_.limits; }
  std::vector<NicPort> Ports() const override;
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override;
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int fd, uint64_t offset, uint64_t bytes,
                                                         uint64_t remote_base,
                                                         uint32_t access) override;
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override;
  absl::optional<NicEvent> NextEvent() override;
  int event_fd() const override { return -1; }

  // Registered regions; a test wants 0 at the end.
  size_t regions() const { return keys_.regions(); }
  size_t queue_pairs() const { return queue_pairs_.size(); }
  const QueuePair& queue_pair(size_t nth) const;

  // Only this folder calls the following.
  SimWorld* world() const { return world_; }
  uint32_t place() const { return place_; }
  const SimNicOptions& options() const { return options_; }
  KeyTable& keys() { return keys_; }
  bool lost() const { return lost_; }
  // All of its state vanishes at once: keys, queue pairs, completions.
  void Lose();
  void AddEvent(const NicEvent& event);
  void NoteWork() const {
    if (options_.on_work != nullptr) options_.on_work();
  }
  void Overrun(SimCompletionQueue* queue);  // Breaks its queue pairs, and reports that.
  void FailRegistrations(uint32_t count) { registrations_to_fail_ += count; }
  // The registrations that have not failed yet will succeed; returns how many.
  uint32_t EndFailRegistrations() { return std::exchange(registrations_to_fail_, 0); }
  SimCompletionQueue* completion_queue(size_t nth) const;
  size_t completion_queues() const { return completion_queues_.size(); }
  void OnRegionGone(uint32_t key, uint64_t bytes);
  void OnGone(SimQueuePair* queue_pair);
  void OnGone(SimCompletionQueue* queue);

 private:
  SimWorld* const world_;
  const uint32_t place_;
  const SimNicOptions options_;
  KeyTable keys_;
  bool lost_ = false;
  uint32_t next_number_ = 1;  // The next queue pair's number.
  uint32_t registrations_to_fail_ = 0;
  std::vector<SimQueuePair*> queue_pairs_;              // In the order of creation.
  std::vector<SimCompletionQueue*> completion_queues_;  // In the order of creation.
  std::deque<NicEvent> events_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_NIC_H_
