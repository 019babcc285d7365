#include "channel/rdma/fetch_channel.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

// What callers use. What follows is told by event: fetch_connection.cc, fetch_sending.cc,
// fetch_destination.cc, fetch_receiving.cc, fetch_standing.cc, fetch_leaving.cc.
namespace tryst {
namespace {

constexpr uint64_t FetchCounters::*kCounters[] = {
    &FetchCounters::fetches,
    &FetchCounters::ended_ok,
    &FetchCounters::ended_failed,
    &FetchCounters::bytes,
    &FetchCounters::cancels_sent,
    &FetchCounters::epochs,
    &FetchCounters::breaks,
    &FetchCounters::replays,
    &FetchCounters::digests_wrong,
    &FetchCounters::ghosts,
    &FetchCounters::moved,
    &FetchCounters::standing,
    &FetchCounters::standing_claimed,
    &FetchCounters::standing_dropped,
    &FetchCounters::parked,
};
static_assert(sizeof(FetchCounters) == sizeof(uint64_t) * std::size(kCounters), "one is missing");

FetchOpsOptions OpsOptions(const FetchChannelOptions& options) {
  FetchOpsOptions ops;
  ops.peer = options.peer;
  ops.path = options.path;
  ops.trace = options.trace;
  ops.max_key_bytes = wire::kMaxKeyBytes;
  ops.max_keys = wire::kMaxKeys;
  ops.max_keys_bytes = wire::kKeysLapBytes;
  ops.max_parked = options.max_parked;
  ops.max_tensor_bytes = options.max_tensor_bytes;
  return ops;
}

}  // namespace

FetchCounters& FetchCounters::operator+=(const FetchCounters& other) {
  for (uint64_t FetchCounters::*field : kCounters) this->*field += other.*field;
  return *this;
}

FetchChannel::FetchChannel(QueueHub* hub, LandingPool* landings, Bootstrap* bootstrap,
                           FetchChannelOptions options)
    : FetchOps(hub->poller(), OpsOptions(options), &counters_),
      hub_(hub),
      landings_(landings),
      bootstrap_(bootstrap),
      options_(std::move(options)),
      writer_(landings->NewWriter()),
      back_off_(options_.backoff_ms, options_.backoff_ms_most, options_.seed),
      backoff_timer_(this, &FetchChannel::OnBackoffOver),
      heartbeat_timer_(this, &FetchChannel::OnHeartbeat),
      patience_timer_(this, &FetchChannel::OnPatienceOver) {
  slots_.Reset(options_.link.slots);
}

FetchChannel::~FetchChannel() { TRYST_CHECK(Drained()) << Explain(); }

void FetchChannel::OnWaits(FetchOp* op) {
  if (op->wants().recurring) NoteStep(op->key, op->step);
  if (op->state == FetchState::kAhead) TakeAhead(Own(op));
  if (state_ != State::kOpen) ArmPatience();
  if (state_ == State::kIdle) Connect();
  if (state_ == State::kOpen) link_->FlushSoon();
}

std::string FetchChannel::WhyLate(const FetchOp& op) const {
  if (op.state != FetchState::kWaitingRoom) return FetchOps::WhyLate(op);
  return absl::StrCat(": the tensor has ", Own(op).meta.bytes, " bytes, and ",
                      landings_->in_use_bytes(), " of the landing cap, ", landings_->cap_bytes(),
                      ", are in use: let go of tensors that were received, or raise landing_bytes");
}

uint64_t FetchChannel::BytesOf(const FetchOp& op) const {
  const bool told = op.state == FetchState::kWaitingRoom || op.state == FetchState::kParts;
  return told ? Own(op).meta.bytes : 0;
}

void FetchChannel::Close(absl::Status why) {
  if (state_ == State::kClosed) return;
  SetState(State::kClosed);
  closed_ = std::move(why);
  hub_->poller()->CancelTimer(&backoff_timer_);
  hub_->poller()->CancelTimer(&heartbeat_timer_);
  hub_->poller()->CancelTimer(&patience_timer_);
  if (link_ != nullptr) link_->Break(closed_);
  EndAll(closed_);
  if (link_ == nullptr) ForgetLeaving();
}

bool FetchChannel::Drained() const {
  return state_ == State::kClosed && link_ == nullptr && hellos_out_ == 0 && pool_.live() == 0 &&
         deliveries_.idle();
}

const char* FetchChannel::state_text() const {
  switch (state_) {
    case State::kIdle:
      return "idle, connects at the next fetch";
    case State::kHello:
      return "waits for the answer to its hello";
    case State::kOpen:
      return "connected";
    case State::kDraining:
      return "drains a broken connection";
    case State::kBackoff:
      return "pauses before it connects again";
    case State::kFarewell:
      return "is being left";
    case State::kClosed:
      return "closed";
  }
  return "unknown";
}

std::string FetchChannel::Explain() const {
  return absl::StrCat(options_.peer, " over ", options_.path, ": ", state_text(), " since ",
                      (now_ns() - state_since_ns_) / 1'000'000, " ms, epoch ", epoch_, ", ",
                      CountsByState(),
                      landings_->ends_keys() ? "; the key of a landing ends with its tensor"
                                             : "; landings are its alone, and their keys last",
                      connect_status_.ok() ? "" : absl::StrCat("; ", connect_status_.ToString()));
}

}  // namespace tryst
