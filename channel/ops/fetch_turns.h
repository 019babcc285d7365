#ifndef TRYST_CHANNEL_OPS_FETCH_TURNS_H_
#define TRYST_CHANNEL_OPS_FETCH_TURNS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "channel/ops/fetch_keys.h"
#include "channel/ops/fetch_op.h"

namespace tryst {

// The order of a key: of the fetches of one key and step only one is requested at a time, and the
// others follow it (docs/decisions/0026-order-with-cancels.md). Poller thread only.
class FetchTurns {
 public:
  // The fetch of that key and step, other than `but`, that was requested and has not ended.
  static FetchOp* AskedBefore(const FetchKey& key, int64_t step, const FetchOp* but);
  // Puts `op`, with the fetches behind it, behind `before`. REQUIRES: `op` is in no line.
  void Follow(FetchOp* before, FetchOp* op);
  void StopFollowing(FetchOp* op);  // Does nothing if it does not follow another.
  // Removes `op`; the next fetch behind it leads the others and is returned. Null: there is none.
  FetchOp* Succeed(FetchOp* op);

 private:
  void Push(FetchFollowers* line, FetchOp* op);

  std::deque<FetchFollowers> all_;  // All that were ever made; their addresses do not change.
  std::vector<FetchFollowers*> free_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TURNS_H_
