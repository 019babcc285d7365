#include "channel/rdma/fetch_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"

namespace tryst {
namespace {

// Every producer with default settings, of any version, grants messages of this size.
constexpr uint32_t kGrantedBytes = 8192;
// What the peer writes to us goes before its messages. At this rate, or faster.
constexpr uint64_t kSlowestBytesPerMs = 1000;
// And at least so much of it between two answers of which one was asked for after the other: more
// fits into any queue pair.
constexpr uint64_t kWrittenInATurn = 1 << 20;

}  // namespace

RdmaFetchLink::RdmaFetchLink(FetchSession* session, QueueHub* hub, LandingPool* landings,
                             const RdmaOptions& options)
    : session_(session),
      hub_(hub),
      options_(options),
      destinations_(session, landings, &options_),
      sender_(session, &destinations_, &habits_),
      standing_(session, &destinations_, &habits_, &options_),
      receiver_(session, &sender_, &destinations_, &standing_, &habits_) {}

FetchKind RdmaFetchLink::Kind(const std::string& path, QueueHub* hub, LandingPool* landings,
                              const RdmaOptions& options) {
  FetchKind kind;
  kind.path = path;
  kind.check_ms = options.heartbeat_ms;
  kind.make = [hub, landings, options](FetchSession* session) {
    return std::make_unique<RdmaFetchLink>(session, hub, landings, options);
  };
  return kind;
}

// ---- A link, from its hello to its end ----

absl::Status RdmaFetchLink::Begin(Hello* hello) {
  sender_.epoch = session_->connector()->epoch();
  LinkOptions link_options = options_.link;
  link_options.dials = true;  // Our hello has reached the peer.
  // A session that the peer knows has its slots, unless no link of it was ever open.
  if (session_->session() == 0 || session_->slots().size() == 0) {
    (void)session_->UseSlots(link_options.slots);
  }
  link_options.slots = static_cast<uint32_t>(session_->slots().size());
  if (asks_for_less_)
    link_options.message_bytes = std::min(kGrantedBytes, link_options.message_bytes);
  auto link = MessageLink::Create(hub_, link_options,
                                  static_cast<uint32_t>(session_->connector()->epoch()), this);
  if (!link.ok()) return link.status();
  sender_.link = *std::move(link);
  sender_.link->DescribeTo(hello, 0);
  return absl::OkStatus();
}

// An older producer, or one with smaller settings, refuses messages of our size. It is asked once
// more, for a size that all producers grant.
bool RdmaFetchLink::EndAttempt(const absl::Status& refusal) {
  // The peer may know its queue pairs, but nothing was requested through them.
  sender_.link.reset();
  if (refusal.code() != absl::StatusCode::kInvalidArgument || asks_for_less_ ||
      options_.link.message_bytes <= kGrantedBytes) {
    return false;
  }
  return asks_for_less_ = true;
}

absl::Status RdmaFetchLink::UseAnswer(const Hello& answer) {
  const absl::Status spoken = CheckProtocol(answer, session_->options().self);
  if (!spoken.ok()) return spoken;
  auto parameters = wire::DecodeParameters(answer.parameters);
  if (!parameters.ok()) return parameters.status();
  const absl::Status connected = sender_.link->Connect(answer);
  if (!connected.ok()) return connected;

  session_->MeetPeer(answer.incarnation, parameters->session);
  const FetchSlots& slots = session_->slots();
  for (uint16_t slot = 0; slot < slots.size(); ++slot) {
    sender_.link->NoteOver(slot, slots.generation(slot));
  }
  session_->OnLinkOpen();
  sender_.ping_due = session_->is_probing();
  sender_.link->FlushSoon();
  return absl::OkStatus();
}

// ---- How long the peer may be silent ----

// The peer's messages may wait behind megabytes on a slow wire. As long as its NIC acknowledges our
// pings, the peer gets as much time as a stuck work: it has said something before, and may be stuck
// for a while. One that has not is given what the memory takes that it may write.
int64_t RdmaFetchLink::MostSilentMs() const {
  const bool answers = hub_->poller()->RunningSince(sender_.link->last_completed_ns()) <
                       options_.silence_ms * 1'000'000;
  if (!answers) return options_.silence_ms;
  const int64_t stall_ms = options_.link.stall_ms;
  if (session_->owed()->has_spoken() || session_->options().give_up_ms <= 0) return stall_ms;
  uint64_t lent_bytes = 0, waiting_bytes = 0;
  AddLent(&lent_bytes, &waiting_bytes);
  return std::min(stall_ms, std::max(options_.silence_ms, session_->options().give_up_ms) +
                                static_cast<int64_t>(lent_bytes / kSlowestBytesPerMs));
}

void RdmaFetchLink::AskForSign(bool) {
  sender_.ping_due = true;
  sender_.link->FlushSoon();
}

// If the peer has said that a tensor is complete and parts of it are missing, their queue pair is
// stuck. It also owes its last word on memory whose fetch was given up.
absl::Status RdmaFetchLink::StuckParts() const {
  for (const FetchAsk* base : session_->slots().all()) {
    if (base == nullptr) continue;
    const RdmaAsk& ask = RdmaAsk::Of(*base);
    if (ask.state == FetchState::kLeaving && KeepsLastWord(ask)) {
      TRYST_REACHED("rare: the producer keeps its last word");
      return absl::UnavailableError(absl::StrCat(
          "the producer was told ", hub_->poller()->RunningSince(ask.parts_since_ns) / 1'000'000,
          " ms ago that a fetch is over, and has not said that it writes no more of it"));
    }
    const bool left = ask.state == FetchState::kLeft;
    if (ask.state != FetchState::kParts && !left) continue;
    // A caller that gave up a fetch into its own memory waits only for the last part.
    const bool is_awaited = left && ask.front != nullptr;
    const int64_t limit_ms = is_awaited ? std::min(options_.given_up_ms, options_.link.stall_ms)
                                        : options_.link.stall_ms;
    if (hub_->poller()->RunningSince(ask.parts_since_ns) < limit_ms * 1'000'000) continue;
    TRYST_REACHED("rare: parts of a tensor stay away");
    return absl::UnavailableError(absl::StrCat(
        "parts of a tensor that the peer said it had sent have not arrived for ", limit_ms, " ms"));
  }
  return absl::OkStatus();
}

// An honest producer says it when it reads the CANCEL, behind what it has written to us before. One
// that was stopped for a while says it before, or with, anything else.
bool RdmaFetchLink::KeepsLastWord(const RdmaAsk& ask) const {
  if (ask.region == nullptr && !ask.landing) return false;
  const int64_t past_ns = hub_->poller()->RunningSince(ask.parts_since_ns);
  const int64_t stall_ns = options_.link.stall_ms * 1'000'000;
  // Most producers say it at once, so what is lent is not reckoned before.
  if (past_ns < std::min(options_.given_up_ms * 1'000'000, stall_ns)) return false;
  uint64_t lent_bytes = 0, waiting_bytes = 0;
  AddLent(&lent_bytes, &waiting_bytes);
  const int64_t slow_ns = static_cast<int64_t>(lent_bytes / kSlowestBytesPerMs) * 1'000'000;
  // Nobody waits for a landing of ours.
  if (ask.front == nullptr) return past_ns >= stall_ns + slow_ns;
  if (past_ns >= stall_ns) return true;
  const int64_t limit_ns = options_.given_up_ms * 1'000'000 + slow_ns;
  return past_ns >= limit_ns && session_->owed()->word_ns() >= ask.parts_since_ns + limit_ns;
}

// Whether the peer owes us the bytes of a tensor that it has announced and for which there is room.
// On a slow wire they take long, and nothing shows how many have landed. But an honest peer queues
// its writes before the answer to a later PING, and that answer lands behind them.
absl::Status RdmaFetchLink::Overdue() {
  FetchOwed* const owed = session_->owed();
  const auto& slots = session_->slots().all();
  owed->NoteAwaited(std::any_of(slots.begin(), slots.end(), [](const FetchAsk* ask) {
    if (ask == nullptr || ask->state != FetchState::kAsked) return false;
    return RdmaAsk::Of(*ask).announced || RdmaAsk::Of(*ask).attempt > 0;
  }));
  if (!owed->IsLate()) return StuckParts();
  uint64_t lent_bytes = 0, waiting_bytes = 0;
  AddLent(&lent_bytes, &waiting_bytes);
  if (owed->answers() < 2 + lent_bytes / kWrittenInATurn) return StuckParts();
  // Where answers overtake writes they say nothing of them.
  const int64_t slow_ms = static_cast<int64_t>(lent_bytes / kSlowestBytesPerMs);
  if (!sender_.link->ordered() &&
      hub_->poller()->RunningSince(owed->owes_since_ns()) < slow_ms * 1'000'000) {
    return StuckParts();
  }
  TRYST_REACHED("rare: the producer announces a tensor and brings nothing");
  return session_->NoteLate();
}

void RdmaFetchLink::OnBroken(const absl::Status& why) {
  // What was under way since the last word is lost. A link that we have ended ourselves worked.
  if (session_->connector()->state() != FetchSession::State::kClosed && !absl::IsCancelled(why)) {
    session_->connector()->NoteFailing(session_->LastHeardNs());
  }
  session_->OnLinkBroken(why);
  sender_.ping_due = sender_.ping_out = false;
}

void RdmaFetchLink::OnLinkOver(FetchAsk* base) {
  RdmaAsk* const ask = RdmaAsk::Of(base);
  destinations_.StopWaiting(ask);
  ask->announced = false;
  ask->parts_seen = 0;
  ask->lanes_seen = 0;
  ask->meta.stripes = 0;
}

void RdmaFetchLink::OnDrained() {
  sender_.link.reset();
  session_->DrainAsks();
  session_->GoOn();
}

bool RdmaFetchLink::Close(const absl::Status& why) {
  if (sender_.link != nullptr) sender_.link->Break(why);
  return sender_.link == nullptr;
}

// ---- Asks ----

void RdmaFetchLink::OnWaits(FetchOp* op) {
  FetchAsk* const ask = op->ask;
  const bool is_first = ask->front == op && session_->live_asks() - standing_.count() == 1;
  if (op->wants().recurring && op->run == nullptr) habits_.NoteStep(*ask->of, op->step);
  if (ask->state == FetchState::kAhead) receiver_.TakeAhead(RdmaAsk::Of(ask));
  if (session_->AwaitPeer(is_first)) sender_.link->FlushSoon();
}

void RdmaFetchLink::OnEndAhead(FetchAsk* ask) {
  standing_.End(RdmaAsk::Of(ask), false);
  session_->AwaitLastWord();  // The answer to its CANCEL must come.
}

std::string RdmaFetchLink::WhyLate(const FetchOp& op) const {
  const FetchAsk* const ask = op.ask;
  if (ask == nullptr || ask->front != &op || ask->state != FetchState::kWaitingRoom) {
    return "";
  }
  return absl::StrCat(": the tensor has ", RdmaAsk::Of(*ask).meta.bytes, " bytes, and ",
                      destinations_.landings()->in_use_bytes(), " of the landing cap, ",
                      destinations_.landings()->cap_bytes(), ", are in use: ",
                      destinations_.landings()->nic()->limits().pins_memory
                          ? "let go of tensors that were received, or "
                          : "",
                      "raise landing_bytes");
}

uint64_t RdmaFetchLink::BytesOf(const FetchAsk& ask) const {
  const bool told = ask.state == FetchState::kWaitingRoom || ask.state == FetchState::kParts;
  return told ? RdmaAsk::Of(ask).meta.bytes : 0;
}

void RdmaFetchLink::AddLent(uint64_t* lent_bytes, uint64_t* waiting_bytes) const {
  ask_blocks_.ForEach([&](const RdmaAsk& ask) {
    *lent_bytes += ask.budget_bytes + (ask.landing ? ask.landing->bytes() : 0);
    *waiting_bytes += ask.waiting_bytes;
  });
}

std::string RdmaFetchLink::Explain() const {
  return destinations_.landings()->ends_keys() ? "; the key of a landing ends with its tensor"
                                               : "; landings are its alone, and their keys last";
}

void RdmaFetchLink::View(PathView* view) const {
  view->note = destinations_.landings()->ends_keys() ? "" : "keys of its landings last";
  const std::string networks = sender_.link == nullptr ? "" : sender_.link->Networks();
  absl::StrAppend(&view->note, view->note.empty() || networks.empty() ? "" : "; ", networks);
}

}  // namespace tryst
