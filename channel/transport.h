#ifndef TRYST_CHANNEL_TRANSPORT_H_
#define TRYST_CHANNEL_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/poller/poller.h"
#include "channel/trace/counters.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/trace/trace.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

class Consumers;
struct FetchKind;

// The object that chose a channel to a peer. The channel tells it how that works: in any turn of
// the poller, but never inside a call of the channel.
class ChannelUser {
 public:
  virtual ~ChannelUser() = default;

  // The peer is not reached so. Takes out of the channel what waits in it (TakeWaiting).
  virtual void OnRefused() = 0;
  // The channel works, as Probe() was to find out.
  virtual void OnUsable() = 0;
};

// One way of reaching peers, on one poller: a kind of link for sessions, or one that makes channels
// of its own. Opens what all of them share, and answers the peers that fetch from us by it. A
// server with several pollers has one on each.
//
// Poller thread only, but for construction, Open() and destruction, while the poller is not
// running.
class Transport {
 public:
  virtual ~Transport() = default;  // REQUIRES: Drained(), or never opened; no channel is left.

  // "shm", "rdma/soft": as explanations, traces and Hello::path have it. Constant.
  virtual const std::string& name() const = 0;
  // Called once, before anything else.
  virtual absl::Status Open() { return absl::OkStatus(); }
  // Whether a worker whose system has none goes on without it, and says why.
  virtual bool is_optional() const { return false; }

  // The kind of link that sessions use, once it is open; constant. Null: it makes channels.
  virtual const FetchKind* fetch_kind() const { return nullptr; }
  // The channel to `peer`, which connects when it is first asked for something. `user` outlives it.
  // REQUIRES: there is no kind of link.
  virtual std::unique_ptr<Channel> MakeChannel(const std::string& /*peer*/, ChannelUser* /*user*/) {
    return nullptr;
  }

  // A consumer would like to fetch from us by this transport. REQUIRES: hello.path is name(),
  // the protocol version is one of ours. kUnimplemented, with the reason: not from there.
  virtual void OnHello(const Hello& hello, HelloDone done) {
    std::move(done)(
        absl::UnimplementedError("this worker offers no connections over the path " + hello.path));
  }
  // About once a second.
  virtual void Maintain() {}

  // Ends what it serves itself; sessions and channels are their owners' to close. Idempotent.
  virtual void Close(const absl::Status& /*why*/) {}
  // True once closed and nothing of the transport's own can touch memory any more.
  virtual bool Drained() const { return true; }

  // What it serves itself to `peer`, and to all peers when empty: for people, as views, as
  // operations.
  virtual void ExplainServing(const std::string& /*peer*/, std::string* /*out*/) const {}
  virtual void View(const std::string& /*peer*/, std::vector<PathView>* /*views*/) const {}
  virtual void ListOps(LiveOps* /*ops*/) const {}
  // Adds those of both directions, sessions and channels included.
  virtual void AddCounters(Counters* /*counters*/) const {}
};

// What a transport is made from. All pointers outlive it.
struct TransportContext {
  Poller* poller = nullptr;
  Bootstrap* bootstrap = nullptr;
  TensorSource* source = nullptr;  // Asked for what peers fetch from us.
  std::string self;                // Our worker name.
  uint64_t incarnation = 0;
  uint64_t max_tensor_bytes = UINT64_MAX;  // A tensor that its producer says is larger is refused.
  Trace* trace = nullptr;                  // The poller's; may be null.
  uint64_t seed = 0;                       // No other transport has this one.
  // Which of the server's pollers it is. For what they share, the first one speaks.
  size_t place = 0;
  // All transports of the poller share them. Null: it stands alone, and has its own.
  Consumers* consumers = nullptr;
  // The network has changed for the better: what waits to be tried again is tried now. May be null.
  std::function<void()> network_changed;
};

using TransportFactory = std::function<std::unique_ptr<Transport>(const TransportContext& context)>;

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRANSPORT_H_
