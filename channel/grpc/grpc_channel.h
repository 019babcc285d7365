#ifndef TRYST_CHANNEL_GRPC_GRPC_CHANNEL_H_
#define TRYST_CHANNEL_GRPC_GRPC_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "channel/channel.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_calls.h"
#include "channel/grpc/grpc_channel_options.h"
#include "channel/grpc/over_list.h"
#include "channel/grpc/peer_directory.h"
#include "channel/ops/executor_line.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/signing/caller.h"
#include "channel/trace/trace.h"

namespace tryst {

class FetchStream;

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
class GrpcChannel final : public Channel, private PollerFlush {
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
  class Batches;
  class KeyLines;

  // Asking by calls.
  void Ask(FetchOp* op);
  void OnLanded(FetchStream* stream);
  void OnEnded(FetchStream* stream);
  void OnHeader(FetchOp* op);
  void OnDigestWrong(FetchOp* op, const absl::Status& why);
  void Stage(FetchOp* op, Tensor landed, bool is_dead);
  void Retry(FetchOp* op, const absl::Status& why);
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
  void AskNext();
  void Flush() override { AskNext(); }
  void Leave(FetchOp* op, bool answered);
  void HandOver(FetchOp* op, FetchOp* heir);
  void EndAsk(FetchOp* op, bool delivered);
  // Tables that were large and hold nothing give their memory back.
  void ShrinkTables();
  // Fails `op` and all behind it.
  void FailLine(FetchOp* op, const absl::Status& why);
  // And those that wait without a call.
  void FailWaiting(const absl::Status& why);

  // What is over.
  void SetNote(int64_t at_ns);
  void SendNote();
  void ForgetTold(const FetchStream& stream);

  // Takes the op out of everything and runs its `done`.
  void Finish(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void FinishSoon(FetchOp* op, absl::Status status);
  // Ends an op from outside of its stream; one whose copy runs ends when that is done.
  void Break(FetchOp* op, const absl::Status& why);
  void BreakAll(std::vector<uint64_t> ids, const absl::Status& why);
  FetchOp* FindOp(uint64_t id) const;
  void PostCounted(absl::AnyInvocable<void() &&> fn);

  // Constant after construction.
  const std::string peer_;
  Poller* const poller_;
  const GrpcChannelOptions options_;
  const size_t max_fetching_;  // Calls for what is there, beside max_asked.
  TraceTrack* const track_;    // Null without a trace.

  // Any thread.
  std::atomic<int> posted_{0};  // Functions that will still run on the poller.

  // Poller thread only.
  absl::flat_hash_map<uint64_t, std::unique_ptr<FetchOp>> ops_;  // By id.
  std::unique_ptr<KeyLines> lines_;
  absl::flat_hash_map<uint64_t, FetchOp*> asks_;  // By serial.
  std::deque<uint64_t> line_;                     // Serials in kInLine; and others, passed over.
  std::deque<uint64_t> ready_;                    // kReady.
  size_t asked_ = 0;
  size_t fetching_ = 0;
  GrpcCalls calls_;
  std::unique_ptr<Batches> batches_;  // Of what waits without a call.
  uint64_t next_id_ = 1;
  uint64_t next_serial_ = 1;

  OverList over_;
  uint64_t peer_incarnation_ = 0;
  absl::Status closed_;
  uint64_t fetched_ = 0;
  uint64_t digests_wrong_ = 0;
  ExecutorLine executors_;
  MemberTimer<GrpcChannel> note_timer_{this, &GrpcChannel::SendNote};
  int64_t note_at_ns_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_CHANNEL_H_
