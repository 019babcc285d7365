#ifndef TRYST_PLUGINS_NCCL_PEER_WATCH_H_
#define TRYST_PLUGINS_NCCL_PEER_WATCH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "plugins/nccl/wire.h"
#include "verbs/soft/socket.h"

namespace tryst::nccl {

// One comm's control socket after setting up, and the state of the process at its other end.
// Thread-safe.
class PeerLink {
 public:
  enum class State : uint8_t {
    kAlive,
    kClosed,  // The peer has closed its comm in order.
    kGone,    // It has died, or has given its comm up; why() says which.
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

// A thread that reads all control sockets. When a process ends, its kernel closes its sockets,
// which shows at once; when a machine ends, its kernel no longer acknowledges our sign of life.
// Neither depends on when the peer's threads run, so a slow peer is never taken for a dead one.
class PeerWatch {
 public:
  // kResourceExhausted: no thread can be started.
  static absl::StatusOr<std::unique_ptr<PeerWatch>> Start(int peer_timeout_ms, const Clock* clock);
  ~PeerWatch();  // Closes the remaining sockets.

  std::shared_ptr<PeerLink> Add(Fd socket, const PeerName& name);
  // Closes the comm's socket: in order, or, with `why`, because the comm has failed.
  void Remove(const std::shared_ptr<PeerLink>& link);
  void TellFailure(const std::shared_ptr<PeerLink>& link, const std::string& why);

 private:
  PeerWatch(int peer_timeout_ms, const Clock* clock);
  struct Watched {
    Fd socket;
    // Null: our end is closed, and the watch waits for the peer to close its end.
    std::shared_ptr<PeerLink> link;
    int64_t forget_at_ns = 0;
    std::string heard;
  };

  void Loop();
  void Hear(uint64_t id);
  // False: the socket has nothing more to read.
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
