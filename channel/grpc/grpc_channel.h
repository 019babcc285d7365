#ifndef TRYST_CHANNEL_GRPC_GRPC_CHANNEL_H_
#define TRYST_CHANNEL_GRPC_GRPC_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "channel/channel.h"
#include "channel/grpc/peer_directory.h"
#include "channel/grpc/serial_set.h"
#include "channel/poller/poller.h"
#include "channel/signing/caller.h"
#include "channel/trace/trace.h"

namespace tryst {

class EventThread;
class FetchStream;
namespace rpc {
class FetchRequest;
}  // namespace rpc

struct GrpcChannelOptions {
  // A tensor that its producer says is larger is refused.
  uint64_t max_tensor_bytes = uint64_t{64} << 30;
  // Fetches that wait at once in a call of their own. More are asked for in batches, and take a
  // call when the producer says that they are there; a producer of an earlier release takes no
  // batches, and more wait in line.
  size_t max_asked = 1024;
  // Fetches asked of the peer at once, in calls and batches; more wait in line.
  size_t max_waiting = 1'000'000;
  // How long a fetch goes on trying while nobody answers. Shorter than the time for which
  // the producer keeps a tensor whose consumer is gone (FetchServerOptions).
  absl::Duration patience = absl::Seconds(30);
  // How long the peer had been silent when gRPC's keepalive gives it up.
  absl::Duration silence = absl::Seconds(30);
  absl::Duration first_retry = absl::Milliseconds(20);
  absl::Duration longest_retry = absl::Seconds(1);
  bool digests = false;    // Asks for them. What comes with one is checked in any case.
  Trace* trace = nullptr;  // Of the poller; may be null.
};

// Fetches from one peer by TransportService.FetchTensor. Bytes are copied once, from
// gRPC's buffers into args.destination or into a tensor of their own; the thread of
// `events` does that, everything else happens on the poller thread. A stream that breaks is taken
// up where it broke off, with the same serial, until `patience` has passed without an answer.
//
// Receives of one key stand in line, and one of them is asked for at a time: so each gets the
// tensor of its turn, whatever order calls arrive in. One that ends early hands over what it
// asked for to the next.
//
// What is over, the producer learns from the next request; from a note of its own when
// there is none for a while, or when a tensor is not wanted.
class GrpcChannel final : public Channel {
 public:
  // The arguments outlive it.
  GrpcChannel(std::string peer, PeerDirectory* directory, CallSigner* signer, EventThread* events,
              Poller* poller, GrpcChannelOptions options = {});
  ~GrpcChannel() override;

  void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) override;
  void AbortStep(int64_t step_id, const absl::Status& why) override;
  void Close(absl::Status why) override;
  bool Drained() const override;
  std::string Explain() const override;
  void ListOps(LiveOps* ops) const override;

 private:
  struct Attempt;
  struct FetchOp;
  struct Batch;
  struct DeliverTimer final : PollerTimer {
    explicit DeliverTimer(GrpcChannel* c) : channel(c) {}
    void OnTimer() override;
    GrpcChannel* const channel;
  };
  struct NoteTimer final : PollerTimer {
    explicit NoteTimer(GrpcChannel* c) : channel(c) {}
    void OnTimer() override { channel->SendNote(); }
    GrpcChannel* const channel;
  };
  struct BatchTimer final : PollerTimer {
    explicit BatchTimer(GrpcChannel* c) : channel(c) {}
    void OnTimer() override { channel->OnBatchTimer(); }
    GrpcChannel* const channel;
  };
  struct EndOfTurn final : PollerFlush {
    explicit EndOfTurn(GrpcChannel* c) : channel(c) {}
    void Flush() override { channel->AskNext(); }
    GrpcChannel* const channel;
  };
  // Of the receives that stand in one line.
  struct LineHash {
    size_t operator()(const FetchOp* op) const;
  };
  struct SameLine {
    bool operator()(const FetchOp* a, const FetchOp* b) const;
  };
  using LineKey = std::pair<int64_t, TensorKey>;

  // Asking by calls.
  void Ask(FetchOp* op);
  void OnLanded(FetchStream* stream);
  void OnEnded(FetchStream* stream);
  void OnHeader(FetchOp* op);
  void OnDigestWrong(FetchOp* op, const absl::Status& why);
  void Stage(FetchOp* op, Tensor landed, bool is_dead);
  void Retry(FetchOp* op, const absl::Status& why);
  int64_t FailingSinceNs(const absl::Status& why) const;
  int64_t BackOffNs(int64_t failing_ns, uint64_t spread) const;
  void EndOfPatience(uint64_t id, int64_t failing_ns, int attempts);
  void NotePeer(uint64_t incarnation);
  TraceSpan SpanOf(const FetchOp& op) const;
  void OnTimer(FetchOp* op);
  void SetTimer(FetchOp* op);
  FetchOp* Find(uint64_t serial) const;

