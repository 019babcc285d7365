#include "channel/ops/fetch_op.h"

#include <utility>

#include "channel/ops/fetch_ask.h"

namespace tryst {
namespace {

constexpr uint64_t FetchCounters::*kFetchCounters[] = {
    &FetchCounters::fetches,          &FetchCounters::ended_ok,
    &FetchCounters::ended_failed,     &FetchCounters::cancels_sent,
    &FetchCounters::replays,          &FetchCounters::moved,
    &FetchCounters::parked,           &FetchCounters::bytes,
    &FetchCounters::in_message,       &FetchCounters::links,
    &FetchCounters::breaks,           &FetchCounters::digests_wrong,
    &FetchCounters::ghosts,           &FetchCounters::standing,
    &FetchCounters::standing_claimed, &FetchCounters::standing_dropped,
    &FetchCounters::by_reference,     &FetchCounters::copied,
    &FetchCounters::pulled,           &FetchCounters::in_parts,
    &FetchCounters::messages,
};
static_assert(sizeof(FetchCounters) == sizeof(uint64_t) * std::size(kFetchCounters),
              "one is missing");

}  // namespace

void FetchOp::Renew() {
  phase = FetchPhase::kWaits;
  join = nullptr;
}

const RecvArgs& FetchAsk::NoArgs() {
  static const RecvArgs* const none = new RecvArgs();
  return *none;
}

FetchCounters& FetchCounters::operator+=(const FetchCounters& other) {
  for (uint64_t FetchCounters::*field : kFetchCounters) this->*field += other.*field;
  return *this;
}

}  // namespace tryst
