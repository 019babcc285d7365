#ifndef TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_
#define TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "channel/bootstrap.h"
#include "channel/ops/ring_line.h"
#include "channel/ops/serve_slots.h"
#include "channel/poller/poller.h"
#include "channel/rdma/farewell.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/serve_answers.h"
#include "channel/rdma/serve_leftovers.h"
#include "channel/rdma/serve_source.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// The producer's end of an rdma channel, for one life of one consumer, over as many connections as
// that takes: its hellos, messages and farewells. What its slots do is told by ServeSlots.
//
// Nothing of it is remotely readable or writable but its message ring and ack page.
// Poller thread only.
class ServeChannel final : private ServeWire, private MessageLink::Owner, private PollerTimer {
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
  void ListOps(LiveOps* ops) const { slots_.ListOps(ops); }

 private:
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
  absl::Status OnPark(const wire::Record& record);
  absl::Status OnWaits(const wire::Record& record);
  absl::Status OnUnwanted(const wire::Record& record);

  // serve_sending.cc
  void Answer(ServeOp* op) override;
  void Forget(ServeOp* op) override;
  void Retire(Tensor* tensor) override;
  bool SaysGoneLater(const ServeOp& op) override;
  bool SayWord(bool is_parked, uint16_t slot, uint32_t generation) override;
  bool SayHere(absl::Span<const uint64_t> tickets) override;
  void FlushSoon() override;
  void OnFlush() override;
  void OnWritesDone() override;
  void OnTakesIdle() override { FinishFarewell(); }

  // serve_farewell.cc
  void FinishFarewell();

  // Constant after construction.
  QueueHub* const hub_;
  const ServeChannelOptions options_;
  const std::string consumer_;
  const uint64_t consumer_incarnation_;
  const uint64_t session_;

  // Poller thread only.
  std::unique_ptr<MessageLink> link_;
  uint64_t epoch_ = 0;
  int64_t state_since_ns_ = 0;  // Of the link, or of its absence.
  bool closed_ = false;
  bool abandoned_ = false;
  bool pong_due_ = false;
  absl::optional<std::pair<Hello, HelloDone>> next_hello_;  // Waits for the old link to drain.
  absl::optional<std::pair<Hello, HelloDone>> farewell_;    // Its answer waits for takes to end.
  RingLine<ServeOp*> ready_line_;
  ServeLeftovers leftovers_;
  ServeCounters counters_;
  ServeSlots slots_;
  ServeAnswers answers_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_
