#include "channel/shm/fetch_op.h"

namespace tryst {

const char* ShmFetchStateName(ShmFetchState state) {
  switch (state) {
    case ShmFetchState::kFree:
      return "free";
    case ShmFetchState::kQueued:
      return "waits for a slot or a connection";
    case ShmFetchState::kWanted:
      return "waits for the peer's Send, without a slot";
    case ShmFetchState::kHere:
      return "is there and waits for a slot";
    case ShmFetchState::kAsked:
      return "waits for the peer's Send";
    case ShmFetchState::kCopying:
      return "is copied to its destination";
    case ShmFetchState::kLeaving:
      return "waits for the peer's last word after a cancel";
    case ShmFetchState::kEnding:
      return "waits for its callback";
  }
  return "unknown";
}

void ShmFetchOp::Deliver() {
  const Args no_args;
  DoneFn run = std::move(done);
  done = nullptr;
  const Args run_args = std::move(args);
  std::move(run)(std::move(result_status), no_args, run_args, std::move(result), result_is_dead);
}

}  // namespace tryst
