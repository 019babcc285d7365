#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"
#include "channel/rdma/fetch_channel.h"

// The connection of a FetchChannel: hello, epochs, breaks, replays, heartbeats.
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

absl::Status FetchChannel::BeginLink(Hello* hello) {
  sender_.epoch = connector_.epoch();
  LinkOptions link_options = options_.link;
  if (asks_for_less_)
    link_options.message_bytes = std::min(kGrantedBytes, link_options.message_bytes);
  auto link =
      MessageLink::Create(hub_, link_options, static_cast<uint32_t>(connector_.epoch()), this);
  if (!link.ok()) return link.status();
  sender_.link = *std::move(link);
  sender_.link->DescribeTo(hello, 0);
  return absl::OkStatus();
}

// An older producer, or one with smaller settings, refuses messages of our size. It is asked once
// more, for a size that all producers grant.
bool FetchChannel::EndAttempt(const absl::Status& refusal) {
  // The peer may know its queue pairs, but nothing was requested through them.
  sender_.link.reset();
  if (refusal.code() != absl::StatusCode::kInvalidArgument || asks_for_less_ ||
      options_.link.message_bytes <= kGrantedBytes) {
    return false;
  }
  return asks_for_less_ = true;
}

absl::Status FetchChannel::UseAnswer(const Hello& answer) {
  if (answer.protocol_newest < kProtocolOldest || answer.protocol_oldest > kProtocolNewest) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.peer, " speaks protocol ", answer.protocol_oldest, " to ", answer.protocol_newest,
        " and this worker ", kProtocolOldest, " to ", kProtocolNewest,
        ": run the same release on both, or two that follow each other"));
  }
  auto parameters = wire::DecodeParameters(answer.parameters);
  if (!parameters.ok()) return parameters.status();
  const absl::Status connected = sender_.link->Connect(answer);
  if (!connected.ok()) return connected;

  MeetPeer(answer.incarnation, parameters->session);
  sender_.session = session_;
  ++counters_.epochs;
  OnLinkOpen();
  sender_.ping_due = probing_;
  sender_.link->FlushSoon();
  return absl::OkStatus();
}

// ---- How long the peer may be silent ----

// The peer's messages may wait behind megabytes on a slow wire. As long as its NIC acknowledges our
// pings, the peer gets as much time as a stuck work: it has said something before, and may be stuck
// for a while. One that has not is given what the memory takes that it may write.
int64_t FetchChannel::MostSilentMs() const {
  const bool answers =
      poller_->RunningSince(sender_.link->last_completed_ns()) < options_.silence_ms * 1'000'000;
  if (!answers) return options_.silence_ms;
  const int64_t stall_ms = options_.link.stall_ms;
  if (owed_.has_spoken() || options_.give_up_ms <= 0) return stall_ms;
  uint64_t lent_bytes = 0, waiting_bytes = 0;
  AddLent(&lent_bytes, &waiting_bytes);
  return std::min(stall_ms, std::max(options_.silence_ms, options_.give_up_ms) +
                                static_cast<int64_t>(lent_bytes / kSlowestBytesPerMs));
}

void FetchChannel::AskForSign(bool) {
  sender_.ping_due = true;
  sender_.link->FlushSoon();
}

// If the peer has said that a tensor is complete and parts of it are missing, their queue pair is
// stuck.
absl::Status FetchChannel::StuckParts() const {
  for (const FetchAsk* base : slots_.all()) {
    if (base == nullptr) continue;
    const RdmaAsk& ask = RdmaAsk::Of(*base);
    const bool left = ask.state == FetchState::kLeft;
    if (ask.state != FetchState::kParts && !left) continue;
    // A caller that gave up a fetch into its own memory waits only for the last part.
    const bool is_awaited = left && ask.front != nullptr;
    const int64_t limit_ms = is_awaited ? std::min(options_.given_up_ms, options_.link.stall_ms)
                                        : options_.link.stall_ms;
    if (poller_->RunningSince(ask.parts_since_ns) < limit_ms * 1'000'000) continue;
    TRYST_REACHED("rare: parts of a tensor stay away");
    return absl::UnavailableError(absl::StrCat(
        "parts of a tensor that the peer said it had sent have not arrived for ", limit_ms, " ms"));
  }
  return absl::OkStatus();
}

