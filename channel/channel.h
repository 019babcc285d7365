#ifndef TRYST_CHANNEL_CHANNEL_H_
#define TRYST_CHANNEL_CHANNEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// A fetch that a channel gives away, with all that Channel::Fetch() takes: another is to make it.
struct WaitingFetch {
  int64_t step = 0;
  TensorKey key;
  Args args;
  DoneFn done;
};

// Moves tensors from one peer to us. It is one way: what the peer fetches from us goes
// over the channel that the peer opened (docs/decisions/0003-one-way-channels.md).
// Call only on the poller thread that owns it.
class Channel {
 public:
  virtual ~Channel() = default;  // REQUIRES: Drained().

  // Asks the peer for `key` of `step_id`. `args.destination`, if set, belongs to the
  // channel, which the NIC may write, until `done` runs: exactly once, never inside this
  // call, with no lock held, on args.executor. Ends early by args.cancellation,
  // args.deadline or AbortStep(). Fails with kAborted (step ended, producer restarted)
  // or kUnavailable (peer or link lost beyond what recovery mends).
  virtual void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) = 0;

  // Ends every fetch of the step with `why`. Fetches made later are not affected.
  virtual void AbortStep(int64_t step_id, const absl::Status& why) = 0;

  // Fails all that wait with `why` and starts to drain. Idempotent.
  virtual void Close(absl::Status why) = 0;

  // True once closed and no DMA can touch our memory any more.
  virtual bool Drained() const = 0;

  // One line: which path, its state, since when, and why.
  virtual std::string Explain() const = 0;

  // Adds what has not ended: what each waits for, and since when.
  virtual void ListOps(LiveOps* ops) const = 0;

  // ---- What a channel may do besides ----

  // As a Fetch() of each key with one callback, where the channel asks for them as one. False:
  // nothing has happened.
  virtual bool FetchMany(int64_t /*step_id*/, absl::Span<const TensorKey> /*keys*/,
                         const Args& /*args*/, ManyDoneFn* /*done*/) {
    return false;
  }
  // Whether Fetch() may be called while the channel runs a callback.
  virtual bool FetchesInCallbacks() const { return false; }

  // How the connection stands: state, why, since_ns, epoch. A channel without one says nothing.
  virtual void View(PathView* /*view*/) const {}

  // Of a path that may be turned down, left and taken again (PathUser in transport.h):
  // takes out all that the peer has not been asked for: another channel is to fetch it.
  virtual std::vector<WaitingFetch> TakeWaiting() { return {}; }
  // Connects, if it does not yet, although nobody asks; OnUsable() or OnRefused() may follow.
  virtual void Probe() {}
  // Something has changed for the better: ends a pause before the next attempt to connect.
  virtual void RetryNow() {}
  // Whether this path is the one in use: on another nothing is asked for ahead.
  virtual void AskAhead(bool /*in_use*/) {}
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_CHANNEL_H_
