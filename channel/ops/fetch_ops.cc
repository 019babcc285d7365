#include "channel/ops/fetch_ops.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"
#include "rendezvous/derived_status.h"

// Begin and end of a fetch. fetch_asking.cc has what is said of it to the peer.
namespace tryst {

FetchOps::FetchOps(Poller* poller, Bootstrap* bootstrap, FetchOpsOptions options,
                   const FetchKind* kind)
    : poller_(poller),
      ops_options_(std::move(options)),
      kind_(kind),
      connector_(poller, bootstrap, ops_options_, [this] { OnConnectTimer(); }),
      keys_(ops_options_.max_keys, ops_options_.max_keys_bytes),
      deliveries_(poller, this),
      small_(new SmallStorage(poller->shared_thread())) {}

FetchOps::~FetchOps() {
  if (idle_timer_.is_set()) poller_->CancelTimer(&idle_timer_);
  if (ops_options_.watch != nullptr) ops_options_.watch->OnEndGone(this);
  small_->Unref();
}

void FetchOps::UseLink(const FetchKind* kind, std::unique_ptr<FetchLink> link) {
  kind_ = kind;
  connector_.UsePath(kind->path, kind->open_text);
  if (ops_options_.trace != nullptr) {
    track_ = ops_options_.trace->Track(TraceRole::kFetch, ops_options_.peer, kind->path);
  }
  const std::vector<FetchAsk*> former = asks_.all();
  asks_.Clear();
  for (FetchAsk* ask : former) {
    if (ask->state == FetchState::kFree) continue;
    link_->DropMemory(ask);
    FetchAsk* const next = asks_.Take([&] { return link->MakeAsk(); });
    next->TakePlaceOf(ask);
    if (next->has_slot()) slots_.Replace(next);
    if (next->ticket != 0) tickets_.Replace(next);
    ++counters_.moved;
  }
  if (link_ != nullptr) link_->DropAsks();
  link_ = std::move(link);
  words_ = link_->words();
}

// ---- Beginning ----

void FetchOps::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                     FetchedFn&& done) {
  FetchOp* op = TakeOp(step_id, key);
  op->args.Assign(args);
  op->done = std::move(done);
  ++counters_.fetches;
  Start(op);
}

bool FetchOps::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                         ManyFetchedFn* done) {
  static const Tensor* const none = new Tensor();
  FetchJoin* join = deliveries_.NewJoin(keys.size(), args, std::move(*done));
  counters_.fetches += keys.size();
  const bool may_run = MayRun(args, keys.size());
  FetchRun* run = nullptr;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Tensor& destination = args.destinations.empty() ? *none : args.destinations[i];
    FetchKey* key = may_run ? keys_.Intern(keys[i]) : nullptr;
    if (key != nullptr && run != nullptr && !run->Fits(*key, words_->most_run_bytes())) {
      StartRun(std::exchange(run, nullptr));
      key = keys_.Intern(keys[i]);  // The run's name may have taken its number.
    }
    if (key == nullptr || !MayRunWith(*key, destination)) {
      StartOf(join, i, step_id, keys[i], destination);
      continue;
    }
    if (run == nullptr) run = runs_.Take(step_id);
    run->join = join;
    run->Add(key, i, args.destinations.empty() ? nullptr : &destination);
  }
  if (run != nullptr) StartRun(run);
  return true;
}

// One fetch of a join, whose other arguments the join has.
void FetchOps::StartOf(FetchJoin* join, size_t place, int64_t step, const TensorKey& key,
                       const Tensor& destination) {
  FetchOp* const op = TakeOp(step, key);
  if (destination.valid()) op->args.destination = destination;
  op->join = join;
  op->index = place;
  Start(op);
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool FetchOps::MayBegin(const FetchOp& op) const {
  const Tensor& destination = op.destination();
  return closed_.ok() && op.key.text().size() <= ops_options_.max_key_bytes &&
         (!destination.valid() || destination.on_host() ||
          link_->MayFillDevice(destination.space().device_ordinal).ok());
}

void FetchOps::Start(FetchOp* op) {
  const RecvArgs& args = op->wants();
  op->begun_ns = now_ns();
  op->span.Begin(open() ? WaitsFor::kSlot : WaitsFor::kConnection, op->begun_ns);
  if (!MayBegin(*op)) return EndEarly(op, WhyNotBegin(*op));
  const bool plain = args.cancellation == nullptr && args.deadline.is_never();
  if (!plain && !StartWatching(op, args)) return EndEarly(op, Cancelled());
  if (plain && (asked_at_once_ || SomebodyWaits()) && Gather(op)) return;
  LineUp(op, plain);
  if (op->ask != nullptr) link_->OnWaits(op);
}

// From now on its caller's cancellation and deadline are heard. False: it is cancelled.
bool FetchOps::StartWatching(FetchOp* op, const RecvArgs& args) {
  if (args.cancellation != nullptr) {
    op->cancel_token = args.cancellation->Register([op, poller = poller_] { op->Cancel(poller); });
    if (op->cancel_token == Cancellation::kNoToken) return false;
  }
  if (!args.deadline.is_never()) poller_->SetTimer(op, args.deadline.at_ns());
  return true;
}

absl::Status FetchOps::WhyNotBegin(const FetchOp& op) const {
  if (!closed_.ok()) return closed_;
  if (op.key.text().size() > ops_options_.max_key_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor's key has ", op.key.text().size(), " bytes, and the peer takes at most ",
        ops_options_.max_key_bytes, ": choose a shorter name"));
  }
  return link_->MayFillDevice(op.destination().space().device_ordinal);
}

