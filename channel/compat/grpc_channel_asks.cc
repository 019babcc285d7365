// Which receives are requested by a call, in a batch or later, and how a GrpcChannel tells the
// producer what has ended.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "channel/compat/grpc_batches.h"
#include "channel/compat/grpc_channel.h"
#include "channel/compat/grpc_fetch_op.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

constexpr size_t kMostEmpty = 4096;    // Slots that an empty table may keep.
constexpr int kMaxOverInNote = 65536;  // About 400 KB.
// How soon the producer is told that a tensor has landed, if no request does it; and the longest
// pause between notes.
constexpr int64_t kNoteAfterNs = 2 * 1000 * 1000;
constexpr int64_t kNoteLongestNs = int64_t{2} * 1000 * 1000 * 1000;

}  // namespace

void GrpcChannel::Enter(FetchOp* op) {
  if (lines_->Enter(op)) StartAsking(op);
}

void GrpcChannel::StartAsking(FetchOp* op) {
  op->serial = next_serial_++;
  op->may_be_known = false;
  asks_.emplace(op->serial, op);
  const bool may_call = MayCall();
  if ((!may_call || batches_->Suits(*op)) && batches_->MayAdd()) return batches_->Add(op);
  if (may_call) {
    ++asked_;
    return Ask(op);
  }
  op->state = FetchOp::State::kInLine;
  line_.push_back(op->serial);
}

// A cancelled call counts until gRPC has freed it, because each takes about 20 KB at both ends.
bool GrpcChannel::MayCall() const {
  return asked_ < options_.max_asked && calls_.size() < 2 * options_.max_asked + max_fetching_ &&
         over_.unwanted() < options_.max_waiting;
}

// Runs at the end of a turn, because receives in line may end in the same turn: when a step is
// aborted, all of them do.
void GrpcChannel::AskNext() {
  if (!closed_.ok()) return;
  for (; !line_.empty(); line_.pop_front()) {
    FetchOp* op = Find(line_.front());
    if (op == nullptr || op->state != FetchOp::State::kInLine) continue;
    if (MayCall()) {
      ++asked_;
      Ask(op);
    } else if (batches_->MayAdd()) {
      batches_->Add(op);
    } else {
      break;
    }
  }
  for (; fetching_ < max_fetching_ && !ready_.empty(); ready_.pop_front()) {
    FetchOp* op = Find(ready_.front());
    if (op == nullptr || op->state != FetchOp::State::kReady) continue;
    StartFetching(op);
    Ask(op);
  }
  batches_->Send();
}

void GrpcChannel::StartFetching(FetchOp* op) {
  batches_->Fetched();
  ++fetching_;
  const TraceSpan span = op->Span();
  op->attempt = std::make_unique<Attempt>(options_.max_tensor_bytes);
  op->attempt->incoming.Redirect(op->args.destination);
  op->attempt->span = span;
  op->attempt->fetches = true;
  op->attempt->pinned_incarnation = batches_->asked_incarnation();
}

void GrpcChannel::ShrinkTables() {
  if (ops_.empty() && ops_.capacity() > kMostEmpty) {
    poller_->NoteBurstOver(ops_.capacity());
    ops_ = {};
    asks_ = {};
    lines_->Shrink();
  }
  over_.Shrink(kMostEmpty);
}

void GrpcChannel::Leave(FetchOp* op, bool answered) {
  if (op->state == FetchOp::State::kNew) return;
  if (op->state == FetchOp::State::kBehind) return lines_->LeaveMiddle(op);
  FetchOp* const heir = lines_->LeaveFront(op);
  if (heir != nullptr && !answered) return HandOver(op, heir);
  EndAsk(op, answered);
  if (heir != nullptr) StartAsking(heir);
}

// `heir` takes over the request of `op`: the tensor that arrives is the next of the key.
void GrpcChannel::HandOver(FetchOp* op, FetchOp* heir) {
  heir->serial = std::exchange(op->serial, 0);
  heir->state = std::exchange(op->state, FetchOp::State::kNew);
  heir->may_be_known = op->may_be_known;
  heir->attempt = std::move(op->attempt);
  asks_[heir->serial] = heir;
  if (heir->attempt == nullptr) return;
  Attempt& attempt = *heir->attempt;
  const TraceSpan former = attempt.span;
  attempt.span.Begin(WaitsFor::kSlot, heir->began_ns);
  attempt.span.Enter(former.waits_for(), poller_->now_ns());
  attempt.span.id = former.id;
  const Tensor destination = heir->args.destination;
  if (heir->state == FetchOp::State::kBackingOff) {
    if (!attempt.incoming.Redirect(destination)) attempt.incoming.Reset(destination);
    return SetTimer(heir);
  }
  if (heir->state == FetchOp::State::kAsked && attempt.stream != nullptr && !attempt.landed &&
      attempt.stream->Redirect(destination)) {
    return;
  }
  // The tensor has begun to land in memory that the heir cannot use. The producer still has it.
  if (attempt.stream != nullptr) {
    attempt.stream->Detach();
    attempt.stream->Cancel();
    attempt.stream = nullptr;
    heir->may_be_known = true;
  }
  if (attempt.incoming.header_seen()) {
    attempt.pinned_incarnation = attempt.incoming.header().producer_incarnation();
  }
  attempt.failing_since_ns = 0;
  attempt.digest_was_wrong = false;
  attempt.incoming.Reset(destination);
  Ask(heir);
}

