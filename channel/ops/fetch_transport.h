#ifndef TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_
#define TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "channel/ops/fetch_op.h"

namespace tryst {

// What FetchOps asks of a transport, beside sending (fetch_words.h): when to connect, and where
// bytes go. Poller thread only.
class FetchTransport {
 public:
  virtual ~FetchTransport() = default;

  virtual FetchOp* MakeOp() = 0;  // Makes one, which lasts until DropOps().
  virtual void DropOps() = 0;     // Destroys all of them: none is out.
  virtual void DropKeys() {}      // All keys were forgotten: nothing is out, and was not for long.
  // Whether a destination can be filled; an invalid one stands for none.
  virtual absl::Status MayFill(const Tensor& destination) const = 0;
  // The standing receive for this key, or null.
  virtual FetchOp* Foreseen(int64_t, const TensorKey&) { return nullptr; }
  virtual void OnBegun(FetchOp*) {}       // From here on somebody waits.
  virtual void OnWaits(FetchOp* op) = 0;  // `op` is valid and waits; connects if there is no link.
  virtual void OnConnectTimer() = 0;      // The connector's timer is over.
  virtual void OnNoSlot() {}              // A fetch waits for a slot, and none is free.
  // A standing receive that no fetch has claimed.
  virtual bool IsAhead(const FetchOp&) const { return false; }
  // Whether the peer may write the caller's memory.
  virtual bool MayBeWritten(const FetchOp&) const { return false; }
  virtual void DropMemory(FetchOp*) {}
  // Passes the destination of `from` to `to`. False: it cannot be passed.
  virtual bool PassMemory(FetchOp* from, FetchOp* to) = 0;
  virtual void OnEndAhead(FetchOp*) {}  // It leaves its slot; it was in that state until now.
  virtual void OnLeaves(FetchOp*, FetchState) {}  // Until then it was in that state.
  virtual void Refuse(FetchOp*) {}                // What came for it goes back.
  virtual std::string WhyLate(const FetchOp&) const {
    return "";
  }                                                             // Behind "not received in time".
  virtual uint64_t BytesOf(const FetchOp&) const { return 0; }  // As far as is known.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_
