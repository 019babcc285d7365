#include "channel/rdma/fetch_channel.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/printable.h"

// The calls of FetchChannel's users. fetch_connection.cc has the connection.
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
  FetchOpsOptions ops = options;
  ops.watch = options.link.watch;
  return ops;
}

}  // namespace

FetchCounters& FetchCounters::operator+=(const FetchCounters& other) {
  for (uint64_t FetchCounters::*field : kCounters) this->*field += other.*field;
  return *this;
}

FetchChannel::FetchChannel(QueueHub* hub, LandingPool* landings, Bootstrap* bootstrap,
                           FetchChannelOptions options)
    : FetchSession(hub->poller(), bootstrap, OpsOptions(options), &counters_, options.heartbeat_ms,
                   /*ask_up_ms=*/0),
      hub_(hub),
      options_(std::move(options)),
      destinations_(this, landings, &options_),
      sender_(&destinations_, &habits_),
      standing_(this, &destinations_, &habits_, &options_, &counters_),
      receiver_(this, &sender_, &destinations_, &standing_, &habits_, &options_, &counters_, this) {
  words_ = &sender_;
  slots_.Reset(options_.link.slots);
}

FetchChannel::~FetchChannel() { TRYST_CHECK(Drained()) << Explain(); }

void FetchChannel::OnWaits(FetchOp* op) {
  FetchAsk* const ask = op->ask;
  const bool is_first = ask->front == op && waiting() == 1;
  if (op->wants().recurring) habits_.NoteStep(*ask->of, op->step);
  if (ask->state == FetchState::kAhead) receiver_.TakeAhead(RdmaAsk::Of(ask));
  if (AwaitPeer(is_first)) sender_.link->FlushSoon();
}

void FetchChannel::OnEndAhead(FetchAsk* ask) {
  standing_.End(RdmaAsk::Of(ask), false);
  if (waiting() == 1) silence_.NoteWaits();
  if (open()) watch_.Watch();  // The answer to its CANCEL must come.
}

std::string FetchChannel::WhyLate(const FetchOp& op) const {
  const FetchAsk* const ask = op.ask;
  if (ask == nullptr || ask->front != &op || ask->state != FetchState::kWaitingRoom) {
    return FetchOps::WhyLate(op);
  }
  return absl::StrCat(": the tensor has ", RdmaAsk::Of(*ask).meta.bytes, " bytes, and ",
                      destinations_.landings()->in_use_bytes(), " of the landing cap, ",
                      destinations_.landings()->cap_bytes(),
                      ", are in use: let go of tensors that were received, or raise landing_bytes");
}

uint64_t FetchChannel::BytesOf(const FetchAsk& ask) const {
  const bool told = ask.state == FetchState::kWaitingRoom || ask.state == FetchState::kParts;
  return told ? RdmaAsk::Of(ask).meta.bytes : 0;
}

bool FetchChannel::CloseLink() {
  if (sender_.link != nullptr) sender_.link->Break(closed_);
  return sender_.link == nullptr;
}

bool FetchChannel::Drained() const { return FetchOps::Drained() && sender_.link == nullptr; }

void FetchChannel::AddLent(uint64_t* lent_bytes, uint64_t* waiting_bytes) const {
  ask_blocks_.ForEach([&](const RdmaAsk& ask) {
    *lent_bytes += ask.budget_bytes + (ask.landing ? ask.landing->bytes() : 0);
    *waiting_bytes += ask.waiting_bytes;
  });
}

void FetchChannel::View(PathView* view) const {
  FetchOps::View(view);
  view->note = destinations_.landings()->ends_keys() ? "" : "keys of its landings last";
}

std::string FetchChannel::Explain() const {
  return absl::StrCat(
      connector_.Explain(), ", ", ExplainOut(),
      destinations_.landings()->ends_keys() ? "; the key of a landing ends with its tensor"
                                            : "; landings are its alone, and their keys last",
      connector_.why.ok() ? "" : absl::StrCat("; ", Printable(connector_.why.ToString())));
}

}  // namespace tryst
