// What a gather over shared memory takes beside its copies: nothing a span. Both ends run on this
// thread.

#include <cstdint>
#include <utility>

#include "bench/turned_pair.h"
#include "gtest/gtest.h"
#include "tests/contract/hop_budget/allocations.h"
#include "tests/process/pair/pool_counters.h"

namespace tryst {
namespace {

struct Costs {
  double messages = 0, allocations = 0;
};

Costs CostsOfAGather(size_t spans) {
  constexpr int kGathers = 400;
  TurnedPairOptions options;
  options.keys = 1;
  options.spans = spans;
  options.bytes = spans * 64;
  options.sample_every = 0;
  TurnedPair pair(options);
  const auto gather = [&pair] {
    pair.SendSelected(0);
    pair.AskSelected(0);
    pair.WaitFor(1);
  };
  const auto messages = [&pair] {
    return ShmServed(*pair.producer()).messages + ShmFetched(*pair.consumer()).messages;
  };
  for (int i = 0; i < 2000; ++i) gather();
  const uint64_t sent = messages(), allocations = AllocationsSoFar();
  for (int i = 0; i < kGathers; ++i) gather();
  return {static_cast<double>(messages() - sent) / kGathers,
          static_cast<double>(AllocationsSoFar() - allocations) / kGathers};
}

TEST(GatherBudgetTest, IsKept) {
  for (const size_t spans : {100, 1000, 4000}) {
    SCOPED_TRACE(spans);
    const Costs costs = CostsOfAGather(spans);
    EXPECT_DOUBLE_EQ(costs.messages, 2);
    EXPECT_DOUBLE_EQ(costs.allocations, 3) << "the list, the end, the tensor: none a span";
  }
}

}  // namespace
}  // namespace tryst
