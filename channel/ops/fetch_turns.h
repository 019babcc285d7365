#ifndef TRYST_CHANNEL_OPS_FETCH_TURNS_H_
#define TRYST_CHANNEL_OPS_FETCH_TURNS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "channel/ops/fetch_keys.h"
#include "channel/ops/fetch_op.h"

namespace tryst {

// The order of a key: of the fetches of one key and step one is asked for at a time, and the others
// follow it (docs/decisions/0026-order-with-cancels.md). Poller thread only.
class FetchTurns {
 public:
  // The fetch of that key and step, other than `but`, that has been asked for and not had its last
  // word.
  static FetchOp* AskedBefore(const FetchKey& key, int64_t step, const FetchOp* but);
  // `op`, with those behind it, follows `before`. REQUIRES: in no line.
  void Follow(FetchOp* before, FetchOp* op);
  void StopFollowing(FetchOp* op);  // No-op when it follows nobody.
  // The next behind `op`, who leads the others from here on. Null: there is none.
  FetchOp* Succeed(FetchOp* op);

 private:
  void Push(FetchFollowers* line, FetchOp* op);

  std::deque<FetchFollowers> all_;  // All there ever were; addresses stay.
  std::vector<FetchFollowers*> free_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TURNS_H_
