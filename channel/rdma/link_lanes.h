#ifndef TRYST_CHANNEL_RDMA_LINK_LANES_H_
#define TRYST_CHANNEL_RDMA_LINK_LANES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "channel/poller/member_timer.h"
#include "channel/rdma/link_memory.h"
#include "channel/rdma/link_options.h"
#include "channel/rdma/queue_hub.h"
#include "verbs/nic.h"

namespace tryst {

// The queue pairs of one link: the works that this turn posts on each, the room that each has, and
// a timer for works that do not complete. Poller thread only.
class LinkLanes {
 public:
  // One queue pair, and what this turn posts on it.
  struct Lane {
    std::unique_ptr<QueuePair> queue_pair;
    std::vector<SendWork> works;
    std::vector<Entry> entries;
    uint32_t unsignaled = 0;
    bool has_payload = false;  // One of `works` must report its completion.
    uint64_t queued = 0;       // Works ever added; their ids count from 1.
    uint64_t last_signaled = 0;
    uint64_t done = 0;           // How many of those have completed.
    uint32_t receives_owed = 0;  // Receives that arrivals have used, to be posted again.
    // On a NIC without immediates: the index, in this lane's part of the words, from which the next
    // send takes its 4 bytes, and to which the next receive writes its 4 bytes.
    uint32_t next_word_out = 0;
    uint32_t next_word_in = 0;
  };
  // The arguments outlive it. `on_stall` runs when no work has completed for options.stall_ms.
  LinkLanes(QueueHub* hub, const LinkOptions* options, const LinkMemory* memory,
            std::function<void()> on_stall);
  ~LinkLanes() { hub_->poller()->CancelTimer(&stall_timer_); }

  // Makes the queue pairs, with their receives posted, for `user`.
  absl::Status Open(QueuePairUser* user);
  void Destroy();  // After this no byte can land through them.
  Lane& operator[](size_t index) { return lanes_[index]; }
  const Lane& operator[](size_t index) const { return lanes_[index]; }
  size_t size() const { return lanes_.size(); }
  std::vector<Lane>::iterator begin() { return lanes_.begin(); }
  std::vector<Lane>::iterator end() { return lanes_.end(); }
  std::vector<Lane>::const_iterator begin() const { return lanes_.begin(); }
  std::vector<Lane>::const_iterator end() const { return lanes_.end(); }

  bool ordered() const { return ordered_; }  // Whether writes land in the order of posting.
  uint32_t inline_bytes() const {
    return inline_bytes_;
  }  // Works up to this size are taken at once.
  // How many works one message, ack or write needs.
  uint32_t WorksOfOne() const { return immediates_ ? 1 : 2; }
  void AddWork(Lane* lane, SendWork work, const Entry& entry);
  // The immediate, or the 4 bytes in its place, that a receive has brought.
  uint32_t Received(size_t lane, const Completion& completion) const;
  void NoteDone(Lane* lane, uint64_t id);
  // When the peer's NIC last acknowledged a work of ours that reports its completion.
  int64_t last_completed_ns() const { return last_completed_ns_; }
  // Posts everything that this turn has.
  absl::Status Post();

 private:
  void AddImmediate(Lane* lane, uint32_t immediate, bool signaled);
  absl::Status PostReceives(Lane* lane);
  absl::Status PostWordReceives(Lane* lane);
  absl::Status PostSends(Lane* lane);
  void OnStallTimer();

  QueueHub* const hub_;
  const LinkOptions& options_;
  const LinkMemory& memory_;
  const std::function<void()> on_stall_;
  std::vector<Lane> lanes_;
  bool ordered_ = true;
  bool immediates_ = true;
  uint32_t inline_bytes_ = 0;
  int64_t progress_ns_ = 0;  // When a work of ours last completed, or the first was posted.
  int64_t last_completed_ns_ = 0;
  MemberTimer<LinkLanes> stall_timer_{this, &LinkLanes::OnStallTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_LINK_LANES_H_