// ---- Ending ----

void FetchOps::HasNoRow(const FetchAsk& ask, FetchEvent event) {
  TRYST_CHECK(false) << FetchEventName(event) << " of a fetch that " << FetchStateName(ask.state);
  abort();
}

void FetchOps::EndEarly(FetchOp* op, const absl::Status& why) {
  if (op->phase != FetchPhase::kWaits) return;
  if (op->part_of != nullptr) return LeaveRun(op, why);
  FetchAsk* const ask = op->ask;
  if (op->run != nullptr && ask != nullptr && ask->leaves()) {
    // It was to have its keys asked for alone. Now they end with it.
    op->run->apart = false;
    op->end_status = why;
    return;
  }
  if (ask != nullptr && ask->front == op) {
    if (!HandOver(ask)) return EndAsk(ask, why);
  } else if (op->line_link.line != nullptr) {
    op->line_link.line->Remove(op);
  }
  op->ask = nullptr;
  Report(op, absl::Status(why), Tensor(), false, When::kAtEndOfTurn);
}

// The next fetch of the line takes the place of the one in front. False: there is none, or it
// cannot have what the peer was asked for.
bool FetchOps::HandOver(FetchAsk* ask) {
  if (ask->behind.empty() || FindFetchRow(ask->state, FetchEvent::kHandOver) == nullptr ||
      !link_->MayPass(*ask, *ask->behind.front())) {
    return false;
  }
  TRYST_REACHED("sim: a fetch hands over what it has asked for");
  Advance(ask, FetchEvent::kHandOver);
  FetchOp* const former = std::exchange(ask->front, ask->behind.PopFront());
  ask->Enter(former->span.waits_for(), now_ns());
  ask->front->span.id = std::exchange(former->span.id, 0);  // It names what was asked for.
  return true;
}

void FetchOps::EndAsk(FetchAsk* ask, const absl::Status& why) {
  const FetchState from = ask->state;
  const bool ahead = ask->is_ahead();
  const bool known = from == FetchState::kInSlot && ask->said;
  const FetchAction action = Advance(ask, known ? FetchEvent::kEndAsked : FetchEvent::kEnd);
  if (ahead) link_->OnEndAhead(ask);
  switch (action) {
    case FetchAction::kReport:
      DropTicket(ask);
      lines_.queued.Remove(ask);
      link_->DropMemory(ask);
      return Finish(ask, absl::Status(why), Tensor(), false, When::kAtEndOfTurn);
    case FetchAction::kCancel:
      link_->OnLeaves(ask, from);
      StartLeaving(ask, why);
      if (ask->front != nullptr && kind_->leave_ns > 0 && open() &&
          !ask->front->wants().leaves_at_once) {
        return poller_->SetTimer(ask->front, now_ns() + kind_->leave_ns);
      }
      break;
    case FetchAction::kRemember:
      TRYST_REACHED("sim: a fetch ends between the break and the drain");
      if (ask->front != nullptr) ask->front->end_status = why;
      break;
    default:
      return;
  }
  // A landing of ours stays aside until the last word; the caller's memory is the caller's only
  // when nobody writes it any more.
  if (!link_->MayBeWritten(*ask)) ReportFront(ask, why);
}

// Tells the peer, now or over the next connection, and waits for its answer.
void FetchOps::StartLeaving(FetchAsk* ask, const absl::Status& why) {
  ask->Enter(WaitsFor::kLastWord, now_ns());
  if (ask->front != nullptr) ask->front->end_status = why;
  if (open()) SendSoon(ask);
}

