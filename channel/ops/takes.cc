#include "channel/ops/takes.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "base/release_memory.h"

namespace tryst {
namespace {

constexpr size_t kStaleHere = 1024;  // At most so many tickets in the line may have been dropped.

}  // namespace

ServeTake* Takes::New(int64_t step, const TensorKey& key) {
  if (free_.empty()) {
    free_.push_back(takes_.Make(static_cast<ServeTakeOwner*>(this), poller_));
  }
  ServeTake* take = free_.back();
  free_.pop_back();
  take->step = step;
  take->key = key;
  return take;
}

void Takes::Start(int64_t step, const TensorKey& key, TakingOp* op, bool looked) {
  ServeTake* take = op->take = New(step, key);
  take->op = op;
  Ask(take, looked);
}

// The usual case: the tensor is here, and no callback is needed.
bool Takes::TakeHere(ServeTake* take) {
  if (!take->key.IsTo(consumer_) || !source_->MayTake(take->key)) return false;
  if (!source_->TakeHere(take->step, &take->key, &place_, &take->taken)) return false;
  return true;
}

void Takes::Ask(ServeTake* take, bool looked) {
  if (MustWait(take->key)) {
    TRYST_REACHED("rare: a take waits until one of its key has gone back");
    return deferred_.push_back(take);
  }
  if (!looked && TakeHere(take)) return OnTaken(take);
  take->in_call_ = true;
  if (!take->key.IsTo(consumer_)) {
    take->End({absl::PermissionDeniedError(
        absl::StrCat(consumer_, " asked for a tensor that is sent to ", take->key.dst().worker))});
  } else {
    // A cancellation that was not used is kept, with the memory that it has allocated.
    if (!take->cancellation || take->cancellation->cancelled()) take->cancellation.emplace();
    RecvArgs args;
    args.cancellation = &*take->cancellation;
    source_->Take(take->step, take->key, args,
                  [take](Received&& received) { take->End(std::move(received)); });
  }
  take->in_call_ = false;
  if (std::exchange(take->ended_in_call_, false)) OnTaken(take);
}

void Takes::Drop(TakingOp* op) {
  ServeTake* take = std::exchange(op->take, nullptr);
  take->op = nullptr;
  LetGo(take);
}

// A tensor that the take has met goes back now, so that the next take finds it. A tensor that it
// meets at this moment goes back when the poller hears of it. Until then no other take of the key
// starts, because it could meet a later tensor.
void Takes::LetGo(ServeTake* take) {
  const auto waits = std::find(deferred_.begin(), deferred_.end(), take);
  if (waits != deferred_.end()) {
    deferred_.erase(waits);
    return Free(take);
  }
  if (take->ended.load(std::memory_order_acquire)) return GiveBack(take);
  take->cancellation->StartCancel();
  if (take->ended.load(std::memory_order_acquire)) return GiveBack(take);
  TRYST_REACHED("rare: a take ends on another thread while it is dropped");
  take->dropped = true;
  ++dropping_[take->key];
}

void Takes::GiveBack(ServeTake* take) {
  if (!take->taken.status.ok()) return;
  TRYST_REACHED("sim: a take gives back what it has met");
  ++*given_back_;
  Received taken = std::exchange(take->taken, Received());
  take->taken.status = absl::CancelledError("the consumer has given up this request");
  source_->GiveBack(take->step, take->key, std::move(taken));
}

void Takes::OnTaken(ServeTake* take) {
  take->ended.store(false, std::memory_order_relaxed);
  if (take->ticket != 0) return OnParkedTaken(take);
  if (take->op != nullptr) {
    End(take, take->op);
    if (idle()) user_->OnTakesIdle();
    return;
  }
  GiveBack(take);
  if (std::exchange(take->dropped, false)) {
    const auto dropping = dropping_.find(take->key);
    if (--dropping->second == 0) dropping_.erase(dropping);
    for (ServeTake* waiting : std::exchange(deferred_, {})) Ask(waiting, /*looked=*/false);
  }
  Free(take);
  if (idle()) user_->OnTakesIdle();
}

void Takes::End(ServeTake* take, TakingOp* op) {
  op->take = nullptr;
  user_->OnTakeEnded(op, take);
  Free(take);
}

void Takes::Free(ServeTake* take) {
  take->op = nullptr;
  take->ticket = 0;
  take->here = false;
  take->taken = Received();
  free_.push_back(take);
  if (takes_.size() > kMostIdleObjects && idle() && !idle_timer_.is_set()) {
    poller_->SetTimer(&idle_timer_, poller_->now_ns() + kIdleForNs);
  }
}

void Takes::GiveMemoryBack() {
  if (!idle()) return;
  poller_->NoteBurstOver(takes_.size());
  ReleaseMemory(&free_);
  takes_.Clear();
  ReleaseMemory(&parked_);
  ReleaseMemory(&here_);
}

// ---- Parking ----

bool Takes::Park(TakingOp* op, uint64_t ticket, int64_t since_ns) {
  ServeTake* take = op->take;
  if (take == nullptr || take->ended.load() || parked_.size() >= max_parked_) return false;
  if (ticket == 0 || !parked_.emplace(ticket, take).second) return false;
  op->take = nullptr;
  take->op = nullptr;
  take->ticket = ticket;
  take->epoch = epoch_;
  take->since_ns = since_ns;
  return true;
}

bool Takes::Unpark(uint64_t ticket, int64_t step, const TensorKey& key, TakingOp* op) {
  const auto found = ticket == 0 ? parked_.end() : parked_.find(ticket);
  if (found == parked_.end()) return false;
  ServeTake* take = found->second;
  if (take->step != step || take->key != key) return false;
  parked_.erase(found);
  take->ticket = 0;
  take->op = op;
  op->take = take;
  if (std::exchange(take->here, false)) End(take, op);
  return true;
}

void Takes::OnParkedTaken(ServeTake* take) {
  take->here = true;
  // Not before the consumer has named it in this epoch, because it may have given it up.
  if (epoch_ == 0 || take->epoch != epoch_) {
    TRYST_REACHED("sim: a tensor comes for a ticket before it is spoken of again");
    return;
  }
  if (here_.size() > 2 * parked_.size() + kStaleHere) {
    TRYST_REACHED("rare: more tickets are to be told of than there are");
    ForgetStaleHere();
  }
  here_.push_back(take->ticket);
  user_->OnHere();
}

// A consumer that reads nothing and drops tickets must not make the line grow. Dropped tickets mean
// nothing to it any more.
void Takes::ForgetStaleHere() {
  absl::flat_hash_set<uint64_t> kept;
  here_.erase(std::remove_if(here_.begin(), here_.end(),
                             [&](uint64_t ticket) {
                               return !parked_.contains(ticket) || !kept.insert(ticket).second;
                             }),
              here_.end());
}

void Takes::SetEpoch(uint64_t epoch) {
  epoch_ = epoch;
  here_.clear();
}

bool Takes::Waits(uint64_t ticket, int64_t step, const TensorKey& key) {
  const auto found = parked_.find(ticket);
  if (found != parked_.end()) {
    ServeTake* take = found->second;
    const bool again = std::exchange(take->epoch, epoch_) == epoch_;
    if (take->here && !again) OnParkedTaken(take);
    return true;
  }
  if (parked_.size() >= max_parked_) return false;
  ServeTake* take = New(step, key);
  take->ticket = ticket;
  take->epoch = epoch_;
  take->since_ns = poller_->now_ns();
  parked_.emplace(ticket, take);
  Ask(take, /*looked=*/false);
  return true;
}

size_t Takes::DropTickets(absl::Span<const uint64_t> tickets) {
  size_t dropped = 0;
  for (uint64_t ticket : tickets) {
    const auto found = parked_.find(ticket);
    if (found == parked_.end()) continue;
    DropParked(found->second);
    ++dropped;
  }
  return dropped;
}

// As in LetGo(): what it has met goes back now, so that the next take finds it.
void Takes::DropParked(ServeTake* take) {
  parked_.erase(take->ticket);
  take->ticket = 0;
  if (!take->here) return LetGo(take);
  GiveBack(take);
  Free(take);
}

void Takes::DropUnspoken() {
  std::vector<ServeTake*> takes;
  for (const auto& [ticket, take] : parked_) {
    if (epoch_ == 0 || take->epoch != epoch_) takes.push_back(take);
  }
  std::sort(takes.begin(), takes.end(),
            [](const ServeTake* a, const ServeTake* b) { return a->ticket < b->ticket; });
  // Drops the waiting takes first. Otherwise one of them would meet a tensor that another take
  // gives back.
  if (!takes.empty()) TRYST_REACHED("sim: tickets that nobody speaks of again");
  for (ServeTake* take : takes) {
    if (!take->here) DropParked(take);
  }
  for (ServeTake* take : takes) {
    if (take->ticket != 0 && take->here) DropParked(take);
  }
}

bool Takes::TellHere(size_t most, absl::FunctionRef<bool(absl::Span<const uint64_t>)> tell) {
  size_t told = 0;
  while (told < here_.size()) {
    const size_t count = std::min(here_.size() - told, most);
    if (!tell(absl::MakeConstSpan(here_).subspan(told, count))) break;
    told += count;
  }
  here_.erase(here_.begin(), here_.begin() + static_cast<ptrdiff_t>(told));
  return here_.empty();
}

size_t Takes::parked_here() const {
  return static_cast<size_t>(std::count_if(parked_.begin(), parked_.end(), [](const auto& parked) {
    return parked.second->here && parked.second->taken.status.ok();
  }));
}

void Takes::ListOps(LiveOp like, LiveOps* ops) const {
  for (const auto& [ticket, take] : parked_) {
    LiveOp live = like;
    live.role = TraceRole::kServe;
    live.step = take->step;
    live.key = take->key;
    live.span.Begin(take->here ? WaitsFor::kSlot : WaitsFor::kLocalSend, take->since_ns);
    live.detail = "waits without a slot";
    ops->Add(std::move(live));
  }
}

}  // namespace tryst
