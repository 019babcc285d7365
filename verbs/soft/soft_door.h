#ifndef TRYST_VERBS_SOFT_SOFT_DOOR_H_
#define TRYST_VERBS_SOFT_SOFT_DOOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/socket.h"
#include "verbs/soft/soft_context.h"
#include "verbs/soft/soft_epoll.h"
#include "verbs/soft/soft_pipe.h"
#include "verbs/soft/soft_stream.h"

namespace tryst {

class SoftQueuePair;

// The sockets of a completion queue that no queue pair owns: the listeners, accepted
// strangers until they have shown whose they are, and those that are being closed. The queue's
// thread only.
class SoftDoor {
 public:
  using QueuePairs = absl::flat_hash_map<uint32_t, SoftQueuePair*>;  // By number.

  // All outlive it.
  SoftDoor(SoftContext* context, SoftEpoll* epoll, const QueuePairs* queue_pairs)
      : context_(context), epoll_(epoll), queue_pairs_(queue_pairs) {}

  absl::Status Listen();
  const std::string& address() const { return address_; }
  // Called when epoll reports something of the listener, of strangers or of those that leave.
  void Accept();
  void HearStrangers();
  void SeeOff();
  // Drops who is late, and listens again when that is due.
  void RunTimers(int64_t now_ns);
  int64_t next_timer_ns() const;  // INT64_MAX: none.
  bool any_stranger() const { return !strangers_.empty(); }
  // Sends `last` if it can within the handshake's time, then closes without a reset, so
  // that the peer can still read what we sent before.
  void CloseGently(SoftStream stream, std::vector<uint8_t> last);

 private:
  struct Stranger {  // Accepted; has not said who it is.
    SoftStream stream;
    int64_t deadline_ns = 0;
    size_t got = 0;
    uint8_t hello[kHelloBytes];
  };
  struct Leaving {
    SoftStream stream;
    uint64_t id = 0;
    int64_t deadline_ns = 0;
    std::vector<uint8_t> last;
    size_t sent = 0;
  };
  void PauseListening(int64_t until_ns);
  absl::Status ListenOn(SocketAddress wanted);
  void WatchListeners(uint32_t events, int operation);
  SoftStream NextStream();
  bool HearStranger(Stranger* stranger);  // False when it is to be dropped.
  bool SeeOffOne(Leaving* leaving);

  SoftContext* const context_;
  SoftEpoll* const epoll_;
  const QueuePairs* const queue_pairs_;
  std::vector<Fd> listeners_;                   // Or:
  std::unique_ptr<SoftPipes::Listener> pipes_;  // Null: peers come by sockets.
  std::string address_;
  bool listening_ = true;  // The listeners are in epoll.
  int64_t listen_again_ns_ = 0;
  int64_t nuisances_since_ns_ = 0;
  int nuisances_ = 0;  // Since then: who connected and came to nothing.
  std::vector<Stranger> strangers_;
  std::vector<Leaving> leaving_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_DOOR_H_
