#ifndef TRYST_CHANNEL_RDMA_SERVE_LEFTOVERS_H_
#define TRYST_CHANNEL_RDMA_SERVE_LEFTOVERS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "channel/ops/ring_line.h"
#include "channel/ops/serve_slots.h"
#include "channel/poller/poller.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/serve_source.h"

namespace tryst {

inline bool AllDone(const MessageLink& link, const LaneTickets& tickets) {
  for (size_t lane = 0; lane < link.queue_pairs(); ++lane) {
    if (!link.WriteDone(lane, tickets[lane])) return false;
  }
  return true;
}

// What remains of an answer after its slot is free: bytes that the NIC may still read, GONE
// statements that wait for writes, and bytes whose release may take long. Poller thread only.
class ServeLeftovers final : private PollerFlush {
 public:
  explicit ServeLeftovers(Poller* poller) : poller_(poller) {}
  ~ServeLeftovers() override { poller_->ForgetFlush(this); }

  // The consumer has accepted the tensor, but our NIC may still read it: the consumer can see a
  // write before we get its completion.
  void Linger(ServeSource source) { lingering_.push_back(std::move(source)); }
  // GONE must follow the writes with these tickets. On another queue pair they could arrive after
  // it.
  void SayGoneAfter(uint16_t slot, uint32_t generation, const LaneTickets& tickets) {
    gone_after_.push_back({slot, generation, tickets});
  }
  size_t gone_due() const { return gone_after_.size(); }
  // Call it when writes have completed. True: there is more to send.
  bool OnWritesDone(const MessageLink& link, ServeSlots* slots) {
    // Each, since one behind a queue pair that is stuck must not keep those on the others.
    for (size_t left = lingering_.size(); left > 0; --left) {
      ServeSource source = std::move(lingering_.front());
      lingering_.pop_front();
      if (!AllDone(link, source.tickets)) lingering_.push_back(std::move(source));
    }
    bool says = false;
    for (; !gone_after_.empty() && AllDone(link, gone_after_.front().tickets);
         gone_after_.pop_front()) {
      slots->SayGone(gone_after_.front().slot, gone_after_.front().generation);
      says = true;
    }
    return says;
  }
  // The bytes of a tensor that was accepted. They are let go after this turn's answers have been
  // sent.
  void Retire(StorageRef&& storage) { retired_.push_back(std::move(storage)); }
  void OnAnswersSent() {
    if (!retired_.empty())
      // The flush releases it after the answers.
      poller_->FlushThisTurn(this);
  }
  void OnBroken() {
    gone_after_.clear();
    Flush();  // There will be no more answers.
  }
  void OnDrained() {
    lingering_.clear();  // The NIC no longer reads them.
    gone_after_.clear();
  }

 private:
  struct GoneAfter {
    uint16_t slot = 0;
    uint32_t generation = 0;
    LaneTickets tickets{};
  };
  void Flush() override {
    retiring_.swap(retired_);
    retiring_.clear();
  }
  Poller* const poller_;
  RingLine<ServeSource> lingering_;
  RingLine<GoneAfter> gone_after_;
  std::vector<StorageRef> retired_;
  std::vector<StorageRef> retiring_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_LEFTOVERS_H_
