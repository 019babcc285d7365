#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/pool_world.h"
#include "verbs/ofi/ofi_nic.h"

namespace tryst {
namespace {

constexpr uint64_t kCapBytes = 32 << 20;

ChannelContract Contract(const char* name, const char* provider,
                         std::function<void(TransportsOptions*)> adjust) {
  ChannelContract contract;
  contract.name = name;
  contract.landing_bytes = kCapBytes;
  contract.open = [provider, adjust] {
    PoolWorldOptions options;
    options.open_nic = [provider] {
      OfiNicOptions nic_options;
      nic_options.provider = provider;
      auto nic = OpenOfiNic(nic_options);
      TRYST_CHECK(nic.ok()) << nic.status();
      return *std::move(nic);
    };
    options.adjust = [adjust](TransportsOptions* pool) {
      pool->landing_bytes = kCapBytes;
      adjust(pool);
    };
    return OpenPoolWorld(options);
  };
  return contract;
}

void AsItIs(TransportsOptions*) {}

// With two slots, two messages and short queues, everything has to wait.
void MakeSmall(TransportsOptions* pool) {
  pool->link.slots = 2;
  pool->link.ring_slots = 2;
  pool->link.send_depth = 16;
  pool->write_bytes = 4096;
}

void MakeWide(TransportsOptions* pool) {
  pool->link.queue_pairs = 4;
  pool->stripe_bytes = 64 << 10;
}

INSTANTIATE_TEST_SUITE_P(Ofi, ChannelContractTest,
                         ::testing::Values(Contract("Tcp", "ofi:tcp", AsItIs),
                                           Contract("TcpSmall", "ofi:tcp", MakeSmall),
                                           Contract("TcpFourQueuePairs", "ofi:tcp", MakeWide),
                                           Contract("Shm", "ofi:shm", AsItIs),
                                           Contract("Udp", "ofi:udp", AsItIs)),
                         ChannelContractName);

}  // namespace
}  // namespace tryst
