#ifndef TRYST_CHANNEL_COMPAT_GRPC_CALLS_H_
#define TRYST_CHANNEL_COMPAT_GRPC_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "channel/compat/fetch_stream.h"
#include "channel/compat/grpc_channel_options.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/peer_directory.h"
#include "channel/ops/fetch_owed.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/signing/caller.h"

namespace tryst {
namespace rpc {
class FetchRequest;
}  // namespace rpc

// The calls of one GrpcChannel that are under way, and how long the peer has not answered them.
// Poller thread only.
class GrpcCalls {
 public:
  // Gets a call that has begun to bring a tensor and brings nothing more for the patience.
  using OnStalled = std::function<void(FetchStream*)>;
  // Runs a few times within the patience while the peer says nothing on any call. `may_judge`: it
  // had something to say meanwhile only if nothing of it has been read.
  using OnQuiet = std::function<void(bool may_judge)>;

  // The arguments outlive it.
  GrpcCalls(const std::string& peer, PeerDirectory* directory, CallSigner* signer,
            EventThread* events, Poller* poller, const GrpcChannelOptions& options,
            OnStalled on_stalled, OnQuiet on_quiet);
  ~GrpcCalls();

  // Identifies the channel to the peer and in traces.
  uint64_t number() const { return number_; }
  uint64_t trace_seed() const { return signer_->self().incarnation ^ number_; }

  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelToPeer() const {
    return directory_->ChannelTo(peer_);
  }
  FetchStream* New(IncomingTensor* incoming, uint64_t serial, FetchStream::Event on_landed,
                   FetchStream::Event on_ended);
  // Says in `request` that the answer is to be sealed, where calls are.
  void Start(FetchStream* stream, const std::shared_ptr<grpc::Channel>& channel,
             rpc::FetchRequest* request);
  std::unique_ptr<FetchStream> Take(FetchStream* stream);  // Hands over a stream that has ended.
  // How a call ended. kUnavailable if its time was refused: the next is signed by the peer's clock.
  absl::Status EndOf(const FetchStream& stream) const;
  size_t size() const { return streams_.size(); }
  // Cancels a stream that was detached, a few in a turn: gRPC takes a quarter of a millisecond for
  // each, and when a thousand deadlines pass at once, the last must not wait for all of them.
  void CancelSoon(FetchStream* stream);
  // Shortens the calls' deadlines while we close: a silent peer must not delay us.
  void Hurry();

  void NoteIncarnation(uint64_t incarnation) { directory_->NoteIncarnation(peer_, incarnation); }
  // Notes that a call was answered, or failed.
  void NoteAnswer();
  void NoteFailure(const absl::Status& why);
  // What the peer owes beside tensors: a word, when it is asked for one.
  FetchOwed* owed() { return &owed_; }
  // Notes that the peer is asked for a word.
  void NoteAsked() {
    if (unanswered_since_ns() == 0) asked_ns_ = poller_->now_ns();
  }
  // Since when it has not answered that; 0: it has, or was not asked. Only from then on does its
  // silence count: a peer that has nothing to say is silent for as long as it likes.
  int64_t unanswered_since_ns() const { return asked_ns_ > owed_.word_ns() ? asked_ns_ : 0; }
  const absl::Status& last_failure() const { return last_failure_; }
  int64_t failing_since_ns() const { return failing_since_ns_; }  // 0: the last call went well.
  // Since when a call that fails now has been failing.
  int64_t FailingSinceNs(const absl::Status& why) const;
  // How long to wait before the next attempt.
  int64_t BackOffNs(int64_t failing_ns, uint64_t spread) const;

 private:
  static constexpr int kCancelsInTurn = 4;

  void CancelSome();
  void WatchStalls();
  void OnStallTimer();
  bool ReadsAll();

  const std::string peer_;
  PeerDirectory* const directory_;
  CallSigner* const signer_;
  EventThread* const events_;
  Poller* const poller_;
  const GrpcChannelOptions options_;
  const OnStalled on_stalled_;
  const OnQuiet on_quiet_;
  const uint64_t number_;
  absl::flat_hash_map<FetchStream*, std::unique_ptr<FetchStream>> streams_;
  absl::Status last_failure_;
  int64_t failing_since_ns_ = 0;
  FetchOwed owed_;
  int64_t asked_ns_ = 0;
  uint64_t events_step_ = 0;  // When it was last looked at.
  int64_t kept_ns_ = 0;       // When one event was last seen to keep the events' thread.
  absl::flat_hash_set<FetchStream*> to_cancel_;
  MemberTimer<GrpcCalls> cancel_timer_{this, &GrpcCalls::CancelSome};
  MemberTimer<GrpcCalls> stall_timer_{this,
                                      &GrpcCalls::OnStallTimer};  // Set while calls are under way.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_GRPC_CALLS_H_
