#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "channel/arena/arena.h"
#include "channel/device/gpu_nic.h"
#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/device_world.h"
#include "tests/contract/dma_buf_nic.h"
#include "tests/contract/pool_world.h"
#include "tests/doubles/cuda/fake_cuda.h"
#include "verbs/soft/soft_nic.h"

// The channel contract with every tensor on a GPU: a pretended one, or the machine's
// (TRYST_TEST_CUDA=libcuda.so.1).
namespace tryst {
namespace {

constexpr uint64_t kCapBytes = 32 << 20;

// The driver and its GPUs, opened once: CUDA cannot be unloaded.
struct Machine {
  std::unique_ptr<CudaDriver> driver;
  std::vector<std::unique_ptr<Gpu>> gpus;
};

const Machine& TheMachine() {
  static Machine* const machine = [] {
    auto* made = new Machine();
    const char* library = getenv("TRYST_TEST_CUDA");
    auto driver =
        CudaDriver::Load(library != nullptr ? library : "tests/doubles/cuda/libfake_cuda.so");
    TRYST_CHECK(driver.ok()) << driver.status();
    made->driver = *std::move(driver);
    const size_t count = made->driver->Devices()->size();
    for (size_t i = 0; i < count && i < 2; ++i) {
      auto gpu = Gpu::Open(made->driver.get(), static_cast<int>(i));
      TRYST_CHECK(gpu.ok()) << gpu.status();
      made->gpus.push_back(*std::move(gpu));
    }
    return made;
  }();
  return *machine;
}

struct Way {
  bool ipc = false;
  uint64_t chunk_bytes = 64 << 10;
  uint32_t slots = 4;
  bool two_gpus = false;
  bool direct = false;  // NICs reach the GPUs.
  bool flush = false;
  bool shared = false;  // It is staged in shared memory.
  // The producer's tensors lie in virtual memory that is mapped chunk by chunk.
  bool in_chunks = false;
};

ChannelContract Contract(const char* name, const Way& way) {
  ChannelContract contract;
  contract.name = name;
  contract.landing_bytes = kCapBytes;
  if (way.shared) {
    const char* const no_wire = "shared memory has no wire to break";
    contract.skips = {
        {"SurvivesABrokenLink", no_wire},
        {"WhoKnowsOfARestartBeforeTheChannelIsServedByTheNewLife",
         "the end of a process is told by its socket, before a next life can be heard of"},
        {"NothingIsLostOrDoubledOverBrokenLinks", no_wire}};
  }
  const std::vector<std::pair<std::string, std::string>> kSkips = {
      {"LandingMemoryStaysUnderItsCap",
       "a device tensor over the cap passes in chunks and is not refused"}};
  contract.skips.insert(contract.skips.end(), kSkips.begin(), kSkips.end());
  contract.open = [way] {
    PoolWorldOptions options;
    if (way.shared) options.end_of_a_life = absl::StatusCode::kUnavailable;
    options.open_nic = [way]() -> std::unique_ptr<Nic> {
      auto nic = OpenSoftNic(SoftNicOptions());
      TRYST_CHECK(nic.ok()) << nic.status();
      if (!way.direct) return *std::move(nic);
      DirectOptions direct;
      direct.flush = way.flush;
      direct.rounds = 2;
      std::vector<const Gpu*> gpus;
      for (const auto& gpu : TheMachine().gpus) gpus.push_back(gpu.get());
      return GpuNic::Wrap(std::make_shared<DmaBufNic>(*std::move(nic)), gpus, direct);
    };
    if (way.shared) options.end_of_a_life = absl::StatusCode::kUnavailable;
    options.adjust = [way](TransportsOptions* pool) {
      pool->landing_bytes = kCapBytes;
      if (!way.shared) return;
      ArenaOptions arena;
      arena.cap_bytes = 64 << 20;
      arena.seed = pool->incarnation << 32;
      pool->shm_arena = Arena::Make(arena);
    };
    DeviceWorldOptions devices;
    const Machine& machine = TheMachine();
    devices.producer_gpu = machine.gpus[0].get();
    devices.consumer_gpu = machine.gpus[way.two_gpus ? machine.gpus.size() - 1 : 0].get();
    devices.in_chunks = way.in_chunks;
    devices.proxy.engine.slot_bytes = way.chunk_bytes;
    devices.proxy.engine.serve_slots = way.slots;
    devices.proxy.engine.fetch_slots = way.slots;
    devices.proxy.source.chunk_bytes = way.chunk_bytes;
    devices.proxy.source.inside_bytes = 4096;
    devices.proxy.source.offer_ipc = way.ipc;
    devices.check = [way](const DeviceFetcherCounters& counters) {
      if (way.direct) {
        EXPECT_EQ(counters.staged, 0u) << "NICs were to bring everything";
      }
      if (!way.direct) {
        EXPECT_EQ(counters.direct, 0u);
      }
      EXPECT_EQ(counters.in_chunks > 0, way.in_chunks && counters.ipc > 0);
      if (way.in_chunks) {
        EXPECT_EQ(counters.staged, 0u) << "memory in chunks was to be read in its place";
      }
      if (!way.ipc) {
        EXPECT_EQ(counters.ipc, 0u);
      }
      if (way.shared && counters.staged > 0) {
        EXPECT_GT(counters.read_in_peer + counters.ended_failed, 0u)
            << "the CPU copied what a GPU was to read";
      }
    };
    if (way.direct) {
      devices.proxy.source.inside_bytes = 0;
      devices.proxy.fetcher.direct_bytes = 1;
    }
    PutDevicesUnder(devices, &options);
    return OpenPoolWorld(options);
  };
  return contract;
}

Way Ipc() {
  Way way;
  way.ipc = true;
  way.two_gpus = true;
  return way;
}

Way Chunks() {
  Way way = Ipc();
  way.in_chunks = true;
  return way;
}

// With one slot on each side, everything has to wait.
Way OneSlot() {
  Way way;
  way.slots = 1;
  way.chunk_bytes = 16 << 10;
  return way;
}

Way Direct(bool flush) {
  Way way;
  way.direct = true;
  way.flush = flush;
  way.two_gpus = true;
  return way;
}

Way Shared() {
  Way way;
  way.shared = true;
  way.two_gpus = true;
  return way;
}

// Only the pretended GPU has dma-bufs that a software NIC can use.
std::vector<ChannelContract> Contracts() {
  std::vector<ChannelContract> all = {Contract("Staged", Way()), Contract("OneSlot", OneSlot()),
                                      Contract("InPlace", Ipc()), Contract("Shared", Shared()),
                                      Contract("Chunks", Chunks())};
  if (getenv("TRYST_TEST_CUDA") == nullptr) {
    all.push_back(Contract("Direct", Direct(false)));
    all.push_back(Contract("DirectFlushed", Direct(true)));
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Device, ChannelContractTest, ::testing::ValuesIn(Contracts()),
                         ChannelContractName);

class NothingWasToldWrongly : public ::testing::Environment {
 public:
  void TearDown() override {
    if (getenv("TRYST_TEST_CUDA") != nullptr) return;
    const FakeCudaControl* fake = LoadFakeCuda();
    ASSERT_NE(fake, nullptr);
    EXPECT_STREQ(fake->complaints(), "");
  }
};
const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new NothingWasToldWrongly());

}  // namespace
}  // namespace tryst
