#ifndef TRYST_CHANNEL_GRPC_GRPC_BOOTSTRAP_H_
#define TRYST_CHANNEL_GRPC_GRPC_BOOTSTRAP_H_

#include <atomic>
#include <memory>
#include <string>

#include "base/clock.h"
#include "channel/bootstrap.h"
#include "channel/grpc/peer_directory.h"
#include "channel/signing/caller.h"

namespace grpc {
class CompletionQueue;
}  // namespace grpc

namespace tryst {

// Carries hellos to peers through TransportService.Hello. Each exchange is one attempt, which ends
// within `longest`, whatever its deadline. Thread-safe; its arguments outlive it.
class GrpcBootstrap final : public Bootstrap {
 public:
  // An EventThread turns `queue`. When that thread ends, it ends the exchanges under way.
  GrpcBootstrap(PeerDirectory* directory, CallSigner* signer, grpc::CompletionQueue* queue,
                const Clock* clock, absl::Duration longest = absl::Seconds(20));
  // Cancels the exchanges under way, and waits until each `done` has run.
  ~GrpcBootstrap() override;

  // Ends the exchanges under way with kCancelled, and each later one, which may be a farewell,
  // after `most` at the latest: so stopping does not wait for long for a peer that does not answer.
  void CancelAndLimit(absl::Duration most);

  void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                HelloDone done) override;

 private:
  struct Call;
  class Calls;
  void OnEnded(Call* call);

  PeerDirectory* const directory_;
  CallSigner* const signer_;
  grpc::CompletionQueue* const queue_;
  const Clock* const clock_;
  const uint64_t started_us_;
  std::atomic<int64_t> longest_ns_;
  const std::unique_ptr<Calls> calls_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_BOOTSTRAP_H_
