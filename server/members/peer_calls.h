#ifndef TRYST_SERVER_MEMBERS_PEER_CALLS_H_
#define TRYST_SERVER_MEMBERS_PEER_CALLS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/members/heartbeat.h"
#include "server/members/member.h"

namespace grpc {
class CompletionQueue;
}  // namespace grpc

namespace tryst {

class CallSigner;
class PeerDirectory;
struct TraceDump;
struct TraceFilter;

// Makes TransportService's small calls to any peer. Thread-safe; its arguments outlive it.
class PeerCalls {
 public:
  PeerCalls(PeerDirectory* directory, CallSigner* signer);
  // Cancels the calls under way and waits for them.
  ~PeerCalls();

  using Heard = tryst::Heard;
  // Tells the peer who we are; without a worker's name it only asks. `done` runs on the thread of
  // `queue`, an EventThread, or inside the call. `after` asks for the members after that name.
  void StartHeartbeat(grpc::CompletionQueue* queue, const std::string& peer, const Member& self,
                      HeartbeatWord word, absl::Duration timeout, HeardFn done,
                      const std::string& after = "");
  // Heartbeats on one given queue.
  class HeartbeatsOn final : public HeartbeatCalls {
   public:
    HeartbeatsOn(PeerCalls* calls, grpc::CompletionQueue* queue) : calls_(calls), queue_(queue) {}
    void StartHeartbeat(const std::string& peer, const Member& self, HeartbeatWord word,
                        absl::Duration timeout, const std::string& after, HeardFn done) override {
      calls_->StartHeartbeat(queue_, peer, self, word, timeout, std::move(done), after);
    }

   private:
    PeerCalls* const calls_;
    grpc::CompletionQueue* const queue_;
  };

  // Cancels the calls below and waits for them; later ones end with kCancelled. Heartbeats go on:
  // the owner of their queue ends them.
  void Close();

  // These calls wait for the answer, and up to `timeout` for a peer that is not up.
  absl::StatusOr<Heard> Ping(const std::string& peer, absl::Duration timeout);
  absl::Status BeginStep(const std::string& peer, int64_t step_id, absl::Duration timeout);
  absl::Status AbortStep(const std::string& peer, int64_t step_id, const absl::Status& why,
                         absl::Duration timeout);
  absl::Status CleanupStep(const std::string& peer, int64_t step_id, absl::Duration timeout);
  // Has the peer send us samples (server/services/samples.h). Returns its incarnation.
  absl::StatusOr<uint64_t> SendSamples(const std::string& peer, int64_t step_id, uint64_t bytes,
                                       uint32_t count, absl::Duration timeout);
  absl::StatusOr<std::string> Explain(const std::string& peer, const std::string& about, bool json,
                                      absl::Duration timeout);
  absl::StatusOr<std::string> DumpWaiting(const std::string& peer, int64_t step_id, bool json,
                                          absl::Duration timeout);
  absl::StatusOr<std::map<std::string, int64_t>> Stats(const std::string& peer,
                                                       absl::Duration timeout);
  absl::StatusOr<TraceDump> TraceKey(const std::string& peer, const TraceFilter& filter,
                                     absl::Duration timeout);
  // How far the peer's CLOCK_MONOTONIC is ahead of ours, from the fastest of a few heartbeats. The
  // peer read its clock between our call and the arrival of its answer, which bounds the error.
  struct ClockReading {
    int64_t ahead_ns = 0;
    int64_t error_ns = 0;  // The true value differs by at most this.
  };
  absl::StatusOr<ClockReading> CompareClocks(const std::string& peer, absl::Duration timeout);

 private:
  class UnderWay;
  class Heartbeats;
  struct Heartbeat;
  template <typename Method, typename Request, typename Response>
  absl::Status Call(const std::string& peer, const char* name, Method method,
                    const Request& request, absl::Duration timeout, Response* response);

  template <typename Method, typename Request, typename Response>
  absl::Status Attempt(const std::string& peer, const char* name, Method method,
                       const Request& request, absl::Duration timeout, Response* response);
  absl::Status Stopped(const std::string& peer) const;

  PeerDirectory* const directory_;
  CallSigner* const signer_;
  const std::unique_ptr<Heartbeats> heartbeats_;
  const std::unique_ptr<UnderWay> under_way_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_PEER_CALLS_H_
