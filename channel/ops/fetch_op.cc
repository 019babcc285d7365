#include "channel/ops/fetch_op.h"

#include <utility>

namespace tryst {

void FetchOp::Renew() {
  state = FetchState::kQueued;
  join = nullptr;
  order = 0;
  send_request = send_cancel = asked_before = ending = moves = false;
  send_park = park_asked = send_waits = here = false;
  reported = delivered = untold = false;
}

void FetchOp::Deliver(const Args& no_args) {
  DoneFn run = std::move(done);
  done = nullptr;
  std::move(run)(std::move(result_status), no_args, args, std::move(result), result_is_dead);
  args.DropReferences();
}

}  // namespace tryst
