#include <algorithm>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "channel/rdma/serve_channel.h"

// Parked takes of a ServeChannel: they wait for their Send in their places, and hold no slot.
namespace tryst {

// A request for what is parked goes on where that stands.
bool ServeChannel::TakesParked(ServeOp* op) {
  if (op->request.body.ticket == 0) return false;
  auto found = parked_.find(op->request.body.ticket);
  if (found == parked_.end()) return false;
  ServeTake* take = found->second;
  if (take->step != op->request.body.step || take->key != op->request.key) return false;
  parked_.erase(found);
  take->ticket = 0;
  take->op = op;
  op->take = take;
  if (std::exchange(take->here, false)) {
    TakeOver(op, take);
  } else {
    ParkIfWaiting(op);
  }
  return true;
}

// The request said that it is to be parked unless its outcome is here.
void ServeChannel::ParkIfWaiting(ServeOp* op) {
  const bool waits = op->state == ServeState::kTaking && !op->take->ended.load();
  if (waits && (op->request.flags & wire::kMayPark) != 0) Park(op, op->request.body.ticket);
}

void ServeChannel::Park(ServeOp* op, uint64_t ticket) {
  if (parked_.size() >= options_.max_parked || parked_.contains(ticket)) return;  // Keeps its slot.
  ServeTake* take = std::exchange(op->take, nullptr);
  take->op = nullptr;
  take->ticket = ticket;
  take->epoch = static_cast<uint32_t>(epoch_);
  take->since_ns = op->span.since_ns();
  parked_.emplace(ticket, take);
  op->state = ServeState::kFree;
  ++counters_.parked;
  parked_line_.emplace_back(op->slot, op->request.generation);
  link_->FlushSoon();
}

absl::Status ServeChannel::OnPark(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (!tickets.ok()) return tickets.status();
  if (record.slot >= ops_.size()) return absl::DataLossError("park of a slot out of range");
  ServeOp* op = &ops_[record.slot];
  // Else its outcome is on its way, which answers this, too.
  const bool waits = op->state == ServeState::kTaking &&
                     op->request.generation == record.generation && !op->take->ended.load();
  if (waits) Park(op, tickets->front());
  return absl::OkStatus();
}

void ServeChannel::OnParkedTaken(ServeTake* take) {
  take->here = true;
  // Not before the consumer has spoken of it in this epoch, as MakeReady() says.
  if (take->epoch != static_cast<uint32_t>(epoch_) || link_ == nullptr || link_->broken()) return;
  here_line_.push_back(take->ticket);
  link_->FlushSoon();
}

absl::Status ServeChannel::OnWaits(const wire::Record& record) {
  auto body = wire::DecodeWaits(record);
  if (!body.ok()) return body.status();
  if (record.number >= keys_.size() || keys_[record.number].empty()) {
    return absl::DataLossError("an unknown key id waits");
  }
  auto found = parked_.find(body->ticket);
  if (found != parked_.end()) {
    ServeTake* take = found->second;
    const bool again = take->epoch == static_cast<uint32_t>(epoch_);
    take->epoch = static_cast<uint32_t>(epoch_);
    if (take->here && !again) OnParkedTaken(take);
    return absl::OkStatus();
  }
  if (parked_.size() >= options_.max_parked) {
    return absl::DataLossError("more waits without a slot than had been parked");
  }
  ServeTake* take = NewTake(body->step, keys_[record.number]);
  take->ticket = body->ticket;
  take->epoch = static_cast<uint32_t>(epoch_);
  take->since_ns = hub_->poller()->now_ns();
  parked_.emplace(take->ticket, take);
  StartTake(take);
  return absl::OkStatus();
}

absl::Status ServeChannel::OnUnwanted(const wire::Record& record) {
  auto tickets = wire::DecodeTickets(record);
  if (!tickets.ok()) return tickets.status();
  for (uint64_t ticket : *tickets) {
    auto found = parked_.find(ticket);
    if (found == parked_.end()) continue;
    ++counters_.cancelled;
    DropParked(found->second);
  }
  return absl::OkStatus();
}

// As DropTake(): what it has met goes back now, so that whoever is behind it finds it.
void ServeChannel::DropParked(ServeTake* take) {
  parked_.erase(take->ticket);
  take->ticket = 0;
  if (take->here) {
    GiveBack(take);
    return FreeTake(take);
  }
  LetGo(take);
}

void ServeChannel::DropParkedBut(uint32_t epoch) {
  std::vector<ServeTake*> takes;
  for (const auto& [ticket, take] : parked_) {
    if (take->epoch != epoch) takes.push_back(take);
  }
  std::sort(takes.begin(), takes.end(),
            [](const ServeTake* a, const ServeTake* b) { return a->ticket < b->ticket; });
  for (ServeTake* take : takes) DropParked(take);
}

// Says which slots are parked, and which tickets have their outcome; false: no room for all.
bool ServeChannel::SendParkedAndHere() {
  while (!parked_line_.empty()) {
    wire::Record record;
    record.type = wire::RecordType::kParked;
    record.slot = parked_line_.back().first;
    record.generation = parked_line_.back().second;
    if (!link_->Send(record)) return false;
    parked_line_.pop_back();
  }
  // In the order of the Sends.
  size_t told = 0;
  while (told < here_line_.size()) {
    const size_t count = std::min(here_line_.size() - told, wire::kMaxTickets);
    const std::string body =
        wire::EncodeTickets(absl::MakeConstSpan(here_line_).subspan(told, count));
    wire::Record record;
    record.type = wire::RecordType::kHere;
    record.body = body;
    if (!link_->Send(record)) break;
    told += count;
  }
  here_line_.erase(here_line_.begin(), here_line_.begin() + static_cast<ptrdiff_t>(told));
  return here_line_.empty();
}

}  // namespace tryst
