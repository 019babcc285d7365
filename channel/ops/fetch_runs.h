#ifndef TRYST_CHANNEL_OPS_FETCH_RUNS_H_
#define TRYST_CHANNEL_OPS_FETCH_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/ops/fetch_keys.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/linked_line.h"
#include "channel/ops/run_wire.h"
#include "rendezvous/tensor.h"

namespace tryst {

// Keys of one step that are asked for together: of one fetch of many, or of several fetches.
// Meanwhile nothing else of these keys is asked for: what is fetched of them waits here. Poller
// thread only.
struct FetchRun {
  std::vector<FetchKey*> keys;
  int64_t step = 0;
  // Each key has a fetch, which is null when it has ended early;
  std::vector<FetchOp*> ops;
  // or a place in the join, and memory of the caller's, unless nobody gave any.
  std::vector<size_t> places;
  std::vector<Tensor> into;
  uint64_t bytes = 0;        // What its answer takes: as expected, then as it came.
  uint64_t numbers = 0;      // FetchKeys::numbers_lost() when it got its name.
  FetchKey* name = nullptr;  // The key that stands for all of them.
  FetchJoin* join = nullptr;
  LinkedLine<FetchOp> held{&FetchOp::line_link};
  // Its answer: which keys are to be asked for alone.
  bool taken = false;
  std::vector<size_t> not_here;
  bool apart = false;  // It is given up, and all its keys are to be asked for alone.

  // If the next tensor of each is as its last.
  bool Fits(const FetchKey& key, uint64_t most_bytes) const {
    return keys.size() < kMostInRun && bytes + key.run_item_bytes <= most_bytes;
  }
  void Add(FetchKey* key, size_t place, const Tensor* destination) {
    places.push_back(place);
    if (destination != nullptr) into.push_back(*destination);
    Add(key);
  }
  void Add(FetchKey* key, FetchOp* op) {
    ops.push_back(op);
    op->part_of = this;
    Add(key);
  }
  // Not valid: the caller gave no memory.
  const Tensor& wanted(size_t index) const {
    return !ops.empty() ? ops[index]->destination() : into.empty() ? none : into[index];
  }
  // Where the result of a key goes.
  Received* ResultOf(size_t index) const {
    return join == nullptr ? &ops[index]->received : &join->results[places[index]];
  }
  const Tensor none{};

 private:
  void Add(FetchKey* key) {
    keys.push_back(key);
    bytes += key->run_item_bytes;
    key->out_in = this;
    ++key->runs;
  }
};

// The runs of one channel: those that are out, and the names by which the peer knows which keys
// they have. Names are made anew when they are many, or when a key has lost its number.
class FetchRuns {
 public:
  FetchRun* Take(int64_t step);
  void Free(FetchRun* run);
  const std::vector<FetchRun*>& out() const { return out_; }
  // The key under which the peer is asked for all of `run`. Null: there is none now.
  FetchKey* NameOf(FetchKeys* keys, FetchRun* run);
  void Clear();  // Gives memory back. REQUIRES: none is out.

  // ---- Whether runs are worth while ----
  // Where most tensors were not here when they were asked for, each run costs a message more. Then
  // so many fetches of many go by without one.
  bool TakesPart() {
    if (pause_left_ == 0) return true;
    --pause_left_;
    return false;
  }
  void NoteAnswer(size_t keys, size_t not_here);

 private:
  static constexpr size_t kMostNames = 1024;
  static constexpr uint32_t kFirstPause = 16;
  static constexpr uint32_t kLongestPause = 4096;
  struct Name {
    std::vector<FetchKey*> of;
    FetchKey* key;
    uint64_t numbers;
  };

  std::vector<std::unique_ptr<FetchRun>> all_;
  std::vector<FetchRun*> free_;
  std::vector<FetchRun*> out_;
  absl::flat_hash_map<uint64_t, Name> names_;  // By the numbers of its keys.
  uint32_t pause_ = 0;
  uint32_t pause_left_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_RUNS_H_
