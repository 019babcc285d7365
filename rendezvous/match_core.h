#ifndef TRYST_RENDEZVOUS_MATCH_CORE_H_
#define TRYST_RENDEZVOUS_MATCH_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "base/mutex.h"
#include "rendezvous/all_run.h"
#include "rendezvous/batch.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/match_table.h"

namespace tryst {

// What is shared of a LocalRendezvous, and of what a RoutingRendezvous produces itself. It is
// reference-counted because a cancellation, an alarm or an executor may call it after the
// rendezvous is gone; such a call finds nothing to do. An item leaves the table once, under its
// shard's lock. Only the thread that took it out finishes it. A receive with callbacks outstanding
// is held until the last of them has run or will not run, so a pointer to it in a callback is never
// stale.
class MatchCore {
 public:
  MatchCore(const LocalRendezvous::Options& options, Alarms* alarms,
            std::shared_ptr<HeldBytes> process);

  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // For the one who made it and goes: aborts with kCancelled.
  void Leave() {
    StartAbort(absl::CancelledError("the rendezvous was destroyed while this receive waited"));
    Unref();
  }

  // Takes `*tensor`.
  absl::Status Send(const TensorKey& key, const SendArgs& args, Tensor* tensor, bool is_dead);
  absl::Status SendMany(absl::Span<SendItem> items, const SendArgs& args);
  void RecvAsync(const TensorKey& key, const RecvArgs& args, DoneFn done);
  void RecvManyAsync(absl::Span<const TensorKey> keys, const RecvArgs& args, ManyDoneFn done);
  bool TakeHere(TensorKey* key, Received* taken);
  void GiveBack(const TensorKey& key, Received&& taken);
  void StartAbort(absl::Status status);
  void WhenRoom(int64_t bytes, HeldBytes::Ready ready);

  bool aborted() const { return aborted_.load(); }
  absl::Status abort_cause() const;
  RendezvousCounters counters() const;
  void ListWaiting(int64_t step_id, WaitingItems* items) const;
  const Clock& clock() const { return clock_; }

 private:
  struct alignas(64) Shard {
    explicit Shard(uint16_t index) : table(index) {}
    mutable Mutex mu;
    MatchTable table ABSL_GUARDED_BY(mu);
    absl::Status aborted ABSL_GUARDED_BY(mu);  // Derived.
    RendezvousCounters counters ABSL_GUARDED_BY(mu);
    // Bytes taken from the memory caps in advance, so that small sends of several threads do not
    // all write the same word.
    int64_t reserve_bytes ABSL_GUARDED_BY(mu) = 0;
    uint64_t last_turn ABSL_GUARDED_BY(mu) = 0;  // The last of the sends that were given away.
    // Used by the aborting thread alone: the items that it has taken out of the table and not ended
    // yet, linked by `next`, and the bytes that they held of the memory caps.
    Item* emptied = nullptr;
    int64_t emptied_bytes = 0;
  };
  // A receive that has left the table: its `done` if it was plain, otherwise the item that is still
  // to be finished.
  struct Leaving {
    DoneFn done;
    Received received;
    Batch* batch = nullptr;
    WaitingReceive* held = nullptr;
  };
  // Room for one that is made where a receive waits. An optional would be cleared each time.
  union LeavingRoom {
    LeavingRoom() {}
    ~LeavingRoom() {}
    Leaving leaving;
  };

  ~MatchCore() = default;

  size_t ShardIndex(const TensorKey& key) const {
    return (key.hash() >> 48) & (shards_.size() - 1);
  }
  Shard& ShardOf(const TensorKey& key) { return *shards_[ShardIndex(key)]; }
  Shard& ShardOf(const Item& item) { return *shards_[item.shard]; }
  void BetweenLocks(const char* place, const WaitingReceive* item) const {
    if (options_.between_locks) options_.between_locks(place, item != nullptr ? item->number : 0);
  }

  static std::vector<std::unique_ptr<Shard>> MakeShards(size_t count);

