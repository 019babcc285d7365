#ifndef TRYST_TESTS_CONTRACT_HOP_BUDGET_COUNTED_PAIR_H_
#define TRYST_TESTS_CONTRACT_HOP_BUDGET_COUNTED_PAIR_H_

#include <functional>
#include <memory>

#include "channel/pool/channel_pool_options.h"
#include "rendezvous/tensor.h"
#include "tests/contract/hop_budget/counting_nic.h"
#include "tests/process/pair/worker_pair.h"

namespace tryst {

inline constexpr int kWarmUp = 2000;  // By then rings, tables and free lists have grown.
inline constexpr int kCounted = 400;

// The pair on which every budget is counted: a producer and a consumer over the software NIC, both
// turned by the caller's thread. Nothing is sent because time has passed, so a slow machine counts
// the same. `tally` outlives the pair. `adjust` may be null.
std::unique_ptr<WorkerPair> MakeCountedPair(NicTally* tally,
                                            const std::function<void(TransportsOptions*)>& adjust);

// One fetch of the consumer. The test fails unless it ends with OK.
struct CountedFetch {
  void Start(WorkerPair* pair, int64_t step, const TensorKey& key, const RecvArgs& args);

  bool ended = false;
  Tensor got;
};

// Turns the pair until `over`; fails the test if that never comes.
void TurnUntil(WorkerPair* pair, const std::function<bool()>& over);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_HOP_BUDGET_COUNTED_PAIR_H_
