#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "channel/rdma/fetch_channel.h"

// Parking: a slot is for a tensor on its way, not for one that nobody has sent yet. While
// fetches wait in line and every slot is held by a fetch that waits for a Send, those in the
// slots are parked: the peer keeps their takes, in their places, under tickets, and says when
// one has its outcome. Only then does it need a slot again (docs/WIRE.md, "Parking").
namespace tryst {
namespace {

// So long all slots are held by fetches without an answer before those are parked. Of tensors
// that are there some come in that time, so that nothing is said of parking.
constexpr int64_t kParkAfterNs = 1'000'000;

}  // namespace

void FetchChannel::WatchLine() {
  if (version_ < 3 || park_timer_.is_set() || NextLine()->empty() || !free_slots_.empty()) return;
  hub_->poller()->SetTimer(&park_timer_, now_ns() + kParkAfterNs);
}

void FetchChannel::ParkWaiting() {
  if (state_ != State::kOpen || NextLine()->empty() || !free_slots_.empty()) return;
  pressed_ = true;
  for (FetchOp* op : slots_) {
    if (op == nullptr || op->state != FetchState::kAsked || op->standing || op->park_asked ||
        op->here || now_ns() - op->span.since_ns() < kParkAfterNs) {
      continue;
    }
    if (by_ticket_.size() >= options_.max_parked) break;
    AskToPark(op);
  }
  WatchLine();
}

// Whether a request is to be parked at once unless its tensor is there.
bool FetchChannel::MayPark(const FetchOp& op) const {
  const bool crowded = !queued_.empty() || 2 * free_slots_.size() < slots_.size();
  return pressed_ && crowded && version_ >= 3 && !op.here && !op.standing &&
         by_ticket_.size() < options_.max_parked;
}

void FetchChannel::AskToPark(FetchOp* op) {
  if (op->ticket == 0) op->ticket = next_ticket_++;
  op->park_asked = op->send_park = true;
  SendSoon(op);
}

bool FetchChannel::SendPark(FetchOp* op) {
  if (op->state == FetchState::kAsked) {  // Else it has had its answer.
    const std::string ticket = wire::EncodeTickets({op->ticket});
    wire::Record record;
    record.type = wire::RecordType::kPark;
    record.slot = op->slot;
    record.generation = op->generation;
    record.body = ticket;
    if (!link_->Send(record)) return false;
  }
  op->send_park = false;
  return true;
}

// After a reconnect. The peer may have let go of it, by a farewell whose answer was lost: so this
// says all that it needs to take it anew.
bool FetchChannel::SendWaits(FetchOp* op) {
  KeyEntry* entry = Intern(op->key);
  if (entry->epoch != static_cast<uint32_t>(epoch_) && !SendKey(entry, op->key)) return false;
  const std::string body = wire::EncodeWaits({op->step, op->ticket});
  wire::Record record;
  record.type = wire::RecordType::kWaits;
  record.number = entry->id;
  record.body = body;
  if (!link_->Send(record)) return false;
  op->send_waits = false;
  return true;
}

// Sends from the back of `tickets` as many as there is room for; true once all are sent.
bool FetchChannel::SendTickets(wire::RecordType type, std::vector<uint64_t>* tickets) {
  while (!tickets->empty()) {
    const size_t count = std::min(tickets->size(), wire::kMaxTickets);
    const std::string body =
        wire::EncodeTickets(absl::MakeConstSpan(*tickets).subspan(tickets->size() - count));
    wire::Record record;
    record.type = type;
    record.body = body;
    if (!link_->Send(record)) return false;
    tickets->resize(tickets->size() - count);
  }
  return true;
}

absl::Status FetchChannel::OnParked(FetchOp* op) {
  if (!op->park_asked) return absl::DataLossError("the producer parked what it was not asked to");
  if (op->state == FetchState::kLeaving) {
    unwanted_.push_back(op->ticket);  // The answer to its cancel is still to come.
    link_->FlushSoon();
    return absl::OkStatus();
  }
  DropDestination(op);
  op->state = FetchState::kParked;
  op->park_asked = op->send_park = false;
  if (op->in_send_line) {
    send_line_.Remove(op);
    op->in_send_line = false;
  }
  by_ticket_.emplace(op->ticket, op);
  ++counters_.parked;
  FreeSlot(op);
  return absl::OkStatus();
}

absl::Status FetchChannel::OnHere(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (!tickets.ok()) return tickets.status();
  for (uint64_t ticket : *tickets) {
    auto found = by_ticket_.find(ticket);
    // Of what was given up meanwhile, or said twice, after a reconnect.
    if (found == by_ticket_.end() || found->second->state != FetchState::kParked) continue;
    FetchOp* op = found->second;
    op->state = FetchState::kQueued;
    op->here = true;
    op->span.Enter(WaitsFor::kSlot, now_ns());
    here_line_.Push(op);
  }
  link_->FlushSoon();
  return absl::OkStatus();
}

// The peer is to let go of what it holds under the op's ticket.
void FetchChannel::DropTicket(FetchOp* op) {
  if (op->ticket == 0) return;
  here_line_.Remove(op);
  by_ticket_.erase(op->ticket);
  op->send_waits = false;
  if (state_ == State::kOpen) {
    unwanted_.push_back(op->ticket);
    link_->FlushSoon();
  }
  op->ticket = 0;
  op->here = false;
}

std::vector<FetchOp*> FetchChannel::WithTickets() const {
  std::vector<FetchOp*> ops;
  ops.reserve(by_ticket_.size());
  for (const auto& [ticket, op] : by_ticket_) ops.push_back(op);
  SortByOrder(&ops);
  return ops;
}

}  // namespace tryst
