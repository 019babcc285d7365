#include <algorithm>
#include <cstring>
#include <utility>

#include "channel/shm/serve_channel.h"
#include "rendezvous/derived_status.h"

// What a consumer wants of a ShmServeChannel without a slot: told, waited for, and claimed with
// one.
namespace tryst {

using shm_wire::CellType;
using shm_wire::ReplyCell;

absl::Status ShmServeChannel::OnWant(const shm_wire::RequestCell& cell) {
  if (link_version_ < shm_wire::kLinkKeepsTurns) {
    return absl::DataLossError("a want on a link of a version that has none");
  }
  auto wants = shm_wire::ReadWants(cell);
  if (!wants.ok()) return wants.status();
  if (wants->first_serial <= last_serial_) {
    return absl::DataLossError("a want whose serial number does not count up");
  }
  if (wants_.size() + wants->count > shm_wire::kMaxWants) {
    return absl::DataLossError("more is wanted at once than a consumer may want");
  }
  last_serial_ = wants->first_serial + wants->count - 1;
  for (uint32_t i = 0; i < wants->count; ++i) {
    const uint32_t id = wants->key_ids[i];
    if (id >= keys_.size() || keys_[id].key.empty()) {
      return absl::DataLossError("a want of an unknown key id");
    }
    if (free_wants_.empty()) {
      all_wants_.emplace_back();
      all_wants_.back().waiter.want = &all_wants_.back();
      free_wants_.push_back(&all_wants_.back());
    }
    ShmServeWant* want = free_wants_.back();
    free_wants_.pop_back();
    want->serial = wants->first_serial + i;
    want->order = keys_[id].newest = ++order_;
    want->since_ns = hub_->poller()->now_ns();
    want->step = wants->step;
    want->key = keys_[id].key;
    want->key_id = id;
    wants_[want->serial] = want;
    if (keys_[id].for_consumer) {
      JoinLine(&want->waiter, want->step, want->key);
    } else {
      OnWantMet(want, ForAnother(want->key), nullptr);
    }
    if (state_ != State::kOpen) return absl::OkStatus();
  }
  return absl::OkStatus();
}

// What it has met stays until it is claimed.
void ShmServeChannel::OnWantMet(ShmServeWant* want, absl::Status status, ShmTaken* taken) {
  if (status.ok()) {
    want->here = std::make_unique<ShmTaken>(std::move(*taken));
    here_words_.push_back(want->serial);
  } else {
    failed_words_.emplace_back(want->serial, std::move(status));
    ForgetWant(want);
  }
  if (state_ == State::kOpen) hub_->poller()->FlushThisTurn(this);
}

void ShmServeChannel::ForgetWant(ShmServeWant* want) {
  wants_.erase(want->serial);
  want->here = nullptr;
  free_wants_.push_back(want);
}

absl::Status ShmServeChannel::OnUnwant(const shm_wire::RequestCell& cell) {
  uint64_t serials[shm_wire::kRequestSerials];
  const auto count = ReadSerials(cell, serials);
  if (!count.ok()) return count.status();
  for (size_t i = 0; i < *count; ++i) {
    ++counters_.cancelled;
    const auto found = wants_.find(serials[i]);
    if (found != wants_.end()) Unwant(found->second, (cell.head.flags & shm_wire::kAtAnyRate) != 0);
    if (state_ != State::kOpen) return absl::OkStatus();
  }
  return absl::OkStatus();
}

// As a CANCEL: what is here and was passed is the consumer's, who heard so or is to hear it.
void ShmServeChannel::Unwant(ShmServeWant* want, bool at_any_rate) {
  const bool passed = !IsNewest(want->key_id, want->order, want->key);
  if (want->here != nullptr && passed && !at_any_rate) return;
  const uint64_t serial = want->serial;
  if (want->here == nullptr) {
    LeaveLine(&want->waiter);
    if (wants_.contains(serial)) ForgetWant(want);
  } else {
    Taken taken = want->here->ToGiveBack();
    const int64_t step = want->step;
    const TensorKey key = want->key;
    ForgetWant(want);
    ++counters_.given_back;
    source_->GiveBack(step, key, std::move(taken));
  }
  unwanted_words_.push_back(serial);
  hub_->poller()->FlushThisTurn(this);
}

absl::Status ShmServeChannel::OnClaim(const shm_wire::RequestCell& cell) {
  uint64_t serial;
  memcpy(&serial, cell.body, sizeof(serial));
  const auto found = wants_.find(serial);
  if (found == wants_.end() || found->second->here == nullptr) {
    return absl::DataLossError("a claim of what is not here");
  }
  Former former;
  const auto slot = SlotFor(cell, &former);
  if (!slot.ok()) return slot.status();
  ShmServeOp* op = *slot;
  ShmServeWant* want = found->second;
  op->request.step = want->step;
  op->request.key = want->key;
  op->key_id = want->key_id;
  op->order = want->order;
  op->taken = std::move(*want->here);
  op->span.Begin(WaitsFor::kWireRoom, hub_->poller()->now_ns());
  ForgetWant(want);
  op->state = ShmServeState::kReady;
  AnswerSoon(op);
  if (former.was) EndTrace(former);
  return absl::OkStatus();
}

// Those that wait first: what the others give back must not be met by one of them.
void ShmServeChannel::GiveUpWants() {
  std::vector<ShmServeWant*> all;
  for (const auto& [serial, want] : wants_) all.push_back(want);
  for (ShmServeWant* want : all) {
    if (want->waiter.line != nullptr) LeaveLine(&want->waiter);
  }
  for (ShmServeWant* want : all) {
    if (want->here == nullptr) continue;
    ++counters_.given_back;
    source_->GiveBack(want->step, want->key, std::exchange(want->here, nullptr)->ToGiveBack());
  }
  wants_.clear();
  here_words_.clear();
  unwanted_words_.clear();
  failed_words_.clear();
}

// ---- Answers ----

void ShmServeChannel::SayWantWords() {
  uint64_t serials[shm_wire::kReplySerials];
  while (!failed_words_.empty()) {
    if (!SayFailedWant(failed_words_.front().first, failed_words_.front().second)) return;
    failed_words_.pop_front();
  }
  while (!here_words_.empty()) {
    if (!replies_.HasRoom(1)) return;
    size_t count = 0;
    for (; count < shm_wire::kReplySerials && !here_words_.empty(); here_words_.pop_front()) {
      // It may have been unwanted meanwhile.
      if (wants_.contains(here_words_.front())) serials[count++] = here_words_.front();
    }
    if (count > 0) SaySerials(CellType::kHere, absl::MakeConstSpan(serials, count));
  }
  while (!unwanted_words_.empty()) {
    if (!replies_.HasRoom(1)) return;
    size_t count = 0;
    for (; count < shm_wire::kReplySerials && !unwanted_words_.empty();
         unwanted_words_.pop_front()) {
      serials[count++] = unwanted_words_.front();
    }
    SaySerials(CellType::kUnwanted, absl::MakeConstSpan(serials, count));
  }
}

bool ShmServeChannel::SaySerials(CellType type, absl::Span<const uint64_t> serials) {
  if (!replies_.HasRoom(1)) return false;
  ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
  cell->head.type = type;
  cell->head.flags = 0;
  cell->head.slot = 0;
  cell->head.generation = 0;
  WriteSerials(serials, cell);
  replies_.Publish();
  return true;
}

bool ShmServeChannel::SayFailedWant(uint64_t serial, const absl::Status& status) {
  const absl::string_view text = status.message().substr(0, shm_wire::kMaxErrorBytes);
  constexpr size_t kRoom = sizeof(ReplyCell::body);
  const uint16_t length = static_cast<uint16_t>(text.size());
  constexpr size_t kHead = sizeof(serial) + sizeof(length);
  const size_t cells = 1 + (text.size() + kHead - 1) / kRoom;
  if (!replies_.HasRoom(static_cast<uint32_t>(cells))) return false;
  size_t done = 0;
  for (size_t i = 0; i < cells; ++i) {
    ReplyCell* cell = reinterpret_cast<ReplyCell*>(replies_.cell());
    cell->head.type = i == 0 ? CellType::kWantFailed : CellType::kMore;
    cell->head.flags = IsDerived(status) ? shm_wire::kDerived : 0;
    cell->head.slot = 0;
    cell->head.generation = 0;
    cell->head.number = static_cast<uint32_t>(status.code());
    cell->is_long = 1;
    const size_t head = i == 0 ? kHead : 0;
    if (i == 0) {
      memcpy(cell->body, &serial, sizeof(serial));
      memcpy(cell->body + sizeof(serial), &length, sizeof(length));
    }
    const size_t part = std::min(kRoom - head, text.size() - done);
    memcpy(cell->body + head, text.data() + done, part);
    done += part;
    replies_.Publish();
  }
  ++counters_.failed;
  return true;
}

}  // namespace tryst
