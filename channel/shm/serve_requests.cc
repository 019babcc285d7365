#include "channel/shm/serve_requests.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"

namespace tryst {

using shm_wire::CellType;

namespace {

constexpr int64_t kAcceptedNs = 2'000;  // How often acceptances are read.

}  // namespace

ShmRequests::ShmRequests(ShmServeLink* link, TensorSource* source, const std::string& consumer,
                         std::function<void()> on_idle)
    : link_(link),
      source_(source),
      consumer_(consumer),
      on_idle_(std::move(on_idle)),
      track_(link->options.trace == nullptr
                 ? nullptr
                 : link->options.trace->Track(TraceRole::kServe, consumer, "shm")),
      keys_(consumer, shm_wire::kMaxKeys, shm_wire::kMaxKeyBytes, shm_wire::kMaxKeysBytes),
      answers_(link, this),
      takes_(link->hub->poller(), source, this, consumer, shm_wire::kMaxParked,
             &link->counters.given_back) {}

void ShmRequests::Open(uint64_t epoch) {
  ops_.Make(link_->sizes.slots);
  for (size_t slot = 0; slot < ops_.size(); ++slot) ops_[slot].slot = static_cast<uint16_t>(slot);
  takes_.SetEpoch(epoch);
}

// ---- What the consumer says ----

absl::Status ShmRequests::OnCell(const shm_wire::RequestCell& cell) {
  if (key_bytes_ != 0) {
    if (cell.head.type != CellType::kMore)
      return absl::DataLossError("the consumer broke the protocol: a key is incomplete");
    return OnKeyText(cell.body, sizeof(cell.body));
  }
  const absl::Status may_hear = words_.MayHearMore(ops_.size());
  if (!may_hear.ok()) return may_hear;
  switch (cell.head.type) {
    case CellType::kKey:
      if (cell.head.number >= shm_wire::kMaxKeys || cell.head.slot == 0 ||
          cell.head.slot > shm_wire::kMaxKeyBytes) {
        return absl::DataLossError(
            "the consumer broke the protocol: a key that it names has a number out of range, or is "
            "empty or too long");
      }
      key_id_ = cell.head.number;
      key_bytes_ = cell.head.slot;
      key_text_.clear();
      return OnKeyText(cell.body, sizeof(cell.body));
    case CellType::kRequest:
      return OnRequest(cell);
    case CellType::kCancel:
      return OnCancel(cell);
    case CellType::kPulled:
      return OnPulled(cell);
    case CellType::kRefused:
      return OnRefused(cell);
    case CellType::kPark:
      return OnPark(cell);
    case CellType::kUnwanted:
      return OnUnwanted(cell);
    case CellType::kPing:
      // If there is no room for it, the cells that fill the ring are a sign of life, too.
      if (link_->Say(CellType::kPong, 0, 0)) link_->FlushSoon();
      return absl::OkStatus();
    default:
      return absl::DataLossError(
          "the consumer broke the protocol: it sent a request of no known type");
  }
}

absl::Status ShmRequests::OnKeyText(const uint8_t* text, size_t bytes) {
  const size_t taken = std::min(bytes, key_bytes_ - key_text_.size());
  key_text_.append(reinterpret_cast<const char*>(text), taken);
  if (key_text_.size() < key_bytes_) return absl::OkStatus();
  key_bytes_ = 0;
  return keys_.Tell(key_id_, key_text_);
}

absl::StatusOr<ShmServeOp*> ShmRequests::SlotFor(const shm_wire::RequestCell& cell,
                                                 Former* former) {
  if (cell.head.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it sent a request on a slot that does not exist");
  ShmServeOp* op = &ops_[cell.head.slot];
  const ServeAction* action = FindServeAction(op->state, ServeEvent::kRequest);
  if (action == nullptr) return OutOfPlace(op->state, ServeEvent::kRequest, op->slot);
  // The consumer uses the slot again, so it has accepted the former tensor. That tensor is
  // released, and the acceptance noted, after the answer.
  if (*action == ServeAction::kAcceptFirst) TakeFormer(op, former);
  op->request.generation = cell.head.generation;
  op->request.flags = cell.head.flags;
  ++link_->counters.requests;
  return op;
}

absl::Status ShmRequests::OnRequest(const shm_wire::RequestCell& cell) {
  ToldKey* known = keys_.Find(cell.head.number);
  if (known == nullptr) {
    TRYST_REACHED("hostile: a request for a key that was not told");
    return absl::DataLossError(
        "the consumer broke the protocol: it asks for a key that it never named");
  }
  Former former;
  const auto slot = SlotFor(cell, &former);
  if (!slot.ok()) return slot.status();
  ShmServeOp* op = *slot;
  memcpy(&op->request.step, cell.body, sizeof(op->request.step));
  op->request.ticket = 0;
  if (link_->version >= shm_wire::kLinkParks) {
    memcpy(&op->request.ticket, cell.body + 8, sizeof(op->request.ticket));
  }
  op->span.Begin(WaitsFor::kLocalSend, link_->now_ns());
  if (op->request.ticket != 0 || !TakeHere(op, known)) {
    const ShmRequest& request = op->request;
    op->request.key = known->key;
    op->state = ServeState::kTaking;
    if (!takes_.Unpark(request.ticket, request.step, request.key, op)) {
      takes_.Start(request.step, request.key, op);
    }
    if ((request.flags & shm_wire::kMayPark) != 0) Park(op, request.ticket);
  }
  if (former.was) EndTrace(former);
  return absl::OkStatus();
}

absl::Status ShmRequests::OnCancel(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it cancels a slot that does not exist");
  ShmServeOp* op = &ops_[cell.head.slot];
  ++link_->counters.cancelled;
  const bool always = link_->version >= shm_wire::kLinkParks;
  const bool ours =
      op->state != ServeState::kFree && op->request.generation == cell.head.generation;
  const bool answered = op->state == ServeState::kSent || op->state == ServeState::kPulled;
  // The tensor is given back before GONE, so that the next request finds it.
  if (ours) GiveUp(op);
  // Before version 3, an answer that crosses the CANCEL is also the answer to that CANCEL.
  const bool says = always || (ours && !answered);
  if (says && link_->open) {
    words_.Gone(cell.head.slot, cell.head.generation);
    link_->FlushSoon();
  }
  return absl::OkStatus();
}

absl::Status ShmRequests::OnRefused(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it refuses the tensor of a slot that does not exist");
  ShmServeOp* op = &ops_[cell.head.slot];
  if (FindServeAction(op->state, ServeEvent::kRefuse) == nullptr ||
      op->request.generation != cell.head.generation) {
    return OutOfPlace(op->state, ServeEvent::kRefuse, op->slot);
  }
  TRYST_REACHED("shm: a tensor is refused");
  GiveUp(op);
  return absl::OkStatus();
}

absl::Status ShmRequests::OnPulled(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it says that it has read the tensor of a slot that does "
        "not exist");
  ShmServeOp* op = &ops_[cell.head.slot];
  const bool failed = (cell.head.flags & shm_wire::kPullFailed) != 0;
  const ServeEvent event = failed ? ServeEvent::kNotRead : ServeEvent::kRead;
  const ServeAction* action = FindServeAction(op->state, event);
  if (action == nullptr || op->request.generation != cell.head.generation) {
    return OutOfPlace(op->state, event, op->slot);
  }
  if (*action == ServeAction::kAccept) {
    ++link_->counters.pulled;
    Release(op);
    return absl::OkStatus();
  }
  link_->can_pull = false;
  op->state = ServeState::kReady;
  answers_.Answer(op);
  return absl::OkStatus();
}

// ---- Taking ----

// The usual case: the tensor is here.
bool ShmRequests::TakeHere(ShmServeOp* op, ToldKey* known) {
  if (!takes_.Here(op->request.step, known, &taken_)) return false;
  op->request.key = known->key;
  op->taken.MoveFrom(&taken_);
  SetReady(op);
  answers_.Answer(op);
  return true;
}

void ShmRequests::OnTakeEnded(TakingOp* base, ServeTake* take) {
  ShmServeOp* op = static_cast<ShmServeOp*>(base);
  op->status = std::move(take->status);
  op->taken.MoveFrom(&take->taken);
  SetReady(op);
  // If the link is ending, the take may have met a tensor that another request gave back. The
  // consumer still reads and must not get it here, out of turn.
  if (link_->open) answers_.Answer(op);
}

// If the outcome is on its way, that outcome is the answer.
void ShmRequests::Park(ShmServeOp* op, uint64_t ticket) {
  if (!takes_.Park(op, ticket, op->span.since_ns())) return;
  op->state = ServeState::kFree;
  words_.Parked(op->slot, op->request.generation);
  link_->FlushSoon();
}

absl::Status ShmRequests::OnPark(const shm_wire::RequestCell& cell) {
  if (cell.head.slot >= ops_.size())
    return absl::DataLossError(
        "the consumer broke the protocol: it lets go of a slot that does not exist");
  uint64_t ticket;
  memcpy(&ticket, cell.body, sizeof(ticket));
  ShmServeOp* op = &ops_[cell.head.slot];
  const bool waits = op->state == ServeState::kTaking &&
                     op->request.generation == cell.head.generation &&
                     link_->version >= shm_wire::kLinkParks;
  if (waits) Park(op, ticket);
  return absl::OkStatus();
}

absl::Status ShmRequests::OnUnwanted(const shm_wire::RequestCell& cell) {
  uint64_t tickets[shm_wire::kRequestTickets];
  const auto count = ReadTickets(cell, tickets);
  if (count.ok())
    link_->counters.cancelled += takes_.DropTickets(absl::MakeConstSpan(tickets, *count));
  return count.status();
}

void ShmRequests::SetReady(ShmServeOp* op) {
  op->state = ServeState::kReady;
  op->span.Enter(WaitsFor::kWireRoom, link_->now_ns());
}

void ShmRequests::GiveUp(ShmServeOp* op) {
  if (op->state == ServeState::kTaking) {
    Release(op);
    return takes_.Drop(op);
  }
  const bool has_tensor = op->status.ok();
  const int64_t step = op->request.step;
  const TensorKey key = op->request.key;
  Taken taken = op->taken.ToGiveBack();
  // So that its trace does not count it as accepted.
  if (has_tensor) op->status = absl::CancelledError();
  Release(op);
  if (!has_tensor) return;
  ++link_->counters.given_back;
  source_->GiveBack(step, key, std::move(taken));
}

void ShmRequests::OnSent(ShmServeOp* op) {
  op->state = ServeState::kSent;
  op->span.Enter(WaitsFor::kAcceptance, link_->now_ns());
  if (sent_line_.size() >= 4 * ops_.size()) ForgetMovedOn();
  sent_line_.push_back({op, op->request.generation, link_->replies.written()});
}

// While every turn finds requests, acceptances are not read, and slots may be used again many
// times.
void ShmRequests::ForgetMovedOn() {
  for (size_t count = sent_line_.size(); count > 0; --count) {
    const SentCell sent = sent_line_.front();
    sent_line_.pop_front();
    if (!MovedOn(sent)) sent_line_.push_back(sent);
  }
}

absl::StatusOr<bool> ShmRequests::ReleaseAccepted() {
  if (sent_line_.empty() || link_->now_ns() - accepted_checked_ns_ < kAcceptedNs) return false;
  accepted_checked_ns_ = link_->now_ns();
  if (link_->options.before_accepted) link_->options.before_accepted();
  const uint32_t accepted =
      link_->given->view().header->replies_accepted.load(std::memory_order_acquire);
  if (static_cast<int32_t>(link_->replies.written() - accepted) < 0) {
    TRYST_REACHED("hostile: more accepted than was sent");
    return absl::DataLossError("the consumer broke the protocol: it accepts more than it was sent");
  }
  // A refusal that was written before `accepted` may have arrived after the last look at the ring.
  if (link_->requests.Ready()) return false;
  bool any = false;
  while (!sent_line_.empty()) {
    const SentCell& sent = sent_line_.front();
    const bool moved_on = MovedOn(sent);
    if (!moved_on && static_cast<int32_t>(accepted - sent.cell) < 0) break;
    ShmServeOp* op = sent.op;
    sent_line_.pop_front();
    any = true;
    if (!moved_on) Release(op);
  }
  if (any) accepted_pause_ns_ = 0;
  return any;
}

int64_t ShmRequests::LookAgainNs() {
  if (sent_line_.empty()) return 0;
  accepted_checked_ns_ = 0;
  accepted_pause_ns_ = std::clamp<int64_t>(accepted_pause_ns_ * 2, 1'000'000, 1'000'000'000);
  return accepted_pause_ns_;
}

void ShmRequests::SayWaiting() {
  answers_.TellGoneSegments();
  if (!waits_for_room() || !link_->replies.HasRoom(1)) return;
  if (has_words()) {
    SayWords();
    link_->FlushSoon();
  }
  if (words_.empty()) answers_.AnswerWaiting();
}

void ShmRequests::SayWords() {
  words_.SayAll([this](bool is_parked, uint16_t slot, uint32_t generation) {
    return link_->Say(is_parked ? CellType::kParked : CellType::kGone, slot, generation);
  });
  takes_.TellHere(shm_wire::kReplyTickets, [this](absl::Span<const uint64_t> tickets) {
    if (!link_->replies.HasRoom(1)) return false;
    shm_wire::ReplyCell* cell = reinterpret_cast<shm_wire::ReplyCell*>(link_->replies.cell());
    cell->head.type = CellType::kHere;
    cell->head.flags = 0;
    cell->head.slot = 0;
    cell->head.generation = 0;
    WriteTickets(tickets, cell);
    link_->replies.Publish();
    return true;
  });
}

void ShmRequests::TakeFormer(ShmServeOp* op, Former* former) {
  former->was = true;
  const bool was_sent = op->state == ServeState::kSent || op->state == ServeState::kPulled;
  former->code = was_sent ? absl::StatusCode::kOk : absl::StatusCode::kCancelled;
  if (!op->status.ok()) former->code = op->status.code();
  // Of strings, what they hold: the consumer traces that, too.
  former->bytes =
      op->encoded.empty() || op->sent_bytes == 0 ? op->sent_bytes : op->taken.tensor.bytes();
  former->tensor = std::move(op->taken.tensor);
  if (track_ != nullptr) {
    former->span = op->span;
    former->span.id = IdOf(*op);
    former->step = op->request.step;
    former->key = std::move(op->request.key);
  }
  Free(op);
}

void ShmRequests::EndTrace(const Former& former) {
  if (track_ == nullptr) return;
  link_->options.trace->End(former.span, track_, former.step, former.key, former.bytes, former.code,
                            link_->now_ns());
}

// Frees the slot and releases what it held.
void ShmRequests::Release(ShmServeOp* op) {
  Former former;  // Destroyed last, because the deleter of a caller's bytes may call us.
  TakeFormer(op, &former);
  EndTrace(former);
}

void ShmRequests::Free(ShmServeOp* op) {
  answers_.Forget(op, op->state == ServeState::kSent || op->state == ServeState::kPulled);
  op->state = ServeState::kFree;
  op->stage = StorageRef();
  op->position = 0;
  op->digest = 0;
  op->sent_bytes = 0;
  op->encoded.clear();
  if (!op->status.ok()) op->status = absl::OkStatus();
  if (op->taken.device_context != nullptr) op->taken.device_context = nullptr;
}

void ShmRequests::GiveUpUnanswered() {
  takes_.SetEpoch(0);
  takes_.ForgetPlace();
  for (ShmServeOp& op : ops_) {
    if (op.state == ServeState::kTaking) GiveUp(&op);
  }
  takes_.DropUnspoken();
  for (ShmServeOp& op : ops_) {
    const bool answered = op.state == ServeState::kSent || op.state == ServeState::kPulled;
    if (op.state != ServeState::kFree && !answered) GiveUp(&op);
  }
  words_.clear();
}

void ShmRequests::SettleByWord() {
  const shm_wire::LinkHeader& header = *link_->given->view().header;
  for (ShmServeOp& op : ops_) {
    if (op.state != ServeState::kSent && op.state != ServeState::kPulled) continue;
    if (WasAccepted(header, op.slot, op.request.generation)) {
      TRYST_REACHED("shm: the end of a link finds a tensor accepted");
      Release(&op);
    } else {
      TRYST_REACHED("shm: the end of a link finds a tensor that was not accepted");
      GiveUp(&op);
    }
  }
  sent_line_.clear();
}

void ShmRequests::GiveUpPulled() {
  for (ShmServeOp& op : ops_) {
    if (op.state == ServeState::kPulled) GiveUp(&op);
  }
}

void ShmRequests::ReleaseAnswered() {
  for (ShmServeOp& op : ops_) {
    if (op.state != ServeState::kFree) Release(&op);
  }
  sent_line_.clear();
}

bool ShmRequests::any_answered() const {
  return std::any_of(ops_.begin(), ops_.end(),
                     [](const ShmServeOp& op) { return op.state != ServeState::kFree; });
}

bool ShmRequests::any_unanswered() const {
  return std::any_of(ops_.begin(), ops_.end(), [](const ShmServeOp& op) {
    return op.state != ServeState::kFree && op.state != ServeState::kSent;
  });
}

// ---- Views ----

std::string ShmRequests::Explain() const {
  size_t by_state[kServeStateCount] = {};
  for (const ShmServeOp& op : ops_) ++by_state[static_cast<size_t>(op.state)];
  std::string waiting;
  if (takes_.parked() > 0) {
    absl::StrAppend(&waiting, "; ", takes_.parked(), " waits without a slot for the local Send");
  }
  for (size_t i = 1; i < kServeStateCount; ++i) {
    if (by_state[i] == 0) continue;
    absl::StrAppend(&waiting, "; ", by_state[i], " ", ServeStateName(static_cast<ServeState>(i)));
  }
  return waiting;
}

void ShmRequests::ListOps(LiveOps* ops) const {
  for (const ShmServeOp& op : ops_) {
    if (op.state == ServeState::kFree) continue;
    LiveOp live;
    live.role = TraceRole::kServe;
    live.peer = consumer_;
    live.path = "shm";
    live.step = op.request.step;
    live.key = op.request.key;
    live.span = op.span;
    live.span.id = IdOf(op);
    if (op.taken.tensor.valid()) live.bytes = op.taken.tensor.bytes();
    ops->Add(std::move(live));
  }
  LiveOp parked;
  parked.peer = consumer_;
  parked.path = "shm";
  takes_.ListOps(parked, ops);
}

}  // namespace tryst
