// SendMany and RecvMany: one lock round for each shard.

#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/content_checksum.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/match_core.h"

namespace tryst {

Batch* MatchCore::NewBatch() {
  Ref();
  MutexLock lock(&batch_mu_);
  if (free_batches_ == nullptr) {
    batches_.push_back(std::make_unique<Batch>());
    return batches_.back().get();
  }
  return std::exchange(free_batches_, free_batches_->next_free);
}

void MatchCore::RecvManyAsync(absl::Span<const TensorKey> keys, const RecvArgs& args,
                              ManyDoneFn done) {
  if (!done) done = [](absl::Status, absl::Span<Received>) {};
  Batch* batch = NewBatch();
  batch->done = std::move(done);
  batch->args = args;
  batch->results.resize(keys.size());
  batch->items.assign(keys.size(), nullptr);
  batch->holds = 1;
  batch->remaining = static_cast<int64_t>(keys.size()) + 1;
  if (options_.check_immutable) batch->checks.assign(keys.size(), 0);
  batch->SortByShard(keys.size(), shards_.size(), [&](size_t i) { return ShardIndex(keys[i]); });
  const int64_t now_ns = args.deadline.is_never() ? clock().CoarseNowNs() : clock().NowNs();
  int64_t ended = 0;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    ended += ReceiveInShard(batch, keys, shard, now_ns);
  }
  const bool done_already = ended == static_cast<int64_t>(keys.size());
  if (!done_already) ArmBatch(batch);
  GiveResults(batch, ended + 1);
}

// Returns how many receives of the batch it has ended.
int64_t MatchCore::ReceiveInShard(Batch* batch, absl::Span<const TensorKey> keys,
                                  size_t shard_index, int64_t now_ns) {
  const uint32_t begin = batch->bounds[shard_index];
  const uint32_t end = batch->bounds[shard_index + 1];
  if (begin == end) return 0;
  int64_t ended = 0;
  int64_t freed_bytes = 0;
  Shard& shard = *shards_[shard_index];
  {
    MutexLock lock(&shard.mu);
    shard.counters.receives += end - begin;
    for (uint32_t i = begin; i < end; ++i) {
      const uint32_t index = batch->order[i];
      ReceiveOne(shard, batch, keys[index], index, now_ns, &ended, &freed_bytes);
    }
  }
  held_.Give(freed_bytes);
  for (uint32_t i = begin; options_.check_immutable && i < end; ++i) {
    const uint32_t index = batch->order[i];
    Received& result = batch->results[index];
    if (batch->items[index] != nullptr || !result.status.ok()) continue;
    result.status = CheckUnchanged(keys[index], result.tensor, batch->checks[index]);
    if (!result.status.ok()) result.tensor = Tensor();
  }
  return ended;
}

void MatchCore::ReceiveOne(Shard& shard, Batch* batch, const TensorKey& key, uint32_t index,
                           int64_t now_ns, int64_t* ended, int64_t* freed_bytes) {
  Received& result = batch->results[index];
  ++*ended;
  if (key.empty()) {
    result.status = absl::InvalidArgumentError("Receive of an empty rendezvous key");
    return;
  }
  if (!shard.aborted.ok()) {
    ++shard.counters.aborted_receives;
    result.status = shard.aborted;
    return;
  }
  Item** head = shard.table.Find(key);
  if (*head != nullptr && (*head)->is_send) {
    uint64_t checksum;
    *freed_bytes += GetSend(shard, head, &result, &checksum);
    if (options_.check_immutable) batch->checks[index] = checksum;
    return;
  }
  const RecvArgs& args = batch->args;
  if (args.cancellation != nullptr && args.cancellation->cancelled()) {
    ++shard.counters.cancelled;
    result.status = MarkDerived(absl::CancelledError("RecvAsync is cancelled."));
    return;
  }
  if (args.deadline.Passed(now_ns)) {
    ++shard.counters.deadline_exceeded;
    result.status = absl::DeadlineExceededError(absl::StrCat("Timed out waiting for ", key.text()));
    return;
  }
  --*ended;
  WaitingReceive* item = shard.table.NewReceive(key);
  item->batch = batch;
  item->batch_index = index;
  item->since_ns = now_ns;
  batch->items[index] = item;
  shard.table.Append(head, item);
  ++shard.counters.waiting_receives;
}

