#ifndef TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_
#define TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/optional.h"
#include "channel/bootstrap.h"
#include "channel/ops/ring_line.h"
#include "channel/ops/slot_array.h"
#include "channel/ops/slot_watch.h"
#include "channel/ops/slot_words.h"
#include "channel/ops/takes.h"
#include "channel/ops/told_keys.h"
#include "channel/poller/poller.h"
#include "channel/rdma/farewell.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/serve_answers.h"
#include "channel/rdma/serve_leftovers.h"
#include "channel/rdma/serve_op.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/trace/trace.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// The producer's end of an rdma channel, for one life of one consumer. Takes each tensor
// from the local rendezvous once and keeps it until the consumer has accepted it, over as
// many connections as that takes.
//
// Nothing of it is remotely readable or writable but its message ring and ack page.
// Poller thread only.
class ServeChannel final : private TakesUser, private MessageLink::Owner, private PollerTimer {
 public:
  // `consumer` is the first hello.
  ServeChannel(QueueHub* hub, TensorSource* source, ServeChannelOptions options,
               const Hello& consumer, uint64_t session);
  ~ServeChannel() override;  // REQUIRES: Drained().

  // Opens, or replaces, the connection. An earlier one is drained first.
  void OnHello(const Hello& hello, HelloDone done);
  // The consumer goes on by another path. Tensors that were taken for it here and have not landed
  // are given back before `done`, so that the other path finds them.
  void OnFarewell(const Hello& hello, const Farewell& farewell, HelloDone done);
  void Close(const absl::Status& why);
  bool Drained() const;
  // The consumer has been gone for retain_ms, so the owner may close this channel.
  bool Abandoned() const { return abandoned_; }

  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  const ServeCounters& counters() const { return counters_; }
  PathView View() const;
  std::string Explain() const;
  void ListOps(LiveOps* ops) const;

 private:
  void Watch(const ServeOp& op, ServeStep step) {
    SlotWatch* const watch = options_.link.watch;
    if (watch != nullptr && !closed_) watch->OnServeStep(this, op.slot, step);
  }
  void Watch(const ServeOp& op, ServeStep step, ServeEvent event) {
    SlotWatch* const watch = options_.link.watch;
    if (watch == nullptr || closed_) return;
    watch->OnServeEvent(op.state, event);
    watch->OnServeStep(this, op.slot, step);
  }

  // serve_connection.cc
  absl::Status StartEpoch(const Hello& hello);
  void WaitForConsumer();
  void AcceptHello(const Hello& hello, HelloDone done);
  void OnBroken(const absl::Status& why) override;
  void OnDrained() override;
  void OnTimer() override;  // The consumer has not come back.

  // serve_receiving.cc
  absl::Status OnRecord(const wire::Record& record) override;
  absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) override;
  void OnAccepted() override;
  absl::Status OnRequest(const wire::Record& record);
  absl::Status OnCancel(const wire::Record& record);
  void OnReplayed();

  // serve_take.cc
  void StartTake(ServeOp* op, ToldKey* known);
  void SetOutcome(ServeOp* op, Taken* taken);
  void OnTakeEnded(TakingOp* base, ServeTake* take) override;
  void OnHere() override;
  void OnTakesIdle() override { FinishFarewell(); }
  void MakeReady(ServeOp* op);
  void GiveBack(ServeOp* op);
  void GiveUp(ServeOp* op);
  void Release(ServeOp* op);
  void EndTrace(const ServeOp& op);

  // serve_parking.cc
  void ParkIfWaiting(ServeOp* op);
  void Park(ServeOp* op, uint64_t ticket);
  absl::Status OnPark(const wire::Record& record);
  absl::Status OnWaits(const wire::Record& record);
  absl::Status OnUnwanted(const wire::Record& record);
  bool SendWords();
  void OnFlush() override;

  // serve_farewell.cc
  void FinishFarewell();

  void OnWritesDone() override {
    if (leftovers_.OnWritesDone(*link_, &words_)) link_->FlushSoon();
  }

  // Constant after construction.
  QueueHub* const hub_;
  TensorSource* const source_;
  const ServeChannelOptions options_;
  const std::string consumer_;
  const uint64_t consumer_incarnation_;
  const uint64_t session_;
  TraceTrack* const track_;  // Null without a trace.

  // Poller thread only.
  std::unique_ptr<MessageLink> link_;
  uint64_t epoch_ = 0;
  bool takes_packed_ = false;   // The consumer, from protocol 3 on.
  int64_t state_since_ns_ = 0;  // Of the link, or of its absence.
  bool closed_ = false;
  bool abandoned_ = false;
  bool pong_due_ = false;
  absl::optional<std::pair<Hello, HelloDone>> next_hello_;  // Waits for the old link to drain.
  absl::optional<std::pair<Hello, HelloDone>> farewell_;    // Its answer waits for takes to end.
  ToldKeys keys_;
  SlotArray<ServeOp> ops_;  // By slot.
  size_t slots_used_ = 0;   // From here on none has ever been.
  Taken taken_;             // Empty between two takes.
  RingLine<ServeOp*> ready_line_;
  SlotWords words_;
  ServeLeftovers leftovers_;
  ServeCounters counters_;
  ServeAnswers answers_;
  Takes takes_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_
