// The part of MatchCore that aborts it and that lists what waits.

#include <utility>

#include "rendezvous/derived_status.h"
#include "rendezvous/match_core.h"

namespace tryst {

void MatchCore::StartAbort(absl::Status status) {
  if (status.ok()) status = absl::AbortedError("the step was aborted and no reason was given");
  {
    MutexLock lock(&abort_mu_);
    if (!abort_cause_.ok()) return;
    abort_cause_ = status;
    aborted_.store(true);
  }
  Ref();  // A `done` may drop the rendezvous.
  const absl::Status derived = MarkDerived(std::move(status));
  held_.FailWaiting(derived);  // Before emptying the table makes room and wakes them.
  // Empties all shards before it runs the first callback. A callback that receives another key must
  // find that key aborted, and not wait for this very thread.
  for (const auto& shard : shards_) EmptyShard(*shard, derived);
  AllRun all;
  for (const auto& shard : shards_) EndEmptied(*shard, derived, &all);
  Unref();
  all.ThrowFirst();
}

void MatchCore::EmptyShard(Shard& shard, const absl::Status& derived) {
  Item* items = nullptr;
  {
    MutexLock lock(&shard.mu);
    shard.aborted = derived;
    RendezvousCounters& counters = shard.counters;
    counters.aborted_sends += std::exchange(counters.waiting_sends, 0);
    counters.aborted_receives += std::exchange(counters.waiting_receives, 0);
    shard.emptied_bytes =
        std::exchange(counters.held_bytes, 0) + std::exchange(shard.reserve_bytes, 0);
    for (Item* item = shard.table.DetachAll(); item != nullptr;) {
      Item* next = std::exchange(item->next, nullptr);
      if (item->arming) {
        AsReceive(item)->more->received.status = derived;  // Its caller finishes it.
      } else {
        item->next = items;
        items = item;
      }
      item = next;
    }
  }
  BetweenLocks("abort", nullptr);
  // The list is in reverse now; turn it, so that each key's receives end in order.
  while (items != nullptr) {
    Item* next = std::exchange(items->next, shard.emptied);
    shard.emptied = std::exchange(items, next);
  }
}

void MatchCore::EndEmptied(Shard& shard, const absl::Status& derived, AllRun* all) {
  Item* spent = nullptr;
  while (shard.emptied != nullptr) {
    Item* item = shard.emptied;
    shard.emptied = std::exchange(item->next, nullptr);
    // Other items are recycled when their last callback has run.
    const bool recycle =
        item->is_send || AsReceive(item)->batch != nullptr || AsReceive(item)->plain();
    all->Run([&] { EndAborted(item, derived); });
    if (recycle) item->chain = std::exchange(spent, item);
  }
  {
    MutexLock lock(&shard.mu);
    while (spent != nullptr) {
      Item* next = spent->chain;
      shard.table.Free(spent);
      spent = next;
    }
  }
  held_.Give(std::exchange(shard.emptied_bytes, 0));
}

void MatchCore::EndAborted(Item* item, const absl::Status& derived) {
  if (item->is_send) {
    WaitingSend* send = AsSend(item);
    const Tensor tensor = std::move(send->tensor);  // Dropped here, outside of the lock.
    const auto context = std::move(send->send_context);
    (void)CheckUnchanged(send->key, tensor, send->checksum);  // It logs and counts the change.
    return;
  }
  WaitingReceive* receive = AsReceive(item);
  if (receive->batch != nullptr) {
    receive->batch->results[receive->batch_index].status = derived;
    GiveResults(receive->batch, 1);
  } else if (receive->plain()) {
    FailReceive(derived, nullptr, std::move(receive->done));
  } else {
    receive->more->received.status = derived;
    End(receive);
  }
}

void MatchCore::WhenRoom(int64_t bytes, HeldBytes::Ready ready) {
  absl::Status cause = abort_cause();
  if (!cause.ok()) {
    HeldBytes::Call(std::move(ready), MarkDerived(std::move(cause)));
    return;
  }
  Ref();  // `ready` may drop the rendezvous.
  held_.WhenRoom(ChargeBytes(bytes), std::move(ready));
  cause = abort_cause();  // The abort may have come after the first check.
  if (!cause.ok()) held_.FailWaiting(MarkDerived(std::move(cause)));
  Unref();
}

absl::Status MatchCore::abort_cause() const {
  MutexLock lock(&abort_mu_);
  return abort_cause_;
}

RendezvousCounters MatchCore::counters() const {
  RendezvousCounters sum;
  for (const auto& shard : shards_) {
    MutexLock lock(&shard->mu);
    sum += shard->counters;
  }
  sum.changed_after_send = changed_after_send_;
  return sum;
}

void MatchCore::ListWaiting(int64_t step_id, WaitingItems* items) const {
  for (const auto& shard : shards_) {
    MutexLock lock(&shard->mu);
    shard->table.ForEach([&](const Item& item) {
      items->Add(item.since_ns, [&]() -> WaitingItem {
        return {step_id,
                item.key,
                item.is_send ? WaitingItem::Kind::kSend : WaitingItem::Kind::kReceive,
                item.is_dead,
                item.is_send ? static_cast<const WaitingSend&>(item).tensor.bytes() : 0,
                item.since_ns};
      });
    });
  }
}

}  // namespace tryst
