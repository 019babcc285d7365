#ifndef TRYST_RENDEZVOUS_MATCH_TABLE_H_
#define TRYST_RENDEZVOUS_MATCH_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "base/log.h"
#include "rendezvous/alarms.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct Batch;

// A waiting send or receive, or a receive on its way to its `done`. Everything that a search reads
// lies in one cache line. The two kinds have different sizes, so that each of 10^6 waiting receives
// takes two lines.
struct alignas(64) Item {
  // In a queue's head: the next head in the bucket. If free: the next free item.
  Item* chain = nullptr;
  Item* next = nullptr;  // The next item of its queue.
  Item* prev = nullptr;  // Null for a head.
  Item* tail = nullptr;  // In a head: the last item of its queue.
  TensorKey key;
  uint64_t key_hash = 0;
  int64_t since_ns = 0;
  uint16_t shard = 0;    // Constant: where it was allocated.
  bool is_send = false;  // Constant.
  bool linked = false;
  bool is_dead = false;
  // A receive whose caller is still registering its cancellation and deadline. A thread that ends
  // it meanwhile stores the outcome in it, and the caller finishes it.
  bool arming = false;
  uint8_t holds = 0;  // Counts the receive itself, and each callback that may still run.
  uint8_t drops = 0;  // For an ended receive: how many of the holds its end releases.
};
static_assert(sizeof(Item) == 64);

struct WaitingSend : Item {
  Tensor tensor;
  // The send's args that a receiver may need. The others are not kept: when a receive meets a send
  // that has waited, its cache lines are cold, and each one costs time.
  std::shared_ptr<DeviceContext> send_context;
  AllocatorAttributes send_attrs;
  uint64_t turn = 0;         // If given back: its place among tensors that were taken. Otherwise 0.
  uint64_t checksum = 0;     // Set if immutability is checked.
  int64_t charge_bytes = 0;  // Taken from the memory cap.
};

// What only receives with an executor, a cancellation or a deadline need.
struct ReceiveMore {
  ReceiveMore* next_free = nullptr;
  Executor* executor = nullptr;
  CancellationRef cancellation;
  Deadline deadline;
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  Alarms::Token alarm_token = Alarms::kNoToken;
  Received received;  // How it ended.
};

struct WaitingReceive : Item {
  DoneFn done;
  ReceiveMore* more = nullptr;  // Constant while it waits and ends.
  Batch* batch = nullptr;       // If it is in a batch: where the outcome goes.
  uint64_t number = 0;          // Counts the receives of a shard that have waited.
  uint32_t batch_index = 0;

  // Nobody but the table refers to it, so it can be recycled when it leaves the table. Whoever took
  // it out may ask without the lock, when its callbacks may be dropping their holds.
  bool plain() const { return more == nullptr && batch == nullptr; }
};
static_assert(sizeof(WaitingReceive) == 128);

inline WaitingSend* AsSend(Item* item) {
  TRYST_DCHECK(item->is_send);
  return static_cast<WaitingSend*>(item);
}
inline WaitingReceive* AsReceive(Item* item) {
  TRYST_DCHECK(!item->is_send);
  return static_cast<WaitingReceive*>(item);
}

// Which items wait for which key, first in, first out. A key's queue holds sends or receives, never
// both. Keys are compared in full. Allocates only when more items wait than ever before. Needs
// external synchronisation.
class MatchTable {
 public:
  explicit MatchTable(uint16_t shard);
  ~MatchTable();  // REQUIRES: nothing is linked.

  // The place of the head of `key`'s queue, even if there is no queue; valid until the table
  // changes.
  ABSL_ATTRIBUTE_ALWAYS_INLINE Item** Find(const TensorKey& key) {
    const uint64_t hash = key.hash();
    Item** head = &buckets_[BucketOf(hash)];
    while (*head != nullptr && ((*head)->key_hash != hash || (*head)->key != key)) {
      head = &(*head)->chain;
    }
    return head;
  }
  // Returns an unlinked item for `key`; its other fields have their defaults.
  WaitingSend* NewSend(const TensorKey& key) { return New(&sends_, key); }
  WaitingReceive* NewReceive(const TensorKey& key);
  ReceiveMore* NewMore();  // For a receive, and freed with it.
  // REQUIRES: it is unlinked, and its tensors, args and done were moved out.
  void Free(Item* item);
  // Puts `item` at the end of the queue at `*head`, which Find(item->key) returned.
  void Append(Item** head, Item* item) {
    item->linked = true;
    item->next = nullptr;
    if (*head != nullptr) {
      item->prev = (*head)->tail;
      item->prev->next = item;
      (*head)->tail = item;
      return;
    }
    item->prev = nullptr;
    item->tail = item;
    item->chain = nullptr;  // Find stops at the end of a chain when there is no such queue.
    *head = item;
    if (++heads_ > buckets_.size()) Grow();
  }
  // Inserts a send that was given back: before sends with a later turn or without one.
  void InsertByTurn(Item** head, WaitingSend* item);
  // Removes the head of a queue that Find() returned.
  Item* PopHead(Item** head);
  void Remove(Item* item);  // From any place in its queue.

  template <typename Fn>
  void ForEach(Fn fn) const {
    for (Item* bucket : buckets_) {
      for (Item* head = bucket; head != nullptr; head = head->chain) {
        for (Item* item = head; item != nullptr; item = item->next) fn(*item);
      }
    }
  }
  // Unlinks everything, and returns it as a list linked by `next`, each key's items in order.
  Item* DetachAll();

 private:
  size_t BucketOf(uint64_t key_hash) const { return key_hash & (buckets_.size() - 1); }
  void Grow();
  // Items of one kind, in blocks that grow to kMaxBlockItems, and the free items among them.
  template <typename Kind>
  struct Pool {
    Item* free = nullptr;
    std::vector<std::unique_ptr<Kind[]>> blocks;
  };
  template <typename Kind>
  void AddBlock(Pool<Kind>* pool);
  template <typename Kind>
  Kind* New(Pool<Kind>* pool, const TensorKey& key) {
    if (pool->free == nullptr) AddBlock(pool);
    Kind* item = static_cast<Kind*>(std::exchange(pool->free, pool->free->chain));
    item->chain = nullptr;
    item->key = key;
    item->key_hash = key.hash();
    return item;
  }

  const uint16_t shard_;
  std::vector<Item*> buckets_;  // Their number is a power of two.
  size_t heads_ = 0;
  uint64_t next_number_ = 0;
  Pool<WaitingSend> sends_;
  Pool<WaitingReceive> receives_;
  ReceiveMore* free_more_ = nullptr;
  std::vector<std::unique_ptr<ReceiveMore[]>> more_blocks_;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_MATCH_TABLE_H_
