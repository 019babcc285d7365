#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/rdma/fetch_channel.h"

// The connection of a FetchChannel: hello, epochs, breaks, replays, heartbeats.
namespace tryst {
namespace {

// Messages of this size every producer grants that is configured by default, of any version.
constexpr uint32_t kGrantedBytes = 8192;

}  // namespace

void FetchChannel::SetState(State state) {
  state_ = state;
  open_ = state == State::kOpen;
  state_since_ns_ = now_ns();
}

void FetchChannel::GoIdle() {
  probing_ = false;
  unusable_since_ns_ = -1;  // Nobody waits: nobody is kept waiting.
  SetState(State::kIdle);
  hub_->poller()->CancelTimer(&patience_timer_);
}

void FetchChannel::Connect() {
  SetState(State::kHello);
  ++epoch_;
  LinkOptions link_options = options_.link;
  if (asks_for_less_)
    link_options.message_bytes = std::min(kGrantedBytes, link_options.message_bytes);
  auto link = MessageLink::Create(hub_, link_options, static_cast<uint32_t>(epoch_), this);
  if (!link.ok()) return RetryLater(link.status());
  link_ = *std::move(link);
  Hello hello;
  hello.worker = options_.self;
  hello.incarnation = options_.self_incarnation;
  hello.epoch = epoch_;
  hello.path = options_.path;
  hello.protocol_newest = options_.protocol_newest;
  link_->DescribeTo(&hello, 0);
  SendHello(hello, &FetchChannel::OnHelloAnswer);
}

void FetchChannel::SendHello(const Hello& hello, HelloAnswer on_answer) {
  ++hellos_out_;
  bootstrap_->Exchange(
      options_.peer, hello,
      Deadline::After(hub_->poller()->clock(), absl::Milliseconds(options_.hello_timeout_ms)),
      [this, epoch = epoch_, on_answer](absl::StatusOr<Hello> answer) {
        hub_->poller()->PostFn([this, epoch, on_answer, answer = std::move(answer)]() mutable {
          (this->*on_answer)(epoch, std::move(answer));
        });
      });
}

void FetchChannel::OnHelloAnswer(uint64_t epoch, absl::StatusOr<Hello> answer) {
  --hellos_out_;
  // Closed, or the NIC was lost and another epoch begun meanwhile.
  if (state_ != State::kHello || epoch != epoch_) {
    TRYST_REACHED("sim: an answer to an earlier hello");
    return;
  }
  absl::Status used = answer.status();
  if (used.ok() || IsPathRefusal(used) || IsFinal(used)) NoteWord();
  if (used.ok()) used = UseAnswer(*answer);
  if (used.ok()) return;
  // Its queue pairs may be known to the peer, but nothing was asked through them.
  link_.reset();
  if (AskForLess(used)) return Connect();
  RetryLater(used);
  if (IsFinal(used)) {
    // Fail refused fetches now, not at their deadline.
    EndAll(used);
    ForgetLeaving();
  } else if (IsPathRefusal(used) && options_.on_refused) {
    // What an earlier life of the peer was asked for is not to be had on another path.
    for (FetchOp* op : Asked()) EndEarly(op, used);
    ForgetLeaving();
    options_.on_refused();
  }
}

// A producer that is older, or configured to less, refuses messages of our size: it is asked
// once more, for messages that all grant.
bool FetchChannel::AskForLess(const absl::Status& refusal) {
  if (refusal.code() != absl::StatusCode::kInvalidArgument || asks_for_less_ ||
      options_.link.message_bytes <= kGrantedBytes) {
    return false;
  }
  return asks_for_less_ = true;
}

absl::Status FetchChannel::UseAnswer(const Hello& answer) {
  if (answer.incarnation == 0 || answer.epoch != epoch_ || answer.path != options_.path) {
    TRYST_REACHED("rare: the answer to another hello");
    return absl::DataLossError("the peer answered another hello than ours");
  }
  version_ = std::min(answer.protocol_newest, options_.protocol_newest);
  if (version_ < std::max(answer.protocol_oldest, kProtocolOldest)) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.peer, " speaks protocol ", answer.protocol_oldest, " to ", answer.protocol_newest,
        ", this worker ", kProtocolOldest, " to ", options_.protocol_newest));
  }
  auto parameters = wire::DecodeParameters(answer.parameters);
  if (!parameters.ok()) return parameters.status();
  const absl::Status connected = link_->Connect(answer);
  if (!connected.ok()) return connected;

  if (peer_incarnation_ != 0 && answer.incarnation != peer_incarnation_) {
    TRYST_REACHED("sim: the producer was restarted");
    EndAsked(Restarted(options_.peer, peer_incarnation_, answer.incarnation), answer.incarnation);
    keys_.ForgetIds();
  } else if (peer_session_ != 0 && parameters->session != peer_session_) {
    TRYST_REACHED("sim: the producer has another session");
    EndAsked(absl::UnavailableError(
        absl::StrCat(options_.peer, " no longer keeps what was asked for before the break")));
  }
  peer_incarnation_ = answer.incarnation;
  peer_session_ = parameters->session;
  SetState(State::kOpen);
  parks_ = version_ >= 3;
  hub_->poller()->CancelTimer(&patience_timer_);
  connect_status_ = absl::OkStatus();
  ++counters_.epochs;
  ReplayAsked();
  ping_due_ = probing_;
  hub_->poller()->SetTimer(&heartbeat_timer_, now_ns() + options_.heartbeat_ms * 1'000'000);
  link_->FlushSoon();
  return absl::OkStatus();
}

