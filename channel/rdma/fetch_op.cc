#include "channel/rdma/fetch_op.h"

#include <utility>

namespace tryst {

const char* FetchStateName(FetchState state) {
  switch (state) {
    case FetchState::kFree:
      return "free";
    case FetchState::kQueued:
      return "waits for a slot or a connection";
    case FetchState::kAsked:
      return "waits for the peer's Send";
    case FetchState::kParked:
      return "waits for the peer's Send without a slot";
    case FetchState::kWaitingRoom:
      return "waits for landing room";
    case FetchState::kParts:
      return "waits for parts on other queue pairs";
    case FetchState::kAhead:
      return "came before it was asked for";
    case FetchState::kLeaving:
      return "waits for the peer's last word after a cancel";
    case FetchState::kFenced:
      return "waits for a broken queue pair to drain";
    case FetchState::kEnding:
      return "waits for its callback";
  }
  return "unknown";
}

void FetchOp::Deliver() {
  DoneFn run = std::move(done);
  done = nullptr;
  Args run_args = std::move(args);
  args = Args();
  std::move(run)(std::move(result_status), Args(), run_args, std::move(result), result_is_dead);
}

}  // namespace tryst
