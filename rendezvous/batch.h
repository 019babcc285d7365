#ifndef TRYST_RENDEZVOUS_BATCH_H_
#define TRYST_RENDEZVOUS_BATCH_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "rendezvous/match_table.h"

namespace tryst {

// A RecvMany that has not ended, or the working memory of a SendMany. Objects are reused together
// with their vectors.
struct Batch {
  Batch* next_free = nullptr;
  ManyDoneFn done;
  RecvArgs args;
  std::vector<Received> results;
  std::vector<WaitingReceive*> items;  // Those that had to wait; constant once armed.
  std::vector<uint64_t> checks;        // Checksums, when immutability is checked.
  std::vector<uint32_t> order;         // Indexes of the keys by shard.
  std::vector<uint32_t> bounds;  // In `order`: a shard's part begins at its own, up to the next.
  // Results still to come, and one for the caller while it queues and registers.
  std::atomic<int64_t> remaining{0};
  std::atomic<int> holds{0};  // The batch itself and each callback that may still run.
  Cancellation::Token cancel_token = Cancellation::kNoToken;
  Alarms::Token alarm_token = Alarms::kNoToken;

  // Fills `order` and `bounds`: a stable counting sort, so that equal keys stay in order.
  template <typename ShardOf>
  void SortByShard(size_t count, size_t shards, ShardOf shard_of) {
    bounds.assign(shards + 1, 0);
    uint32_t* const ends = bounds.data() + 1;
    for (size_t i = 0; i < count; ++i) ++ends[shard_of(i)];
    uint32_t sum = 0;
    for (size_t shard = 0; shard < shards; ++shard) {
      const uint32_t in_shard = std::exchange(ends[shard], sum);
      sum += in_shard;
    }
    order.resize(count);
    for (size_t i = 0; i < count; ++i) order[ends[shard_of(i)]++] = static_cast<uint32_t>(i);
  }
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_BATCH_H_