  // Lines (grpc_channel_asks.cc).
  void Enter(FetchOp* op);
  void StartAsking(FetchOp* op);
  bool MayCall() const;
  bool MayPark() const;
  void Park(FetchOp* op);
  void AskNext();
  void Leave(FetchOp* op, bool answered);
  void HandOver(FetchOp* op, FetchOp* heir);
  void EndAsk(FetchOp* op, bool delivered);
  // Tables that were large and hold nothing give their memory back.
  void ShrinkTables();
  void ReleaseCall(FetchOp* op);
  // Fails `op` and all behind it.
  void FailLine(FetchOp* op, const absl::Status& why);
  // And those that wait without a call.
  void FailWaiting(const absl::Status& why);

  // What is over.
  // Says of `first` what is over in any case, and of `most` in all.
  void FillOver(rpc::FetchRequest* request, int most, const std::vector<uint64_t>& first,
                std::vector<uint64_t>* told);
  // What `op` must say so; empty or one.
  std::vector<uint64_t> LeftOf(const FetchOp& op) const;
  void SetNote(int64_t at_ns);
  void SendNote();
  void ForgetTold(const FetchStream& stream);

  // Asking in batches (grpc_channel_batches.cc).
  void SendBatch();
  void OnBatchLanded(Batch* batch, FetchStream* stream);
  void OnBatchEnded(Batch* batch, FetchStream* stream);
  void OnBatchOfOtherLife(Batch* batch);
  void RetryBatch(Batch* batch, const absl::Status& why);
  void AskAgain(Batch* batch);
  void LeaveBatches();
  void OnBatchTimer();

  // Takes the op out of everything and runs its `done`.
  void Finish(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void FinishSoon(FetchOp* op, absl::Status status);
  // Ends an op from outside of its stream; one whose copy runs ends when that is done.
  void Break(FetchOp* op, const absl::Status& why);
  void BreakAll(std::vector<uint64_t> ids, const absl::Status& why);
  // Gives `work` to the executor, now or when it has room.
  void Deliver(Executor* executor, Executor::Work work);
  FetchOp* FindOp(uint64_t id) const;
  void PostCounted(absl::AnyInvocable<void() &&> fn);

  // Constant after construction.
  const std::string peer_;
  PeerDirectory* const directory_;
  CallSigner* const signer_;
  EventThread* const events_;
  Poller* const poller_;
  const GrpcChannelOptions options_;
  const uint64_t channel_;
  const size_t max_fetching_;  // Calls for what is there, beside max_asked.
  TraceTrack* const track_;    // Null without a trace.

  // Any thread.
  std::atomic<int> posted_{0};  // Functions that will still run on the poller.

  // Poller thread only.
  absl::flat_hash_map<uint64_t, std::unique_ptr<FetchOp>> ops_;  // By id.
  absl::flat_hash_set<FetchOp*, LineHash, SameLine> firsts_;     // Of each key.
  absl::flat_hash_map<uint64_t, FetchOp*> asks_;                 // By serial.
  std::deque<uint64_t> line_;     // Serials in kInLine; and others, passed over.
  std::deque<uint64_t> to_park_;  // The same, kToPark.
  std::deque<uint64_t> ready_;    // kReady.
  size_t asked_ = 0;
  size_t fetching_ = 0;
  size_t parked_ = 0;
  absl::flat_hash_map<FetchStream*, std::unique_ptr<FetchStream>> streams_;
  uint64_t next_id_ = 1;
  uint64_t next_serial_ = 1;

  // What is over and not known to be known by the producer. What it is to take back, it must hear
  // of before a new request for the same key.
  SerialSet over_;
  std::vector<uint64_t> delivered_;  // Sorted.
  std::map<uint64_t, LineKey> unwanted_;
  absl::flat_hash_map<LineKey, uint64_t> left_;  // The last unwanted of a key.

  bool takes_batches_ = true;  // As far as is known.
  absl::flat_hash_set<FetchStream*> batches_;
  uint64_t parked_incarnation_ = 0;  // Who was asked in batches; 0: whoever is there.
  uint64_t heard_ = 0;
  int64_t batches_failing_since_ns_ = 0;
  int batch_attempts_ = 0;
  bool batches_back_off_ = false;
  BatchTimer batch_timer_{this};

  uint64_t peer_incarnation_ = 0;
  absl::Status closed_;
  absl::Status last_failure_;
  int64_t failing_since_ns_ = 0;  // 0: the last attempt went well.
  uint64_t fetched_ = 0;
  uint64_t digests_wrong_ = 0;
  std::deque<std::pair<Executor*, Executor::Work>> undelivered_;
  DeliverTimer deliver_timer_{this};
  NoteTimer note_timer_{this};
  int64_t note_at_ns_ = 0;
  EndOfTurn end_of_turn_{this};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_CHANNEL_H_
