#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_QUEUE_PAIR_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_QUEUE_PAIR_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tests/doubles/sim_nic/fabric.h"
#include "tests/doubles/sim_nic/requester.h"
#include "tests/doubles/sim_nic/responder.h"
#include "verbs/nic.h"

namespace tryst {

class SimCompletionQueue;
class SimNic;
class SimWorld;

// A queue pair: a requester for what we send, a responder for what the peer sends, and what both
// share: the connection, the completions, and the end.
//
// Break() does not end it at once. Bytes of the peer that were under way may land until an event
// stops the responder some time later (SimOptions::break_ns_max). Only then do outstanding works
// come back.
class SimQueuePair final : public QueuePair, public FabricUser {
 public:
  // REQUIRES: `options` are within the NIC's limits, and the completion queue has reserved room.
  SimQueuePair(SimNic* nic, const QueuePairOptions& options, uint32_t number);
  ~SimQueuePair() override;

  uint32_t number() const override { return number_; }
  QueuePairState state() const override;
  std::string LocalAddress() const override;
  absl::Status Connect(absl::string_view remote_address) override;
  absl::Status PostSend(absl::Span<const SendWork> works) override;
  absl::Status PostReceive(absl::Span<const ReceiveWork> works) override;
  uint32_t send_room() const override;
  uint32_t receive_room() const override;
  void Break() override { BreakWith(false); }

  bool HasPacket() override;
  bool NextPacket(SimPacket* packet) override;
  void OnPacket(SimPacket& packet) override;

  // Events; the world calls these.
  void OnDoorbell() { Kick(); }
  void OnRetryTimer() { requester_.OnRetryTimer(); }
  void OnReceiverWaitOver() { requester_.OnReceiverWaitOver(); }
  void OnLateSend() { requester_.OnLateSend(); }
  void OnStopped();
  void OnCompletionDue(bool receive);

  // For the NIC, the completion queue, the requester and the responder.
  uint32_t id() const { return id_; }  // Its number in the world, never used again.
  SimNic* nic() const { return nic_; }
  SimWorld* world() const { return world_; }
  const QueuePairOptions& options() const { return options_; }
  bool ready() const { return state_ == QueuePairState::kReady; }
  bool broken() const { return state_ == QueuePairState::kBroken; }
  bool stopped() const { return stopped_; }
  const SimAddress& local() const { return local_; }
  const SimAddress& remote() const { return remote_; }
  SimCompletionQueue* completions() const { return completions_; }
  void Kick();  // There may be something to send.
  void Answer(PacketKind kind, uint64_t sequence, CompletionStatus status = CompletionStatus::kOk);
  // If the fault is due at `point`, breaks the side that it names.
  void BreakAt(const WorkFault& fault, FaultPoint point, bool here_is_requester);
  void BreakByError() { BreakWith(true); }
  // Sends a completion on its way; it frees the room of `released` works.
  void Complete(bool receive, Completion completion, uint32_t released, const WorkFault& fault);
  void OnPolled(bool receive, uint32_t released);
  void OnNicLost();  // Nothing moves or comes back any more.

 private:
  struct Pending {
    Completion completion;
    uint32_t released = 0;
    WorkFault fault;
  };
  // Completions on their way to the queue, in order; one list for each direction.
  struct Way {
    std::deque<Pending> pending;
    std::vector<Pending> withheld;  // Withheld until the queue pair breaks.
    int64_t last_due_ns = 0;
  };

  void BreakWith(bool by_error);
  void Send(bool receive, const Pending& pending, int64_t delay_ns);

  SimNic* const nic_;
  SimWorld* const world_;
  const QueuePairOptions options_;
  const uint32_t number_;
  SimCompletionQueue* const completions_;
  const uint32_t id_;
  SimAddress local_;
  SimAddress remote_;
  QueuePairState state_ = QueuePairState::kReset;
  bool stopped_ = false;
  bool response_turn_ = false;
  uint64_t token_;
  Requester requester_;
  Responder responder_;
  Way ways_[2];  // For sends, and for receives.
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_QUEUE_PAIR_H_
