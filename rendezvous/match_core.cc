#include "rendezvous/match_core.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/content_checksum.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

absl::Status CancelledReceive() {
  return MarkDerived(absl::CancelledError("RecvAsync is cancelled."));
}

absl::Status LateReceive(const TensorKey& key) {
  return absl::DeadlineExceededError(absl::StrCat("Timed out waiting for ", key.text()));
}

// The bytes that a shard takes from the memory caps in advance.
constexpr int64_t kLotBytes = 64 << 10;

// Copies `tensor`, for callers that go on changing its bytes.
absl::StatusOr<Tensor> CopyOf(const TensorKey& key, const Tensor& tensor) {
  if (tensor.dtype() == DType::kString) {
    return Tensor::FromStrings({tensor.strings().begin(), tensor.strings().end()}, tensor.shape());
  }
  if (!tensor.space().host_readable()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "copy_on_send copies tensors of host memory only; copy this tensor yourself before Send: ",
        key.text()));
  }
  auto copy = Tensor::Allocate(tensor.dtype(), tensor.shape());
  if (copy.ok() && tensor.bytes() > 0) memcpy(copy->mutable_data(), tensor.data(), tensor.bytes());
  return copy;
}

// What the sender of a tensor that is given back said; moved out of it.
SendArgs SendArgsOf(Received* taken) {
  SendArgs args;
  args.device_context = std::move(taken->send_context);
  args.alloc_attrs = taken->send_attrs;
  return args;
}

size_t PowerOfTwo(int at_least) {
  size_t power = 1;
  while (power < static_cast<size_t>(std::min(std::max(at_least, 1), 1024))) power *= 2;
  return power;
}

}  // namespace

MatchCore::MatchCore(const LocalRendezvous::Options& options, Alarms* alarms,
                     std::shared_ptr<HeldBytes> process)
    : options_(options),
      alarms_(alarms),
      clock_(alarms->clock()),
      shards_(MakeShards(PowerOfTwo(options.shards))),
      held_(options.max_held_bytes, std::move(process), [this] { return ReleaseReserves(); }) {}

std::vector<std::unique_ptr<MatchCore::Shard>> MatchCore::MakeShards(size_t count) {
  std::vector<std::unique_ptr<Shard>> shards;
  for (size_t i = 0; i < count; ++i) {
    shards.push_back(std::make_unique<Shard>(static_cast<uint16_t>(i)));
  }
  return shards;
}

absl::Status MatchCore::OverCap(int64_t bytes, absl::string_view what) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "Send of ", bytes, " bytes of ", what, " would exceed max_held_bytes: ", held_.Explain(),
      ". Wait until consumers receive (WhenRoom()), or raise max_held_bytes."));
}

int64_t MatchCore::ChargeBytes(int64_t bytes) {
  return std::max(bytes, LocalRendezvous::kMinChargeBytes);
}

absl::Status MatchCore::CopyIfAsked(const TensorKey& key, const SendArgs& args, Tensor* tensor) {
  if (!args.copy_on_send || !tensor->valid()) return absl::OkStatus();
  auto copy = CopyOf(key, *tensor);
  if (copy.ok()) *tensor = *std::move(copy);
  return copy.status();
}

absl::Status MatchCore::Send(const TensorKey& key, const SendArgs& args, Tensor* tensor,
                             bool is_dead) {
  absl::Status status;
  if (key.empty() || is_dead || !tensor->valid() || args.copy_on_send) {
    status = MakeReady(key, args, tensor, is_dead);
    if (!status.ok()) return status;
  }
  const uint64_t checksum = options_.check_immutable ? ContentChecksum(*tensor) : 0;
  if (!TrySend(key, args, tensor, is_dead, checksum, &status)) {
    status = SendOnceMore(key, args, tensor, is_dead, checksum);
  }
  return status;
}

