#include "channel/ops/fetch_ops.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"
#include "rendezvous/derived_status.h"

// Begin and end of a fetch. fetch_asking.cc has what is said of it to the peer.
namespace tryst {

FetchOps::FetchOps(Poller* poller, Bootstrap* bootstrap, FetchOpsOptions options,
                   FetchCounts* counts)
    : poller_(poller),
      ops_options_(std::move(options)),
      track_(ops_options_.trace == nullptr
                 ? nullptr
                 : ops_options_.trace->Track(TraceRole::kFetch, ops_options_.connect.peer,
                                             ops_options_.connect.path)),
      connector_(poller, bootstrap, ops_options_.connect, [this] { OnConnectTimer(); }),
      keys_(ops_options_.max_keys, ops_options_.max_keys_bytes),
      deliveries_(poller, this),
      counts_(counts) {}

// ---- Beginning ----

FetchOp* FetchOps::TakeOp() {
  return pool_.Take([this] { return MakeOp(); });
}

void FetchOps::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn&& done) {
  FetchOp* op = Foreseen(step_id, key);
  if (op == nullptr) {
    op = TakeOp();
    op->step = step_id;
    op->key = key;
  }
  op->args = args;
  op->done = std::move(done);
  Start(op);
}

bool FetchOps::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                         ManyDoneFn* done) {
  FetchJoin* join = deliveries_.NewJoin(keys.size(), args, std::move(*done));
  for (size_t i = 0; i < keys.size(); ++i) {
    FetchOp* op = Foreseen(step_id, keys[i]);
    if (op == nullptr) {
      op = TakeOp();
      op->step = step_id;
      op->key = keys[i];
    }
    if (!args.destinations.empty()) op->args.destination = args.destinations[i];
    op->join = join;
    op->index = i;
    Start(op);
  }
  return true;
}

void FetchOps::Start(FetchOp* op) {
  const Args& args = op->wants();
  ++counts_->fetches;
  op->begun_ns = now_ns();
  op->plain = args.cancellation == nullptr && args.deadline.is_never();
  // What was asked for ahead has its name already.
  const uint64_t id = op->has_slot ? op->span.id : 0;
  op->span.Begin(op->has_slot ? WaitsFor::kPeerSend
                 : open()     ? WaitsFor::kSlot
                              : WaitsFor::kConnection,
                 op->begun_ns);
  op->span.id = id;
  if (AskNow(op)) {
    OnBegun(op);
    return OnWaits(op);
  }
  if (op->state == FetchState::kQueued) lines_.queued.Push(op);
  OnBegun(op);
  if (!closed_.ok()) return EndEarly(op, closed_);
  if (op->key.text().size() > ops_options_.max_key_bytes) {
    return EndEarly(
        op, absl::InvalidArgumentError("the tensor's key is too long to be sent to the peer"));
  }
  const absl::Status may_fill = MayFill(op->destination());
  if (!may_fill.ok()) return EndEarly(op, may_fill);
  if (args.cancellation != nullptr) {
    op->cancel_token = args.cancellation->Register([op, poller = poller_] { op->Cancel(poller); });
    if (op->cancel_token == Cancellation::kNoToken) {
      return EndEarly(op, Cancelled());
    }
  }
  if (!args.deadline.is_never()) poller_->SetTimer(op, args.deadline.at_ns());
  OnWaits(op);
}

// ---- Ending ----

void FetchOps::HasNoRow(const FetchOp& op, FetchEvent event) {
  TRYST_CHECK(false) << FetchEventName(event) << " of a fetch that " << FetchStateName(op.state);
  abort();
}

void FetchOps::EndEarly(FetchOp* op, const absl::Status& why) {
  const FetchState from = op->state;
  const bool known = from == FetchState::kInSlot && op->asked_before;
  switch (Advance(op, known ? FetchEvent::kEndAsked : FetchEvent::kEnd)) {
    case FetchAction::kReport:
      lines_.queued.Remove(op);
      turns_.StopFollowing(op);
      DropTicket(op);
      DropMemory(op);
      LastWord(op);
      return Report(op, why, Tensor(), false, When::kAtEndOfTurn);
    case FetchAction::kRefuse:
      Refuse(op);
      DropMemory(op);
      LastWord(op);
      return Report(op, why, Tensor(), false, When::kAtEndOfTurn);
    case FetchAction::kCancel:
      OnLeaves(op, from);
      StartLeaving(op, why);
      if (ops_options_.leave_ns > 0) {
        return poller_->SetTimer(op, now_ns() + ops_options_.leave_ns);
      }
      break;
    case FetchAction::kRemember:
      if (op->ending) return;
      TRYST_REACHED("sim: a fetch ends between the break and the drain");
      op->ending = true;
      op->end_status = why;
      break;
    default:
      if (from != FetchState::kLeaving || !std::exchange(op->moves, false)) return;
      op->end_status = why;
      break;
  }
  // A landing of ours stays aside until the last word; the caller's memory is the caller's only
  // when nobody writes it any more.
  if (!MayBeWritten(*op)) Report(op, why, Tensor(), false, When::kAtEndOfTurn);
}

