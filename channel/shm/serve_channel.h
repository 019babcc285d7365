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
#include "channel/trace/path_view.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// The producer's end of one shared-memory link, from the hello to the end of the consumer. After
// that the arena keeps what the consumer still holds. A consumer that comes again gets a new one. A
// link that ends while the consumer lives is settled: what was answered is kept until the consumer
// has stored which answers it accepted, and the rest goes back to its place. Poller thread only.
class ShmServeChannel final : private ShmHub::Host,
                              private ShmHub::Watcher,
                              private ShmHub::Link,
                              private PollerFlush,
                              private PollerTimer {
 public:
  // `consumer` and `offer` come from the hello, and have been validated.
  ShmServeChannel(ShmHub* hub, TensorSource* source, ShmServeOptions options, const Hello& consumer,
                  const shm_wire::Offer& offer);
  ~ShmServeChannel() override;  // REQUIRES: Drained().

  // The answer to the hello, with what the consumer needs to connect.
  absl::StatusOr<Hello> Invite();
  // Ends the link for good: nothing is answered or kept any more. `why` is for the log.
  void Close(const absl::Status& why);
  // The consumer says `hello` for another link, so this one ends and is settled. False: the hello
  // is older than this link.
  bool MakeWayFor(const Hello& hello);
  // Gives up a consumer that was invited long ago and has not come.
  void EndIfNotJoined();
  // The consumer has gone, did not come, or was closed.
  bool ended() const { return state_ == State::kEnded; }
  bool Drained() const;
  // Once it is drained: what the consumer still holds of its link; null: nothing.
  const std::weak_ptr<const GivenReferences>& kept() const { return kept_; }

  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  ServeCounters counters() const {
    ServeCounters now = link_.counters;
    now.messages += link_.replies.written();
    return now;
  }
  size_t references() const { return link_.given == nullptr ? 0 : link_.given->held(); }
  std::string Explain() const;
  void ListOps(LiveOps* ops) const { requests_.ListOps(ops); }
  const char* state_text() const;
  PathHealth health() const;
  // Whether it has joined and must not map memory that others read.
  bool apart() const { return link_.socket != nullptr && link_.apart; }
  int64_t state_since_ns() const { return since_ns_; }
  uint64_t epoch() const { return epoch_; }
  size_t told_keys() const { return requests_.told_keys(); }

 private:
  enum class State : uint8_t {
    kInvited,   // Waits for the consumer to connect.
    kWelcome,   // Waits for it to map the memory.
    kOpen,      // Connected.
    kLeaving,   // Waits for it to return what it holds; it asks for nothing more.
    kSettling,  // Waits for it to store which answers it accepted.
    kEnded,
  };
  enum class Ending {
    kConsumerGone,  // Its process has ended, as far as can be seen.
    kConsumerLeft,  // It has ended the link.
    kOnPurpose,     // We have ended it.
    kForGood,       // We have ended it because we stop, too.
  };
  void SetState(State state);
  void OnGuest(std::unique_ptr<LocalSocket> socket) override;
  absl::Status Welcome();
  void OnSocket() override;
  bool HearPacket();  // False: there was no packet, or the link has ended.
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
  std::weak_ptr<const GivenReferences> kept_;
  shm_wire::Token proof_{};  // In our own memory: the consumer tries to read it here.
  bool link_added_ = false;
  ShmRequests requests_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_CHANNEL_H_
