// The channel contract over real libibverbs and Soft-RoCE. Runs in the guest (run.sh), where
// TRYST_NIC_A and TRYST_NIC_B name the devices.
#include <cstdlib>

#include "base/log.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/pool_world.h"
#include "verbs/ibv/ibv_nic.h"

namespace tryst {
namespace {

constexpr uint64_t kCapBytes = 32 << 20;

std::unique_ptr<Nic> OpenDevice(const char* variable) {
  const char* const name = std::getenv(variable);
  IbvNicOptions options;
  options.choice.settings.device = name == nullptr ? "rxe0" : name;
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenIbvNic(options);
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

ChannelContract Contract(const char* name, std::function<void(TransportsOptions*)> adjust) {
  ChannelContract contract;
  contract.name = name;
  contract.landing_bytes = kCapBytes;
  contract.open = [adjust] {
    PoolWorldOptions options;
    // Opens the producer's NIC first, then the consumer's. A producer that restarts opens its own.
    auto opened = std::make_shared<int>(0);
    options.open_nic = [opened] {
      return OpenDevice((*opened)++ == 1 ? "TRYST_NIC_B" : "TRYST_NIC_A");
    };
    options.adjust = [adjust](TransportsOptions* pool) {
      pool->landing_bytes = kCapBytes;
      adjust(pool);
    };
    return OpenPoolWorld(options);
  };
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Rxe, ChannelContractTest,
                         ::testing::Values(Contract("Default", [](TransportsOptions*) {}),
                                           Contract("TwoQueuePairsNoDigests",
                                                    [](TransportsOptions* pool) {
                                                      pool->link.queue_pairs = 2;
                                                      pool->link.digests = false;
                                                      pool->stripe_bytes = 64 << 10;
                                                    })),
                         ChannelContractName);

}  // namespace
}  // namespace tryst
