// The lines in which receives stand, and what a GrpcChannel says is over.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_channel.h"
#include "channel/grpc/grpc_fetch_op.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

constexpr size_t kMaxDelivered = 4096;
constexpr size_t kMostEmpty = 4096;    // Places that a table without entries may keep.
constexpr int kMaxOverInNote = 65536;  // Some 400 KB.
// How long the producer may wait for the word that a tensor has landed.
constexpr int64_t kNoteAfterNs = 2 * 1000 * 1000;
constexpr int64_t kNoteLongestNs = int64_t{2} * 1000 * 1000 * 1000;
// How long a call waits on for nobody, so that the next receive finds it.
constexpr int64_t kBatchLingersNs = int64_t{1000} * 1000 * 1000;

}  // namespace

size_t GrpcChannel::LineHash::operator()(const FetchOp* op) const {
  return absl::HashOf(op->step_id, op->key);
}

bool GrpcChannel::SameLine::operator()(const FetchOp* a, const FetchOp* b) const {
  return a->step_id == b->step_id && a->key == b->key;
}

void GrpcChannel::Enter(FetchOp* op) {
  const auto [it, is_first] = firsts_.insert(op);
  if (is_first) {
    op->tail = op;
    return StartAsking(op);
  }
  FetchOp* const first = *it;
  op->state = FetchOp::State::kBehind;
  op->prev = first->tail;
  first->tail->next = op;
  first->tail = op;
}

void GrpcChannel::StartAsking(FetchOp* op) {
  op->serial = next_serial_++;
  op->may_be_known = false;
  asks_.emplace(op->serial, op);
  if (MayCall()) {
    ++asked_;
    return Ask(op);
  }
  if (MayPark()) return Park(op);
  op->state = FetchOp::State::kInLine;
  line_.push_back(op->serial);
}

// A call that was cancelled counts until gRPC is done with it: what gRPC keeps of one is some
// 20 KB at both ends.
bool GrpcChannel::MayCall() const {
  return asked_ < options_.max_asked && streams_.size() < 2 * options_.max_asked + max_fetching_ &&
         unwanted_.size() < options_.max_waiting;
}

bool GrpcChannel::MayPark() const {
  return takes_batches_ && asked_ + parked_ < options_.max_waiting &&
         unwanted_.size() < options_.max_waiting;
}

void GrpcChannel::Park(FetchOp* op) {
  op->state = FetchOp::State::kToPark;
  ++parked_;
  to_park_.push_back(op->serial);
  poller_->FlushThisTurn(&end_of_turn_);
}

// At the end of a turn: who waits in line may be about to end in the same one, as all of a step
// that is aborted do.
void GrpcChannel::AskNext() {
  if (!closed_.ok()) return;
  for (; !line_.empty(); line_.pop_front()) {
    FetchOp* op = Find(line_.front());
    if (op == nullptr || op->state != FetchOp::State::kInLine) continue;
    if (MayCall()) {
      ++asked_;
      Ask(op);
    } else if (MayPark()) {
      Park(op);
    } else {
      break;
    }
  }
  for (; fetching_ < max_fetching_ && !ready_.empty(); ready_.pop_front()) {
    FetchOp* op = Find(ready_.front());
    if (op == nullptr || op->state != FetchOp::State::kReady) continue;
    --parked_;
    ++fetching_;
    const TraceSpan span = SpanOf(*op);
    op->attempt = std::make_unique<Attempt>(options_.max_tensor_bytes);
    op->attempt->incoming.Redirect(HostDestination(op->args));
    op->attempt->span = span;
    op->attempt->fetches = true;
    op->attempt->pinned_incarnation = parked_incarnation_;
    Ask(op);
  }
  SendBatch();
}

void GrpcChannel::ShrinkTables() {
  if (ops_.empty() && ops_.capacity() > kMostEmpty) {
    ops_ = {};
    asks_ = {};
    firsts_ = {};
  }
  if (left_.empty() && left_.capacity() > kMostEmpty) left_ = {};
}

void GrpcChannel::Leave(FetchOp* op, bool answered) {
  if (op->state == FetchOp::State::kNew) return;
  if (op->state == FetchOp::State::kBehind) {
    op->prev->next = op->next;
    if (op->next != nullptr) {
      op->next->prev = op->prev;
    } else {
      (*firsts_.find(op))->tail = op->prev;
    }
    return;
  }
  FetchOp* const heir = op->next;
  firsts_.erase(op);
  if (heir != nullptr) {
    heir->prev = nullptr;
    heir->tail = op->tail;
    firsts_.insert(heir);
    if (!answered) return HandOver(op, heir);
  }
  EndAsk(op, answered);
  if (heir != nullptr) StartAsking(heir);
}