// What the old incarnation was asked can no longer be had from it. But who has heard of the
// new one before us, and asked for what is its, asked it of a link that led to nobody.
void FetchChannel::EndAsked(const absl::Status& why, uint64_t new_incarnation) {
  for (FetchOp* op : std::vector<FetchOp*>(slots_.all())) {
    if (op == nullptr || !op->asked_before) continue;
    op->asked_before = false;
    op->ticket = 0;
    op->here = false;
    if (op->key.src_incarnation() != new_incarnation) EndEarly(op, why);
  }
  for (FetchOp* op : Asked()) {
    if (op->has_slot) continue;
    if (op->key.src_incarnation() != new_incarnation) {
      TRYST_REACHED("sim: a fetch without a slot ends with its producer");
      EndEarly(op, why);
      continue;
    }
    DropTicket(op);
    Advance(op, FetchEvent::kUnlinked);
    queued_.Push(op);
  }
  ForgetLeaving();
}

// Without a link: the producer that would answer the cancels is gone, and so is what it had
// taken for us.
void FetchChannel::ForgetLeaving() {
  for (FetchOp* op : std::vector<FetchOp*>(slots_.all())) {
    if (op != nullptr && op->state == FetchState::kLeaving) LastWord(op);
  }
}

void FetchChannel::ReplayAsked() {
  tell_replayed_ = true;
  for (FetchOp* op : Asked()) {
    const bool leaving = op->state == FetchState::kLeaving;
    op->send_waits = !op->has_slot;
    op->send_request = op->has_slot && !leaving;
    op->send_cancel = leaving;
    SendSoon(op);
  }
}

void FetchChannel::RetryLater(const absl::Status& why) {
  connect_status_ = why;
  SetState(State::kBackoff);
  if (unusable_since_ns_ < 0) unusable_since_ns_ = now_ns();
  // In turns: the path may work again, and the peer may not be up to hear a farewell.
  leave_next_ = !leave_next_ && Unusable();
  hub_->poller()->SetTimer(&backoff_timer_, now_ns() + back_off_.NextNs());
  if (lost_) OnPatienceOver();
}

// ---- How long the peer may be without a word ----

void FetchChannel::NoteWord() {
  last_word_ns_ = now_ns();
  lost_ = false;
}

// REQUIRES: somebody waits, and there is no connection.
void FetchChannel::ArmPatience() {
  if (options_.patience_ms <= 0 || patience_timer_.is_set()) return;
  const int64_t since_ns = std::max(last_word_ns_, waiting_since_ns_);
  hub_->poller()->SetTimer(&patience_timer_,
                           std::max(now_ns(), since_ns + options_.patience_ms * 1'000'000));
}

void FetchChannel::OnPatienceOver() {
  if (state_ == State::kOpen || state_ == State::kClosed) return;
  const int64_t since_ns = std::max(last_word_ns_, waiting_since_ns_);
  if (!lost_ && now_ns() < since_ns + options_.patience_ms * 1'000'000) return ArmPatience();
  TRYST_REACHED("rare: the producer is without a word for too long");
  lost_ = true;
  EndAll(absl::UnavailableError(absl::StrCat(
      options_.peer, " has not answered over ", options_.path, " for ", options_.patience_ms,
      " ms (patience)", connect_status_.ok() ? "" : ": ", connect_status_.message())));
}

void FetchChannel::EndAll(const absl::Status& why) {
  for (FetchOp* op : pool_.all()) EndEarly(op, why);
}

void FetchChannel::RetryNow() {
  if (state_ != State::kBackoff) return;
  hub_->poller()->CancelTimer(&backoff_timer_);
  OnBackoffOver();
}

void FetchChannel::OnBackoffOver() {
  // Nobody waits for what is leaving; the producer keeps it for us only so long.
  if (now_ns() - broken_since_ns_ >= options_.retain_ms * 1'000'000) {
    TRYST_REACHED("rare: the producer keeps nothing for us any more");
    ForgetLeaving();
  }
  if (pool_.live() > 0) return leave_next_ ? Leave() : Connect();
  GoIdle();
}

