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
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "channel/channel.h"
#include "channel/grpc/caller.h"
#include "channel/grpc/peer_directory.h"
#include "channel/poller.h"
#include "channel/trace.h"

namespace tryst {

class EventThread;
class FetchStream;
namespace rpc {
class FetchRequest;
}  // namespace rpc

struct GrpcChannelOptions {
  // A tensor that its producer says is larger is refused.
  uint64_t max_tensor_bytes = uint64_t{64} << 30;
  // Fetches asked at once; more wait in line.
  size_t max_asked = 1024;
  // How long a fetch goes on trying while nobody answers. Shorter than the time for which
  // the producer keeps a tensor whose consumer is gone (FetchServerOptions).
  absl::Duration patience = absl::Seconds(30);
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
  struct FetchOp;
  class OpTimer;
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

  void Ask(FetchOp* op);
  void FillRequest(FetchOp* op, rpc::FetchRequest* request);
  void FillOver(rpc::FetchRequest* request, std::vector<uint64_t>* told);
  void SetNote(int64_t at_ns);
  void SendNote();
  void ForgetTold(const FetchStream& stream);
  void OnLanded(FetchStream* stream);
  void OnEnded(FetchStream* stream);
  void OnHeader(FetchOp* op);
  void OnDigestWrong(FetchOp* op, const absl::Status& why);
  void Stage(FetchOp* op, Tensor landed, bool is_dead);
  void Retry(FetchOp* op, const absl::Status& why);
  void OnTimer(FetchOp* op);
  void SetTimer(FetchOp* op);
  // Takes the op out of everything and runs its `done`.
  void Finish(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void FinishSoon(FetchOp* op, absl::Status status);
  // Ends an op from outside of its stream; one whose copy runs ends when that is done.
  void Break(FetchOp* op, const absl::Status& why);
  void AskNext();
  // Gives `work` to the executor, now or when it has room.
  void Deliver(Executor* executor, Executor::Work work);
  FetchOp* Find(uint64_t serial) const;
  void PostCounted(absl::AnyInvocable<void() &&> fn);

  // Constant after construction.
  const std::string peer_;
  PeerDirectory* const directory_;
  CallSigner* const signer_;
  EventThread* const events_;
  Poller* const poller_;
  const GrpcChannelOptions options_;
  const uint64_t channel_;
  TraceTrack* const track_;  // Null without a trace.

  // Any thread.
  std::atomic<int> posted_{0};  // Functions that will still run on the poller.

  // Poller thread only.
  std::map<uint64_t, std::unique_ptr<FetchOp>> ops_;  // By serial.
  std::deque<uint64_t> line_;                         // Not asked yet.
  size_t asked_ = 0;
  absl::flat_hash_map<FetchStream*, std::unique_ptr<FetchStream>> streams_;
  struct Over {
    uint64_t serial;
    bool delivered;
  };
  // Not known to be known by the producer.
  std::vector<Over> over_;
  uint64_t next_serial_ = 1;
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
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_CHANNEL_H_