  // Sends.
  static absl::Status CopyIfAsked(const TensorKey& key, const SendArgs& args, Tensor* tensor);
  static int64_t ChargeBytes(int64_t bytes);
  absl::Status OverCap(int64_t bytes, absl::string_view what) const;
  // The item of a send that waits, not in its queue yet.
  ABSL_ATTRIBUTE_ALWAYS_INLINE
  static WaitingSend* NewSend(Shard& shard, const TensorKey& key, const SendArgs& args,
                              Tensor&& tensor, bool is_dead, int64_t charge_bytes,
                              uint64_t checksum, int64_t now_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu) {
    WaitingSend* item = shard.table.NewSend(key);
    item->is_dead = is_dead;
    item->tensor = std::move(tensor);
    if (args.device_context != nullptr) item->send_context = args.device_context;
    item->send_attrs = args.alloc_attrs;
    item->charge_bytes = charge_bytes;
    item->checksum = checksum;
    item->since_ns = now_ns;
    ++shard.counters.waiting_sends;
    shard.counters.held_bytes += charge_bytes;
    return item;
  }
  bool KeepGivenBack(Shard& shard, Item** head, const TensorKey& key, Received&& taken,
                     uint64_t checksum) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // `turn`: of a send that is given back; 0: of a new one.
  void GiveToReceive(Shard& shard, Item** head, const SendArgs& args, Tensor&& tensor, bool is_dead,
                     uint64_t turn, Leaving* leaving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  static absl::Status MakeReady(const TensorKey& key, const SendArgs& args, Tensor* tensor,
                                bool is_dead);
  bool TrySend(const TensorKey& key, const SendArgs& args, Tensor* tensor, bool is_dead,
               uint64_t checksum, absl::Status* status);
  absl::Status SendOnceMore(const TensorKey& key, const SendArgs& args, Tensor* tensor,
                            bool is_dead, uint64_t checksum);
  void MeetReceive(Shard& shard, Item** head, const SendArgs& args, Tensor* tensor, bool is_dead,
                   LeavingRoom* room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  void CallMet(Leaving* leaving);
  void CallReceive(Leaving* leaving);
  bool Charge(Shard& shard, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu) {
    if (!held_.capped()) return true;
    if (shard.reserve_bytes < bytes && !Reserve(shard, bytes)) return false;
    shard.reserve_bytes -= bytes;
    return true;
  }
  bool Reserve(Shard& shard, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Returns how much of it to Give, without the lock.
  int64_t Uncharge(Shard& shard, const WaitingSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  int64_t ReleaseReserves();
  // What a receive of `tensor` ends with: OK, unless it was changed since Send.
  absl::Status CheckUnchanged(const TensorKey& key, const Tensor& tensor, uint64_t checksum);

  // Receives.
  int64_t GetSend(Shard& shard, Item** head, Received* received, uint64_t* checksum)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  WaitingReceive* KeepReceive(Shard& shard, Item** head, const TensorKey& key, const RecvArgs& args,
                              DoneFn* done, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  void Arm(WaitingReceive* item);
  void EndWaiting(WaitingReceive* item, absl::Status status);
  void End(WaitingReceive* item);
  void Finish(WaitingReceive* item);
  void DropHolds(WaitingReceive* item, int holds);
  // Takes all items out of the table and refuses new ones.
  void EmptyShard(Shard& shard, const absl::Status& derived);
  // Ends what EmptyShard took out.
  void EndEmptied(Shard& shard, const absl::Status& derived, AllRun* all);
  void EndAborted(Item* item, const absl::Status& derived);

  // Batches.
  Batch* NewBatch();
  int64_t ReceiveInShard(Batch* batch, absl::Span<const TensorKey> keys, size_t shard_index,
                         int64_t now_ns);
  void ReceiveOne(Shard& shard, Batch* batch, const TensorKey& key, uint32_t index, int64_t now_ns,
                  int64_t* ended, int64_t* freed_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  absl::Status SendInShard(Batch* batch, absl::Span<SendItem> items, const SendArgs& args,
                           size_t shard_index, int64_t now_ns, int64_t* spare_bytes, AllRun* all);
  bool SendOne(Shard& shard, SendItem* item, const SendArgs& args, uint64_t checksum,
               int64_t now_ns, int64_t* spare_bytes, Leaving* leaving)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  void ArmBatch(Batch* batch);
  void EndWaitingOfBatch(Batch* batch, const absl::Status& status);
  void GiveResults(Batch* batch, int64_t count);
  void EndBatch(Batch* batch);
  void FinishBatch(Batch* batch, int holds);
  void DropBatchHolds(Batch* batch, int holds);

  // Constant after construction.
  const LocalRendezvous::Options options_;
  Alarms* const alarms_;
  const Clock& clock_;
  const std::vector<std::unique_ptr<Shard>> shards_;  // A power of two of them.

  HeldBytes held_;  // Releases the shards' reserves from its construction on.
  std::atomic<int64_t> refs_{1};
  std::atomic<int64_t> changed_after_send_{0};
  std::atomic<bool> aborted_{false};  // That there is a cause.
  mutable Mutex abort_mu_;
  absl::Status abort_cause_ ABSL_GUARDED_BY(abort_mu_);
  Mutex batch_mu_;
  std::vector<std::unique_ptr<Batch>> batches_ ABSL_GUARDED_BY(batch_mu_);
  Batch* free_batches_ ABSL_GUARDED_BY(batch_mu_) = nullptr;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_MATCH_CORE_H_
