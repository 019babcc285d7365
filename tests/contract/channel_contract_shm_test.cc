#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "channel/arena/arena.h"
#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/pool_world.h"
#include "tests/process/shm/link_fault.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

ChannelContract Contract(const char* name, uint64_t arena_bytes,
                         std::function<void(TransportsOptions*)> adjust, int pollers = 1) {
  ChannelContract contract;
  contract.name = name;
  contract.open = [arena_bytes, adjust, pollers] {
    PoolWorldOptions options;
    options.pollers = pollers;
    options.open_nic = [] {
      auto nic = OpenSoftNic(SoftNicOptions());
      TRYST_CHECK(nic.ok()) << nic.status();
      return *std::move(nic);
    };
    options.adjust = [arena_bytes, adjust](TransportsOptions* pool) {
      ArenaOptions arena;
      arena.cap_bytes = arena_bytes;
      arena.seed = pool->incarnation << 32;
      pool->shm_arena = Arena::Make(arena);
      adjust(pool);
    };
    options.path = "over shm";
    options.end_of_a_life = absl::StatusCode::kUnavailable;
    // There is no wire to break, but a side that receives nonsense ends the link.
    options.break_link = [](bool is_producer) {
      SayNonsense(is_producer ? LinkSide::kProducer : LinkSide::kConsumer);
    };
    return OpenPoolWorld(options);
  };
  return contract;
}

// With two slots, short rings and few references, everything has to wait.
void MakeSmall(TransportsOptions* pool) {
  pool->shm.sizes.slots = 2;
  pool->shm.sizes.cells = shm_wire::kMinCells;
  pool->shm.sizes.references = 8;
  pool->shm.stage_bytes = 1 << 20;
}

INSTANTIATE_TEST_SUITE_P(
    Shm, ChannelContractTest,
    ::testing::Values(
        Contract("Default", 256 << 20, [](TransportsOptions*) {}),
        Contract(
            "ThreePollers", 256 << 20, [](TransportsOptions*) {}, 3),
        Contract("Small", 8 << 20, MakeSmall),
        Contract("Digests", 256 << 20, [](TransportsOptions* pool) { pool->shm.digests = true; }),
        Contract("NoPull", 256 << 20,
                 [](TransportsOptions* pool) { pool->shm.allow_pull = false; }),
        Contract("OnlyPull", 256 << 20,
                 [](TransportsOptions* pool) {
                   pool->shm.stage_bytes = 0;
                   pool->shm.pull_bytes = 0;
                   pool->shm.parts_bytes = UINT64_MAX;
                 }),
        Contract("OnlyParts", 256 << 20,
                 [](TransportsOptions* pool) {
                   pool->shm.stage_bytes = 0;
                   pool->shm.allow_pull = false;
                   pool->shm.digests = true;
                 }),
        Contract("Helpers", 256 << 20,
                 [](TransportsOptions* pool) {
                   pool->shm.stage_bytes = 0;
                   pool->shm.crew = std::make_shared<Crew>(2, &Crew::Never);
                 }),
        Contract("Apart", 256 << 20, [](TransportsOptions* pool) { pool->shm.apart = true; })),
    ChannelContractName);

// ---- A refusal does not last for ever ----

Tensor FetchNow(ChannelWorld* world, const TensorKey& key, absl::Status* status) {
  Mutex mu;
  CondVar ended_cv;
  bool ended = false;
  Tensor got;
  world->consumer()->Fetch(1, key, RecvArgs(), [&](Received&& received) {
    MutexLock lock(&mu);
    *status = std::move(received.status);
    got = std::move(received.tensor);
    ended = true;
    ended_cv.NotifyOne();
  });
  MutexLock lock(&mu);
  while (!ended) ended_cv.Wait(&mu);
  return got;
}

// A worker that had no shared memory is started again with it. The next fetches use it, behind
// those of the same key that are still out on the other path.
TEST(ShmRefusalTest, IsProvedAnew) {
  constexpr uint64_t kFirstProducer = 0xab;
  PoolWorldOptions options;
  options.open_nic = [] {
    auto nic = OpenSoftNic(SoftNicOptions());
    TRYST_CHECK(nic.ok()) << nic.status();
    return *std::move(nic);
  };
  options.adjust = [](TransportsOptions* pool) {
    pool->probe_ms = 100;
    if (pool->incarnation == kFirstProducer) return;
    ArenaOptions arena;
    arena.seed = pool->incarnation << 32;
    pool->shm_arena = Arena::Make(arena);
  };
  const auto world = OpenPoolWorld(options);
  const auto key = [&](const char* edge) {
    return TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:CPU:0",
                                 world->producer_incarnation(),
                                 "/job:worker/replica:0/task:0/device:CPU:0", edge)
        ->At(0, 0);
  };
  const auto send = [&](const char* edge, uint8_t value) {
    const Tensor tensor = *Tensor::Allocate(DType::kUint8, {1});
    *static_cast<uint8_t*>(tensor.mutable_data()) = value;
    EXPECT_TRUE(world->producer()->step(1)->Send(key(edge), SendArgs(), tensor, false).ok());
  };
  const auto fetch = [&](const char* edge) {
    absl::Status status;
    const Tensor got = FetchNow(world.get(), key(edge), &status);
    EXPECT_TRUE(status.ok()) << status << world->Explain();
    return status.ok() ? static_cast<int>(*got.data_as<uint8_t>()) : -1;
  };
  send("a", 1);
  EXPECT_EQ(fetch("a"), 1);
  EXPECT_NE(world->Explain().find("turned down: shm"), std::string::npos) << world->Explain();

  ASSERT_TRUE(world->RestartProducer());
  const auto over_shm = [&] {
    return world->Explain().find("over shm: connected") != std::string::npos &&
           world->Explain().find("turned down") == std::string::npos;
  };
  uint8_t value = 0;
  for (int i = 0; i < 1000 && !over_shm(); ++i) {
    send("b", ++value);
    ASSERT_EQ(fetch("b"), value);
    usleep(10'000);
  }
  ASSERT_TRUE(over_shm()) << world->Explain();
  for (int i = 0; i < 20; ++i) {
    send("b", ++value);
    ASSERT_EQ(fetch("b"), value);
  }
}

}  // namespace
}  // namespace tryst
