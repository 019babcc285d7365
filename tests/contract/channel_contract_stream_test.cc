#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/grpc_nic.h"
#include "tests/contract/pool_world.h"

namespace tryst {
namespace {

constexpr uint64_t kCapBytes = 32 << 20;

ChannelContract Contract(const char* name, const std::string& token, int paths, int pollers) {
  ChannelContract contract;
  contract.name = name;
  contract.landing_bytes = kCapBytes;
  contract.pins_memory = false;
  contract.open = [token, paths, pollers] {
    PoolWorldOptions options;
    options.paths = paths;
    options.pollers = pollers;
    options.open_nic = [net = GrpcNet::Make(token)] { return net->OpenNic(); };
    options.adjust = [](TransportsOptions* pool) {
      pool->landing_bytes = kCapBytes;
      pool->link.ack_timeout = 16;
    };
    return OpenPoolWorld(options);
  };
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Stream, ChannelContractTest,
                         ::testing::Values(Contract("Default", "", 1, 1),
                                           Contract("Sealed", "a token of all workers", 1, 1),
                                           Contract("TwoPaths", "", 2, 1),
                                           Contract("ThreePollers", "", 1, 3)),
                         ChannelContractName);

}  // namespace
}  // namespace tryst