// Tells the peer, now or over the next connection, and waits for its answer.
void FetchOps::StartLeaving(FetchOp* op, const absl::Status& why) {
  op->span.Enter(WaitsFor::kLastWord, now_ns());
  op->ending = true;
  op->end_status = why;
  // A request not sent yet (a replay, a second one) need not go out any more.
  op->send_request = op->send_park = false;
  if (!open()) return;
  op->send_cancel = true;
  SendSoon(op);
}

void FetchOps::Report(FetchOp* op, absl::Status status, Tensor&& tensor, bool is_dead, When when) {
  if (op->reported) return;
  op->reported = true;
  if (IsAhead(*op)) {
    op->untold = true;
    OnEndAhead(op);
    return OnOpDelivered(op);
  }
  ++(status.ok() ? counts_->ended_ok : counts_->ended_failed);
  if (track_ != nullptr) {
    op->traced_code = status.ok() ? absl::StatusCode::kOk : status.code();
    op->traced_bytes = tensor.bytes();
    op->span.Enter(WaitsFor::kExecutor, now_ns());
  }
  if (when == When::kNow && deliveries_.InPlace(*op)) {
    return deliveries_.In(op, std::move(status), std::move(tensor), is_dead);
  }
  poller_->CancelTimer(op);
  if (op->cancel_token != Cancellation::kNoToken) {
    // A callback that is running has only a task to post: waiting for it is brief.
    op->wants().cancellation->Deregister(op->cancel_token);
    op->cancel_token = Cancellation::kNoToken;
  }
  deliveries_.Deliver(op, std::move(status), std::move(tensor), is_dead, when);
}

void FetchOps::LastWord(FetchOp* op) {
  if (op->state != FetchState::kEnding) Advance(op, FetchEvent::kComplete);
  if (op->has_slot) FreeSlot(op);
  if (op->ticket != 0) tickets_.Unpark(*op);
  op->ticket = 0;
  keys_.Leave(op);
  AskFollower(op);
  if (tickets_.parked() == 0 && lines_.queued.empty()) parking_.Relax();
  if (!op->send_cancel) send_line_.Remove(op);
  FreeIfDone(op);
}

void FetchOps::OnOpDelivered(FetchOp* op) {
  op->delivered = true;
  FreeIfDone(op);
}

void FetchOps::FreeIfDone(FetchOp* op) {
  if (op->state != FetchState::kEnding || !op->delivered || send_line_.Holds(op) ||
      op->cancel_posted.load()) {
    return;
  }
  op->state = FetchState::kFree;
  if (track_ != nullptr && !op->untold) {
    ops_options_.trace->End(op->span, track_, op->step, op->key, op->traced_bytes, op->traced_code,
                            now_ns());
  }
  pool_.Free(op);
  if (!idle_timer_.is_set() && KeepsMuch()) {
    poller_->SetTimer(&idle_timer_, now_ns() + kIdleForNs);
  }
}

void FetchOps::GiveMemoryBack() {
  if (pool_.is_idle_and_large()) {
    poller_->NoteBurstOver(pool_.all().size());
    pool_.Clear();
    DropOps();
  }
  if (!keys_.has_many() || !IsIdle()) return;
  // The keys' names cost the next step more than its ops, so they stay for longer.
  if (std::exchange(fetches_then_, counts_->fetches) != counts_->fetches) {
    return poller_->SetTimer(&idle_timer_, now_ns() + kKeysIdleForNs);
  }
  keys_.Clear();
  DropKeys();
  poller_->NoteBurstOver(Poller::kLargeBurst);
}

void FetchOps::OnOpCancelled(FetchOp* op) {
  EndByCaller(op, Cancelled());
  FreeIfDone(op);
}

std::string FetchOps::WhyLate(const FetchOp&) const {
  return connector_.why.ok() ? "" : absl::StrCat(" (", connector_.why.message(), ")");
}

void FetchOps::OnOpTimer(FetchOp* op) {
  if (op->state == FetchState::kLeaving && ops_options_.leave_ns > 0) {
    // The peer is slow to answer. Its slot stays with it; the caller need not.
    return Report(op, op->end_status, Tensor(), false, When::kAtEndOfTurn);
  }
  EndByCaller(op, Late(FetchStateName(op->state), ops_options_.connect.peer, WhyLate(*op)));
}

absl::Status FetchOps::MayTake(const FetchOp& op, DType dtype, const TensorShape& shape,
                               uint64_t bytes) const {
  absl::Status status = FitsLimit(bytes, ops_options_.max_tensor_bytes);
  if (status.ok()) status = FitsDestination(op.destination(), dtype, shape);
  return status;
}