ABSL_ATTRIBUTE_NOINLINE absl::Status MatchCore::MakeReady(const TensorKey& key,
                                                          const SendArgs& args, Tensor* tensor,
                                                          bool is_dead) {
  if (key.empty()) return absl::InvalidArgumentError("Send of an empty rendezvous key");
  if (is_dead) {
    *tensor = Tensor();
  } else if (!tensor->valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Send was given an invalid tensor, and is_dead is not set: ", key.text()));
  }
  return CopyIfAsked(key, args, tensor);
}

ABSL_ATTRIBUTE_NOINLINE absl::Status MatchCore::SendOnceMore(const TensorKey& key,
                                                             const SendArgs& args, Tensor* tensor,
                                                             bool is_dead, uint64_t checksum) {
  held_.OnRefused();
  absl::Status status;
  if (TrySend(key, args, tensor, is_dead, checksum, &status)) return status;
  Shard& shard = ShardOf(key);
  MutexLock lock(&shard.mu);
  ++shard.counters.refused_over_cap;
  return OverCap(ChargeBytes(tensor->bytes()), key.text());
}

// False: it does not fit under a cap. Every Send passes here, so what is rare has functions of its
// own.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool MatchCore::TrySend(const TensorKey& key,
                                                            const SendArgs& args, Tensor* tensor,
                                                            bool is_dead, uint64_t checksum,
                                                            absl::Status* status) {
  const int64_t charge_bytes = ChargeBytes(tensor->bytes());
  LeavingRoom room;
  Shard& shard = ShardOf(key);
  {
    MutexLock lock(&shard.mu);
    if (ABSL_PREDICT_FALSE(!shard.aborted.ok())) {
      ++shard.counters.aborted_sends;
      *status = shard.aborted;
      return true;
    }
    Item** head = shard.table.Find(key);
    if (*head == nullptr || (*head)->is_send) {
      if (!Charge(shard, charge_bytes)) return false;
      shard.table.Append(head, NewSend(shard, key, args, std::move(*tensor), is_dead, charge_bytes,
                                       checksum, clock().CoarseNowNs()));
      ++shard.counters.sends;
      return true;
    }
    MeetReceive(shard, head, args, tensor, is_dead, &room);
  }
  CallMet(&room.leaving);
  return true;
}

ABSL_ATTRIBUTE_NOINLINE void MatchCore::MeetReceive(Shard& shard, Item** head, const SendArgs& args,
                                                    Tensor* tensor, bool is_dead,
                                                    LeavingRoom* room) {
  ++shard.counters.sends;
  GiveToReceive(shard, head, args, std::move(*tensor), is_dead, 0, new (&room->leaving) Leaving());
}

ABSL_ATTRIBUTE_NOINLINE void MatchCore::CallMet(Leaving* leaving) {
  struct Destroy {  // Runs even if `done` throws.
    ~Destroy() { leaving->~Leaving(); }
    Leaving* leaving;
  } destroy{leaving};
  CallReceive(leaving);
}

void MatchCore::CallReceive(Leaving* leaving) {
  BetweenLocks("send: met", leaving->held);
  if (leaving->held != nullptr) {
    End(leaving->held);
  } else if (leaving->batch != nullptr) {
    GiveResults(leaving->batch, 1);
  } else if (leaving->done) {
    std::move(leaving->done)(std::move(leaving->received));
  }
}

void MatchCore::GiveBack(const TensorKey& key, Received&& taken) {
  const uint64_t checksum = options_.check_immutable ? ContentChecksum(taken.tensor) : 0;
  Leaving leaving;
  bool kept;
  bool charged = true;
  Shard& shard = ShardOf(key);
  {
    MutexLock lock(&shard.mu);
    ++shard.counters.given_back;
    if (!shard.aborted.ok()) {
      ++shard.counters.aborted_sends;
      return;
    }
    Item** head = shard.table.Find(key);
    kept = *head == nullptr || (*head)->is_send;
    if (kept) {
      charged = KeepGivenBack(shard, head, key, std::move(taken), checksum);
    } else {
      GiveToReceive(shard, head, SendArgsOf(&taken), std::move(taken.tensor), taken.is_dead,
                    taken.turn, &leaving);
    }
  }
  if (!charged) held_.OnRefused();
  if (!kept) CallReceive(&leaving);
}

