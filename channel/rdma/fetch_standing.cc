#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/rdma/fetch_channel.h"

// Standing receives: what recurs in step after step is asked for before its fetch comes, so
// that the producer writes it as soon as it is sent. It is not accepted until it is fetched;
// what never is goes back to the producer by a CANCEL.
namespace tryst {
namespace {

// So many equal strides behind the first make a habit.
constexpr uint32_t kRegular = 1;

}  // namespace

// What was asked for ahead, if this is the fetch that was foreseen.
FetchOp* FetchChannel::Foreseen(int64_t step_id, const TensorKey& key) {
  const FetchKey* known = standing_ == 0 ? nullptr : keys_.Find(key);
  RdmaFetchOp* op = known == nullptr ? nullptr : StandingOf(*known);
  if (op == nullptr) return nullptr;
  if (op->step != step_id) {
    TRYST_REACHED("sim: another step is fetched than was foreseen");
    EndEarly(op, absl::CancelledError("another step was asked for"));
    return nullptr;
  }
  EndStanding(op, true);
  return op;
}

RdmaFetchOp* FetchChannel::StandingOf(const FetchKey& key) {
  for (FetchOp* op = key.asked.front(); op != nullptr; op = key.asked.Behind(op)) {
    if (Own(op)->standing) return Own(op);
  }
  return nullptr;
}

void FetchChannel::EndStanding(RdmaFetchOp* op, bool claimed) {
  op->standing = false;
  --standing_;
  ++(claimed ? counters_.standing_claimed : counters_.standing_dropped);
  poller_->CancelTimer(op);
  if (!claimed) StartWatch();  // Its CANCEL wants an answer.
  if (!op->landing) EndWaitingCharge(op);
  const bool known = op->asked_of != nullptr && op->asked_of->id != FetchKey::kNoId;
  if (known && !claimed) HabitOf(*op->asked_of)->regular = 0;
}

// Others need its slot or its memory.
void FetchChannel::DropOneStanding() {
  if (standing_ == 0) return;
  for (FetchOp* op : slots_.all()) {
    if (op == nullptr || !IsAhead(*op)) continue;
    TRYST_REACHED("sim: a standing receive gives up its room");
    return EndEarly(op, absl::CancelledError("its room is needed"));
  }
}

void FetchChannel::DropAllStanding(const absl::Status& why) {
  if (standing_ == 0) return;
  for (FetchOp* op : std::vector<FetchOp*>(slots_.all())) {
    if (op != nullptr && IsAhead(*op)) EndEarly(op, why);
  }
}

void FetchChannel::AskAhead(bool in_use) {
  asks_ahead_ = in_use;
  if (!in_use) DropAllStanding(absl::CancelledError("another path is in use"));
}

void FetchChannel::NoteStep(const TensorKey& key, int64_t step_id) {
  Habit* entry = HabitOf(*keys_.Intern(key));
  const uint64_t stride = static_cast<uint64_t>(step_id) - static_cast<uint64_t>(entry->step_last);
  entry->regular = stride != 0 && stride == entry->stride ? entry->regular + 1 : 0;
  entry->stride = stride;
  entry->step_last = step_id;
}

void FetchChannel::NoteTensor(const TensorKey& key, const Tensor& tensor) {
  wire::TensorMeta* like = &HabitOf(*keys_.Intern(key))->like;
  *like = wire::TensorMeta();
  if (tensor.dtype() == DType::kString) return;
  like->dtype = static_cast<uint8_t>(tensor.dtype());
  like->rank = static_cast<uint8_t>(tensor.shape().rank());
  for (int i = 0; i < tensor.shape().rank(); ++i) like->dims[i] = tensor.shape().dim(i);
  like->bytes = tensor.bytes();
}

// Asks for the tensor of the step that comes next, if that is foreseen and there is room.
void FetchChannel::ArmNext(const TensorKey& key) {
  FetchKey* known = keys_.Intern(key);
  const Habit* entry = HabitOf(*known);
  if (entry->regular < kRegular || (standing_ > 0 && StandingOf(*known) != nullptr)) return;
  if (!asks_ahead_ || state_ != State::kOpen || version_ < 2 || !queued_.empty()) return;
  if (standing_ >= options_.standing || 2 * slots_.free() <= slots_.size()) return;
  const int64_t step =
      static_cast<int64_t>(static_cast<uint64_t>(entry->step_last) + entry->stride);
  if (FetchTurns::AskedBefore(*known, step, nullptr) != nullptr)
    return;  // It has its fetch already.
  StorageRef landing;
  if (entry->bytes_last > wire::EagerBytes(options_.link.message_bytes)) {
    landing = landings_->Take(entry->bytes_last, LandingPool::For::kWaiting, writer_);
    if (!landing) return;
  }
  RdmaFetchOp* op = Own(TakeOp());
  op->step = step;
  op->key = key;
  op->span.Begin(WaitsFor::kPeerSend, now_ns());
  op->standing = true;
  op->expected = entry->like;
  op->expects = entry->like.bytes > 0 && entry->like.bytes == entry->bytes_last;
  if (landing) op->waiting_bytes = landing->bytes();
  op->landing = std::move(landing);
  keys_.Join(op, known);
  TakeSlot(op);
  ++standing_;
  ++counters_.standing;
  poller_->SetTimer(op, now_ns() + options_.standing_ms * 1'000'000);
  SendSoon(op);
}

// Its fetch has come.
void FetchChannel::TakeAhead(RdmaFetchOp* op) {
  Tensor tensor = std::move(op->result);
  op->result = Tensor();
  const Tensor& wanted = op->wants().destination;
  if (wanted.valid() && tensor.valid()) {
    const absl::Status fits = FitsDestination(op->wants(), tensor.dtype(), tensor.shape());
    if (!fits.ok()) return EndEarly(op, fits);
    if (tensor.dtype() != DType::kString) {
      if (tensor.bytes() > 0) memcpy(wanted.mutable_data(), tensor.data(), tensor.bytes());
      tensor = wanted;
    }
  }
  Complete(op, absl::OkStatus(), std::move(tensor), op->result_is_dead);
}

}  // namespace tryst
