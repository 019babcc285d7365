#ifndef TRYST_VERBS_SOFT_SOFT_QUEUE_PAIR_H_
#define TRYST_VERBS_SOFT_SOFT_QUEUE_PAIR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "verbs/nic.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/soft_completion_queue.h"
#include "verbs/soft/soft_connection.h"
#include "verbs/soft/soft_context.h"
#include "verbs/soft/soft_ending.h"
#include "verbs/soft/soft_landing.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_receiver.h"
#include "verbs/soft/soft_sender.h"
#include "verbs/soft/soft_shared.h"
#include "verbs/soft/soft_waits.h"

namespace tryst {

// One end of a reliable connection. As the requester: works wait in a ring until they are started,
// sent, executed by the peer and given back, in that order. As the responder: requests are executed
// one at a time, in order of their sequence. Each of its parts does one thing; here they meet.
class SoftQueuePair final : public QueuePair {
 public:
  // REQUIRES: `options` fit the limits, and the queue has reserved their depths.
  SoftQueuePair(SoftContext* context, SoftCompletionQueue* completions,
                const QueuePairOptions& options, uint32_t number);
  ~SoftQueuePair() override;

  uint32_t number() const override { return shared_.number; }
  QueuePairState state() const override;
  std::string LocalAddress() const override;
  absl::Status Connect(absl::string_view remote_address) override;
  absl::Status PostSend(absl::Span<const SendWork> works) override;
  absl::Status PostReceive(absl::Span<const ReceiveWork> works) override;
  uint32_t send_room() const override { return shared_.options.send_depth - ending_.sends_held(); }
  uint32_t receive_room() const override {
    return shared_.options.receive_depth - ending_.receives_held();
  }
  bool sends_wait_for_poll() const override;
  std::string Networks() const override { return connection_.Networks(); }
  void Break() override;

  // The rest is for the completion queue.
  //
  // Takes over a dialled stream if `hello` shows that it is the peer's. False: it is not, and the
  // caller keeps it.
  bool Adopt(const SoftHello& hello, SoftStream* stream);
  const Token& token() const { return shared_.token; }
  void Serve(SoftLane* lane);     // It may have something to read, or room to write.
  void TakeBack(SoftLane* lane);  // What helpers have done with it.
  void OnPolled(uint32_t sends_back, uint32_t receives_back);
  void PayDebt();  // Sends acknowledgements that are due and that nothing else will carry.
  // Whether another frame may still carry them: an answer of ours, or our next request.
  bool DebtMayWait(uint64_t turn, bool due) const;
  void OnTimer(int64_t now_ns);
  int64_t next_timer_ns(int64_t now_ns) const;  // INT64_MAX: none is set.
  void WatchLanes() { connection_.WatchLanes(); }
  // True: that is a change. When it becomes inactive, it forgets how long it had waited.
  bool SetActive(bool active);

 private:
  void Attach() const;
  void Pump();
  void AwaitPeersKernel();
  bool WaitsForPeer() const;
  SoftWaits::For WaitedFor() const { return {WaitsForPeer(), connection_.Unreachable()}; }

  // Used by the completion queue's thread only.
  SoftShared shared_;
  SoftConnection connection_{&shared_};
  SoftEnding ending_{&shared_, &connection_};
  SoftLanding landing_{&shared_, &ending_};
  SoftReceiver receiver_{&shared_, &connection_, &ending_, &landing_};
  SoftSender sender_{&shared_, &connection_, &ending_, &receiver_};
  mutable bool attached_ = false;
  bool active_ = false;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_QUEUE_PAIR_H_
