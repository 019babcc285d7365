#include "channel/rdma/fetch_channel.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/derived_status.h"

// What callers use. What follows is told by event: fetch_connection.cc, fetch_sending.cc,
// fetch_turns.cc, fetch_parking.cc, fetch_destination.cc, fetch_receiving.cc, fetch_ending.cc,
// fetch_leaving.cc.
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

}  // namespace

FetchCounters& FetchCounters::operator+=(const FetchCounters& other) {
  for (uint64_t FetchCounters::*field : kCounters) this->*field += other.*field;
  return *this;
}

FetchChannel::FetchChannel(QueueHub* hub, LandingPool* landings, Bootstrap* bootstrap,
                           FetchChannelOptions options)
    : hub_(hub),
      landings_(landings),
      bootstrap_(bootstrap),
      options_(std::move(options)),
      track_(options_.trace == nullptr
                 ? nullptr
                 : options_.trace->Track(TraceRole::kFetch, options_.peer, options_.path)),
      back_off_(options_.backoff_ms, options_.backoff_ms_most, options_.seed),
      backoff_timer_(this, &FetchChannel::OnBackoffOver),
      heartbeat_timer_(this, &FetchChannel::OnHeartbeat),
      patience_timer_(this, &FetchChannel::OnPatienceOver),
      park_timer_(this, &FetchChannel::ParkWaiting) {
  slots_.resize(options_.link.slots);
  generations_.resize(options_.link.slots);
  for (uint32_t slot = options_.link.slots; slot-- > 0;) {
    free_slots_.push_back(static_cast<uint16_t>(slot));
  }
  state_since_ns_ = now_ns();
}

FetchChannel::~FetchChannel() {
  TRYST_CHECK(Drained()) << Explain();
  hub_->poller()->ForgetFlush(this);
}

void FetchChannel::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  FetchOp* op = standing_ > 0 ? ClaimStanding(step_id, key) : nullptr;
  if (op == nullptr) {
    op = TakeOp();
    op->step = step_id;
    op->key = key;
    op->state = FetchState::kQueued;
    queued_.Push(op);
  }
  op->args = args;
  op->done = std::move(done);
  op->span.Begin(op->has_slot             ? WaitsFor::kPeerSend
                 : state_ == State::kOpen ? WaitsFor::kSlot
                                          : WaitsFor::kConnection,
                 now_ns());
  ++counters_.fetches;
  StartWatch();

  if (state_ == State::kClosed) return EndEarly(op, close_status_);
  if (key.text().size() > wire::kMaxKeyBytes) {
    return EndEarly(op, absl::InvalidArgumentError("the key is too long to be sent"));
  }
  if (args.destination.valid() && !args.destination.space().host_readable()) {
    const absl::Status reached =
        landings_->nic()->ReachesDevice(args.destination.space().device_ordinal);
    if (!reached.ok()) return EndEarly(op, reached);
  }
  if (args.cancellation != nullptr) {
    Poller* poller = hub_->poller();
    op->cancel_token = args.cancellation->Register([op, poller] { op->Cancel(poller); });
    if (op->cancel_token == Cancellation::kNoToken) {
      return EndEarly(op, MarkDerived(absl::CancelledError("the fetch is cancelled")));
    }
  }
  if (!args.deadline.is_never()) hub_->poller()->SetTimer(op, args.deadline.at_ns());
  if (args.recurring) NoteStep(key, step_id);
  if (op->state == FetchState::kAhead) TakeAhead(op);
  if (state_ != State::kOpen) ArmPatience();
  if (state_ == State::kIdle) Connect();
  if (state_ == State::kOpen) link_->FlushSoon();
}

FetchOp* FetchChannel::TakeOp() {
  if (free_.empty()) {
    ops_.emplace_back(this);
    free_.push_back(&ops_.back());
  }
  FetchOp* op = free_.back();
  free_.pop_back();
  ++live_;
  op->slot = 0;
  op->generation = 0;
  op->send_request = op->send_cancel = op->asked_before = op->ordered = false;
  op->ticket = 0;
  op->behind = op->followers = nullptr;
  op->send_park = op->park_asked = op->send_waits = op->here = op->moves = false;
  op->reported = op->delivered = op->retried = op->ending = false;
  op->parts_seen = 0;
  op->lanes_seen = 0;
  op->meta_flags = 0;
  op->result_is_dead = false;
  op->standing = op->expects = false;
  return op;
}

