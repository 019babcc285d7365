#include "channel/shm/fetch_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

// How a ShmFetchChannel asks, and what it ends. fetch_connection.cc has the connection,
// fetch_receive.cc what the producer answers.
namespace tryst {

using shm_wire::CellType;
using shm_wire::RequestCell;

absl::Status ShmFetchChannel::MayFill(const Args& args) const {
  if (!args.destination.valid() || args.destination.on_host()) return absl::OkStatus();
  return absl::UnimplementedError(
      "this channel does not write device memory: fetch into host memory");
}

void ShmFetchChannel::OnWaits(FetchOp* op) {
  if (state_ == State::kOpen) return FlushSoon();
  WaitPatiently(op->begun_ns);
  if (state_ == State::kIdle) Connect();
}

// ---- Asking ----

// Who takes a view instead is sent one.
uint8_t ShmFetchChannel::DestinationFlag(const FetchOp& op) {
  const Args& args = op.wants();
  return args.destination.valid() && !args.by_reference ? shm_wire::kHasDestination : 0;
}

uint32_t ShmFetchChannel::KeyCells(const TensorKey& key) {
  constexpr size_t kRoom = sizeof(RequestCell::body);
  return static_cast<uint32_t>((key.text().size() + kRoom - 1) / kRoom);
}

// With the key, if it has to be told. Room first: a number that goes to another key means the same
// to both sides from the next cell on.
bool ShmFetchChannel::SendRequest(FetchOp* op, FetchKey* key, bool may_park) {
  if (!HasRoom(*op)) return false;
  watch_.Watch();
  if (key->told != epoch_) TellKey(key);
  RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
  cell->head.type = CellType::kRequest;
  cell->head.flags =
      static_cast<uint8_t>(DestinationFlag(*op) | (may_park ? shm_wire::kMayPark : 0));
  cell->head.slot = op->slot;
  cell->head.generation = op->generation;
  cell->head.number = key->id;
  memcpy(cell->body, &op->step, sizeof(op->step));
  memcpy(cell->body + sizeof(op->step), &op->ticket, sizeof(op->ticket));
  requests_.Publish();
  op->span.id = TraceId(link_number_, uint64_t{op->slot} << 32 | op->generation, op->step);
  return true;
}

// REQUIRES: there is room for its cells.
void ShmFetchChannel::TellKey(FetchKey* key) {
  const absl::string_view text = key->key.text();
  constexpr size_t kRoom = sizeof(RequestCell::body);
  const size_t cells = KeyCells(key->key);
  for (size_t i = 0; i < cells; ++i) {
    RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
    cell->head.type = i == 0 ? CellType::kKey : CellType::kMore;
    cell->head.flags = 0;
    cell->head.slot = static_cast<uint16_t>(text.size());
    cell->head.generation = 0;
    cell->head.number = key->id;
    memcpy(cell->body, text.data() + i * kRoom, std::min(kRoom, text.size() - i * kRoom));
    requests_.Publish();
  }
  key->told = epoch_;
}

bool ShmFetchChannel::Say(const Word& word) {
  if (!requests_.HasRoom(1)) return false;
  RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
  cell->head.type = word.type;
  cell->head.flags = word.flags;
  cell->head.slot = word.slot;
  cell->head.generation = word.generation;
  cell->head.number = 0;
  requests_.Publish();
  return true;
}

bool ShmFetchChannel::SendCancel(const FetchOp& op) {
  return Say({CellType::kCancel, 0, op.slot, op.generation});
}

bool ShmFetchChannel::SendPark(const FetchOp& op) {
  if (!requests_.HasRoom(1)) return false;
  memcpy(requests_.cell() + offsetof(RequestCell, body), &op.ticket, sizeof(op.ticket));
  return Say({CellType::kPark, 0, op.slot, op.generation});
}

bool ShmFetchChannel::SendUnwanted(absl::Span<const uint64_t> tickets) {
  if (!requests_.HasRoom(1)) return false;
  RequestCell* cell = reinterpret_cast<RequestCell*>(requests_.cell());
  cell->head.type = CellType::kUnwanted;
  cell->head.flags = 0;
  cell->head.slot = 0;
  cell->head.generation = 0;
  WriteTickets(tickets, cell);
  requests_.Publish();
  return true;
}

void ShmFetchChannel::SaySoon(const FetchOp& op, CellType type, uint8_t flags) {
  words_.push_back({type, flags, op.slot, op.generation});
  FlushSoon();
}

// Of slots that are free again: before they are used anew.
bool ShmFetchChannel::SayWords() {
  for (; !words_.empty(); words_.pop_front()) {
    if (!Say(words_.front())) return false;
  }
  return true;
}

// ---- Ending ----

// The producer's last word on the slot has come.
void ShmFetchChannel::Complete(ShmFetchOp* op, absl::Status status, Tensor tensor, bool is_dead) {
  if (!status.ok()) NoteRefused(op);
  Advance(op, FetchEvent::kComplete);
  // The slot first: the callback may fetch again.
  LastWord(op);
  Report(op, std::move(status), std::move(tensor), is_dead, When::kNow);
}

// It was answered, and nobody can have it here: the producer gets it back.
void ShmFetchChannel::TurnDown(ShmFetchOp* op, absl::Status status) {
  SaySoon(*op, CellType::kRefused, 0);
  Complete(op, std::move(status), Tensor(), false);
}

// The same of one that ends while it is copied.
void ShmFetchChannel::Refuse(FetchOp* op) {
  copies_.Remove(Own(op));
  SaySoon(*op, CellType::kRefused, 0);
  NoteRefused(op);
}

void ShmFetchChannel::DropMemory(FetchOp* op) {
  Own(op)->from = Tensor();
  Own(op)->into = Tensor();
}

// Parts that have begun to come are where the next fetch of the key does not want them.
bool ShmFetchChannel::PassMemory(FetchOp* from, FetchOp* to) {
  if (Own(from)->into.valid()) return false;
  Own(to)->misanswered = Own(from)->misanswered;
  return true;
}

uint64_t ShmFetchChannel::BytesOf(const FetchOp& op) const {
  return op.state == FetchState::kCopying ? static_cast<const ShmFetchOp&>(op).bytes : 0;
}

// At the end of a turn: says what there is to say, and wakes a producer that sleeps.
void ShmFetchChannel::Flush() {
  if (state_ != State::kOpen) return;
  if (SayWords()) SayAll();
  TellAccepted();
  std::atomic<uint32_t>& asleep = held_->view().header->producer_asleep;
  // Pairs with its SetAsleep(): both change the flag, and of two changes the later sees
  // what came before the earlier one. Either it sees our cell or we see its flag.
  if (asleep.fetch_add(0, std::memory_order_acq_rel) == shm_wire::kAwake) return;
  if (asleep.exchange(shm_wire::kAwake) != shm_wire::kAwake) socket_->Send(shm_wire::Packet());
}

// Up to which cell nothing can be refused any more. Behind the refusals and the cancels.
void ShmFetchChannel::TellAccepted() {
  if (!words_.empty() || HasWords()) return;
  const uint32_t accepted = copies_.empty() ? replies_.taken() : copies_.front()->cell;
  if (accepted == accepted_told_) return;
  accepted_told_ = accepted;
  held_->view().header->replies_accepted.store(accepted, std::memory_order_release);
}

void ShmFetchChannel::FallAsleep() {
  const bool waits = !words_.empty() || HasWords() || SomebodyWaits();
  held_->view().header->consumer_asleep.exchange(
      waits ? shm_wire::kForRoomToo : shm_wire::kForMessages, std::memory_order_acq_rel);
}

bool ShmFetchChannel::WakeUp() {
  const bool woken = held_->view().header->consumer_asleep.exchange(
                         shm_wire::kAwake, std::memory_order_acq_rel) == shm_wire::kAwake;
  if (woken) HearPacket();
  return woken;
}

// For Settle(): the producer is not to take the end of this generation for an acceptance.
void ShmFetchChannel::NoteRefused(const FetchOp* op) {
  if (op->has_slot) refused_[op->slot] = op->generation + 1;
}

}  // namespace tryst
