#ifndef TRYST_PLUGINS_NCCL_PEER_WATCH_H_
#define TRYST_PLUGINS_NCCL_PEER_WATCH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "plugins/nccl/wire.h"
#include "verbs/soft/socket.h"

namespace tryst::nccl {

// One comm's control socket once it is set up: what is known of the process at its other
// end. Any thread.
class PeerLink {
 public:
  enum class State : uint8_t {
    kAlive,
    kClosed,  // The peer has closed its comm in order.
    kGone,    // It is dead, or has given its comm up; why() says so.
  };

  explicit PeerLink(PeerName name) : name_(std::move(name)) {}
  const PeerName& name() const { return name_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  std::string why() const;

 private:
  friend class PeerWatch;
  void End(State state, const std::string& why);

  const PeerName name_;
  std::atomic<State> state_{State::kAlive};
  mutable Mutex mu_;
  std::string why_ ABSL_GUARDED_BY(mu_);
};

// A thread that reads all control sockets. The end of a process closes them, which is seen
// at once; the end of a machine leaves our sign of life unanswered by its kernel. Neither
// depends on when the peer's threads run, so a slow peer is never taken for a dead one.
class PeerWatch {
 public:
  PeerWatch(int peer_timeout_ms, const Clock* clock);
  ~PeerWatch();  // Closes what is left.

  std::shared_ptr<PeerLink> Add(Fd socket, const PeerName& name);
  // In order, or, with `why`, because the comm has failed.
  void Remove(const std::shared_ptr<PeerLink>& link);
  void TellFailure(const std::shared_ptr<PeerLink>& link, const std::string& why);

 private:
  struct Watched {
    Fd socket;
    std::shared_ptr<PeerLink> link;  // Null: ours is closed, and the peer's end is waited for.
    int64_t forget_at_ns = 0;
    std::string heard;
  };

  void Loop();
  void Hear(uint64_t id);
  // False when the socket has nothing more to say.
  bool HearFrom(Watched* watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(Watched* watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndAllOf(const PeerName& name, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SignalLife();
  void ForgetOld();

  const int peer_timeout_ms_;
  const Clock* const clock_;
  Fd epoll_;
  Fd stop_;
  Mutex mu_;
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::thread thread_;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_PEER_WATCH_H_
