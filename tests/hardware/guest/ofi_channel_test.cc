// The contract of every channel, over libfabric's verbs provider and Soft-RoCE. Runs in the
// guest (run.sh), where TRYST_HOST_A and TRYST_HOST_B are the devices' addresses.
#include <cstdlib>

#include "base/log.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/pool_world.h"
#include "verbs/ofi/ofi_nic.h"

namespace tryst {
namespace {

constexpr uint64_t kCapBytes = 32 << 20;

std::unique_ptr<Nic> OpenProvider(const char* variable) {
  const char* const host = std::getenv(variable);
  OfiNicOptions options;
  options.provider = "ofi:verbs";
  options.host = host == nullptr ? "10.0.0.1" : host;
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenOfiNic(options);
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

ChannelContract Contract() {
  ChannelContract contract;
  contract.name = "Default";
  contract.landing_bytes = kCapBytes;
  contract.open = [] {
    PoolWorldOptions options;
    // The producer's first, then the consumer's; a producer that starts anew has its own.
    auto opened = std::make_shared<int>(0);
    options.open_nic = [opened] {
      return OpenProvider((*opened)++ == 1 ? "TRYST_HOST_B" : "TRYST_HOST_A");
    };
    options.adjust = [](TransportsOptions* pool) { pool->landing_bytes = kCapBytes; };
    return OpenPoolWorld(options);
  };
  return contract;
}

INSTANTIATE_TEST_SUITE_P(OfiVerbs, ChannelContractTest, ::testing::Values(Contract()),
                         ChannelContractName);

}  // namespace
}  // namespace tryst
