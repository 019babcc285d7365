#include "channel/ops/fetch_op.h"

#include <utility>

#include "channel/ops/fetch_ask.h"

namespace tryst {
namespace {

constexpr uint64_t FetchCounters::*kFetchCounters[] = {
    &FetchCounters::fetches,          &FetchCounters::ended_ok,
    &FetchCounters::ended_failed,     &FetchCounters::cancels_sent,
    &FetchCounters::replays,          &FetchCounters::moved,
    &FetchCounters::parked,           &FetchCounters::runs,
    &FetchCounters::in_runs,          &FetchCounters::bytes,
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
  by_run = false;
}

const RecvArgs& FetchAsk::NoArgs() {
  static const RecvArgs* const none = new RecvArgs();
  return *none;
}

void FetchAsk::TakePlaceOf(FetchAsk* former) {
  of = std::exchange(former->of, nullptr);
  step = former->step;
  front = std::exchange(former->front, nullptr);
  if (front != nullptr) front->ask = this;
  while (!former->behind.empty()) {
    behind.Push(former->behind.PopFront());
    behind.back()->ask = this;
  }
  state = std::exchange(former->state, FetchState::kFree);
  slot = std::exchange(former->slot, kNoSlot);
  generation = former->generation;
  order = former->order;
  ticket = former->ticket;
  trace_id = former->trace_id;
  since_ns = former->since_ns;
  began_ns = former->began_ns;
  parks = former->parks;
  said = former->said;
  for (LineLink<FetchAsk> FetchAsk::*link :
       {&FetchAsk::wait_link, &FetchAsk::send_link, &FetchAsk::key_link}) {
    LinkedLine<FetchAsk>* const line = (former->*link).line;
    if (line != nullptr) line->Replace(former, this);
  }
}

FetchCounters& FetchCounters::operator+=(const FetchCounters& other) {
  for (uint64_t FetchCounters::*field : kFetchCounters) this->*field += other.*field;
  return *this;
}

}  // namespace tryst
