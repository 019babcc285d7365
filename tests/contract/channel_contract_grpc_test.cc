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

// What it leaves out by itself: landing memory (bytes come inside of replies, so that none is
// kept to land in) and paths to lose (gRPC is where the others fail over to).
INSTANTIATE_TEST_SUITE_P(Grpc, ChannelContractTest,
                         ::testing::Values(Contract("Default", 1024, false),
                                           Contract("Digests", 1024, true),
                                           Contract("TwoCalls", 2, false)),
                         ChannelContractName);

}  // namespace
}  // namespace tryst