// The batch cannot end meanwhile: its caller's own result is outstanding.
void MatchCore::ArmBatch(Batch* batch) {
  const RecvArgs& args = batch->args;
  if (!args.deadline.is_never()) {
    ++batch->holds;
    batch->alarm_token = alarms_->Set(args.deadline, [this, batch] {
      EndWaitingOfBatch(batch,
                        absl::DeadlineExceededError(
                            "the deadline passed before all tensors of a RecvMany had come"));
    });
  }
  if (args.cancellation == nullptr) return;
  ++batch->holds;
  batch->cancel_token = args.cancellation->Register([this, batch] {
    EndWaitingOfBatch(batch, MarkDerived(absl::CancelledError("RecvAsync is cancelled.")));
  });
  if (batch->cancel_token == Cancellation::kNoToken) {
    EndWaitingOfBatch(batch, MarkDerived(absl::CancelledError("RecvAsync is cancelled.")));
  }
}

// Drops one hold. An item may have ended and serve another receive by now, even one of
// the same key: it is ours only while it is linked and names this batch and index.
void MatchCore::EndWaitingOfBatch(Batch* batch, const absl::Status& status) {
  int64_t ended = 0;
  for (uint32_t index = 0; index < batch->items.size(); ++index) {
    WaitingReceive* item = batch->items[index];
    if (item == nullptr) continue;
    Shard& shard = ShardOf(*item);
    MutexLock lock(&shard.mu);
    if (!item->linked || item->batch != batch || item->batch_index != index) continue;
    shard.table.Remove(item);
    shard.table.Free(item);
    batch->results[index].status = status;
    --shard.counters.waiting_receives;
    ++(absl::IsCancelled(status) ? shard.counters.cancelled : shard.counters.deadline_exceeded);
    ++ended;
  }
  // Drops the hold before the results are delivered, because `done` may throw. The batch has a hold
  // of its own until they are.
  DropBatchHolds(batch, 1);
  GiveResults(batch, ended);
}

void MatchCore::GiveResults(Batch* batch, int64_t count) {
  if (count != 0 && batch->remaining.fetch_sub(count) == count) EndBatch(batch);
}

void MatchCore::EndBatch(Batch* batch) {
  int holds = 1;
  if (batch->cancel_token != Cancellation::kNoToken &&
      batch->args.cancellation->TryDeregister(batch->cancel_token)) {
    ++holds;
  }
  if (batch->alarm_token != Alarms::kNoToken && alarms_->Cancel(batch->alarm_token)) ++holds;
  batch->cancel_token = Cancellation::kNoToken;
  batch->alarm_token = Alarms::kNoToken;
  if (batch->args.executor != nullptr) {
    batch->args.executor->RunWithoutWaiting([this, batch, holds] { FinishBatch(batch, holds); });
  } else {
    FinishBatch(batch, holds);
  }
}

void MatchCore::FinishBatch(Batch* batch, int holds) {
  absl::Status first_error;
  for (const Received& result : batch->results) KeepCause(&first_error, result.status);
  struct Recycle {  // Runs even if `done` throws.
    ~Recycle() {
      batch->results.clear();
      batch->args = RecvArgs();
      core->DropBatchHolds(batch, holds);
    }
    MatchCore* core;
    Batch* batch;
    int holds;
  } recycle{this, batch, holds};
  ManyDoneFn done = std::move(batch->done);
  std::move(done)(std::move(first_error), absl::MakeSpan(batch->results));
}

void MatchCore::DropBatchHolds(Batch* batch, int holds) {
  if (batch->holds.fetch_sub(holds) != holds) return;
  {
    MutexLock lock(&batch_mu_);
    batch->next_free = std::exchange(free_batches_, batch);
  }
  Unref();
}