void FetchOps::AbortStep(int64_t step_id, const absl::Status& why) {
  for (FetchOp* op : pool_.all()) {
    if (op->step == step_id) EndEarly(op, MarkDerived(why));
  }
}

// ---- Handing over ----

// Passes the request of `op`, as it stands, to the next fetch of its key. False: there is none, or
// the request cannot be passed.
bool FetchOps::HandOver(FetchOp* op) {
  if (op->followers == nullptr || op->ending || IsAhead(*op)) return false;
  if (FindFetchRow(op->state, FetchEvent::kHandOver) == nullptr) return false;
  FetchOp* next = op->followers->line.front();
  if (!PassMemory(op, next)) return false;
  TRYST_REACHED("sim: a fetch hands over what it has asked for");
  turns_.Succeed(op);
  next->state = op->state;
  Advance(op, FetchEvent::kHandOver);
  next->span.Enter(op->span.waits_for(), now_ns());
  next->span.id = std::exchange(op->span.id, 0);  // It names what was asked for.
  next->order = op->order;
  slots_.Pass(op, next);
  next->send_request = std::exchange(op->send_request, false);
  next->send_park = std::exchange(op->send_park, false);
  next->send_waits = std::exchange(op->send_waits, false);
  next->asked_before = op->asked_before;
  tickets_.Pass(op, next);
  next->park_asked = op->park_asked;
  next->here = std::exchange(op->here, false);
  // For a slot, or for room.
  if (op->wait_link.line != nullptr) op->wait_link.line->Replace(op, next);
  send_line_.Replace(op, next);
  keys_.Join(next, op->asked_of);
  keys_.Leave(op);
  return true;
}

// Cancelled, or late.
void FetchOps::EndByCaller(FetchOp* op, const absl::Status& why) {
  if (!HandOver(op)) return EndEarly(op, why);
  LastWord(op);
  Report(op, why, Tensor(), false, When::kAtEndOfTurn);
}

// The op has had its last word: the one behind it is next to be asked for, with those behind that.
void FetchOps::AskFollower(FetchOp* op) {
  FetchOp* next = turns_.Succeed(op);
  if (next == nullptr) return;
  lines_.queued.PushFront(next);
  if (open()) words_->FlushSoon();
}

// ---- Another path ----

std::vector<WaitingFetch> FetchOps::TakeWaiting() {
  std::vector<WaitingFetch> taken;
  while (!lines_.queued.empty()) TakeOut(lines_.queued.PopFront(), &taken);
  return taken;
}

void FetchOps::TakeOut(FetchOp* op, std::vector<WaitingFetch>* taken) {
  DropMemory(op);
  DropTicket(op);
  op->state = FetchState::kEnding;
  if (op->cancel_token != Cancellation::kNoToken &&
      !op->wants().cancellation->TryDeregister(op->cancel_token)) {
    // The caller has cancelled meanwhile, so the fetch ends here.
    TRYST_REACHED("rare: a fetch is cancelled while it changes its path");
    LastWord(op);
    return Report(op, Cancelled(), Tensor(), false, When::kAtEndOfTurn);
  }
  op->cancel_token = Cancellation::kNoToken;
  poller_->CancelTimer(op);
  ++counts_->moved;
  WaitingFetch fetch{op->step, op->key, op->wants(), std::move(op->done)};
  if (op->join != nullptr) {
    fetch.args.destination = op->destination();
    fetch.args.executor = nullptr;
    fetch.done = deliveries_.BackToJoin(op);
  }
  taken->push_back(std::move(fetch));
  op->args = Args();
  op->done = nullptr;
  op->reported = op->delivered = op->untold = true;
  LastWord(op);
}

// ---- Views ----

bool FetchOps::Drained() const {
  return connector_.state() == Connector::State::kClosed && !connector_.hello_out() &&
         pool_.live() == 0 && deliveries_.idle();
}

void FetchOps::ListOps(LiveOps* ops) const {
  for (const FetchOp* op : pool_.all()) {
    if (op->state == FetchState::kFree) continue;
    LiveOp live;
    live.peer = ops_options_.connect.peer;
    live.path = ops_options_.connect.path;
    live.step = op->step;
    live.key = op->key;
    live.span = op->span;
    live.bytes = BytesOf(*op);
    // Connected since, without a slot yet.
    if (open() && live.span.waits_for() == WaitsFor::kConnection) {
      live.span.Enter(WaitsFor::kSlot, std::max(connector_.since_ns(), live.span.since_ns()));
    }
    if (!open()) live.detail = std::string(connector_.why.message());
    if (IsAhead(*op)) live.detail = "asked for ahead of its fetch";
    if (op->delivered) live.detail = "its caller has been answered";
    ops->Add(std::move(live));
  }
}

}  // namespace tryst
