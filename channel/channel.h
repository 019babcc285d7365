#ifndef TRYST_CHANNEL_CHANNEL_H_
#define TRYST_CHANNEL_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_fetcher.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// A fetch that a channel hands over, with all arguments of Channel::Fetch(), for another channel to
// make.
struct WaitingFetch {
  int64_t step = 0;
  TensorKey key;
  RecvArgs args;
  FetchedFn done;
};

// Moves tensors from one peer to us. It is one-way: the peer fetches from us over a channel that it
// opens itself (docs/decisions/0003-one-way-channels.md). Call it only on the thread of the poller
// that owns it.
class Channel {
 public:
  virtual ~Channel() = default;  // REQUIRES: Drained().

  // Asks the peer for `key` of `step_id`. If `args.destination` is set, the channel owns it, and
  // the NIC may write it, until `done` runs: exactly once, never inside this call, with no lock
  // held, on args.executor. Ends early by args.cancellation, args.deadline or AbortStep(). Fails
  // with kAborted (step ended, producer restarted) or kUnavailable (peer or link lost, and recovery
  // did not help).
  virtual void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                     FetchedFn&& done) = 0;

  // Ends every fetch of the step with `why`. Fetches made later are not affected.
  virtual void AbortStep(int64_t step_id, const absl::Status& why) = 0;

  // Fails all waiting fetches with `why`, and starts to drain. Idempotent.
  virtual void Close(absl::Status why) = 0;

  // True: it is closed, and no DMA can touch our memory any more.
  virtual bool Drained() const = 0;

  // One line: the path, its state, since when, and why.
  virtual std::string Explain() const = 0;

  // Adds the operations that have not ended: what each waits for, and since when.
  virtual void ListOps(LiveOps* ops) const = 0;

  // ---- What a channel may do besides ----

  // Like a Fetch() of each key, with one callback; the channel requests them together. False:
  // nothing has happened.
  virtual bool FetchMany(int64_t /*step_id*/, absl::Span<const TensorKey> /*keys*/,
                         const RecvArgs& /*args*/, ManyFetchedFn* /*done*/) {
    return false;
  }
  // Whether Fetch() may be called while the channel runs a callback.
  virtual bool FetchesInCallbacks() const { return false; }
  // How many fetches it has, and ends of fetches of which the peer has not heard: until there are
  // none, another channel could get tensors in another order. Not exact, but for 0.
  virtual size_t fetches_out() const = 0;

  // The state of the connection: state, why, since_ns, epoch. A channel without a connection leaves
  // it unchanged.
  virtual void View(PathView* /*view*/) const {}

  // For a channel that may be turned down (ChannelUser in transport.h): removes and returns all
  // fetches, of which the peer has not been asked for one. Another channel will make them.
  virtual std::vector<WaitingFetch> TakeWaiting() { return {}; }
  // Connects, if it is not connected, although no fetch waits. OnUsable() or OnRefused() may
  // follow.
  virtual void Probe() {}
  // The network has improved: ends the pause before the next attempt to connect.
  virtual void RetryNow() {}
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_CHANNEL_H_