// Whether the peer owes us the bytes of a tensor that it has announced and for which there is room.
// On a slow wire they take long, and nothing shows how many have landed. But an honest peer queues
// its writes before the answer to a later PING, and that answer lands behind them.
absl::Status FetchChannel::Overdue() {
  const auto& slots = slots_.all();
  owed_.NoteAwaited(std::any_of(slots.begin(), slots.end(), [](const FetchAsk* ask) {
    if (ask == nullptr || ask->state != FetchState::kAsked) return false;
    return RdmaAsk::Of(*ask).announced || RdmaAsk::Of(*ask).attempt > 0;
  }));
  if (!owed_.IsLate()) return StuckParts();
  uint64_t lent_bytes = 0, waiting_bytes = 0;
  AddLent(&lent_bytes, &waiting_bytes);
  if (owed_.answers() < 2 + lent_bytes / kWrittenInATurn) return StuckParts();
  // Where answers overtake writes they say nothing of them.
  const int64_t slow_ms = static_cast<int64_t>(lent_bytes / kSlowestBytesPerMs);
  if (!sender_.link->ordered() &&
      poller_->RunningSince(owed_.owes_since_ns()) < slow_ms * 1'000'000) {
    return StuckParts();
  }
  TRYST_REACHED("rare: the producer announces a tensor and brings nothing");
  return NoteLate();
}

void FetchChannel::OnBroken(const absl::Status& why) {
  ++counters_.breaks;
  connector_.why = why;
  if (connector_.state() != State::kClosed) {
    // The loss of an idle connection is not logged, because a producer that stops causes it, too.
    if (!probing_ && waiting() > 0) {
      TRYST_LOG(Warning) << options_.self << " lost its " << options_.path << " connection to "
                         << options_.peer << " (epoch " << connector_.epoch()
                         << "): " << why.message();
    }
    connector_.SetState(State::kDraining);
    connector_.NoteFailing(std::max(owed_.word_ns(), silence_.waiting_since_ns()));
    if (absl::IsDataLoss(why) && !owed_.has_brought()) owed_.NoteDefault();
  }
  sender_.ping_due = sender_.ping_out = false;
  standing_.DropAll(why);
  BreakAsks();
}

void FetchChannel::OnLinkOver(FetchAsk* base) {
  RdmaAsk* const ask = RdmaAsk::Of(base);
  destinations_.StopWaiting(ask);
  ask->announced = false;
  ask->parts_seen = 0;
  ask->lanes_seen = 0;
  ask->meta.stripes = 0;
}

void FetchChannel::OnDrained() {
  sender_.link.reset();
  DrainAsks();
  if (connector_.state() == State::kClosed) return OnClosed();
  GoOn();
}

// Those behind it go along: asked for here, the first of them would get the tensor that this one is
// to get on the other path.
void FetchChannel::MoveAway(FetchAsk* ask) {
  TRYST_REACHED("rare: a tensor is too large for the landing memory");
  std::vector<WaitingFetch> taken;
  TakeOut(ask, &taken);
  options_.user->OnTooLarge(std::move(taken));
}

void FetchChannel::OnHeard() {
  OnWord();
  if (owed_.works()) connector_.back_off()->Reset();
}

void FetchChannel::OnPong() {
  owed_.NoteAnswer();
  OnHeard();
  // The more it may have under way to us, the more often it is asked; see Overdue().
  if (owed_.IsLate()) watch_.CheckAfter(kSoonMs);
}

}  // namespace tryst
