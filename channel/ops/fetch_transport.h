#ifndef TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_
#define TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "channel/ops/fetch_keys.h"
#include "channel/ops/fetch_op.h"

namespace tryst {

// What FetchOps leaves to a transport: how to ask, how to cancel, and where bytes go. Poller thread
// only.
class FetchTransport {
 public:
  virtual ~FetchTransport() = default;

  virtual FetchOp* MakeOp() = 0;  // A new one, which lasts as long as the channel.
  // Whether args.destination can be filled.
  virtual absl::Status MayFill(const Args& args) const = 0;
  virtual FetchOp* Foreseen(int64_t, const TensorKey&) { return nullptr; }  // Asked for ahead.
  virtual void OnBegun(FetchOp*) {}       // From here on somebody waits.
  virtual void OnWaits(FetchOp* op) = 0;  // It has been found good: connects, if need be.
  virtual void FlushSoon() = 0;           // Says what there is to say, at the end of this turn.
  // Whether there is room for a request for `op` and, if it must be told, its key.
  virtual bool HasRoom(const FetchOp& op) = 0;
  // Each false where there is no room now.
  virtual bool SendRequest(FetchOp* op, FetchKey* key, bool may_park) = 0;
  virtual bool SendCancel(const FetchOp& op) = 0;
  virtual bool SendPark(const FetchOp& op) = 0;
  virtual bool SendWaits(FetchOp*, FetchKey*) { return true; }
  virtual bool SendUnwanted(absl::Span<const uint64_t> tickets) = 0;
  virtual bool SayOwn() { return true; }  // What is not about one fetch.
  virtual size_t most_tickets() const = 0;
  virtual bool AsksAtOnce() const { return false; }             // In the call that fetches.
  virtual void OnNoSlot() {}                                    // And somebody waits for one.
  virtual bool IsAhead(const FetchOp&) const { return false; }  // Nobody has fetched it yet.
  // Whether the peer may write the caller's memory.
  virtual bool MayBeWritten(const FetchOp&) const { return false; }
  virtual void DropMemory(FetchOp*) {}
  // What `from` was to be landed in becomes `to`'s; false: it cannot.
  virtual bool PassMemory(FetchOp* from, FetchOp* to) = 0;
  virtual void OnEndAhead(FetchOp*) {}            // One that nobody has fetched is over.
  virtual void OnLeaves(FetchOp*, FetchState) {}  // Until then it was in that state.
  virtual void Refuse(FetchOp*) {}                // What came for it goes back.
  virtual std::string WhyLate(const FetchOp&) const {
    return "";
  }                                                             // Behind "not received in time".
  virtual uint64_t BytesOf(const FetchOp&) const { return 0; }  // As far as is known.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_
