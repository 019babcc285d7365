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

// The object that chose a path to a peer. The channel tells it how the path works: in any turn of
// the poller, but never inside a call of the channel.
class PathUser {
 public:
  virtual ~PathUser() = default;

  // Whether the peer may be reached otherwise, so that this path may be left; and whether by a
  // worse one that brings tensors of any size. The first is asked when the channel is made.
  virtual bool HasAnother() const = 0;
  virtual bool HasForAnySize() const = 0;

  // The peer has no such path. Takes out of the channel what waits in it (TakeWaiting).
  virtual void OnRefused() = 0;
  // The path has stopped working: all that waited for it, in order.
  virtual void OnLeft(std::vector<WaitingFetch> fetches) = 0;
  // The path works, as Probe() was to find out.
  virtual void OnUsable() = 0;
  // The tensor of the first is larger than what this path can bring; the others, of the same key,
  // follow it. REQUIRES: HasForAnySize().
  virtual void OnTooLarge(std::vector<WaitingFetch> fetches) = 0;
  // The network has changed for the better: what waits to be tried again is tried now.
  virtual void OnNetworkChange() = 0;
};

// One way of reaching peers, on one poller: opens what all its channels share, makes the channels,
// and serves the peers that fetch from us by it. A server with several pollers has one on each.
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
  // Whether no tensor is too large for it.
  virtual bool brings_any_size() const { return false; }

  // The channel to `peer`, which connects when it is first asked for something. What its hello
  // offers is between the channel and OnHello(). `user` outlives it.
  virtual std::unique_ptr<Channel> MakeChannel(const std::string& peer, PathUser* user) = 0;

  // A consumer would like to fetch from us by this transport. REQUIRES: hello.path is name(),
  // the protocol version is one of ours. kUnimplemented, with the reason: not from there.
  virtual void OnHello(const Hello& hello, HelloDone done) {
    std::move(done)(
        absl::UnimplementedError("this worker offers no connections over the path " + hello.path));
  }
  // Any hello of `worker`, by whichever path: what a former life of it had asked for is over.
  virtual void NotePeer(const std::string& /*worker*/, uint64_t /*incarnation*/) {}
  // About once a second.
  virtual void Maintain() {}

  // Ends what is served; the channels are their owner's to close. Idempotent.
  virtual void Close(const absl::Status& /*why*/) {}
  // True once closed and nothing of the transport's own can touch memory any more.
  virtual bool Drained() const { return true; }

  // What is served to `peer`, and to all peers when empty: for people, as views, as operations.
  virtual void ExplainServing(const std::string& /*peer*/, std::string* /*out*/) const {}
  virtual void View(const std::string& /*peer*/, std::vector<PathView>* /*views*/) const {}
  virtual void ListOps(LiveOps* /*ops*/) const {}
  // Adds those of both directions, its channels included.
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
};

using TransportFactory = std::function<std::unique_ptr<Transport>(const TransportContext& context)>;

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRANSPORT_H_