// A send that was given back is never refused. If it does not fit under a cap, it is not charged;
// returns whether it is.
bool MatchCore::KeepGivenBack(Shard& shard, Item** head, const TensorKey& key, Received&& taken,
                              uint64_t checksum) {
  int64_t charge_bytes = ChargeBytes(taken.tensor.bytes());
  const bool charged = Charge(shard, charge_bytes);
  if (!charged) charge_bytes = 0;
  WaitingSend* item = NewSend(shard, key, SendArgsOf(&taken), std::move(taken.tensor),
                              taken.is_dead, charge_bytes, checksum, clock().CoarseNowNs());
  item->turn = taken.turn;
  shard.table.InsertByTurn(head, item);
  return charged;
}

// Takes bytes from the caps, so that the shard's reserve has so many.
bool MatchCore::Reserve(Shard& shard, int64_t bytes) {
  int64_t& reserve = shard.reserve_bytes;
  // Who waits for room is woken by what is given back, and that does not collect reserves.
  if (bytes <= kLotBytes && !held_.anybody_waits() && held_.TryTake(bytes - reserve + kLotBytes)) {
    reserve = bytes + kLotBytes;
  } else if (held_.TryTake(bytes - reserve)) {
    reserve = bytes;
  } else {
    return false;
  }
  return true;
}

int64_t MatchCore::Uncharge(Shard& shard, const WaitingSend& send) {
  --shard.counters.waiting_sends;
  shard.counters.held_bytes -= send.charge_bytes;
  int64_t& reserve = shard.reserve_bytes;
  reserve += send.charge_bytes;
  if (held_.anybody_waits()) return std::exchange(reserve, 0);
  if (reserve <= 2 * kLotBytes) return 0;
  return std::exchange(reserve, kLotBytes) - kLotBytes;
}

int64_t MatchCore::ReleaseReserves() {
  int64_t bytes = 0;
  for (const auto& shard : shards_) {
    MutexLock lock(&shard->mu);
    bytes += std::exchange(shard->reserve_bytes, 0);
  }
  return bytes;
}

// A receive whose caller is still registering its cancellation and deadline ("arming") is only
// marked here; the caller finishes it.
void MatchCore::GiveToReceive(Shard& shard, Item** head, const SendArgs& args, Tensor&& tensor,
                              bool is_dead, uint64_t turn, Leaving* leaving) {
  WaitingReceive* item = AsReceive(shard.table.PopHead(head));
  RendezvousCounters& counters = shard.counters;
  --counters.waiting_receives;
  ++counters.delivered;
  counters.delivered_bytes += tensor.bytes();
  counters.dead += is_dead;
  Received& received = item->batch != nullptr  ? item->batch->results[item->batch_index]
                       : item->more != nullptr ? item->more->received
                                               : leaving->received;
  received.tensor = std::move(tensor);
  received.is_dead = is_dead;
  if (args.device_context != nullptr) received.send_context = args.device_context;
  received.send_attrs = args.alloc_attrs;
  received.turn = turn != 0 ? turn : ++shard.last_turn;
  if (item->batch != nullptr) {
    leaving->batch = item->batch;
    shard.table.Free(item);
  } else if (item->plain()) {
    leaving->done = std::move(item->done);
    shard.table.Free(item);
  } else if (!item->arming) {
    leaving->held = item;
  }
}

absl::Status MatchCore::CheckUnchanged(const TensorKey& key, const Tensor& tensor,
                                       uint64_t checksum) {
  if (!options_.check_immutable || ContentChecksum(tensor) == checksum) return absl::OkStatus();
  ++changed_after_send_;
  TRYST_LOG(Error) << "The bytes of " << key.text()
                   << " were changed by the program after Send, and before they were received: "
                      "send a copy, or write elsewhere";
  return absl::FailedPreconditionError(
      absl::StrCat("The bytes of ", key.text(),
                   " were changed by the program after Send, and before they were received: send a "
                   "copy, or write elsewhere"));
}

