#ifndef TRYST_CHANNEL_OPS_FETCH_KEYS_H_
#define TRYST_CHANNEL_OPS_FETCH_KEYS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "channel/ops/fetch_ask.h"
#include "channel/ops/linked_line.h"
#include "channel/ops/run_wire.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct FetchRun;

// A key that is, or is about to be, requested from a peer.
struct FetchKey {
  static constexpr uint32_t kNoId = UINT32_MAX;
  TensorKey key;
  // The number by which the peer knows it, or will be told it.
  uint32_t id = kNoId;
  uint64_t told = 0;  // The epoch in which the peer was told.
  // What is asked for of it, or is to be: the line of each step.
  LinkedLine<FetchAsk> asks{&FetchAsk::key_link};
  int64_t last_step = 0;  // No ask is of a later step.
  // What its last tensor would take in the answer of a run; 0: none came, or none for a run.
  uint64_t run_item_bytes = 0;
  FetchRun* out_in = nullptr;  // It is asked for in this run, and nothing else of it is.
  uint32_t runs = 0;           // How many have it among their keys.
  // Not empty: it stands for a run of keys, and this is what the peer is told. `key` is then equal
  // to the first of them.
  std::string run_text;

  void NoteLast(const Tensor& tensor) {
    const uint64_t bytes = tensor.bytes();
    const bool is_one = bytes <= kRunTensorBytes && tensor.dtype() != DType::kString;
    run_item_bytes = is_one ? RunItemBytes(static_cast<size_t>(tensor.shape().rank()), bytes) : 0;
  }
  bool is_run() const { return !run_text.empty(); }
  absl::string_view told_text() const { return is_run() ? run_text : key.text(); }
};

// The keys of one channel and their numbers. There is a bound on the numbers and on the bytes of
// their texts; after it numbering begins at 0 again. Then the key that has such a number loses it
// to the new key; its asks stay here.
//
// This is the only place where the order of a key is kept: each of its steps has one line, with one
// ask in it (docs/decisions/0026-order-with-cancels.md).
class FetchKeys {
 public:
  FetchKeys(uint32_t most, uint64_t most_bytes) : most_(most), most_bytes_(most_bytes) {}

  // Returns the key's entry with a number, never null. A number may have belonged to another key.
  FetchKey* Intern(const TensorKey& key) {
    const uint32_t noted = key.note();
    if (noted < by_id_.size() && by_id_[noted]->key.SharesTextWith(key)) return by_id_[noted];
    return InternAnew(key);
  }
  FetchKey* Find(const TensorKey& key) const;  // Null: unknown.
  void Number(FetchKey* entry) {               // Gives it a number, if it has lost its own.
    if (entry->id == FetchKey::kNoId) GiveId(entry);
  }
  // A key that stands for all of these. Null: one of them has lost its number to it.
  FetchKey* NewRun(const std::vector<FetchKey*>& of);
  // Changes whenever a key has lost its number: names of runs are over then.
  uint64_t numbers_lost() const { return numbers_lost_; }
  // The peer has forgotten all numbers.
  void ForgetIds();
  // So many that they are not kept while nothing is fetched.
  bool has_many() const { return has_many_; }
  // Forgets all keys, and gives their memory back. REQUIRES: none is requested.
  void Clear();

  // The ask in whose line a fetch of this step waits. Null: there is none. One that is given up and
  // for which nobody waits is none: the peer hears of its end before it gets another request.
  static FetchAsk* AskOf(const FetchKey& key, int64_t step) {
    if (key.asks.empty() || step > key.last_step) return nullptr;
    return SearchAsk(key, step);
  }
  void Join(FetchAsk* ask, FetchKey* key, int64_t step) {
    ask->of = key;
    ask->step = step;
    if (key->asks.empty() || step > key->last_step) key->last_step = step;
    key->asks.Push(ask);
  }
  void Leave(FetchAsk* ask) {
    FetchKey* const key = std::exchange(ask->of, nullptr);
    key->asks.Remove(ask);
    if (ABSL_PREDICT_FALSE(key->id == FetchKey::kNoId)) FreeIfUnused(key);
  }
  void LeaveRun(FetchKey* key);  // It is no longer among the keys of a run.

 private:
  static constexpr size_t kMany = 4096;

  FetchKey* InternAnew(const TensorKey& key);
  static FetchAsk* SearchAsk(const FetchKey& key, int64_t step);
  void GiveId(FetchKey* entry);
  void LoseId(FetchKey* entry);
  FetchKey* NewEntry();
  // Without a number the peer does not know it.
  void FreeIfUnused(FetchKey* entry);

  const uint32_t most_;
  const uint64_t most_bytes_;
  std::deque<FetchKey> all_;  // All keys ever; their addresses do not change.
  bool has_many_ = false;
  std::vector<FetchKey*> free_;
  absl::flat_hash_map<TensorKey, FetchKey*> keys_;
  std::vector<FetchKey*> by_id_;  // Every number below its size is a key's.
  uint32_t next_id_ = 0;
  uint64_t numbers_lost_ = 0;
  uint64_t lap_bytes_ = 0;  // The bytes of texts that got a number since 0 was last given.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_KEYS_H_
