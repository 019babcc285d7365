#include "tests/contract/hop_budget/counted_pair.h"

#include <utility>

#include "base/log.h"
#include "gtest/gtest.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {

std::unique_ptr<WorkerPair> MakeCountedPair(NicTally* tally,
                                            const std::function<void(TransportsOptions*)>& adjust) {
  WorkerPairOptions options;
  options.threads = false;
  options.adjust = [&adjust](TransportsOptions* pool) {
    pool->link.ack_delay_us = 10'000'000;
    pool->heartbeat_ms = 100'000;
    pool->silence_ms = 400'000;
    if (adjust) adjust(pool);
  };
  options.open_nic = [tally] {
    auto nic = OpenSoftNic(SoftNicOptions());
    TRYST_CHECK(nic.ok()) << nic.status();
    return std::make_unique<CountingNic>(*std::move(nic), tally);
  };
  return std::make_unique<WorkerPair>(options);
}

void CountedFetch::Start(WorkerPair* pair, int64_t step, const TensorKey& key,
                         const RecvArgs& args) {
  ended = false;
  got = Tensor();
  pair->consumer()->Fetch(step, key, args, [this](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    got = std::move(received.tensor);
    ended = true;
  });
}

void TurnUntil(WorkerPair* pair, const std::function<bool()>& over) {
  for (int turns = 0; !over() && turns < 1'000'000; ++turns) pair->Turn();
  ASSERT_TRUE(over());
}

}  // namespace tryst
