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

}  // namespace

FetchSession::FetchSession(Poller* poller, Bootstrap* bootstrap, const FetchOpsOptions& options,
                           MakeLink make)
    : FetchOps(poller, bootstrap, options),
      silence_(poller, options.patience_ms, [this] { OnPeerLost(); }),
      watch_(poller, this, options.check_ms, options.ask_up_ms),
      owed_(poller, options.give_up_ms > 0 ? options.give_up_ms : options.patience_ms) {
  link_ = make(this);
  words_ = link_->words();
}

FetchSession::~FetchSession() { TRYST_CHECK(Drained()) << Explain(); }

void FetchSession::Close(absl::Status why) {
  if (connector_.state() == State::kClosed) return;
  closed_ = std::move(why);
  connector_.StopWaiting();
  silence_.Stop();
  watch_.Stop();
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
    SayFarewell([](absl::StatusOr<Hello>) {}, kGoodbyeMs);
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

// ---- A link, from its hello to its end ----

void FetchSession::Connect() {
  connector_.Begin(State::kHello);
  Hello hello = connector_.NewHello();
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
    TRYST_REACHED("sim: the producer has another session");
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
  return owed_.Late(ops_options_.peer, ops_options_.path);
}

// A path that nobody has: whoever is up refuses it, and the link stays.
void FetchSession::AskIfUp() {
  Hello hello = connector_.NewHello();
  hello.path = "none";
  connector_.Say(hello, [this](absl::StatusOr<Hello> answer) {
    watch_.NoteUp(answer.ok() || IsPathRefusal(answer.status()));
  });
}

void FetchSession::OnSilent(int64_t heard_ns) {
  TRYST_REACHED("sim: the producer is silent");
  connector_.NoteFailing(heard_ns);
  link_->Break(owed_.Silent(ops_options_.peer, ops_options_.path,
                            poller_->RunningSince(heard_ns) / 1'000'000));
}

void FetchSession::NoteUsable() {
  probing_ = false;
  if (ops_options_.user != nullptr) ops_options_.user->OnUsable();
}

void FetchSession::Replay() {
  tell_replayed_ = true;
  for (FetchAsk* ask : Asked()) SendSoon(ask);
}

void FetchSession::OnLinkBroken(const absl::Status& why) {
  link_->HearWords();
  ++counters_.breaks;
  connector_.why = why;
  if (connector_.state() != State::kClosed) {
    // The loss of an idle link is not logged, because a producer that stops causes it, too.
    if (absl::IsDataLoss(why) || (!probing_ && Waits())) {
      TRYST_LOG(Warning) << ops_options_.self << " lost its " << ops_options_.path
                         << " connection to " << ops_options_.peer << " (epoch "
                         << connector_.epoch() << "): " << why.message();
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
      // One that moves to another path does so when the peer has nothing of it any more.
      if (ask->front != nullptr && !ask->moves) ReportFront(ask, ask->front->end_status);
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
  // Farewells and hellos alternate, because the path may work again, or the peer may be down and
  // unable to answer a farewell.
  leave_next_ = !leave_next_ && connector_.Unusable();
  connector_.Pause();
  silence_.OnAttemptFailed();
  // Answers to hellos show that the peer is up. Who says nothing else has its fetches no longer
  // than who is silent, also those that were made since: they have waited for this attempt.
  const int64_t patience_ms = ops_options_.patience_ms;
  if (patience_ms <= 0 || !connector_.FailedFor(patience_ms)) return;
  TRYST_REACHED("rare: the producer answers hellos and brings nothing");
  EndAll(absl::UnavailableError(absl::StrCat(
      ops_options_.peer, " has brought nothing over ", ops_options_.path, " for ", patience_ms,
      " ms (patience), though it may answer when a connection is "
      "opened: ",
      why.message())));
}

void FetchSession::OnPeerLost() {
  if (open() || connector_.state() == State::kClosed) return;
  TRYST_REACHED("rare: the producer is without a word for too long");
  EndAll(
      NotAnswered(ops_options_.peer, ops_options_.path, ops_options_.patience_ms, connector_.why));
}

void FetchSession::FailAttempt(const absl::Status& why) {
  if (link_->EndAttempt(why)) return Connect();
  RetryLater(why);
  if (IsFinal(why)) {
    // Fail refused fetches now, not at their deadline.
    EndAll(why);  // The next link says that nobody wants what was asked.
  } else if (IsPathRefusal(why) && ops_options_.user != nullptr) {
    if (session_ == 0 || Asked().empty()) {  // The producer holds nothing for us.
      session_ = 0;
      return ops_options_.user->OnRefused();
    }
    TRYST_REACHED("rare: a path is refused in the middle of a session");
    refusal_ = why;
    connector_.StopWaiting();
    Leave();
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
  if (asks_.live() > 0) return leave_next_ ? Leave() : Connect();
  GoIdle();
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
    if (ask == nullptr || ask->state != FetchState::kLeaving) continue;
    if (ask->moves) {
      link_->MoveAway(ask);
    } else {
      FinishLeaving(ask);
    }
  }
}

// How many slots there are is the session's: what is held for us is named by them.
bool FetchSession::UseSlots(size_t slots) {
  if (slots_.size() == slots) return true;
  std::vector<FetchAsk*> held;
  for (FetchAsk* ask : Asked()) {
    if (!ask->has_slot()) continue;
    if (ask->said || ask->leaves()) return false;
    held.push_back(ask);
  }
  for (; !held.empty(); held.pop_back()) AskAnew(held.back());
  slots_.Reset(slots);
  return true;
}

// ---- Another path ----

// Tells the producer what has not landed, so that it gives that back and takes nothing more for us
// on this path. An answer also shows that the path is broken and not the peer; while there is none,
// another path would not help. REQUIRES: no link, so that no byte can land any more.
void FetchSession::Leave() {
  TRYST_REACHED("sim: a path is left");
  connector_.Begin(State::kFarewell);
  SayFarewell([this](absl::StatusOr<Hello> answer) { OnFarewellAnswer(std::move(answer)); },
              INT64_MAX);
}

void FetchSession::SayFarewell(Connector::AnswerFn on_answer, int64_t most_ms) {
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
  connector_.Say(hello, std::move(on_answer), most_ms);
}

void FetchSession::OnFarewellAnswer(absl::StatusOr<Hello> answer) {
  const absl::Status refusal = std::exchange(refusal_, absl::OkStatus());
  const bool refused = !refusal.ok() && IsPathRefusal(answer.status());
  absl::Status said = answer.status();
  if (said.ok()) said = connector_.CheckAnswer(*answer);
  if (!said.ok() && !refused) return RetryLater(said);
  silence_.NoteWord();
  if (refused) {
    // Whoever turns that down, too, has taken nothing for us: it is another life of the peer.
    const absl::Status why =
        absl::AbortedError(absl::StrCat(ops_options_.peer, " has restarted, and no longer offers ",
                                        ops_options_.path, ": ", refusal.message()));
    for (FetchAsk* ask : Asked()) EndAsk(ask, why);
  } else {
    const auto farewell = DecodeFarewell(answer->parameters);
    MeetPeer(answer->incarnation, farewell.ok() ? farewell->session : 0);
  }
  ForgetLeaving();  // The farewell gave back what was taken for them.
  const std::vector<FetchAsk*> asked = Asked();
  std::for_each(asked.rbegin(), asked.rend(), [this](FetchAsk* ask) { AskAnew(ask); });
  if (refusal.ok()) {
    GoIdle();
    ops_options_.user->OnLeft(TakeWaiting());
  } else {
    session_ = 0;
    RetryLater(refusal);
    ops_options_.user->OnRefused();
  }
}

void FetchSession::AskAnew(FetchAsk* ask) {
  ask->said = false;
  DropTicket(ask);
  Advance(ask, FetchEvent::kUnlinked);
  if (ask->has_slot()) FreeSlot(ask);
  lines_.queued.PushFront(ask);
}

bool FetchSession::OwesEnd(int64_t step_id, const TensorKey& key) const {
  const FetchKey* const known = keys_.Find(key);
  if (known == nullptr) return false;
  for (FetchAsk* ask = known->asks.front(); ask != nullptr; ask = known->asks.Behind(ask)) {
    if (ask->step == step_id && ask->leaves()) return true;
  }
  return tickets_.any_unwanted();
}

bool FetchSession::OwesAnyEnd() const {
  const auto leaves = [](const FetchAsk* ask) { return ask != nullptr && ask->leaves(); };
  const auto& asks = slots_.all();
  return tickets_.any_unwanted() || std::any_of(asks.begin(), asks.end(), leaves);
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
