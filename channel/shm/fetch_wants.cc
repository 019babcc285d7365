#include <algorithm>
#include <cstring>
#include <utility>

#include "channel/shm/fetch_channel.h"

// Fetches that wait without a slot, so that those whose tensors are there find one: the producer is
// told what is wanted, says what is there, and is asked for that with a slot.
namespace tryst {

using shm_wire::CellType;
using shm_wire::RequestCell;

// There is no slot, or no room in the ring, for the first in line. While slots become free, it is
// soon its turn, which costs no message more.
void ShmFetchChannel::WantWaiting() {
  if (reserved_slots_ == 0 || free_slots_.size() > reserved_slots_) return;
  if (!wants_.empty()) return TellWants();
  if (want_timer_.is_set() || options_.max_waiting == 0) return;
  poller()->SetTimer(&want_timer_, std::max(freed_ns_ + kWantNs, now_ns() + kWantNs / 4));
}

void ShmFetchChannel::OnWantTimer() {
  if (state_ != State::kOpen || queued_.empty()) return;
  if (wants_.empty() && now_ns() - freed_ns_ < kWantNs) return WantWaiting();
  TellWants();
  SendWaiting();
}

// As many as there is room for.
void ShmFetchChannel::TellWants() {
  while (!queued_.empty() && wants_.size() < options_.max_waiting) {
    shm_wire::Wants wants;
    wants.step = queued_.front()->step;
    wants.first_serial = last_serial_ + 1;
    while (wants.count < shm_wire::Wants::kMost && !queued_.empty() &&
           queued_.front()->step == wants.step && wants_.size() < options_.max_waiting) {
      ShmFetchOp* op = queued_.front();
      // The key, and the cell that these wants go in. Room first: a number that goes to another
      // key means the same to both sides from the next cell on.
      if (!requests_.HasRoom(KeyCells(op->key) + 1)) break;
      const uint32_t id = Intern(op->key);
      if (keys_[id].link != epoch_) TellKey(id);
      queued_.pop_front();
      op->state = ShmFetchState::kWanted;
      op->serial = ++last_serial_;
      op->was_here = op->unwanted = op->at_any_rate = op->passed = false;
      op->key_id = wants.key_ids[wants.count++] = id;
      op->order = keys_[id].newest = ++order_;
      op->span.Enter(WaitsFor::kPeerSend, now_ns());
      wants_[op->serial] = op;
    }
    if (wants.count == 0) return;
    RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
    cell->head.type = CellType::kWant;
    cell->head.flags = 0;
    cell->head.slot = 0;
    cell->head.generation = 0;
    WriteWants(wants, cell);
    requests_.Publish();
  }
  poller()->FlushThisTurn(this);
}

bool ShmFetchChannel::Claim(ShmFetchOp* op) {
  if (free_slots_.empty() || !requests_.HasRoom(1)) return false;
  RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
  cell->head.type = CellType::kClaim;
  cell->head.flags = DestinationFlag(*op);
  cell->head.slot = GiveSlot(op);
  cell->head.generation = generations_[op->slot];
  cell->head.number = 0;
  memcpy(cell->body, &op->serial, sizeof(op->serial));
  requests_.Publish();
  wants_.erase(std::exchange(op->serial, 0));
  op->state = ShmFetchState::kAsked;
  op->span.id = TraceId(link_number_, uint64_t{op->slot} << 32 | generations_[op->slot], op->step);
  op->span.Enter(WaitsFor::kPeerSend, now_ns());
  return true;
}

absl::Status ShmFetchChannel::OnHere(const shm_wire::ReplyCell& cell) {
  uint64_t serials[shm_wire::kReplySerials];
  const auto count = ReadSerials(cell, serials);
  if (!count.ok()) return count.status();
  back_off_.Reset();  // The connection works.
  for (size_t i = 0; i < *count; ++i) {
    const auto found = wants_.find(serials[i]);
    if (found == wants_.end() || found->second->was_here) {
      return absl::DataLossError("the producer has what nobody wants");
    }
    ShmFetchOp* op = found->second;
    op->was_here = true;
    if (op->state == ShmFetchState::kWanted) {
      op->state = ShmFetchState::kHere;
      op->span.Enter(WaitsFor::kSlot, now_ns());
      here_.push_back(op);
    } else if (op->unwanted && op->passed && !op->at_any_rate) {
      // Its UNWANT takes nothing back: others have passed it. So it is its own.
      if (op->reported) {
        UnwantSoon(op, /*at_any_rate=*/true);
      } else {
        StayHere(op);
      }
    }
  }
  return absl::OkStatus();
}

void ShmFetchChannel::StayHere(ShmFetchOp* op) {
  poller()->CancelTimer(op);
  op->state = ShmFetchState::kHere;
  op->may_stay = false;
  op->end_status = absl::OkStatus();
  op->span.Enter(WaitsFor::kSlot, now_ns());
  here_.push_back(op);
}

absl::Status ShmFetchChannel::OnUnwanted(const shm_wire::ReplyCell& cell) {
  uint64_t serials[shm_wire::kReplySerials];
  const auto count = ReadSerials(cell, serials);
  if (!count.ok()) return count.status();
  for (size_t i = 0; i < *count; ++i) {
    const auto found = wants_.find(serials[i]);
    if (found == wants_.end() || !found->second->unwanted ||
        found->second->state != ShmFetchState::kLeaving) {
      return absl::DataLossError("the producer gave up what is wanted");
    }
    ShmFetchOp* op = found->second;
    Complete(op, op->end_status, Tensor(), false);
    if (state_ != State::kOpen) return absl::OkStatus();
  }
  return absl::OkStatus();
}

void ShmFetchChannel::UnwantSoon(ShmFetchOp* op, bool at_any_rate) {
  op->unwanted = false;
  op->at_any_rate = at_any_rate;
  unwants_.push_back(op->serial);
  SendWaiting();
}

// False: no room for all.
bool ShmFetchChannel::SayUnwants() {
  while (!unwants_.empty()) {
    if (!requests_.HasRoom(1)) return false;
    uint64_t serials[shm_wire::kRequestSerials];
    size_t count = 0;
    bool at_any_rate = false;
    for (; count < shm_wire::kRequestSerials && !unwants_.empty(); unwants_.pop_front()) {
      const auto found = wants_.find(unwants_.front());
      if (found == wants_.end()) continue;  // It has failed meanwhile.
      ShmFetchOp* op = found->second;
      if (count > 0 && op->at_any_rate != at_any_rate) break;
      op->passed = WasPassed(*op);
      if (op->was_here && op->passed && !op->at_any_rate && !op->reported) {
        StayHere(op);  // It was passed only while this word waited for room.
        continue;
      }
      op->at_any_rate |= op->was_here;
      if (count > 0 && op->at_any_rate != at_any_rate) break;
      at_any_rate = op->at_any_rate;
      op->unwanted = true;
      serials[count++] = op->serial;
    }
    if (count == 0) continue;
    RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
    cell->head.type = CellType::kUnwant;
    cell->head.flags = at_any_rate ? shm_wire::kAtAnyRate : 0;
    cell->head.slot = 0;
    cell->head.generation = 0;
    WriteSerials(absl::MakeConstSpan(serials, count), cell);
    requests_.Publish();
  }
  return true;
}

}  // namespace tryst