// One more waits for the peer's word: from the first on, its silence counts.
void FetchChannel::StartWatch() {
  if (waiting() == 1) waiting_since_ns_ = now_ns();
  if (state_ != State::kOpen || heartbeat_timer_.is_set()) return;
  hub_->poller()->SetTimer(&heartbeat_timer_, now_ns() + options_.heartbeat_ms * 1'000'000);
}

void FetchChannel::OnHeartbeat() {
  if (state_ != State::kOpen || (waiting() == 0 && !probing_)) return;
  const int64_t since_ns = std::max(link_->last_heard_ns(), waiting_since_ns_);
  const int64_t silent_ms = (now_ns() - since_ns) / 1'000'000;
  // Its words may wait behind megabytes on a slow wire. As long as its NIC acknowledges our
  // pings it gets the time that a stuck work gets.
  const int64_t answered_ns = std::max(since_ns, link_->last_completed_ns());
  const bool answers = now_ns() - answered_ns < options_.silence_ms * 1'000'000;
  if (silent_ms >= (answers ? options_.link.stall_ms : options_.silence_ms)) {
    TRYST_REACHED("sim: the producer is silent");
    return link_->Break(absl::UnavailableError(
        absl::StrCat(options_.peer, " has been silent for ", silent_ms, " ms")));
  }
  // The word of a tensor is here and parts of it are not: that queue pair is stuck.
  for (FetchOp* base : slots_.all()) {
    const RdmaFetchOp* op = Own(base);
    if (op == nullptr) continue;
    const bool left = op->state == FetchState::kLeaving && op->gone_seen;
    if (op->state != FetchState::kParts && !left) continue;
    // Who has given up a fetch into his memory waits for nothing but its last part.
    const bool is_awaited = left && !op->reported;
    const int64_t limit_ms = is_awaited ? std::min(options_.given_up_ms, options_.link.stall_ms)
                                        : options_.link.stall_ms;
    if (now_ns() - op->parts_since_ns < limit_ms * 1'000'000) continue;
    TRYST_REACHED("rare: parts of a tensor stay away");
    return link_->Break(absl::UnavailableError(
        absl::StrCat("parts of a tensor are missing on a queue pair since ", limit_ms, " ms")));
  }
  if (silent_ms >= options_.heartbeat_ms / 2) {
    ping_due_ = true;
    link_->FlushSoon();
  }
  hub_->poller()->SetTimer(&heartbeat_timer_, now_ns() + options_.heartbeat_ms * 1'000'000);
}

void FetchChannel::OnBroken(const absl::Status& why) {
  ++counters_.breaks;
  broken_since_ns_ = now_ns();
  connect_status_ = why;
  if (state_ != State::kClosed) {
    if (!probing_) {
      TRYST_LOG(Warning) << options_.self << " lost its " << options_.path << " connection to "
                         << options_.peer << " (epoch " << epoch_ << "): " << why.message();
    }
    SetState(State::kDraining);
    if (waiting() > 0) ArmPatience();
    if (unusable_since_ns_ < 0) unusable_since_ns_ = now_ns();
  }
  hub_->poller()->CancelTimer(&heartbeat_timer_);
  ping_due_ = tell_replayed_ = false;
  DropAllStanding(why);
  ForgetWords();
  for (FetchOp* base : slots_.all()) {
    RdmaFetchOp* op = Own(base);
    if (op == nullptr) continue;
    room_line_.Remove(op);
    op->park_asked = false;
    if (std::exchange(op->moves, false)) op->ending = false;
    op->parts_seen = 0;
    op->lanes_seen = 0;
    if (Advance(op, FetchEvent::kBroken) != FetchAction::kAskAgain) continue;
    op->span.Enter(WaitsFor::kDrain, now_ns());
    if (state_ == State::kClosed && !op->ending) {
      op->ending = true;
      op->end_status = closed_;
    }
  }
}

void FetchChannel::OnDrained() {
  link_.reset();
  // No byte of the old epoch can land any more.
  for (FetchOp* op : std::vector<FetchOp*>(slots_.all())) {
    if (op == nullptr || op->state != FetchState::kFenced) continue;
    if (op->ending) {
      TRYST_REACHED("sim: a fetch has ended before its queue pair has drained");
      DropMemory(op);
      Report(op, op->end_status, Tensor(), false, When::kAtEndOfTurn);
      Own(op)->meta.stripes = 0;
      // The producer may hold the tensor for it: it is told in the next epoch.
      Advance(op, FetchEvent::kEndAsked);
      StartLeaving(op, op->end_status);
      continue;
    }
    Advance(op, FetchEvent::kDrained);  // In its slot, to be asked for again.
    op->span.Enter(WaitsFor::kConnection, now_ns());
    op->asked_before = true;
  }
  if (state_ == State::kClosed) return ForgetLeaving();
  if (pool_.live() == 0) {
    GoIdle();
  } else if (back_off_.TakeFree()) {
    Connect();
  } else {
    RetryLater(connect_status_);
  }
}

}  // namespace tryst
