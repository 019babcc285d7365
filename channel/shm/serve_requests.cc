#include "channel/shm/serve_requests.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/reached.h"

namespace tryst {

using shm_wire::CellType;

namespace {

constexpr int64_t kAcceptedNs = 2'000;  // How often acceptances are read.

ServeSlotsOptions SlotsOf(const ShmServeLink& link, const std::string& consumer) {
  ServeSlotsOptions slots;
  slots.consumer = consumer;
  slots.path = "shm";
  slots.generation_bits = 32;
  slots.max_parked = shm_wire::kMaxParked;
  slots.max_keys = shm_wire::kMaxKeys;
  slots.max_key_bytes = shm_wire::kMaxKeyBytes;
  slots.max_keys_bytes = shm_wire::kMaxKeysBytes;
  slots.tickets_a_word = shm_wire::kReplyTickets;
  slots.trace = link.options.trace;
  return slots;
}

}  // namespace

ShmRequests::ShmRequests(ShmServeLink* link, TensorSource* source, const std::string& consumer,
                         std::function<void()> on_idle)
    : link_(link),
      on_idle_(std::move(on_idle)),
      slots_(link->hub->poller(), source, this, SlotsOf(*link, consumer), &link->counters),
      answers_(link, &slots_) {}

void ShmRequests::Open(uint64_t epoch) {
  slots_.Make(link_->sizes.slots);
  answers_.Make(link_->sizes.slots);
  slots_.set_trace_number(link_->number);
  slots_.Connect(epoch);
}

// ---- What the consumer says ----

absl::Status ShmRequests::OnCell(const shm_wire::RequestCell& cell) {
  if (key_bytes_ != 0) {
    if (cell.head.type != CellType::kMore)
      return absl::DataLossError("the consumer broke the protocol: a key is incomplete");
    return OnKeyText(cell.body, sizeof(cell.body));
  }
  const absl::Status may_hear = slots_.MayHearMore();
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
      return slots_.OnCancel(cell.head.slot, cell.head.generation);
    case CellType::kPulled: {
      const bool failed = (cell.head.flags & shm_wire::kPullFailed) != 0;
      if (failed) link_->can_pull = false;
      return slots_.OnRead(cell.head.slot, cell.head.generation, failed);
    }
    case CellType::kRefused:
      return slots_.OnRefused(cell.head.slot, cell.head.generation);
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
  return slots_.OnKey(key_id_, key_text_);
}

absl::Status ShmRequests::OnRequest(const shm_wire::RequestCell& cell) {
  ServeRequest request;
  request.slot = cell.head.slot;
  request.generation = cell.head.generation;
  request.key = cell.head.number;
  request.has_destination = (cell.head.flags & shm_wire::kHasDestination) != 0;
  request.may_park = (cell.head.flags & shm_wire::kMayPark) != 0;
  memcpy(&request.step, cell.body, sizeof(request.step));
  memcpy(&request.ticket, cell.body + 8, sizeof(request.ticket));
  return slots_.OnRequest(request);
}

absl::Status ShmRequests::OnPark(const shm_wire::RequestCell& cell) {
  uint64_t ticket;
  memcpy(&ticket, cell.body, sizeof(ticket));
  return slots_.OnPark(cell.head.slot, cell.head.generation, ticket);
}

absl::Status ShmRequests::OnUnwanted(const shm_wire::RequestCell& cell) {
  uint64_t tickets[shm_wire::kRequestTickets];
  const auto count = ReadTickets(cell, tickets);
  if (count.ok()) slots_.OnUnwanted(absl::MakeConstSpan(tickets, *count));
  return count.status();
}

// ---- What it accepts ----

absl::StatusOr<bool> ShmRequests::ReleaseAccepted() {
  if (answers_.sent_line()->empty() || link_->now_ns() - accepted_checked_ns_ < kAcceptedNs)
    return false;
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
  RingLine<ShmAnswers::SentCell>& line = *answers_.sent_line();
  bool any = false;
  while (!line.empty()) {
    const ShmAnswers::SentCell& sent = line.front();
    const bool moved_on = ShmAnswers::MovedOn(sent);
    if (!moved_on && static_cast<int32_t>(accepted - sent.cell) < 0) break;
    ServeOp* op = sent.op;
    line.pop_front();
    any = true;
    if (!moved_on) slots_.OnAccepted(op);
  }
  if (any) accepted_pause_ns_ = 0;
  return any;
}

int64_t ShmRequests::LookAgainNs() {
  if (answers_.sent_line()->empty()) return 0;
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
  if (!slots_.has_slot_words()) answers_.AnswerWaiting();
}

bool ShmRequests::SayWord(bool is_parked, uint16_t slot, uint32_t generation) {
  return link_->Say(is_parked ? CellType::kParked : CellType::kGone, slot, generation);
}

bool ShmRequests::SayHere(absl::Span<const uint64_t> tickets) {
  if (!link_->replies.HasRoom(1)) return false;
  shm_wire::ReplyCell* cell = reinterpret_cast<shm_wire::ReplyCell*>(link_->replies.cell());
  cell->head.type = CellType::kHere;
  cell->head.flags = 0;
  cell->head.slot = 0;
  cell->head.generation = 0;
  WriteTickets(tickets, cell);
  link_->replies.Publish();
  return true;
}

// ---- The end ----

void ShmRequests::GiveUpUnanswered() {
  slots_.DropTakes();
  slots_.EndUnanswered();
}

void ShmRequests::SettleByWord() {
  const shm_wire::LinkHeader& header = *link_->given->view().header;
  slots_.EndThose(ServeEvent::kAccepted, [&](const ServeOp& op) {
    if (!ServeSlots::Answered(op) || !WasAccepted(header, op.slot, op.generation)) return false;
    TRYST_REACHED("shm: the end of a link finds a tensor accepted");
    return true;
  });
  slots_.EndThose(ServeEvent::kNotAccepted, [](const ServeOp& op) {
    if (!ServeSlots::Answered(op)) return false;
    TRYST_REACHED("shm: the end of a link finds a tensor that was not accepted");
    return true;
  });
  answers_.sent_line()->clear();
}

void ShmRequests::GiveUpPulled() {
  slots_.EndThose(ServeEvent::kNotAccepted,
                  [](const ServeOp& op) { return op.state == ServeState::kPulled; });
}

void ShmRequests::ReleaseAnswered() {
  slots_.EndAll();
  answers_.sent_line()->clear();
}

bool ShmRequests::any_answered() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const ServeOp& op) { return op.state != ServeState::kFree; });
}

bool ShmRequests::any_unanswered() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const ServeOp& op) {
    return op.state != ServeState::kFree && op.state != ServeState::kSent;
  });
}

}  // namespace tryst
