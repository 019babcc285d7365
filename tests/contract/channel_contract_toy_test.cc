#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/pool_world.h"
#include "tests/contract/toy/toy_transport.h"

namespace tryst {
namespace {

ChannelContract Contract() {
  ChannelContract contract;
  contract.name = "Default";
  contract.open = [] {
    PoolWorldOptions options;
    options.paths = 0;
    options.adjust = [toy = ToyFactory()](TransportsOptions* pool) { pool->more = {toy}; };
    options.path = "over toy";
    options.states = false;
    return OpenPoolWorld(options);
  };
  contract.skips = {{"CancelsAndDeadlinesLeaveTheOrderAsItWas",
                     "a receive that ends may give its tensor back behind others here"},
                    {"WhatACancelledFetchHadMetGoesToTheNextOne",
                     "a tensor comes at once here, so that no cancel may be in time"}};
  for (const char* test : {"RestartedProducerFailsWhatWasPendingAndServesWhatComes",
                           "WhoKnowsOfARestartBeforeTheChannelIsServedByTheNewLife",
                           "ADeadlineACancelAndARestartAreSaidInTheSameWords",
                           "WhatWaitsFailsWhenTheProducerIsRestarted"}) {
    contract.skips.emplace_back(test, "a worker that others take from is not started anew here");
  }
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Toy, ChannelContractTest, ::testing::Values(Contract()),
                         ChannelContractName);

}  // namespace
}  // namespace tryst
