#ifndef TRYST_CHANNEL_SHM_SERVE_CHANNEL_H_
#define TRYST_CHANNEL_SHM_SERVE_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/bootstrap.h"
#include "channel/poller/poller.h"
#include "channel/shm/serve_link.h"
#include "channel/shm/serve_requests.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/wire.h"
#include "channel/trace/live_ops.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// The producer's end of one link of shared memory, from the hello to the end of the
// consumer. What the consumer still holds then stays as it is: the arena keeps it aside.
// A consumer that comes again gets another one. A link that ends while the consumer lives is
// settled: what was answered is kept until the consumer has written down which of it it
// accepted, and the rest goes back to its place. Poller thread only.
class ShmServeChannel final : private ShmHub::Host,
                              private ShmHub::Watcher,
                              private ShmHub::Link,
                              private PollerFlush,
                              private PollerTimer {
 public:
  // `consumer` and `offer` are the hello's, and have been found good.
  ShmServeChannel(ShmHub* hub, TensorSource* source, ShmServeOptions options, const Hello& consumer,
                  const shm_wire::Offer& offer);
  ~ShmServeChannel() override;  // REQUIRES: Drained().

  // What the consumer needs to come in.
  absl::StatusOr<Hello> Invite();
  // For good: nothing is answered any more, nor kept. `why` is for the log.
  void Close(const absl::Status& why);
  // The consumer says `hello` for another link: this one is over, and settled. False: the hello
  // is older than this link.
  bool MakeWayFor(const Hello& hello);
  // Gives up a consumer that was invited long ago and has not come.
  void EndIfNotJoined();
  // The consumer has gone, or did not come, or was closed.
  bool ended() const { return state_ == State::kEnded; }
  bool Drained() const;

  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  ShmServeCounters counters() const {
    ShmServeCounters now = link_.counters;
    now.messages += link_.replies.written();
    return now;
  }
  std::string Explain() const;
  void ListOps(LiveOps* ops) const { requests_.ListOps(ops); }
  const char* state_text() const;
  // Whether it has joined and is not to map what others read.
  bool apart() const { return link_.socket != nullptr && link_.apart; }
  int64_t state_since_ns() const { return since_ns_; }
  uint64_t epoch() const { return epoch_; }

 private:
  enum class State : uint8_t {
    kInvited,   // For the consumer to knock.
    kWelcome,   // For it to say that it has mapped the memory.
    kOpen,      // For nothing.
    kLeaving,   // For it to return what it holds: it asks for nothing more.
    kSettling,  // For it to say what it has accepted of what it was answered.
    kEnded,
  };
  enum class Ending {
    kConsumerGone,  // Its process, as far as can be seen.
    kConsumerLeft,  // It has ended the link.
    kOnPurpose,     // By us.
    kForGood,       // By us, who end, too.
  };
  void SetState(State state);
  void OnGuest(std::unique_ptr<LocalSocket> socket) override;
  absl::Status Welcome();
  void OnSocket() override;
  bool HearPacket();  // False: there was none, or the link has ended.
  absl::Status OnReady(const shm_wire::Packet& packet);
  void OnLeave();
  void End(const absl::Status& why, Ending how);
  void StartEnding(const absl::Status& why, Ending how);
  bool Settle(Ending how);
  void SettleLater();
  void FinishEnding(bool consumer_gone);
  bool PollLink() override;
  bool Ready() const override { return link_.requests.Ready() || link_.given->HasReturned(); }
  void FallAsleep() override;
  bool WakeUp() override;
  void Flush() override;

  void OnTimer() override;

  // Constant after construction.
  const std::string consumer_;
  const uint64_t consumer_incarnation_;
  const uint64_t epoch_;

  // Poller thread only.
  ShmServeLink link_;
  State state_ = State::kInvited;
  int64_t since_ns_ = 0;
  int64_t settle_pause_ns_ = 0;
  absl::Status end_status_;
  shm_wire::Token proof_{};  // In our own memory: what the consumer tries to read here.
  bool link_added_ = false;
  ShmRequests requests_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_CHANNEL_H_
