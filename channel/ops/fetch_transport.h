#ifndef TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_
#define TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "channel/ops/fetch_ask.h"
#include "channel/ops/fetch_op.h"

namespace tryst {

// What FetchOps asks of a transport, beside sending (fetch_words.h): when to connect, and where
// bytes go. Poller thread only.
class FetchTransport {
 public:
  virtual ~FetchTransport() = default;

  virtual FetchAsk* MakeAsk() = 0;  // Makes one, which lasts until DropAsks().
  virtual void DropAsks() = 0;      // Destroys all of them: none is out.
  virtual void DropKeys() {}  // All keys were forgotten: nothing is out, and was not for long.
  // Whether a destination can be filled; an invalid one stands for none.
  virtual absl::Status MayFill(const Tensor& destination) const = 0;
  // What was asked for ahead of this fetch, or null. It gets a fetch now.
  virtual FetchAsk* Foreseen(const FetchKey&, int64_t) { return nullptr; }
  virtual void OnWaits(FetchOp* op) = 0;  // `op` is in a line; connects if there is no link.
  virtual void OnConnectTimer() = 0;      // The connector's timer is over.
  virtual void OnNoSlot() {}              // A fetch waits for a slot, and none is free.
  // Whether the peer may write the memory of the caller in front.
  virtual bool MayBeWritten(const FetchAsk&) const { return false; }
  virtual void DropMemory(FetchAsk*) {}
  // Whether what the peer was asked for can go to `next` in place of the fetch in front.
  virtual bool MayPass(const FetchAsk& ask, const FetchOp& next) const = 0;
  virtual void OnEndAhead(FetchAsk*) {}            // It was asked for ahead, and is given up.
  virtual void OnLeaves(FetchAsk*, FetchState) {}  // Until then it was in that state.
  // Behind "not received in time".
  virtual std::string WhyLate(const FetchOp&) const { return ""; }
  virtual uint64_t BytesOf(const FetchAsk&) const { return 0; }  // As far as is known.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TRANSPORT_H_
