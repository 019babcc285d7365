#ifndef TRYST_CHANNEL_OPS_FETCH_KEYS_H_
#define TRYST_CHANNEL_OPS_FETCH_KEYS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/linked_line.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// A key that a peer is, or was, asked for.
struct FetchKey {
  static constexpr uint32_t kNoId = UINT32_MAX;
  TensorKey key;
  uint32_t id = kNoId;                            // By which the peer knows it, or is to be told.
  uint64_t told = 0;                              // On which connection (epoch) it was.
  LinkedLine<FetchOp> asked{&FetchOp::key_link};  // And not ended: one for each step.
};

// The keys of one channel and their numbers, of which there are so many, and for so many bytes of
// texts. Behind that they begin at 0 again: the key that has such a number gives way to the new
// one; what is asked for of it stays here all the same.
class FetchKeys {
 public:
  FetchKeys(uint32_t most, uint64_t most_bytes) : most_(most), most_bytes_(most_bytes) {}

  // Never null, and with a number. A number that is new may have been another key's.
  FetchKey* Intern(const TensorKey& key);
  FetchKey* Find(const TensorKey& key) const;  // Null: unknown.
  // None is known to the peer any more.
  void ForgetIds();

  // `op` is asked for, until Leave(). No-op when it was before.
  void Join(FetchOp* op, FetchKey* key);
  void Leave(FetchOp* op);  // No-op when it was not.

 private:
  void GiveId(FetchKey* entry);
  void LoseId(FetchKey* entry);

  const uint32_t most_;
  const uint64_t most_bytes_;
  std::deque<FetchKey> all_;  // All there ever were; addresses stay.
  std::vector<FetchKey*> free_;
  absl::flat_hash_map<TensorKey, FetchKey*> keys_;
  std::vector<FetchKey*> by_id_;
  uint32_t next_id_ = 0;
  uint64_t lap_bytes_ = 0;  // Of the texts that have got a number since 0 was given.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_KEYS_H_
