#ifndef TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_
#define TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "channel/bootstrap.h"
#include "channel/ops/ring_line.h"
#include "channel/ops/takes.h"
#include "channel/poller/poller.h"
#include "channel/rdma/farewell.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/serve_op.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

struct ServeChannelOptions {
  LinkOptions link;  // The consumer's sizes are taken up to ours.
  std::string path;
  std::string self;
  uint64_t self_incarnation = 0;
  uint64_t eager_bytes = 8192;      // Up to this a tensor travels inside the message, if it fits.
  uint64_t stripe_bytes = 1 << 20;  // From this on a tensor uses every queue pair.
  uint64_t write_bytes = 16 << 20;  // The most that one work writes: completions show motion.
  Trace* trace = nullptr;           // Of the poller; may be null.
  uint32_t protocol_newest = kProtocolNewest;
  int64_t retain_ms = 60'000;       // How long a consumer whose link broke may take to return.
  uint32_t max_parked = 1'000'000;  // Requests of the consumer that wait here without a slot.
};

struct ServeCounters {
  uint64_t requests = 0;
  uint64_t eager = 0;
  uint64_t direct = 0;  // Written to a destination.
  uint64_t destinations_asked = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t standing = 0;    // Of the requests, those made before anybody had fetched it.
  uint64_t given_back = 0;  // Taken for a fetch that ended early.
  uint64_t resent = 0;      // After a break or a wrong digest.
  uint64_t parked = 0;      // Waited for their Send without a slot.
  uint64_t bytes = 0;

  ServeCounters& operator+=(const ServeCounters& other);
};

// The producer's end of an rdma channel, for one life of one consumer. Takes each tensor
// from the local rendezvous once and keeps it until the consumer has accepted it, over as
// many connections as that takes.
//
// Nothing of it is remotely readable or writable but its message ring and ack page.
// Poller thread only.
class ServeChannel final : private TakesUser,
                           private MessageLink::Owner,
                           private PollerTimer,
                           private PollerFlush {
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

  const std::string& path() const { return options_.path; }
  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  const ServeCounters& counters() const { return counters_; }
  std::string Explain() const;
  const char* state_text() const {
    return link_ == nullptr ? "not connected" : link_->broken() ? "draining" : "connected";
  }
  int64_t state_since_ns() const { return state_since_ns_; }
  uint64_t epoch() const { return epoch_; }
  void ListOps(LiveOps* ops) const;

 private:
  // serve_connection.cc
  absl::Status StartEpoch(const Hello& hello);
  void AcceptHello(const Hello& hello, HelloDone done);
  void OnBroken(const absl::Status& why) override;
  void OnDrained() override;
  void OnTimer() override;  // The consumer has not come back.

  // serve_receiving.cc
  absl::Status OnRecord(const wire::Record& record) override;
  absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) override;
  void OnAccepted() override;
  absl::Status OnKey(const wire::Record& record);
  absl::Status OnRequest(const wire::Record& record);
  ServeEvent EventOf(const ServeOp& op, const wire::Record& record) const;
  absl::Status OnCancel(const wire::Record& record);
  void OnReplayed();

  // serve_take.cc
  void StartTake(ServeOp* op, ServeRequest request);
  void OnTakeEnded(TakingOp* base, ServeTake* take) override;
  void OnHere() override;
  void OnTakesIdle() override { FinishFarewell(); }
  void MakeReady(ServeOp* op);
  void GiveBack(ServeOp* op);
  void GiveUp(ServeOp* op);
  void Release(ServeOp* op);
  void Retire(ServeOp* op);  // The same, but what its tensor costs to drop comes after the answers.
  void Flush() override;     // Lets go of what was retired.

  // serve_parking.cc
  void ParkIfWaiting(ServeOp* op);
  void Park(ServeOp* op, uint64_t ticket);
  absl::Status OnPark(const wire::Record& record);
  absl::Status OnWaits(const wire::Record& record);
  absl::Status OnUnwanted(const wire::Record& record);
  bool SendParkedAndHere();

  // serve_farewell.cc
  void FinishFarewell();

  // serve_sending.cc
  void OnFlush() override;
  void OnWritesDone() override;
  bool SendOutcome(ServeOp* op);
  bool SendFailed(ServeOp* op);
  bool FailTaken(ServeOp* op, const absl::Status& why);
  bool SendEager(ServeOp* op, const wire::TensorMeta& meta, const void* payload);
  bool SendWrites(ServeOp* op, wire::TensorMeta meta, const void* payload);
  bool PutMeta(const wire::Record& record, const wire::TensorMeta& meta);
  bool SendNeedDestination(ServeOp* op, const wire::TensorMeta& meta);
  absl::Status PrepareSource(ServeOp* op, const void* payload, uint64_t bytes);
  uint64_t PiecesOf(uint64_t bytes, uint64_t part_bytes, size_t parts) const;
  uint64_t WorkBytes() const;
  bool IsBare(const ServeOp& op, const wire::TensorMeta& meta) const;
  bool WritePart(ServeOp* op, size_t lane, uint64_t begin, uint64_t end, bool immediate);
  bool AllDone(const LaneTickets& tickets) const;
  wire::Record Word(const ServeOp& op, wire::RecordType type) const;

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
  bool takes_packed_ = false;  // The consumer, from protocol 3 on.
  bool digests_ = true;
  int64_t state_since_ns_ = 0;  // Of the link, or of its absence.
  bool closed_ = false;
  bool abandoned_ = false;
  bool pong_due_ = false;
  absl::optional<std::pair<Hello, HelloDone>> next_hello_;  // Waits for the old link to drain.
  absl::optional<std::pair<Hello, HelloDone>> farewell_;    // Its answer waits for takes to end.
  std::vector<TensorKey> keys_;                             // By the consumer's id.
  uint64_t keys_bytes_ = 0;                                 // Of their texts.
  std::deque<ServeOp> ops_;                                 // By slot.
  RingLine<ServeOp*> ready_line_;
  std::vector<std::pair<uint16_t, uint16_t>> gone_line_;    // Slot, generation.
  std::vector<std::pair<uint16_t, uint16_t>> parked_line_;  // PARKED to be said: slot, generation.
  struct GoneAfter {
    uint16_t slot = 0;
    uint16_t generation = 0;
    LaneTickets tickets{};
  };
  RingLine<GoneAfter> gone_after_;   // GONE waits for writes on several queue pairs.
  RingLine<ServeSource> lingering_;  // Accepted, but the NIC may still read them.
  // Accepted: let go of once the answers of this turn have left, for that may take a while.
  std::vector<Tensor> retired_;
  std::vector<Tensor> retiring_;
  ServeCounters counters_;
  Takes takes_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_CHANNEL_H_
