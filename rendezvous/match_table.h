#ifndef TRYST_RENDEZVOUS_MATCH_TABLE_H_
#define TRYST_RENDEZVOUS_MATCH_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/log.h"
#include "rendezvous/alarms.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct Batch;

// A send or a receive that waits, or a receive on its way to its `done`. What a search reads
// lies in one cache line; the two kinds have their own sizes, so that 10^6 receives that wait
// take two lines each.
struct alignas(64) Item {
  Item* chain = nullptr;  // Of a queue's head: the next head in the bucket. Free: the next.
  Item* next = nullptr;   // Behind this one in its queue.
  Item* prev = nullptr;   // Null for a head.
  Item* tail = nullptr;   // Of a head: the last in its queue.
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
  uint8_t holds = 0;  // The receive itself and each callback that may still run.
  uint8_t drops = 0;  // Of an ended receive: how many of the holds its end gives up.
};
static_assert(sizeof(Item) == 64);

struct WaitingSend : Item {
  Tensor tensor;
  // The send's args that a receiver may need. The others are not kept: when a receive meets a send
  // that has waited, its cache lines are cold, and each one costs time.
  std::shared_ptr<DeviceContext> send_context;
  AllocatorAttributes send_attrs;
  uint64_t turn = 0;         // When given back: its place among those given away. Else 0.
  uint64_t checksum = 0;     // When immutability is checked.
  int64_t charge_bytes = 0;  // Taken from the memory cap.
};

// What only receives with non-default args need.
struct ReceiveMore {
  ReceiveMore* next_free = nullptr;
  Args args;
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  Alarms::Token alarm_token = Alarms::kNoToken;
  absl::Status status;  // From here on: how one that is not plain ended.
  Tensor tensor;
  std::shared_ptr<DeviceContext> send_context;
  AllocatorAttributes send_attrs;
};

struct WaitingReceive : Item {
  DoneFn done;
  ReceiveMore* more = nullptr;  // Null: its args are Args().
  Batch* batch = nullptr;       // Of a batch: where the outcome goes.
  uint64_t number = 0;          // Counts the receives of a shard that have waited.
  uint32_t batch_index = 0;

  // Nobody but the table refers to it, so it can be recycled when it leaves the table.
  bool plain() const { return holds == 0 && batch == nullptr; }
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

// Which items wait for which key, first come first served. Each key's queue holds sends
// or receives, never both. Needs external synchronisation. Keys are compared in full.
// Allocates only while more items wait than ever before.
class MatchTable {
 public:
  explicit MatchTable(uint16_t shard);
  ~MatchTable();  // REQUIRES: nothing is linked.

  // Where the head of `key`'s queue is, or would be: valid until the table changes.
  Item** Find(const TensorKey& key);
  // Returns an unlinked item for `key`; its other fields have their defaults.
  WaitingSend* NewSend(const TensorKey& key);
  // With room for `args`, which are copied, unless they are Args().
  WaitingReceive* NewReceive(const TensorKey& key, const Args& args);
  void Free(Item* item);  // REQUIRES: unlinked, its tensors, args and done moved out.
  // Puts `item` last into the queue at `*head`, which Find(item->key) gave.
  void Append(Item** head, Item* item);
  // The same for a send that was given back: before those with a later turn or none.
  void InsertByTurn(Item** head, WaitingSend* item);
  // Takes the head of a queue, which Find gave, out of it.
  Item* PopHead(Item** head);
  void Remove(Item* item);  // From anywhere in its queue.

  template <typename Fn>
  void ForEach(Fn fn) const {
    for (Item* bucket : buckets_) {
      for (Item* head = bucket; head != nullptr; head = head->chain) {
        for (Item* item = head; item != nullptr; item = item->next) fn(*item);
      }
    }
  }
  // Unlinks everything and returns it as a list by `next`, each key's items in order.
  Item* DetachAll();

 private:
  size_t BucketOf(uint64_t key_hash) const { return key_hash & (buckets_.size() - 1); }
  void Grow();
  // Items of one kind, in blocks that grow to kMaxBlockItems, and those of them that are free.
  template <typename Kind>
  struct Pool {
    Item* free = nullptr;
    std::vector<std::unique_ptr<Kind[]>> blocks;
  };
  template <typename Kind>
  Kind* New(Pool<Kind>* pool, const TensorKey& key);
  ReceiveMore* NewMore();

  const uint16_t shard_;
  std::vector<Item*> buckets_;  // A power of two of them.
  size_t heads_ = 0;
  uint64_t next_number_ = 0;
  Pool<WaitingSend> sends_;
  Pool<WaitingReceive> receives_;
  ReceiveMore* free_more_ = nullptr;
  std::vector<std::unique_ptr<ReceiveMore[]>> more_blocks_;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_MATCH_TABLE_H_
