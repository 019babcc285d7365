#include "channel/ops/fetch_op.h"

#include <utility>

#include "channel/ops/fetch_ask.h"

namespace tryst {

void FetchOp::Renew() {
  phase = FetchPhase::kWaits;
  join = nullptr;
}

void FetchOp::Deliver(const Args& no_args) {
  DoneFn run = std::move(done);
  done = nullptr;
  std::move(run)(std::move(result_status), no_args, args, std::move(result), result_is_dead);
  args.DropReferences();
}

const Args& FetchAsk::NoArgs() {
  static const Args* const none = new Args();
  return *none;
}

}  // namespace tryst
