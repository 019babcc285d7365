#ifndef TRYST_CHANNEL_OPS_CONNECTOR_H_
#define TRYST_CHANNEL_OPS_CONNECTOR_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/bootstrap.h"
#include "channel/ops/back_off.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/trace/path_view.h"

namespace tryst {

struct ConnectorOptions {
  std::string path;  // As in Hello: "rdma/soft".
  std::string self;  // Our worker name.
  uint64_t self_incarnation = 0;
  std::string peer;  // The producer's worker name.
  // How long the path may bring nothing while the peer is up and a fetch waits; then the path is
  // left. 0: it is never left.
  int64_t give_up_ms = 0;
  uint64_t seed = 1;  // For the jitter of the pauses, and where generations begin.
  int64_t hello_timeout_ms = 5000;
  int64_t backoff_ms = 10;  // First pause between attempts; doubles.
  int64_t backoff_ms_most = 1000;
  std::string open_text = "connected";
};

// The consumer's attempts to connect to one producer, over any transport: hellos, each in an epoch
// of its own, the pauses between attempts, and the time since which all attempts have failed.
// Poller thread only.
class Connector {
 public:
  // What the connection waits for.
  enum class State : uint8_t {
    kIdle,      // For a first fetch.
    kHello,     // For the peer's answer.
    kJoining,   // For the peer's welcome on the local socket.
    kOpen,      // It is connected and waits for nothing.
    kDraining,  // For the works of a broken link to complete.
    kBackoff,   // For the pause before the next attempt.
    kAsking,    // For the peer to say that it is up: then another path is tried.
    kClosed,
  };
  using AnswerFn = absl::AnyInvocable<void(absl::StatusOr<Hello>)>;

  // `on_timer` runs when a pause, or the time given to WaitFor(), is over.
  Connector(Poller* poller, Bootstrap* bootstrap, ConnectorOptions options,
            std::function<void()> on_timer);

  State state() const { return state_; }
  bool open() const { return state_ == State::kOpen; }
  int64_t since_ns() const { return since_ns_; }
  uint64_t epoch() const { return epoch_; }
  void SetState(State state);
  const char* StateText() const;
  PathHealth Health() const;
  // From now on hellos ask for this path.
  void UsePath(const std::string& path, const std::string& open_text) {
    options_.path = path;
    options_.open_text = open_text;
  }
  // "PEER over PATH: STATE since 12 ms, epoch 3"
  std::string Explain() const;
  void View(PathView* view) const;

  // ---- An attempt ----
  // Enters `state` under a new epoch.
  void Begin(State state);
  Hello NewHello() const;
  // Sends `hello`. `on_answer` gets the answer, within `most_ms` at most, unless another attempt
  // has begun or the state has changed.
  void Say(const Hello& hello, AnswerFn on_answer, int64_t most_ms = INT64_MAX);
  bool hello_out() const { return hellos_out_ > 0; }
  // kDataLoss: the answer belongs to another hello.
  absl::Status CheckAnswer(const Hello& answer) const;
  // Calls `on_timer` after `ms`.
  void WaitFor(int64_t ms);
  void StopWaiting() { poller_->CancelTimer(&timer_); }

  // ---- Between attempts ----
  // Enters kBackoff; calls `on_timer` after the pause.
  void Pause();
  BackOff* back_off() { return &back_off_; }
  // Notes that the path has failed since then, unless it was failing already.
  void NoteFailing(int64_t since_ns) {
    if (failing_since_ns_ < 0) failing_since_ns_ = since_ns;
  }
  void NoteWorking() { failing_since_ns_ = -1; }
  // Whether it has failed for `ms`: has brought nothing, whatever is answered to hellos.
  bool FailedFor(int64_t ms) const;
  // Whether it has failed for give_up_ms.
  bool Unusable() const { return options_.give_up_ms > 0 && FailedFor(options_.give_up_ms); }

  absl::Status why;  // Why the last attempt failed; OK while there is a link.

 private:
  void OnTimer() { on_timer_(); }

  Poller* const poller_;
  Bootstrap* const bootstrap_;
  ConnectorOptions options_;
  const std::function<void()> on_timer_;
  State state_ = State::kIdle;
  int64_t since_ns_;
  uint64_t epoch_ = 0;
  int hellos_out_ = 0;
  BackOff back_off_;
  int64_t failing_since_ns_ = -1;  // -1: the path works, or was never tried.
  MemberTimer<Connector> timer_{this, &Connector::OnTimer};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_CONNECTOR_H_
