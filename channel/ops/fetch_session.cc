#include "channel/ops/fetch_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/reached.h"
#include "channel/ops/farewell.h"
#include "channel/ops/peer_words.h"

namespace tryst {

namespace {

// How long a channel that is closed waits for the answer to its farewell.
constexpr int64_t kGoodbyeMs = 1000;
constexpr int64_t kSoonMs = 1;
constexpr int64_t kRenewTryMs = 5;
constexpr char kNoPath[] = "none";

}  // namespace

FetchSession::FetchSession(Poller* poller, Bootstrap* bootstrap, const FetchOpsOptions& options,
                           Kinds kinds, KindChooser* chooser)
    : FetchOps(poller, bootstrap, options, kinds.front()),
      kinds_(std::move(kinds)),
      chooser_(chooser),
      silence_(poller, options.patience_ms, [this] { OnPeerLost(); }),
      watch_(poller, this),
      owed_(poller, options.give_up_ms > 0 ? options.give_up_ms : options.patience_ms) {
  UseKind(0);
}

FetchSession::~FetchSession() {
  TRYST_CHECK(Drained()) << Explain();
  LeaveKind();
}

void FetchSession::Close(absl::Status why) {
  if (connector_.state() == State::kClosed) return;
  closed_ = std::move(why);
  connector_.StopWaiting();
  silence_.Stop();
  watch_.Stop();
  poller_->CancelTimer(&renew_timer_);
  connector_.SetState(State::kClosed);
  goodbye_due_ = !Asked().empty();
  const bool over = link_->Close(closed_);
  EndAll(closed_);
  if (over) OnClosed();
}

// Where the link did not say goodbye, what the producer holds for us would stay there.
void FetchSession::OnClosed() {
  if (std::exchange(goodbye_due_, false) && session_ != 0) {
    TRYST_REACHED("rare: a farewell of a channel that is closed");
    connector_.Begin(State::kClosed);
    SayGoodbye([](const absl::StatusOr<Hello>&) {});
  }
  ForgetLeaving();
}

void FetchSession::Probe() {
  if (connector_.state() != State::kIdle) return;  // It is tried already.
  probing_ = true;
  Connect();
}

void FetchSession::RetryNow() {
  if (connector_.state() != State::kBackoff) return;
  connector_.StopWaiting();
  OnConnectTimer();
}

void FetchSession::Renew(int64_t pause_ms) {
  if (connector_.state() == State::kClosed) return;
  renew_by_ns_ = now_ns() + (pause_ms + kRenewMs) * 1'000'000;
  poller_->SetTimer(&renew_timer_, now_ns() + pause_ms * 1'000'000);
}

// A link that is made later says hello by itself.
void FetchSession::OnRenewTimer() {
  const bool opens = connector_.state() == State::kHello || connector_.state() == State::kJoining;
  if (!opens && !open()) return;
  if (opens || (waiting() > 0 && now_ns() < renew_by_ns_)) {
    return poller_->SetTimer(&renew_timer_, now_ns() + kRenewTryMs * 1'000'000);
  }
  TRYST_REACHED("sim: a session makes its link anew");
  link_->Break(absl::CancelledError("the connection is made anew, as the certificates changed"));
}

// ---- Kinds of links ----

// REQUIRES: there is no link, and the former one is not in a call.
void FetchSession::UseKind(size_t kind) {
  LeaveKind();
  if (kind != at_) owed_.UsePath();
  at_ = next_ = kind;
  UseLink(kinds_[at_], kinds_[at_]->make(this));
  // Several times within what a check may find to be over.
  int64_t check_ms = kind_->check_ms > 0 ? kind_->check_ms : ops_options_.patience_ms / 8;
  const int64_t ask_up_ms = kind_->loses_no_word ? ops_options_.give_up_ms : 0;
  if (ask_up_ms > 0) check_ms = std::min(check_ms, ask_up_ms / 2);
  watch_.UseTimes(check_ms, ask_up_ms);
  if (kind_->fetching != nullptr) kind_->fetching->sessions.push_back(this);
}

// What was counted stays with that kind.
void FetchSession::LeaveKind() {
  FetchingBy* const fetching = kind_->fetching;
  if (link_ == nullptr || fetching == nullptr) return;
  fetching->past += Counted();
  counters_ = FetchCounters();
  auto& all = fetching->sessions;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

// At once, but in a turn of its own: the former link may be in a call.
void FetchSession::GoOnBy(size_t kind) {
  next_ = kind;
  ask_next_ = false;
  connector_.SetState(State::kBackoff);
  connector_.WaitFor(0);
}

void FetchSession::MoveTo(size_t kind) {
  if (kind == at_ && kind == next_) return;
  TRYST_REACHED("sim: a session goes on by a better kind of link");
  next_ = kind;
  switch (connector_.state()) {
    case State::kIdle:
      return UseKind(kind);
    case State::kOpen:
      return link_->Break(absl::CancelledError("a better path is used from now on"));
    case State::kHello:
    case State::kJoining:
    case State::kAsking:
      (void)link_->EndAttempt(absl::CancelledError("a better path is used from now on"));
      return GoOnBy(kind);
    case State::kBackoff:
      return GoOnBy(kind);
    case State::kDraining:
    case State::kClosed:
      return;
  }
}

void FetchSession::OnKindFailed(bool is_refused, const absl::Status& why) {
  const size_t next = chooser_->OnFailed(at_, is_refused, std::string(why.message()));
  if (next == KindChooser::kNone) return GiveUp(why);
  if (next == at_) {
    if (connector_.state() != State::kBackoff) Connect();
    return;
  }
  TRYST_REACHED("sim: a session goes on by another kind of link");
  connector_.NoteWorking();  // The next kind has not failed yet.
  GoOnBy(next);
}

// The path brings nothing. While the peer does not say that it is up, another would not help.
void FetchSession::AskAndMove() {
  connector_.Begin(State::kAsking);
  Hello hello = connector_.NewHello();
  hello.path = kNoPath;
  connector_.Say(hello, [this](absl::StatusOr<Hello> answer) {
    if (!answer.ok() && !IsPathRefusal(answer.status())) return RetryLater(answer.status());
    silence_.NoteWord();
    OnKindFailed(/*is_refused=*/false, connector_.why);
  });
}

// The peer has no kind of link that we have. What it was asked for, another life of it was; and if
// it was this one, it gives back what it has taken before another channel asks.
void FetchSession::GiveUp(const absl::Status& why) {
  connector_.StopWaiting();
  if (session_ == 0) return HandOverAll();
  TRYST_REACHED("rare: a peer offers no kind of link any more");
  connector_.Begin(State::kAsking);
  SayGoodbye([this](const absl::StatusOr<Hello>&) { HandOverAll(); });
  session_ = 0;
  EndAsked(absl::AbortedError(absl::StrCat(ops_options_.peer, " has restarted: ", why.message())),
           [](const FetchAsk&) { return false; });
  keys_.ForgetIds();
}

void FetchSession::HandOverAll() {
  AskHeldAnew();  // Those that have a slot, and of which the peer has not heard.
  GoIdle();
  chooser_->OnGivenUp(TakeWaiting());
}

// ---- A link, from its hello to its end ----

void FetchSession::Connect() {
  connector_.Begin(State::kHello);
  Hello hello = connector_.NewHello();
  hello.probes = probing_;
  const absl::Status begun = link_->Begin(&hello);
  if (!begun.ok()) return RetryLater(begun);
  connector_.Say(hello, [this](absl::StatusOr<Hello> answer) { OnHelloAnswer(std::move(answer)); });
}

void FetchSession::OnHelloAnswer(absl::StatusOr<Hello> answer) {
  absl::Status used = answer.status();
  if (used.ok() || IsPathRefusal(used) || IsFinal(used)) silence_.NoteWord();
  if (used.ok()) used = connector_.CheckAnswer(*answer);
  if (used.ok()) used = link_->UseAnswer(*answer);
  if (!used.ok()) FailAttempt(used);
}

void FetchSession::MeetPeer(uint64_t incarnation, uint64_t session) {
  if (peer_incarnation_ != 0 && incarnation != peer_incarnation_) {
    TRYST_REACHED("sim: the producer was restarted");
    const absl::Status why = Restarted(ops_options_.peer, peer_incarnation_, incarnation);
    EndAsked(why, [incarnation](const FetchAsk& ask) {
      return ask.of->key.src_incarnation() == incarnation;
    });
    EndQueuedOf(peer_incarnation_, why);
    keys_.ForgetIds();  // Numbers given in an earlier life are never used again.
  } else if (session_ != 0 && session != session_) {
    TRYST_REACHED("rare: the producer has another session");
    EndAsked(absl::UnavailableError(absl::StrCat(
                 ops_options_.peer,
                 " has given up the fetches from before the connection broke: ask again")),
             [](const FetchAsk&) { return false; });
  }
  peer_incarnation_ = incarnation;
  session_ = session;
}

void FetchSession::OnLinkOpen() {
  ++counters_.links;
  connector_.StopWaiting();
  connector_.SetState(State::kOpen);
  connector_.why = absl::OkStatus();
  silence_.Stop();
  owed_.Begin();
  watch_.Watch();
  Replay();
}

// ---- A link on which nothing comes ----

int64_t FetchSession::HeardNs() {
  if (!open() || (!Waits() && !probing_)) return -1;
  link_->HearWords();
  return LastHeardNs();
}

void FetchSession::OnWord() {
  owed_.NoteWord();
  if (!owed_.works()) return;
  connector_.NoteWorking();
  connector_.back_off()->Reset();
  if (probing_) NoteUsable();
}

// The more it may have under way to us, the more often it is asked.
void FetchSession::OnAnswer() {
  owed_.NoteAnswer();
  OnWord();
  if (owed_.IsLate()) watch_.CheckAfter(kSoonMs);
}

bool FetchSession::CheckDue(bool* owes) {
  const absl::Status overdue = link_->Overdue();
  *owes = owed_.owes_since_ns() >= 0;
  if (!overdue.ok()) link_->Break(overdue);
  return overdue.ok();
}

absl::Status FetchSession::NoteLate() {
  owed_.NoteDefault();
  connector_.NoteFailing(owed_.owes_since_ns());
  return owed_.Late(ops_options_.peer, path());
}

// A path that nobody has: whoever is up refuses it, and the link stays.
void FetchSession::AskIfUp() {
  Hello hello = connector_.NewHello();
  hello.path = kNoPath;
  connector_.Say(hello, [this](absl::StatusOr<Hello> answer) {
    watch_.NoteUp(answer.ok() || IsPathRefusal(answer.status()));
  });
}

void FetchSession::OnSilent(int64_t heard_ns) {
  TRYST_REACHED("sim: the producer is silent");
  connector_.NoteFailing(heard_ns);
  link_->Break(
      owed_.Silent(ops_options_.peer, path(), poller_->RunningSince(heard_ns) / 1'000'000));
}

void FetchSession::NoteUsable() {
  if (std::exchange(probing_, false)) chooser_->OnUsable();
}

void FetchSession::Replay() {
  tell_replayed_ = true;
  for (FetchAsk* ask : Asked()) SendSoon(ask);
}

void FetchSession::OnLinkBroken(const absl::Status& why) {
  link_->HearWords();
  if (ops_options_.watch != nullptr) ops_options_.watch->OnLinkBroken(why);
  ++counters_.breaks;
  connector_.why = why;
  if (connector_.state() != State::kClosed) {
    // The loss of an idle link is not logged, because a producer that stops causes it, too.
    if (absl::IsDataLoss(why) || (!probing_ && Waits() && !absl::IsCancelled(why))) {
      TRYST_LOG(Warning) << ops_options_.self << " lost its " << path() << " connection to "
                         << ops_options_.peer << " (epoch " << connector_.epoch()
                         << "): " << why.message();
    }
    connector_.SetState(State::kDraining);
    if (absl::IsDataLoss(why) && !owed_.has_brought()) owed_.NoteDefault();
  }
  link_->DropAhead(why);
  BreakAsks();
}

void FetchSession::EndIdle() {
  EndSession();
  connector_.SetState(State::kIdle);
  BreakAsks();
}

void FetchSession::BreakAsks() {
  EndRuns();
  broken_since_ns_ = now_ns();
  watch_.Stop();
  // A fetch that has waited for long over a link that worked does not end with it.
  silence_.NoteWordAt(owed_.word_ns());
  if (connector_.state() != State::kClosed && Waits()) silence_.Watch();
  tell_replayed_ = false;
  ForgetWords();
  for (FetchAsk* ask : slots_.all()) {
    if (ask == nullptr) continue;
    link_->OnLinkOver(ask);
    if (ask->parks == Parks::kAllowed) ask->parks = Parks::kNo;
    if (Advance(ask, FetchEvent::kBroken) == FetchAction::kAskAgain) {
      ask->Enter(WaitsFor::kDrain, now_ns());
    }
  }
}

void FetchSession::DrainAsks() {
  for (FetchAsk* ask : std::vector<FetchAsk*>(slots_.all())) {
    if (ask == nullptr) continue;
    if (ask->state == FetchState::kFencedLeaving) {
      TRYST_REACHED("sim: a fetch has ended before its queue pair has drained");
      link_->DropMemory(ask);
      // The producer may hold the tensor for it, so the CANCEL goes out in the next epoch.
      Advance(ask, FetchEvent::kDrained);
      if (ask->front != nullptr) ReportFront(ask, ask->front->end_status);
    } else if (ask->state == FetchState::kFenced) {
      Advance(ask, FetchEvent::kDrained);  // It keeps its slot, and is requested again.
      ask->Enter(WaitsFor::kConnection, now_ns());
      ask->said = true;
    }
  }
}

// A link that has brought nothing is not made again at once.
void FetchSession::GoOn() {
  if (connector_.state() == State::kClosed) return OnClosed();
  if (next_ != at_) return GoOnBy(next_);
  if (asks_.live() == 0) return GoIdle();
  if (owed_.works() && connector_.back_off()->TakeFree()) return Connect();
  RetryLater(connector_.why);
}

void FetchSession::GoIdle() {
  probing_ = false;
  connector_.NoteWorking();  // No fetch waits, so nothing fails.
  connector_.SetState(State::kIdle);
  silence_.Stop();
}

void FetchSession::RetryLater(const absl::Status& why) {
  connector_.why = why;
  connector_.NoteFailing(now_ns());
  // Hellos go on between these questions, because the path may work again.
  ask_next_ = !ask_next_ && chooser_ != nullptr && connector_.Unusable();
  connector_.Pause();
  silence_.OnAttemptFailed();
  // Answers to hellos show that the peer is up. Who says nothing else has its fetches no longer
  // than who is silent, also those that were made since: they have waited for this attempt.
  const int64_t patience_ms = ops_options_.patience_ms;
  if (patience_ms <= 0 || !connector_.FailedFor(patience_ms)) return;
  TRYST_REACHED("rare: the producer answers hellos and brings nothing");
  EndAll(absl::UnavailableError(
      absl::StrCat(ops_options_.peer, " has brought nothing over ", path(), " for ", patience_ms,
                   " ms (patience), though it may answer when a connection is "
                   "opened: ",
                   why.message())));
}

void FetchSession::OnPeerLost() {
  if (open() || connector_.state() == State::kClosed) return;
  TRYST_REACHED("rare: the producer is without a word for too long");
  EndAll(NotAnswered(ops_options_.peer, path(), ops_options_.patience_ms, connector_.why));
}

void FetchSession::FailAttempt(const absl::Status& why) {
  if (link_->EndAttempt(why)) return Connect();
  RetryLater(why);
  if (IsFinal(why)) {
    // Fail refused fetches now, not at their deadline.
    EndAll(why);  // The next link says that nobody wants what was asked.
  } else if (IsPathRefusal(why) && chooser_ != nullptr) {
    OnKindFailed(/*is_refused=*/true, why);
  }
}

void FetchSession::OnConnectTimer() {
  if (connector_.state() == State::kJoining) {
    connector_.NoteFailing(connector_.since_ns());  // It was up then.
    return FailAttempt(absl::UnavailableError(
        "the producer has agreed to open a connection and did not welcome us in time"));
  }
  // No caller waits for fetches that are leaving, and the producer keeps their tensors only for
  // this time.
  if (now_ns() - broken_since_ns_ >= ops_options_.retain_ms * 1'000'000) {
    TRYST_REACHED("rare: the producer keeps nothing for us any more");
    ForgetLeaving();
  }
  if (next_ != at_) UseKind(next_);
  if (asks_.live() == 0) return GoIdle();
  ask_next_ ? AskAndMove() : Connect();
}

// ---- The end of a session ----

bool FetchSession::IsForAnother(const FetchAsk& ask) const {
  const uint64_t named = ask.of->key.src_incarnation();
  return named != 0 && named != peer_incarnation_;
}

void FetchSession::EndAsked(const absl::Status& why,
                            absl::FunctionRef<bool(const FetchAsk&)> goes_on) {
  for (FetchAsk* ask : std::vector<FetchAsk*>(slots_.all())) {
    if (ask == nullptr || !ask->said) continue;
    ask->said = false;
    ask->ticket = 0;
    ask->parks = Parks::kNo;
    if (!goes_on(*ask)) EndAsk(ask, why);
  }
  std::vector<FetchAsk*> parked;
  for (FetchAsk* ask : Asked()) {
    if (!ask->has_slot()) parked.push_back(ask);
  }
  // From the last to the first, so that they stand, in their order, before those that wait in line.
  for (; !parked.empty(); parked.pop_back()) {
    FetchAsk* const ask = parked.back();
    if (goes_on(*ask)) {
      AskAnew(ask);
    } else {
      TRYST_REACHED("sim: a fetch without a slot ends with its producer");
      EndAsk(ask, why);
    }
  }
  ForgetLeaving();
}

// Those in line learn of it, too, if they name that life.
void FetchSession::EndQueuedOf(uint64_t incarnation, const absl::Status& why) {
  for (FetchAsk* ask : asks_.all()) {
    if (ask->state != FetchState::kQueued || ask->of->key.src_incarnation() != incarnation)
      continue;
    while (!ask->behind.empty()) EndEarly(ask->behind.front(), why);
    EndAsk(ask, why);
  }
}

void FetchSession::EndFetchesOf(uint64_t incarnation, const absl::Status& why) {
  for (FetchOp* op : fetches_.all()) {
    if (op->key.src_incarnation() == incarnation) EndEarly(op, why);
  }
}

// The producer that would answer them is gone, with everything that it had taken for us.
void FetchSession::ForgetLeaving() {
  for (FetchAsk* ask : std::vector<FetchAsk*>(slots_.all())) {
    if (ask != nullptr && ask->state == FetchState::kLeaving) FinishLeaving(ask);
  }
}

// How many slots there are is the session's: what is held for us is named by them.
bool FetchSession::UseSlots(size_t slots) {
  if (slots_.size() == slots) return true;
  const std::vector<FetchAsk*> asked = Asked();
  const bool may = std::none_of(asked.begin(), asked.end(), [](const FetchAsk* ask) {
    return ask->has_slot() && (ask->said || ask->leaves());
  });
  if (!may) return false;
  AskHeldAnew();
  // Anywhere, so that what happens where they wrap happens to each session, not to old ones alone.
  slots_.Reset(slots, static_cast<uint16_t>(ops_options_.seed >> 16));
  return true;
}

// From the last to the first, so that they stand, in their order, before those that wait in line.
void FetchSession::AskHeldAnew() {
  const std::vector<FetchAsk*> asked = Asked();
  std::for_each(asked.rbegin(), asked.rend(), [this](FetchAsk* ask) {
    if (ask->has_slot()) AskAnew(ask);
  });
}

// Tells the producer what has not landed, so that it gives that back. REQUIRES: no link, so that no
// byte can land any more.
void FetchSession::SayGoodbye(Connector::AnswerFn on_answer) {
  Farewell farewell;
  farewell.session = session_;
  for (const FetchAsk* ask : Asked()) {
    const bool asked = ask->said || ask->state == FetchState::kLeaving;
    if (ask->has_slot() && asked) {
      farewell.wanted.push_back({ask->slot, static_cast<uint16_t>(ask->generation)});
    }
  }
  Hello hello = connector_.NewHello();
  hello.parameters = link_->FarewellParameters(EncodeFarewell(farewell));
  connector_.Say(hello, std::move(on_answer), kGoodbyeMs);
}

void FetchSession::AskAnew(FetchAsk* ask) {
  ask->said = false;
  DropTicket(ask);
  Advance(ask, FetchEvent::kUnlinked);
  if (ask->has_slot()) FreeSlot(ask);
  lines_.queued.PushFront(ask);
}

// ---- Views ----

std::string FetchSession::Explain() const {
  return absl::StrCat(
      connector_.Explain(), link_->Explain(), ", ", ExplainOut(),
      connector_.why.ok() ? "" : absl::StrCat("; ", Printable(connector_.why.ToString())));
}

void FetchSession::View(PathView* view) const {
  connector_.View(view);
  link_->View(view);
}

FetchCounters FetchSession::Counted() const {
  FetchCounters now = counters_;
  now.messages += link_->messages();
  return now;
}

}  // namespace tryst
