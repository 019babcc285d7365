#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/grpc_world.h"

namespace tryst {
namespace {

ChannelContract Contract(const char* name, size_t max_asked, bool digests) {
  ChannelContract contract;
  contract.name = name;
  contract.open = [max_asked, digests] {
    GrpcWorldOptions options;
    options.channel.max_asked = max_asked;
    options.channel.digests = digests;
    return OpenGrpcWorld(options);
  };
  return contract;
}

// gRPC skips two kinds of tests: landing memory (bytes arrive inside replies, so none is kept for
// landing) and losing a path (gRPC is the path that the others fall back to).
INSTANTIATE_TEST_SUITE_P(Grpc, ChannelContractTest,
                         ::testing::Values(Contract("Default", 1024, false),
                                           Contract("Digests", 1024, true),
                                           Contract("TwoCalls", 2, false)),
                         ChannelContractName);

}  // namespace
}  // namespace tryst