absl::Status MatchCore::SendMany(absl::Span<SendItem> items, const SendArgs& args) {
  int64_t charge_bytes = 0;
  for (SendItem& item : items) {
    if (item.key.empty()) return absl::InvalidArgumentError("Send of an empty rendezvous key");
    if (!item.is_dead && !item.tensor.valid()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Send was given an invalid tensor, and is_dead is not set: ", item.key.text()));
    }
    if (item.is_dead) item.tensor = Tensor();
    const absl::Status copied = CopyIfAsked(item.key, args, &item.tensor);
    if (!copied.ok()) return copied;
    charge_bytes += ChargeBytes(item.tensor.bytes());
  }
  bool room = held_.TryTake(charge_bytes);
  if (!room) {
    held_.OnRefused();
    room = held_.TryTake(charge_bytes);
  }
  if (!room) {
    return OverCap(charge_bytes, absl::StrCat(items.size(), " tensors"));
  }
  Batch* batch = NewBatch();
  batch->holds = 1;
  if (options_.check_immutable) {
    batch->checks.clear();
    for (const SendItem& item : items) batch->checks.push_back(ContentChecksum(item.tensor));
  }
  batch->SortByShard(items.size(), shards_.size(),
                     [&](size_t i) { return ShardIndex(items[i].key); });
  absl::Status status;
  int64_t spare_bytes = charge_bytes;
  AllRun all;
  const int64_t now_ns = clock().CoarseNowNs();
  for (size_t shard = 0; shard < shards_.size() && status.ok(); ++shard) {
    status = SendInShard(batch, items, args, shard, now_ns, &spare_bytes, &all);
  }
  held_.Give(spare_bytes);
  DropBatchHolds(batch, 1);
  all.ThrowFirst();
  return status;
}

// Sends the items of one shard. The bytes of those that are kept are taken from `spare_bytes`.
// Takes the lock once, and once more for each single receive that waited, because its `done` runs
// without the lock.
absl::Status MatchCore::SendInShard(Batch* batch, absl::Span<SendItem> items, const SendArgs& args,
                                    size_t shard_index, int64_t now_ns, int64_t* spare_bytes,
                                    AllRun* all) {
  uint32_t begin = batch->bounds[shard_index];
  const uint32_t end = batch->bounds[shard_index + 1];
  Shard& shard = *shards_[shard_index];
  while (begin < end) {
    Leaving leaving;
    bool met = false;
    Batch* fed = nullptr;  // A waiting RecvMany, and how many results it got here.
    int64_t results = 0;
    {
      MutexLock lock(&shard.mu);
      if (!shard.aborted.ok()) {
        ++shard.counters.aborted_sends;
        return shard.aborted;
      }
      while (begin < end && !met) {
        const uint32_t index = batch->order[begin++];
        const uint64_t checksum = options_.check_immutable ? batch->checks[index] : 0;
        if (!SendOne(shard, &items[index], args, checksum, now_ns, spare_bytes, &leaving)) continue;
        if (leaving.batch != nullptr && (fed == nullptr || fed == leaving.batch)) {
          fed = std::exchange(leaving.batch, nullptr);
          ++results;
        } else {
          met = true;
        }
      }
    }
    if (fed != nullptr) all->Run([&] { GiveResults(fed, results); });
    if (met) {
      all->Run([&] { CallReceive(&leaving); });
    }
  }
  return absl::OkStatus();
}

// True when it met a receive.
bool MatchCore::SendOne(Shard& shard, SendItem* item, const SendArgs& args, uint64_t checksum,
                        int64_t now_ns, int64_t* spare_bytes, Leaving* leaving) {
  Item** head = shard.table.Find(item->key);
  const int64_t bytes = item->tensor.bytes();
  if (*head != nullptr && !(*head)->is_send) {
    ++shard.counters.sends;
    GiveToReceive(shard, head, args, std::move(item->tensor), item->is_dead, 0, leaving);
    return true;
  }
  shard.table.Append(head, NewSend(shard, item->key, args, std::move(item->tensor), item->is_dead,
                                   ChargeBytes(bytes), checksum, now_ns));
  ++shard.counters.sends;
  *spare_bytes -= ChargeBytes(bytes);
  return false;
}

}  // namespace tryst
