#ifndef TRYST_RENDEZVOUS_MATCH_TABLE_H_
#define TRYST_RENDEZVOUS_MATCH_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/alarms.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct Batch;

// A send or a receive that waits, or a receive on its way to its `done`.
struct alignas(64) Item {
  // The table's. What a search reads lies in one cache line.
  Item* chain = nullptr;  // Of a queue's head: the next head in the bucket. Free: the next.
  Item* next = nullptr;   // Behind this one in its queue.
  Item* prev = nullptr;   // Null for a head.
  Item* tail = nullptr;   // Of a head: the last in its queue.
  TensorKey key;
  uint64_t key_hash = 0;
  bool linked = false;
  bool is_send = false;

  bool is_dead = false;
  // A receive whose caller is still registering its cancellation and deadline. Who ends
  // it meanwhile leaves the outcome in it, and the caller finishes.
  bool arming = false;
  uint8_t holds = 0;   // The receive itself and each callback that may still run.
  uint8_t drops = 0;   // Of an ended receive: how many of the holds its end gives up.
  uint16_t shard = 0;  // Constant: where it was allocated.
  uint32_t batch_index = 0;
  Batch* batch = nullptr;    // Receives of a batch: where the outcome goes.
  uint64_t number = 0;       // Counts the items of a shard.
  uint64_t turn = 0;         // Sends given back: their place among those given away. Else 0.
  uint64_t checksum = 0;     // Sends, when immutability is checked.
  int64_t charge_bytes = 0;  // Sends: taken from the memory cap.
  int64_t since_ns = 0;
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  Alarms::Token alarm_token = Alarms::kNoToken;

  Tensor tensor;  // Of a send; of an ended receive, what it got.
  // What a receiver may want of a send's args. Not all of them: a send that waits has grown
  // cold when it is met, and each line of it costs.
  std::shared_ptr<DeviceContext> send_context;
  AllocatorAttributes send_attrs;
  Args args;  // Of a receive.
  DoneFn done;
  absl::Status status;  // From here on: how a receive ended.
  Args send_args;

  // Nobody but the table refers to it, so it can be recycled when it leaves the table.
  bool plain() const { return holds == 0 && batch == nullptr; }
};

// Which items wait for which key, first come first served. Each key's queue holds sends
// or receives, never both. Needs external synchronisation. Keys are compared in full.
// Allocates only while more items wait than ever before.
class MatchTable {
 public:
  explicit MatchTable(uint16_t shard);
  ~MatchTable();  // REQUIRES: nothing is linked.

  // Where the head of `key`'s queue is, or would be: valid until the table changes.
  Item** Find(const TensorKey& key);
  // An unlinked item with `key` and otherwise as new.
  Item* New(const TensorKey& key);
  void Free(Item* item);  // REQUIRES: unlinked, its tensors, args and done moved out.
  // Puts `item` last into the queue at `*head`, which Find(item->key) gave.
  void Append(Item** head, Item* item);
  // The same for a send that was given back: before those with a later turn or none.
  void InsertByTurn(Item** head, Item* item);
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
  void AddBlock();

  const uint16_t shard_;
  std::vector<Item*> buckets_;  // A power of two of them.
  size_t heads_ = 0;
  uint64_t next_number_ = 0;
  Item* free_ = nullptr;
  std::vector<std::unique_ptr<Item[]>> blocks_;
  size_t next_block_items_;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_MATCH_TABLE_H_
