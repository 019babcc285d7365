#ifndef TRYST_CHANNEL_RDMA_SERVE_LEFTOVERS_H_
#define TRYST_CHANNEL_RDMA_SERVE_LEFTOVERS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "channel/ops/ring_line.h"
#include "channel/ops/slot_words.h"
#include "channel/poller/poller.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/serve_op.h"

namespace tryst {

// What is left of answers when their slots are free: bytes that the NIC may still read, the GONE
// that waits for writes, and tensors whose end may take a while. Poller thread only.
class ServeLeftovers final : private PollerFlush {
 public:
  explicit ServeLeftovers(Poller* poller) : poller_(poller) {}
  ~ServeLeftovers() override { poller_->ForgetFlush(this); }

  // Accepted, but the NIC may still read it: a write is acknowledged to the consumer's thread
  // before it is to us.
  void Linger(ServeSource source) { lingering_.push_back(std::move(source)); }
  // GONE is to come behind the writes of these tickets: on another queue pair they could come
  // after it.
  void SayGoneAfter(uint16_t slot, uint32_t generation, const LaneTickets& tickets) {
    gone_after_.push_back({slot, generation, tickets});
  }
  size_t gone_due() const { return gone_after_.size(); }
  // Some writes are done. True: there is more to be said.
  bool OnWritesDone(const MessageLink& link, SlotWords* words) {
    while (!lingering_.empty() && AllDone(link, lingering_.front().tickets)) lingering_.pop_front();
    bool says = false;
    for (; !gone_after_.empty() && AllDone(link, gone_after_.front().tickets);
         gone_after_.pop_front()) {
      words->Gone(gone_after_.front().slot, gone_after_.front().generation);
      says = true;
    }
    return says;
  }
  // Accepted: it is let go of once the answers of this turn have left.
  void Retire(Tensor tensor) { retired_.push_back(std::move(tensor)); }
  void OnAnswersSent() {
    if (!retired_.empty()) poller_->FlushThisTurn(this);  // That is the next one's.
  }
  void OnBroken() {
    gone_after_.clear();
    Flush();  // No answer leaves any more.
  }
  void OnDrained() {
    lingering_.clear();  // Nobody reads them any more.
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
  static bool AllDone(const MessageLink& link, const LaneTickets& tickets) {
    for (size_t lane = 0; lane < link.queue_pairs(); ++lane) {
      if (!link.WriteDone(lane, tickets[lane])) return false;
    }
    return true;
  }

  Poller* const poller_;
  RingLine<ServeSource> lingering_;
  RingLine<GoneAfter> gone_after_;
  std::vector<Tensor> retired_;
  std::vector<Tensor> retiring_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_LEFTOVERS_H_