// What `op` has asked for, its heir asks for now: the tensor that comes is the next of the key.
void GrpcChannel::HandOver(FetchOp* op, FetchOp* heir) {
  heir->serial = std::exchange(op->serial, 0);
  heir->state = std::exchange(op->state, FetchOp::State::kNew);
  heir->may_be_known = op->may_be_known;
  heir->attempt = std::move(op->attempt);
  asks_[heir->serial] = heir;
  if (heir->attempt == nullptr) return;
  Attempt& attempt = *heir->attempt;
  attempt.broken = absl::OkStatus();
  attempt.staged = Tensor();
  const Tensor destination = HostDestination(heir->args);
  if (heir->state == FetchOp::State::kBackingOff) {
    if (!attempt.incoming.Redirect(destination)) attempt.incoming.Reset(destination);
    return SetTimer(heir);
  }
  if (heir->state == FetchOp::State::kAsked && attempt.stream != nullptr && !attempt.landed &&
      attempt.stream->Redirect(destination)) {
    return;
  }
  // It has begun to land where it is of no use to the heir. The producer has it still.
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
  attempt.attempts = 0;
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
      if (!delivered) op->attempt->stream->Cancel();
    }
    --(op->attempt->fetches ? fetching_ : asked_);
  } else if (op->parked() && --parked_ == 0 && !batches_.empty() && !batches_back_off_) {
    poller_->SetTimer(&batch_timer_, poller_->now_ns() + kBatchLingersNs);
  }
  if (!line_.empty() || !ready_.empty()) poller_->FlushThisTurn(&end_of_turn_);
  asks_.erase(op->serial);
  over_.Insert(op->serial);
  if (!known) return;
  if (delivered) {
    if (delivered_.size() == kMaxDelivered) delivered_.erase(delivered_.begin());
    delivered_.insert(std::upper_bound(delivered_.begin(), delivered_.end(), op->serial),
                      op->serial);
  } else {
    unwanted_.emplace(op->serial, LineKey(op->step_id, op->key));
    left_[LineKey(op->step_id, op->key)] = op->serial;
  }
  SetNote(poller_->now_ns() + (delivered ? kNoteAfterNs : 0));
}

void GrpcChannel::FailLine(FetchOp* op, const absl::Status& why) {
  while (op->next != nullptr) Finish(op->next, why, Tensor(), false);
  Break(op, why);
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

// ---- What is over ----

std::vector<uint64_t> GrpcChannel::LeftOf(const FetchOp& op) const {
  if (left_.empty()) return {};
  const auto it = left_.find(LineKey(op.step_id, op.key));
  return it == left_.end() ? std::vector<uint64_t>() : std::vector<uint64_t>{it->second};
}

void GrpcChannel::FillOver(rpc::FetchRequest* request, int most, const std::vector<uint64_t>& first,
                           std::vector<uint64_t>* told) {
  uint64_t oldest = over_.below();
  delivered_.erase(delivered_.begin(),
                   std::lower_bound(delivered_.begin(), delivered_.end(), oldest));
  const auto tell = [request, told](uint64_t serial, bool delivered) {
    request->add_over(serial);
    if (!delivered) request->add_unwanted(serial);
    told->push_back(serial);
  };
  for (uint64_t serial : first) tell(serial, false);
  // What goes back to the producer first: `oldest` alone would say that it was delivered.
  for (const auto& [serial, line] : unwanted_) {
    if (request->over_size() >= most) {
      oldest = std::min(oldest, serial);
      break;
    }
    tell(serial, false);
  }
  for (auto it = delivered_.begin(); it != delivered_.end() && request->over_size() < most; ++it) {
    tell(*it, true);
  }
  request->set_oldest_serial(oldest);
}

void GrpcChannel::SetNote(int64_t at_ns) {
  if (!note_timer_.is_set() || at_ns < note_at_ns_)
    poller_->SetTimer(&note_timer_, note_at_ns_ = at_ns);
}

// Nobody repeats a note: one that is lost is in the next request, and a producer that never
// hears of it keeps the tensor for as long as it keeps those of a consumer that is gone.
void GrpcChannel::SendNote() {
  ShrinkTables();
  auto channel = directory_->ChannelTo(peer_);
  if (!channel.ok()) return;
  auto owned = std::make_unique<FetchStream>(
      poller_, nullptr, 0, [](FetchStream*) {}, [this](FetchStream* stream) { OnEnded(stream); });
  FetchStream* stream = owned.get();
  streams_.emplace(stream, std::move(owned));
  rpc::FetchRequest note;
  note.set_ends(true);
  note.set_channel(channel_);
  note.set_serial(next_serial_);
  FillOver(&note, kMaxOverInNote, {}, &stream->over_told);
  stream->EndWithin(kNoteLongestNs);
  const std::string bytes = note.SerializeAsString();
  stream->Start(events_->queue(), *channel, signer_->Sign(peer_, kFetchMethod, bytes), bytes);
  if (!closed_.ok()) stream->Hurry();
}

// The producer has read what this request said is over.
void GrpcChannel::ForgetTold(const FetchStream& stream) {
  for (uint64_t told : stream.over_told) {
    const auto delivered = std::lower_bound(delivered_.begin(), delivered_.end(), told);
    if (delivered != delivered_.end() && *delivered == told) delivered_.erase(delivered);
    const auto it = unwanted_.find(told);
    if (it == unwanted_.end()) continue;
    const auto left = left_.find(it->second);
    if (left != left_.end() && left->second == told) left_.erase(left);
    unwanted_.erase(it);
  }
  if (stream.over_told.size() >= kMaxOverInNote && !unwanted_.empty() && closed_.ok()) {
    SetNote(poller_->now_ns());  // It did not hold them all.
  }
  if (!line_.empty()) poller_->FlushThisTurn(&end_of_turn_);
}

}  // namespace tryst