void MatchCore::RecvAsync(const TensorKey& key, const RecvArgs& args, DoneFn done) {
  if (!done) done = [](Received&&) {};
  if (key.empty()) {
    FailReceive(absl::InvalidArgumentError("Receive of an empty rendezvous key"), args.executor,
                std::move(done));
    return;
  }
  Shard& shard = ShardOf(key);
  WaitingReceive* kept = nullptr;
  bool arming = false;
  Received received;
  uint64_t checksum = 0;
  int64_t freed_bytes = 0;
  {
    MutexLock lock(&shard.mu);
    ++shard.counters.receives;
    Item** head = shard.table.Find(key);
    if (!shard.aborted.ok()) {
      ++shard.counters.aborted_receives;
      received.status = shard.aborted;
    } else if (*head != nullptr && (*head)->is_send) {
      freed_bytes = GetSend(shard, head, &received, &checksum);
    } else if (args.cancellation != nullptr && args.cancellation->cancelled()) {
      ++shard.counters.cancelled;
      received.status = CancelledReceive();
    } else {
      const int64_t now_ns = args.deadline.is_never() ? clock().CoarseNowNs() : clock().NowNs();
      if (!args.deadline.Passed(now_ns)) {
        kept = KeepReceive(shard, head, key, args, &done, now_ns);
        arming = kept->arming;
      } else {
        ++shard.counters.deadline_exceeded;
        received.status = LateReceive(key);
      }
    }
  }
  if (kept != nullptr) {
    if (arming) Arm(kept);
    return;
  }
  if (received.status.ok()) {
    BetweenLocks("recv: met", nullptr);
    held_.Give(freed_bytes);
    absl::Status unchanged = CheckUnchanged(key, received.tensor, checksum);
    if (!unchanged.ok()) return FailReceive(std::move(unchanged), args.executor, std::move(done));
  }
  EndReceive(args.executor, std::move(received), std::move(done));
}

// Takes the send at `head` out of the table. Returns how much of it to Give, without the lock.
int64_t MatchCore::GetSend(Shard& shard, Item** head, Received* received, uint64_t* checksum) {
  WaitingSend* send = AsSend(shard.table.PopHead(head));
  const int64_t freed_bytes = Uncharge(shard, *send);
  *checksum = send->checksum;
  ++shard.counters.delivered;
  shard.counters.delivered_bytes += send->tensor.bytes();
  shard.counters.dead += send->is_dead;
  received->is_dead = send->is_dead;
  received->tensor = std::move(send->tensor);
  if (send->send_context != nullptr || received->send_context != nullptr) {
    received->send_context = std::move(send->send_context);
  }
  received->send_attrs = send->send_attrs;
  received->turn = send->turn != 0 ? send->turn : ++shard.last_turn;
  shard.table.Free(send);
  return freed_bytes;
}

bool MatchCore::TakeHere(TensorKey* key, Received* taken) {
  if (options_.check_immutable) return false;  // It may have to end with an error.
  uint64_t checksum;
  int64_t freed_bytes;
  Shard& shard = ShardOf(*key);
  {
    MutexLock lock(&shard.mu);
    if (!shard.aborted.ok()) return false;
    Item** head = shard.table.Find(*key);
    if (*head == nullptr || !(*head)->is_send) return false;
    ++shard.counters.takes;
    ++shard.counters.receives;
    if (!key->SharesTextWith((*head)->key)) *key = (*head)->key;
    freed_bytes = GetSend(shard, head, taken, &checksum);
  }
  held_.Give(freed_bytes);
  return true;
}

