#include "channel/ops/fetch_op.h"

#include <utility>

#include "channel/ops/fetch_ask.h"

namespace tryst {

void FetchOp::Renew() {
  phase = FetchPhase::kWaits;
  join = nullptr;
}

void FetchOp::Deliver() {
  DoneFn run = std::move(done);
  done = nullptr;
  std::move(run)(std::move(received));
  received.tensor.Reset();  // If it was not moved on.
  args.DropReferences();
}

const RecvArgs& FetchAsk::NoArgs() {
  static const RecvArgs* const none = new RecvArgs();
  return *none;
}

}  // namespace tryst
