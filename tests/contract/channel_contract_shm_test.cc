#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "channel/shm/arena.h"
#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/pool_world.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

ChannelContract Contract(const char* name, uint64_t arena_bytes,
                         std::function<void(ChannelPoolOptions*)> adjust) {
  ChannelContract contract;
  contract.name = name;
  const std::string no_wire =
      "shared memory has no wire to break: its link ends with a process, as in the restart test "
      "and in tests/shm";
  contract.skips = {
      {"SurvivesABrokenLink", no_wire},
      {"WhoKnowsOfARestartBeforeTheChannelIsServedByTheNewLife",
       "the end of a process is told by its socket, before a next life can be heard of"},
      {"NothingIsLostOrDoubledOverBrokenLinks", no_wire}};
  contract.open = [arena_bytes, adjust] {
    PoolWorldOptions options;
    options.open_nic = [] {
      auto nic = OpenSoftNic(SoftNicOptions());
      TRYST_CHECK(nic.ok()) << nic.status();
      return *std::move(nic);
    };
    options.adjust = [arena_bytes, adjust](ChannelPoolOptions* pool) {
      ArenaOptions arena;
      arena.cap_bytes = arena_bytes;
      arena.seed = pool->incarnation << 32;
      pool->shm_arena = Arena::Make(arena);
      adjust(pool);
    };
    options.path = "over shm";
    return OpenPoolWorld(options);
  };
  return contract;
}

// Two slots, short rings, few references: everything waits for everything.
void MakeSmall(ChannelPoolOptions* pool) {
  pool->shm.sizes.slots = 2;
  pool->shm.sizes.cells = shm_wire::kMinCells;
  pool->shm.sizes.references = 8;
  pool->shm.stage_bytes = 1 << 20;
}

INSTANTIATE_TEST_SUITE_P(
    Shm, ChannelContractTest,
    ::testing::Values(Contract("Default", 256 << 20, [](ChannelPoolOptions*) {}),
                      Contract("Small", 8 << 20, MakeSmall),
                      Contract("Digests", 256 << 20,
                               [](ChannelPoolOptions* pool) { pool->shm.digests = true; }),
                      Contract("NoPull", 256 << 20,
                               [](ChannelPoolOptions* pool) { pool->shm.allow_pull = false; }),
                      Contract("OnlyPull", 256 << 20,
                               [](ChannelPoolOptions* pool) { pool->shm.stage_bytes = 0; }),
                      Contract("OnlyParts", 256 << 20,
                               [](ChannelPoolOptions* pool) {
                                 pool->shm.stage_bytes = 0;
                                 pool->shm.allow_pull = false;
                                 pool->shm.digests = true;
                               })),
    ChannelContractName);

}  // namespace
}  // namespace tryst