WaitingReceive* MatchCore::KeepReceive(Shard& shard, Item** head, const TensorKey& key,
                                       const RecvArgs& args, DoneFn* done, int64_t now_ns) {
  WaitingReceive* item = shard.table.NewReceive(key);
  item->done = std::move(*done);
  item->since_ns = now_ns;
  const int callbacks = (args.cancellation != nullptr) + !args.deadline.is_never();
  item->arming = callbacks != 0;
  if (callbacks != 0 || args.executor != nullptr) {
    item->holds = static_cast<uint8_t>(1 + callbacks);
    item->more = shard.table.NewMore();
    item->more->executor = args.executor;
    item->more->cancellation = args.cancellation;
    item->more->deadline = args.deadline;
    Ref();
  }
  shard.table.Append(head, item);
  ++shard.counters.waiting_receives;
  return item;
}

// The receive is in the table already, so that its place in the line is right; these calls cannot
// be made under the lock. If the receive is ended meanwhile, the last lines see that.
void MatchCore::Arm(WaitingReceive* item) {
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  BetweenLocks("recv: cancellation", item);
  if (item->more->cancellation != nullptr) {
    cancel_token =
        item->more->cancellation->Register([this, item] { EndWaiting(item, CancelledReceive()); });
  }
  Alarms::Token alarm_token = Alarms::kNoToken;
  BetweenLocks("recv: deadline", item);
  if (!item->more->deadline.is_never()) {
    alarm_token = alarms_->Set(item->more->deadline,
                               [this, item] { EndWaiting(item, LateReceive(item->key)); });
  }
  BetweenLocks("recv: armed", item);
  bool ended;
  Shard& shard = ShardOf(*item);
  {
    MutexLock lock(&shard.mu);
    item->arming = false;
    item->more->cancel_token = cancel_token;
    item->more->alarm_token = alarm_token;
    if (item->more->cancellation != nullptr && cancel_token == Cancellation::kNoToken) {
      --item->holds;  // Cancelled before it was registered.
      if (item->linked) {
        shard.table.Remove(item);
        item->more->received.status = CancelledReceive();
        ++shard.counters.cancelled;
        --shard.counters.waiting_receives;
      }
    }
    ended = !item->linked;
  }
  if (ended) End(item);
}

// Ends `item` from one of its callbacks, and drops that callback's hold.
void MatchCore::EndWaiting(WaitingReceive* item, absl::Status status) {
  BetweenLocks("callback", item);
  bool ended = false;
  Shard& shard = ShardOf(*item);
  {
    MutexLock lock(&shard.mu);
    if (item->linked) {
      shard.table.Remove(item);
      const bool cancelled = absl::IsCancelled(status);
      item->more->received.status = std::move(status);
      --shard.counters.waiting_receives;
      ++(cancelled ? shard.counters.cancelled : shard.counters.deadline_exceeded);
      ended = !item->arming;
    }
  }
  // Before End(), whose `done` may throw: the receive itself still holds the item then.
  DropHolds(item, 1);
  if (ended) End(item);
}

void MatchCore::End(WaitingReceive* item) {
  BetweenLocks("end", item);
  item->drops = 1;
  if (item->more->cancel_token != Cancellation::kNoToken &&
      item->more->cancellation->TryDeregister(item->more->cancel_token)) {
    ++item->drops;
  }
  if (item->more->alarm_token != Alarms::kNoToken && alarms_->Cancel(item->more->alarm_token))
    ++item->drops;
  if (item->more->executor != nullptr) {
    item->more->executor->RunWithoutWaiting([this, item] { Finish(item); });
  } else {
    Finish(item);
  }
}

void MatchCore::Finish(WaitingReceive* item) {
  DoneFn done = std::move(item->done);
  const CancellationRef cancellation = std::move(item->more->cancellation);
  Received received = std::exchange(item->more->received, Received());
  DropHolds(item, item->drops);  // This may delete the core: touch nothing after it.
  std::move(done)(std::move(received));
}

void MatchCore::DropHolds(WaitingReceive* item, int holds) {
  bool last;
  Shard& shard = ShardOf(*item);
  {
    MutexLock lock(&shard.mu);
    item->holds = static_cast<uint8_t>(item->holds - holds);
    last = item->holds == 0;
    if (last) shard.table.Free(item);
  }
  if (last) Unref();
}

}  // namespace tryst
