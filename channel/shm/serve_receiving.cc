#include <algorithm>
#include <cstring>

#include "channel/ops/limits.h"
#include "channel/shm/serve_link.h"

// What a ShmServeLink hears of its consumer, and the words that it says.
namespace tryst {

using shm_wire::CellType;

namespace {

constexpr int64_t kAcceptedNs = 2'000;  // How often acceptances are read.

}  // namespace

// ---- What the consumer says ----

absl::Status ShmServeLink::OnCell(const shm_wire::RequestCell& cell) {
  if (key_bytes_ != 0) {
    if (cell.head.type != CellType::kMore)
      return absl::DataLossError("the consumer broke the protocol: a key is incomplete");
    return OnKeyText(cell.body, sizeof(cell.body));
  }
  const absl::Status may_hear = slots_.MayHearMore();
  if (!may_hear.ok()) return may_hear;
  switch (cell.head.type) {
    case CellType::kKey:
      if (cell.head.number >= limits::kMaxKeys || cell.head.slot == 0 ||
          cell.head.slot > limits::kMaxKeyBytes) {
        return absl::DataLossError(
            "the consumer broke the protocol: a key that it names has a number out of range, or is "
            "empty or too long");
      }
      key_id_ = cell.head.number;
      key_bytes_ = cell.head.slot;
      key_is_run_ = (cell.head.flags & shm_wire::kRun) != 0;
      key_text_.clear();
      return OnKeyText(cell.body, sizeof(cell.body));
    case CellType::kRequest:
      return OnRequest(cell);
    case CellType::kCancel:
      return slots_.OnCancel(cell.head.slot, cell.head.generation);
    case CellType::kPulled: {
      const bool failed = (cell.head.flags & shm_wire::kPullFailed) != 0;
      if (failed) sender_.can_pull = false;
      return slots_.OnRead(cell.head.slot, cell.head.generation, failed);
    }
    case CellType::kPark: {
      uint64_t ticket;
      memcpy(&ticket, cell.body, sizeof(ticket));
      return slots_.OnPark(cell.head.slot, cell.head.generation, ticket);
    }
    case CellType::kUnwanted: {
      uint64_t tickets[shm_wire::kRequestTickets];
      const auto count = ReadTickets(cell, tickets);
      if (count.ok()) slots_.OnUnwanted(absl::MakeConstSpan(tickets, *count));
      return count.status();
    }
    case CellType::kWaits: {
      int64_t step;
      uint64_t ticket;
      memcpy(&step, cell.body, sizeof(step));
      memcpy(&ticket, cell.body + 8, sizeof(ticket));
      return slots_.OnWaits(ticket, step, cell.head.number);
    }
    case CellType::kReplayed:
      // What it had accepted over the former link was free before.
      slots_.OnReplayed(ServeEvent::kNotAccepted);
      return absl::OkStatus();
    case CellType::kPing:
      // If there is no room for it, the cells that fill the ring are a sign of life, too.
      if (sender_.Say(CellType::kPong, 0, 0)) sender_.FlushSoon();
      return absl::OkStatus();
    default:
      return absl::DataLossError(
          "the consumer broke the protocol: it sent a request of no known type");
  }
}

absl::Status ShmServeLink::OnKeyText(const uint8_t* text, size_t bytes) {
  const size_t taken = std::min(bytes, key_bytes_ - key_text_.size());
  key_text_.append(reinterpret_cast<const char*>(text), taken);
  if (key_text_.size() < key_bytes_) return absl::OkStatus();
  key_bytes_ = 0;
  return slots_.OnKey(key_id_, key_text_, key_is_run_);
}

absl::Status ShmServeLink::OnRequest(const shm_wire::RequestCell& cell) {
  ServeRequest request;
  request.slot = cell.head.slot;
  request.generation = static_cast<uint16_t>(cell.head.generation);
  request.key = cell.head.number;
  request.again = (cell.head.flags & shm_wire::kReplay) != 0;
  request.has_destination = (cell.head.flags & shm_wire::kHasDestination) != 0;
  request.may_park = (cell.head.flags & shm_wire::kMayPark) != 0;
  memcpy(&request.step, cell.body, sizeof(request.step));
  memcpy(&request.ticket, cell.body + 8, sizeof(request.ticket));
  return slots_.OnRequest(request);
}

// ---- What it accepts ----

bool ShmServeLink::ReleaseAccepted() {
  if (!answers_.any_sent() || sender_.now_ns() - accepted_checked_ns_ < kAcceptedNs) return false;
  accepted_checked_ns_ = sender_.now_ns();
  const bool any = answers_.ReleaseAccepted();
  if (any) accepted_pause_ns_ = 0;
  return any;
}

// Nobody wakes us to say that a tensor was accepted: how long to sleep at most until the next look.
// A consumer that takes its time is asked ever less often. 0: nothing is to be accepted.
int64_t ShmServeLink::LookAgainNs() {
  if (!answers_.any_sent()) return 0;
  accepted_checked_ns_ = 0;
  accepted_pause_ns_ = std::clamp<int64_t>(accepted_pause_ns_ * 2, 1'000'000, 1'000'000'000);
  return accepted_pause_ns_;
}

// What waits for room in the ring.
void ShmServeLink::SayWaiting() {
  answers_.TellGoneSegments();
  if (!waits_for_room() || !sender_.replies.HasRoom(1)) return;
  if (slots_.has_words()) {
    (void)slots_.SayWords();
    sender_.FlushSoon();
  }
  if (!slots_.has_slot_words()) answers_.AnswerWaiting();
}

bool ShmServeLink::SayWord(bool is_parked, uint16_t slot, uint32_t generation) {
  return sender_.Say(is_parked ? CellType::kParked : CellType::kGone, slot, generation);
}

bool ShmServeLink::SayHere(absl::Span<const uint64_t> tickets) {
  if (!sender_.replies.HasRoom(1)) return false;
  shm_wire::ReplyCell* cell = reinterpret_cast<shm_wire::ReplyCell*>(sender_.replies.cell());
  cell->head.type = CellType::kHere;
  cell->head.flags = 0;
  cell->head.slot = 0;
  cell->head.generation = 0;
  WriteTickets(tickets, cell);
  sender_.replies.Publish();
  return true;
}

}  // namespace tryst