void FetchChannel::FreeIfDone(FetchOp* op) {
  if (op->state != FetchState::kEnding || !op->delivered || op->in_send_line ||
      op->cancel_posted.load()) {
    return;
  }
  op->state = FetchState::kFree;
  op->key = TensorKey();
  free_.push_back(op);
  --live_;
}

void FetchChannel::OnOpCancelled(FetchOp* op) {
  EndByCaller(op, MarkDerived(absl::CancelledError("the fetch is cancelled")));
  FreeIfDone(op);
}

void FetchChannel::OnOpDeadline(FetchOp* op) {
  std::string why;
  if (op->state == FetchState::kWaitingRoom) {
    why =
        absl::StrCat(": the tensor has ", op->meta.bytes, " bytes, and ", landings_->in_use_bytes(),
                     " of the landing cap, ", landings_->cap_bytes(),
                     ", are in use: let go of tensors that were received, or raise landing_bytes");
  } else if (!connect_status_.ok()) {
    why = absl::StrCat(" (", connect_status_.message(), ")");
  }
  EndByCaller(
      op, absl::DeadlineExceededError(absl::StrCat(
              "not received in time: ", FetchStateName(op->state), " of ", options_.peer, why)));
}

void FetchChannel::AbortStep(int64_t step_id, const absl::Status& why) {
  for (FetchOp& op : ops_) {
    if (op.step == step_id) EndEarly(&op, MarkDerived(why));
  }
}

void FetchChannel::Close(absl::Status why) {
  if (state_ == State::kClosed) return;
  SetState(State::kClosed);
  close_status_ = std::move(why);
  hub_->poller()->CancelTimer(&backoff_timer_);
  hub_->poller()->CancelTimer(&heartbeat_timer_);
  hub_->poller()->CancelTimer(&patience_timer_);
  hub_->poller()->CancelTimer(&park_timer_);
  if (link_ != nullptr) link_->Break(close_status_);
  for (FetchOp& op : ops_) EndEarly(&op, close_status_);
  if (link_ == nullptr) ForgetLeaving();
}

bool FetchChannel::Drained() const {
  return state_ == State::kClosed && link_ == nullptr && hellos_out_ == 0 && live_ == 0;
}

void FetchChannel::ListOps(LiveOps* ops) const {
  for (const FetchOp& op : ops_) {
    if (op.state == FetchState::kFree) continue;
    LiveOp live;
    live.peer = options_.peer;
    live.path = options_.path;
    live.step = op.step;
    live.key = op.key;
    live.span = op.span;
    const bool told = op.state == FetchState::kWaitingRoom || op.state == FetchState::kParts;
    if (told) live.bytes = op.meta.bytes;
    // Connected since, without a slot yet.
    if (state_ == State::kOpen && live.span.waits_for() == WaitsFor::kConnection) {
      live.span.Enter(WaitsFor::kSlot, std::max(state_since_ns_, live.span.since_ns()));
    }
    if (state_ != State::kOpen) live.detail = std::string(connect_status_.message());
    if (op.standing) live.detail = "asked for ahead of its fetch";
    if (op.reported && op.delivered) live.detail = "its caller has been answered";
    ops->Add(std::move(live));
  }
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
  size_t by_state[kFetchStateCount] = {};
  for (const FetchOp& op : ops_) ++by_state[static_cast<size_t>(op.state)];
  std::string waiting;
  for (size_t i = 1; i < kFetchStateCount; ++i) {
    if (by_state[i] == 0) continue;
    absl::StrAppend(&waiting, waiting.empty() ? " (" : "; ", by_state[i], " ",
                    FetchStateName(static_cast<FetchState>(i)));
  }
  if (!waiting.empty()) waiting += ")";
  return absl::StrCat(options_.peer, " over ", options_.path, ": ", state_text(), " since ",
                      (now_ns() - state_since_ns_) / 1'000'000, " ms, epoch ", epoch_, ", ", live_,
                      " fetches out", waiting,
                      connect_status_.ok() ? "" : absl::StrCat("; ", connect_status_.ToString()));
}

}  // namespace tryst
