#ifndef TRYST_CHANNEL_OPS_FETCH_WORDS_H_
#define TRYST_CHANNEL_OPS_FETCH_WORDS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "channel/ops/fetch_ask.h"
#include "channel/ops/run_wire.h"

namespace tryst {

// What a link sends to the peer for FetchOps. Poller thread only.
class FetchWords {
 public:
  virtual void FlushSoon() = 0;  // Sends everything that is due, at the end of this turn.
  // Whether there is room for the request, and for its key if the peer does not know it.
  virtual bool HasRoom(const FetchAsk& ask) = 0;
  // Each returns false if there is no room now.
  virtual bool SendRequest(FetchAsk* ask, bool may_park) = 0;
  virtual bool SendCancel(const FetchAsk& ask) = 0;
  virtual bool SendPark(const FetchAsk& ask) = 0;
  virtual bool SendWaits(FetchAsk* ask) = 0;
  virtual bool SendUnwanted(absl::Span<const uint64_t> tickets) = 0;
  virtual bool SendReplayed() = 0;
  virtual bool SayOwn() { return true; }  // Sends what concerns no single fetch.
  virtual size_t most_tickets() const = 0;
  // The largest answer of a run that the link can carry.
  virtual uint64_t most_run_bytes() const { return kRunBytes; }
  // Whether requests leave within the call of Fetch().
  virtual bool AsksAtOnce() const { return false; }

 protected:
  ~FetchWords() = default;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_WORDS_H_