void FetchOps::ReportFront(FetchAsk* ask, const absl::Status& why) {
  ask->since_ns = now_ns();
  FetchOp* const op = TakeFront(ask);
  if (op == nullptr) return;
  ask->began_ns = op->begun_ns;
  Report(op, absl::Status(why), Tensor(), false, When::kAtEndOfTurn);
}

// The ask is over. If others wait in its line, it begins anew for the next one, before those that
// have waited for a slot.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FetchOps::LastWord(FetchAsk* ask) {
  if (ask->state != FetchState::kEnding) Advance(ask, FetchEvent::kComplete);
  if (ask->has_slot()) FreeSlot(ask);
  if (ask->ticket != 0) tickets_.Unpark(*ask);
  send_line_.Remove(ask);
  if (ABSL_PREDICT_FALSE(!ask->behind.empty())) return BeginAnew(ask);
  keys_.Leave(ask);
  ask->state = FetchState::kFree;
  asks_.Free(ask);
  if (fetches_.live() == 0) WatchIdle();
  if (tickets_.parked() == 0 && lines_.queued.empty()) parking_.Relax();
}

void FetchOps::BeginAnew(FetchAsk* ask) {
  ask->Renew();
  ask->front = ask->behind.PopFront();
  lines_.queued.PushFront(ask);
  if (open()) words_->FlushSoon();
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FetchOps::FreeIfDone(FetchOp* op) {
  const bool moved = op->phase == FetchPhase::kMoved;
  if ((op->phase != FetchPhase::kDelivered && !moved) || op->cancel_posted.load()) return;
  op->phase = FetchPhase::kFree;
  if (track_ != nullptr && !moved && !op->by_run) {
    ops_options_.trace->End(op->span, track_, op->step, op->key, op->traced_bytes, op->traced_code,
                            now_ns());
  }
  fetches_.Free(op);
  if (fetches_.live() == 0) WatchIdle();
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FetchOps::NoteResult(FetchOp* op,
                                                              const absl::Status& status,
                                                              const Tensor& tensor) {
  op->phase = FetchPhase::kReported;
  ++(status.ok() ? counters_.ended_ok : counters_.ended_failed);
  if (track_ == nullptr) return;
  op->traced_code = status.ok() ? absl::StatusCode::kOk : status.code();
  op->traced_bytes = tensor.bytes();
  op->span.Enter(WaitsFor::kExecutor, now_ns());
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FetchOps::ReportInPlace(FetchOp* op, absl::Status&& status,
                                                                 Tensor&& tensor, bool is_dead) {
  NoteResult(op, status, tensor);
  Deliveries::In(op, std::move(status), std::move(tensor), is_dead);
  op->phase = FetchPhase::kDelivered;
  FreeIfDone(op);
}

void FetchOps::Finish(FetchAsk* ask, absl::Status&& status, Tensor&& tensor, bool is_dead,
                      When when) {
  if (ask->is_ahead()) link_->OnEndAhead(ask);
  FetchOp* const op = TakeFront(ask);
  if (tensor.valid()) ask->of->NoteLast(tensor);
  // Frees the slot first, because the callback may fetch again.
  LastWord(ask);
  if (op == nullptr) return;
  if (when == When::kNow && status.ok() && op->run == nullptr && deliveries_.InPlace(*op)) {
    return ReportInPlace(op, std::move(status), std::move(tensor), is_dead);
  }
  Report(op, std::move(status), std::move(tensor), is_dead, when);
}

void FetchOps::FinishLeaving(FetchAsk* ask) {
  FetchOp* const op = TakeFront(ask);
  LastWord(ask);
  if (op != nullptr) {
    Report(op, std::move(op->end_status), Tensor(), false, When::kAtEndOfTurn);
  }
}

void FetchOps::Report(FetchOp* op, absl::Status&& status, Tensor&& tensor, bool is_dead,
                      When when) {
  if (op->run != nullptr) return EndRun(op, std::move(status), when);
  if (when == When::kNow && deliveries_.InPlace(*op)) {
    return ReportInPlace(op, std::move(status), std::move(tensor), is_dead);
  }
  NoteResult(op, status, tensor);
  StopWatching(op);
  deliveries_.Deliver(op, std::move(status), std::move(tensor), is_dead, when);
}

// Its caller's cancellation and deadline are no longer heard.
void FetchOps::StopWatching(FetchOp* op) {
  poller_->CancelTimer(op);
  if (op->cancel_token == Cancellation::kNoToken) return;
  // A callback that is running has only a task to post: waiting for it is brief.
  op->wants().cancellation->Deregister(op->cancel_token);
  op->cancel_token = Cancellation::kNoToken;
}

void FetchOps::OnOpDelivered(FetchOp* op) {
  op->phase = FetchPhase::kDelivered;
  FreeIfDone(op);
}

void FetchOps::WatchIdle() {
  if (!idle_timer_.is_set() && KeepsMuch()) {
    poller_->SetTimer(&idle_timer_, now_ns() + kIdleForNs);
  }
}

void FetchOps::GiveMemoryBack() {
  if (fetches_.is_idle_and_large()) {
    poller_->NoteBurstOver(fetches_.all().size());
    fetches_.Clear();
    fetch_blocks_.Clear();
  }
  if (asks_.is_idle_and_large()) {
    asks_.Clear();
    link_->DropAsks();
  }
  if (runs_.out().empty()) runs_.Clear();
  if (!keys_.has_many() || !IsIdle()) return;
  // The keys' names cost the next step more than its ops, so they stay for longer.
  if (std::exchange(fetches_then_, counters_.fetches) != counters_.fetches) {
    return poller_->SetTimer(&idle_timer_, now_ns() + kKeysIdleForNs);
  }
  keys_.Clear();
  link_->DropKeys();
  poller_->NoteBurstOver(Poller::kLargeBurst);
}

void FetchOps::OnOpCancelled(FetchOp* op) {
  EndEarly(op, Cancelled());
  FreeIfDone(op);
}

std::string FetchOps::WhyLate(const FetchOp& op) const {
  std::string why = link_->WhyLate(op);
  if (!why.empty()) return why;
  return connector_.why.ok() ? "" : absl::StrCat(" (", connector_.why.message(), ")");
}

void FetchOps::OnOpTimer(FetchOp* op) {
  FetchAsk* const ask = op->ask;
  // The timer ends before the fetch leaves its line.
  const bool in_front = ask != nullptr && ask->front == op;
  if (in_front && ask->state == FetchState::kLeaving && kind_->leave_ns > 0) {
    // The peer is slow to answer. Its slot stays with it; the caller need not.
    return ReportFront(ask, op->end_status);
  }
  const FetchState state = in_front ? ask->state : FetchState::kQueued;
  EndEarly(op, Late(FetchStateName(state), ops_options_.peer, WhyLate(*op)));
}

// The tensors of a run are judged one by one, when its answer is read.
absl::Status FetchOps::MayTake(const FetchAsk& ask, DType dtype, const TensorShape& shape,
                               uint64_t bytes) const {
  if (!ask.of->is_run()) return MayTake(ask.destination(), dtype, shape, bytes);
  // What is read as the run's items are the bytes of a tensor, which strings do not lie in.
  if (dtype != DType::kUint8 || shape.rank() != 1) {
    return absl::DataLossError(
        absl::StrCat("the producer broke the protocol: it answers a run of keys with a tensor of ",
                     DTypeName(dtype), " and rank ", shape.rank()));
  }
  if (bytes <= kRunBytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "the producer broke the protocol: it answers a run of keys with ", bytes, " bytes"));
}

absl::Status FetchOps::MayTake(const Tensor& wanted, DType dtype, const TensorShape& shape,
                               uint64_t bytes) const {
  absl::Status status = FitsLimit(bytes, ops_options_.max_tensor_bytes);
  if (status.ok()) status = FitsDestination(wanted, dtype, shape);
  return status;
}

void FetchOps::AbortStep(int64_t step_id, const absl::Status& why) {
  const absl::Status derived = MarkDerived(why);
  for (FetchOp* op : fetches_.all()) {
    if (op->step == step_id) EndEarly(op, derived);
  }
  for (FetchAsk* ask : slots_.all()) {
    if (ask != nullptr && ask->is_ahead() && ask->step == step_id) EndAsk(ask, derived);
  }
}

void FetchOps::EndAll(const absl::Status& why) {
  for (FetchOp* op : fetches_.all()) EndEarly(op, why);
}

// ---- Another channel ----

std::vector<WaitingFetch> FetchOps::TakeWaiting() {
  std::vector<WaitingFetch> taken;
  while (!lines_.queued.empty()) TakeOut(lines_.queued.front(), &taken);
  return taken;
}

void FetchOps::TakeOut(FetchAsk* ask, std::vector<WaitingFetch>* taken) {
  lines_.queued.Remove(ask);
  link_->DropMemory(ask);
  FetchOp* op = TakeFront(ask);
  while (op != nullptr) {
    TakeOutOne(op, taken);
    op = ask->behind.empty() ? nullptr : ask->behind.PopFront();
  }
  ask->state = FetchState::kEnding;
  LastWord(ask);
}

void FetchOps::TakeOutOne(FetchOp* op, std::vector<WaitingFetch>* taken) {
  op->ask = nullptr;
  TRYST_CHECK(op->run == nullptr) << "a run is moved";  // It ends with its connection.
  if (op->cancel_token != Cancellation::kNoToken &&
      !op->wants().cancellation->TryDeregister(op->cancel_token)) {
    // The caller has cancelled meanwhile, so the fetch ends here.
    TRYST_REACHED("rare: a fetch is cancelled while it changes its path");
    return Report(op, Cancelled(), Tensor(), false, When::kAtEndOfTurn);
  }
  op->cancel_token = Cancellation::kNoToken;
  poller_->CancelTimer(op);
  WaitingFetch fetch{op->step, op->key, op->wants(), std::move(op->done)};
  if (op->join != nullptr) {
    fetch.args.destination = op->destination();
    fetch.args.executor = nullptr;
    fetch.done = deliveries_.BackToJoin(op);
  }
  taken->push_back(std::move(fetch));
  op->args = RecvArgs();
  op->done = nullptr;
  op->phase = FetchPhase::kMoved;
  FreeIfDone(op);
}

// ---- Views ----

bool FetchOps::Drained() const {
  return connector_.state() == Connector::State::kClosed && !connector_.hello_out() &&
         fetches_.live() == 0 && asks_.live() == 0 && deliveries_.idle();
}

std::string FetchOps::ExplainOut() const {
  size_t by_state[kFetchStateCount] = {};
  size_t out = 0;
  const auto count = [&](FetchState state, size_t more) {
    by_state[static_cast<size_t>(state)] += more;
    out += more;
  };
  for (const FetchAsk* ask : asks_.all()) {
    if (ask->state == FetchState::kFree) continue;
    count(ask->state, 1);
    count(FetchState::kQueued, ask->behind.size());
  }
  for (const FetchOp* op : fetches_.all()) {
    if (op->phase == FetchPhase::kReported) count(FetchState::kEnding, 1);
  }
  std::string text = absl::StrCat(out, " fetches out");
  const char* before = " (";
  for (size_t i = 1; i < kFetchStateCount; ++i) {
    if (by_state[i] == 0) continue;
    const FetchState state = static_cast<FetchState>(i);
    absl::StrAppend(
        &text, before, by_state[i], " ",
        state == FetchState::kEnding ? "waits for its callback" : FetchStateName(state));
    before = "; ";
  }
  if (out > 0) text += ")";
  return text;
}

void FetchOps::ListOps(LiveOps* ops) const {
  const auto add = [&](int64_t step, const TensorKey& key, const TraceSpan& span,
                       const FetchAsk* ask, std::string detail) {
    LiveOp live;
    live.peer = ops_options_.peer;
    live.path = path();
    live.step = step;
    live.key = key;
    live.span = span;
    live.bytes = ask == nullptr ? 0 : link_->BytesOf(*ask);
    live.detail = std::move(detail);
    // Connected since, without a slot yet.
    if (open() && live.span.waits_for() == WaitsFor::kConnection) {
      live.span.Enter(WaitsFor::kSlot, std::max(connector_.since_ns(), live.span.since_ns()));
    }
    ops->Add(std::move(live));
  };
  const std::string why = open() ? "" : std::string(connector_.why.message());
  for (const FetchOp* op : fetches_.all()) {
    if (op->phase != FetchPhase::kWaits && op->phase != FetchPhase::kReported) continue;
    const bool in_front = op->ask != nullptr && op->ask->front == op;
    if (op->run != nullptr && op->run->join == nullptr) continue;  // Its fetches are listed.
    const size_t more = op->run == nullptr ? 0 : op->run->keys.size() - 1;
    add(op->step, op->key, op->span, in_front ? op->ask : nullptr,
        more == 0 ? why : absl::StrCat("with ", more, " other keys", why.empty() ? "" : "; ", why));
  }
  for (const FetchAsk* ask : asks_.all()) {
    if (ask->state == FetchState::kFree || ask->front != nullptr) continue;
    const bool ahead = ask->is_ahead();
    TraceSpan span;
    span.Begin(WaitsFor::kPeerSend, ask->began_ns);
    if (!ahead) span.Enter(WaitsFor::kLastWord, ask->since_ns);
    span.id = ask->trace_id;
    add(ask->step, ask->of->key, span, ask,
        ahead ? "asked for ahead of its fetch" : "its caller has been answered");
  }
}

}  // namespace tryst