void GrpcChannel::EndAsk(FetchOp* op, bool delivered) {
  bool known = op->may_be_known;
  if (op->attempt != nullptr) {
    if (op->attempt->stream != nullptr) {
      known = true;
      op->attempt->stream->Detach();
      if (!delivered) calls_.CancelSoon(op->attempt->stream);
    }
    --(op->attempt->fetches ? fetching_ : asked_);
  } else if (op->parked()) {
    batches_->Left();
  }
  if (!line_.empty() || !ready_.empty()) poller_->FlushThisTurn(this);
  asks_.erase(op->serial);
  over_.Add(op->serial, {op->step_id, op->key}, known, delivered);
  const bool may_wait = delivered && !over_.MustBeTold();
  if (known) SetNote(poller_->now_ns() + (may_wait ? kNoteAfterNs : 0));
}

void GrpcChannel::FailLine(FetchOp* op, const absl::Status& why) {
  while (op->next != nullptr) Finish(op->next, why, Tensor(), false);
  Finish(op, why, Tensor(), false);
}

void GrpcChannel::FailWaiting(const absl::Status& why) {
  std::vector<uint64_t> ids;
  for (const auto& [serial, op] : asks_) {
    if (!op->has_call()) ids.push_back(op->id);
  }
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) {
    if (FetchOp* op = FindOp(id)) FailLine(op, why);
  }
}

// ---- Telling what has ended ----

// One note at a time: a call each for deadlines that pass one by one would keep us from the next.
void GrpcChannel::SetNote(int64_t at_ns) {
  if (notes_out_ > 0) {
    note_due_ = true;
    return;
  }
  if (!note_timer_.is_set() || at_ns < note_at_ns_)
    poller_->SetTimer(&note_timer_, note_at_ns_ = at_ns);
}

// If it is lost, the next request tells the same, or a later note while a tensor has to go back. A
// producer that never hears of it keeps the tensor as long as it does for a lost consumer.
void GrpcChannel::SendNote() {
  ShrinkTables();
  auto channel = calls_.ChannelToPeer();
  if (!channel.ok()) return SetNextNote();
  FetchStream* stream = calls_.New(
      nullptr, 0, [](FetchStream*) {}, [this](FetchStream* ended) { OnNoteEnded(ended); });
  ++notes_out_;
  note_due_ = false;
  rpc::FetchRequest note;
  note.set_ends(true);
  note.set_channel(calls_.number());
  note.set_serial(next_serial_);
  over_.Fill(&note, kMaxOverInNote, {}, &stream->over_told);
  stream->EndWithin(kNoteLongestNs);
  calls_.Start(stream, *channel, &note);
  if (!closed_.ok()) stream->Hurry();
}

void GrpcChannel::OnNoteEnded(FetchStream* stream) {
  --notes_out_;
  const size_t before = over_.unwanted();
  OnEnded(stream);
  if (over_.unwanted() < before) note_pause_ns_ = kFirstNotePauseNs;
  if (!closed_.ok()) return;
  if (std::exchange(note_due_, false)) return SetNote(poller_->now_ns());
  SetNextNote();
}

// What has to go back does not wait for the next request.
void GrpcChannel::SetNextNote() {
  if (!closed_.ok() || over_.unwanted() == 0) return;
  SetNote(poller_->now_ns() + note_pause_ns_);
  note_pause_ns_ = std::min(2 * note_pause_ns_, kLongestNotePauseNs);
}

// The producer has read which fetches this request named as ended.
void GrpcChannel::ForgetTold(const FetchStream& stream) {
  if (!stream.over_heard()) return;
  over_.Forget(stream.over_told);
  if (stream.over_told.size() >= kMaxOverInNote && !over_.empty() && closed_.ok()) {
    SetNote(poller_->now_ns());  // The request had no room for all of them.
  }
  if (!line_.empty()) poller_->FlushThisTurn(this);
}

}  // namespace tryst
