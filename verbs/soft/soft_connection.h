#ifndef TRYST_VERBS_SOFT_SOFT_CONNECTION_H_
#define TRYST_VERBS_SOFT_SOFT_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "verbs/nic.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/socket.h"
#include "verbs/soft/soft_lane.h"
#include "verbs/soft/soft_shared.h"
#include "verbs/soft/soft_stream.h"

namespace tryst {

// A queue pair's lanes: who dials them, the handshake on each, and their end. The first lane
// carries everything except the later fragments of large messages, and those, too, where no helper
// carries them.
class SoftConnection {
 public:
  explicit SoftConnection(SoftShared* shared);  // It outlives this.

  QueuePairState state() const { return state_; }  // Never kDrained.
  bool ready() const { return state_ == QueuePairState::kReady; }
  const std::vector<std::unique_ptr<SoftLane>>& lanes() const { return lanes_; }
  SoftLane* first() const { return lanes_[0].get(); }
  // Lanes after the first that helpers may carry messages on. Without any, no helper makes system
  // calls: one socket is as fast so.
  int carriers() const;
  int later_up() const;  // Lanes after the first that are.
  // The poller uses all lanes itself: there are no helpers, not even resting ones.
  bool has_no_crew() const;
  // Its later lanes are flows of their own, over one network or several, of which one may be slow,
  // or gone.
  bool has_flows() const {
    const SoftContext& context = *shared_->context;
    return peer_listeners_.size() > 1 || context.addresses.size() > 1 || context.options.flows > 1;
  }
  // "2 sockets by 10.0.1.2, 1 by 10.0.2.2". Empty: it has one network, and one flow there.
  std::string Networks() const;
  // A later lane is lost; what the first one still brings is handled.
  bool hanging_up() const { return hanging_up_; }

  absl::Status Connect(absl::string_view remote_address);
  // Takes over a dialled stream if `hello` shows that it is the peer's. False: it is not, and the
  // caller keeps it.
  bool Adopt(const SoftHello& hello, SoftStream* stream);
  // Goes on with a lane that epoll has named. True: it may have frames, or the peer's hello.
  bool Serve(SoftLane* lane);
  // Handles the acceptor's answer to our hello. False: it is not our peer's.
  bool TakeHello(SoftLane* lane, const uint8_t* bytes);
  void RetryDial(SoftLane* lane);  // Drops it, and dials again later.

  void RedialWhatIsDue(int64_t now_ns);
  int64_t next_redial_ns() const;  // INT64_MAX: none is due.
  bool Unreachable() const;        // One of our dials got no answer at all.
  bool AnyBatch() const;           // A lane has frames that its socket did not take.
  void WatchLanes();               // Watches for room the lanes that wait for it.

  void HangUp(SoftLane* lost);  // `lost` is not the first.
  void Break();                 // Drops all lanes.

 private:
  SoftStream NewStream(const SoftLane& lane);  // Invalid: the peer cannot be dialled now.
  // When a dial is given up for the next address. INT64_MAX: not.
  int64_t DialEndsNs(const SoftLane& lane) const;
  void Dial(SoftLane* lane);
  bool Wants(const SoftLane& lane) const { return lane.index == 0 || shared_->wants_lanes; }
  bool Redials(const SoftLane& lane) const;
  SoftHello NewHello(const SoftLane& lane);
  void SendHello(SoftLane* lane);
  bool Expects(const SoftHello& hello) const;
  void Answer(SoftLane* lane);
  void DropIfClosed(SoftLane* held);
  void Raise(SoftLane* lane, const SoftHello& hello);
  void Drop(SoftLane* lane);

  SoftShared* const shared_;
  QueuePairState state_ = QueuePairState::kReset;
  SoftAddress peer_;
  std::vector<SocketAddress> peer_listeners_;
  bool dialler_ = false;
  bool hanging_up_ = false;
  std::vector<std::unique_ptr<SoftLane>> lanes_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_CONNECTION_H_
