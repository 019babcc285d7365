#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/pool_world.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr uint64_t kCapBytes = 32 << 20;

ChannelContract Contract(const char* name, std::function<void(TransportsOptions*)> adjust,
                         int paths = 1, bool renews_keys = true, int pollers = 1, int helpers = 0,
                         bool pins_memory = false) {
  ChannelContract contract;
  contract.name = name;
  contract.landing_bytes = kCapBytes;
  contract.pins_memory = pins_memory;
  contract.open = [=] {
    PoolWorldOptions options;
    options.paths = paths;
    options.pollers = pollers;
    options.open_nic = [renews_keys, helpers, pins_memory] {
      SoftNicOptions soft;
      soft.UseCrew(std::make_shared<Crew>(helpers, &Crew::Never));
      soft.limits.renews_keys = renews_keys;
      soft.limits.pins_memory = pins_memory;
      auto nic = OpenSoftNic(soft);
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

// With two slots, two messages and short queues, everything has to wait.
void MakeSmall(TransportsOptions* pool) {
  pool->link.slots = 2;
  pool->link.ring_slots = 2;
  pool->link.send_depth = 16;
  pool->write_bytes = 4096;
}

INSTANTIATE_TEST_SUITE_P(
    Soft, ChannelContractTest,
    ::testing::Values(Contract("Default", [](TransportsOptions*) {}), Contract("Small", MakeSmall),
                      Contract("NoDigests",
                               [](TransportsOptions* pool) { pool->link.digests = false; }),
                      Contract("FourQueuePairs",
                               [](TransportsOptions* pool) {
                                 pool->link.queue_pairs = 4;
                                 pool->stripe_bytes = 64 << 10;
                               }),
                      Contract(
                          "TwoPaths",
                          [](TransportsOptions* pool) {
                            pool->link.slots = 8;
                            pool->give_up_ms = 100;
                            pool->probe_ms = 20;
                            pool->probe_ms_most = 100;
                            pool->standing_ms = 600'000;  // Longer than any test.
                          },
                          2),
                      Contract(
                          "KeysLast", [](TransportsOptions*) {}, 1, false),
                      Contract(
                          "Pinned", [](TransportsOptions*) {}, 1, true, 1, 0, true),
                      Contract(
                          "ThreePollers", [](TransportsOptions*) {}, 1, true, 3),
                      Contract(
                          "Helpers", [](TransportsOptions*) {}, 1, true, 1, 2)),
    ChannelContractName);

}  // namespace
}  // namespace tryst
