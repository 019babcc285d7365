#ifndef TRYST_CHANNEL_COMPAT_GRPC_CHANNEL_H_
#define TRYST_CHANNEL_COMPAT_GRPC_CHANNEL_H_

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
#include "channel/compat/grpc_calls.h"
#include "channel/compat/grpc_channel_options.h"
#include "channel/compat/over_list.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/peer_directory.h"
#include "channel/ops/executor_line.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/signing/caller.h"
#include "channel/trace/trace.h"

namespace tryst {

class FetchStream;

struct GrpcFetchCounts {
  uint64_t fetched = 0;
  uint64_t digests_wrong = 0;
};

// Fetches from one peer through TransportService.FetchTensor. Bytes are copied once, from gRPC's
// buffers into args.destination or into a new tensor, on the thread of `events`; everything else
// happens on the poller thread. A stream that breaks is continued where it stopped, with the same
// serial, until `patience` has passed without an answer.
//
// Receives of one key wait in line, and one of them is requested at a time. So each gets the tensor
// of its turn, whatever the order in which calls arrive. A receive that ends early hands its
// request to the next.
//
// The producer learns from the next request which fetches have ended. If none follows for a while,
// or a tensor is not wanted, a note of its own tells it.
class GrpcChannel final : public Channel, private PollerFlush {
 public:
  // The arguments outlive it.
  GrpcChannel(std::string peer, PeerDirectory* directory, CallSigner* signer, EventThread* events,
              Poller* poller, GrpcChannelOptions options = {});
  ~GrpcChannel() override;

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override;
  void AbortStep(int64_t step_id, const absl::Status& why) override;
  void Close(absl::Status why) override;
  bool Drained() const override;
  std::string Explain() const override;
  void ListOps(LiveOps* ops) const override;
  size_t fetches_out() const override { return ops_.size() + over_.unwanted(); }

 private:
  static constexpr int64_t kFirstNotePauseNs = 1'000'000'000;
  static constexpr int64_t kLongestNotePauseNs = 16'000'000'000;
  struct Attempt;
  struct FetchOp;
  class Batches;
  class KeyLines;

  // Requests in calls of their own.
  void Ask(FetchOp* op);
  // The producer says that it is there.
  void StartFetching(FetchOp* op);
  void OnLanded(FetchStream* stream);
  // What a call or a parcel brought is in op->attempt->incoming.
  void OnTaken(FetchOp* op, const absl::Status& taken);
  void OnEnded(FetchStream* stream);
  void OnStalled(FetchStream* stream);
  void OnQuiet(bool may_judge);
  void OnHeader(FetchOp* op);
  void OnDigestWrong(FetchOp* op, const absl::Status& why);
  void Retry(FetchOp* op, const absl::Status& why);
  void EndOfPatience(uint64_t id);
  void NotePeer(uint64_t incarnation);
  void OnTimer(FetchOp* op);
  void SetTimer(FetchOp* op);
  FetchOp* Find(uint64_t serial) const;
  // The one that this call is for. Null: it is for none any more.
  FetchOp* OpOf(const FetchStream& stream) const;

  // The lines of receives (grpc_channel_asks.cc).
  void Enter(FetchOp* op);
  void StartAsking(FetchOp* op);
  bool MayCall() const;
  void AskNext();
  void Flush() override { AskNext(); }
  void Leave(FetchOp* op, bool answered);
  void HandOver(FetchOp* op, FetchOp* heir);
  void EndAsk(FetchOp* op, bool delivered);
  // Large tables that have become empty release their memory.
  void ShrinkTables();
  // Fails `op` and all receives behind it in line.
  void FailLine(FetchOp* op, const absl::Status& why);
  // Like FailLine(), and fails the receives that wait in batches.
  void FailWaiting(const absl::Status& why);

  // Telling the producer what has ended.
  void SetNote(int64_t at_ns);
  void SendNote();
  void OnNoteEnded(FetchStream* stream);
  void SetNextNote();
  void ForgetTold(const FetchStream& stream);

  // Removes the op from all tables and runs its `done`.
  void Finish(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void FinishSoon(FetchOp* op, absl::Status status);
  void FinishAll(std::vector<uint64_t> ids, const absl::Status& why);
  FetchOp* FindOp(uint64_t id) const;
  void PostCounted(absl::AnyInvocable<void() &&> fn);

  // Constant after construction.
  const std::string peer_;
  Poller* const poller_;
  const GrpcChannelOptions options_;
  // Calls that fetch tensors which the producer has announced, beside max_asked.
  const size_t max_fetching_;
  TraceTrack* const track_;  // Null: there is no trace.

  // Any thread.
  std::atomic<int> posted_{0};  // Functions that will still run on the poller.

  // Poller thread only.
  absl::flat_hash_map<uint64_t, std::unique_ptr<FetchOp>> ops_;  // By id.
  std::unique_ptr<KeyLines> lines_;
  absl::flat_hash_map<uint64_t, FetchOp*> asks_;  // By serial.
  // The serials of ops in kInLine. Others among them are skipped.
  std::deque<uint64_t> line_;
  std::deque<uint64_t> ready_;  // Those in kReady.
  size_t asked_ = 0;
  size_t fetching_ = 0;
  GrpcCalls calls_;
  std::unique_ptr<Batches> batches_;  // Requests of receives that have no call.
  uint64_t next_id_ = 1;
  uint64_t next_serial_ = 1;

  OverList over_;
  int64_t note_pause_ns_ = kFirstNotePauseNs;  // Before a note is said again.
  uint64_t peer_incarnation_ = 0;
  absl::Status closed_;
  GrpcFetchCounts counts_;
  ExecutorLine executors_;
  MemberTimer<GrpcChannel> note_timer_{this, &GrpcChannel::SendNote};
  int64_t note_at_ns_ = 0;
  int notes_out_ = 0;
  bool note_due_ = false;  // More has ended since the note that is out; the next follows its end.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_GRPC_CHANNEL_H_
