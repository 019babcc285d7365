#include <cstdlib>
#include <memory>
#include <utility>

#include "base/log.h"
#include "gpu/fake_cuda.h"
#include "gtest/gtest.h"
#include "tests/contract/channel_contract.h"
#include "tests/contract/device_world.h"
#include "tests/contract/pool_world.h"
#include "verbs/soft/soft_nic.h"

// The channel contract with every tensor on a GPU: the pretend one, or the machine's
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
    auto driver = CudaDriver::Load(library != nullptr ? library : "gpu/libfake_cuda.so");
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
};

ChannelContract Contract(const char* name, const Way& way) {
  ChannelContract contract;
  contract.name = name;
  contract.landing_cap_bytes = kCapBytes;
  constexpr char kKept[] =
      "a device tensor whose description has arrived is its fetch's: it ends with it";
  contract.skips = {{"LandingMemoryStaysUnderItsCap",
                     "a device tensor over the cap passes in chunks and is not refused"},
                    {"WrongDestinationIsRefusedAndTheNextFetchWorks", kKept},
                    {"WhatACancelledFetchHadMetGoesToTheNextOne", kKept}};
  contract.open = [way] {
    PoolWorldOptions options;
    options.open_nic = [] {
      auto nic = OpenSoftNic(SoftNicOptions());
      TRYST_CHECK(nic.ok()) << nic.status();
      return *std::move(nic);
    };
    options.adjust = [](ChannelPoolOptions* pool) { pool->landing_cap_bytes = kCapBytes; };
    DeviceWorldOptions devices;
    const Machine& machine = TheMachine();
    devices.producer_gpu = machine.gpus[0].get();
    devices.consumer_gpu = machine.gpus[way.two_gpus ? machine.gpus.size() - 1 : 0].get();
    devices.proxy.engine.slot_bytes = way.chunk_bytes;
    devices.proxy.engine.serve_slots = way.slots;
    devices.proxy.engine.fetch_slots = way.slots;
    devices.proxy.source.chunk_bytes = way.chunk_bytes;
    devices.proxy.source.inside_bytes = 4096;
    devices.proxy.source.offer_ipc = way.ipc;
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

// One slot a side: everything waits for everything.
Way OneSlot() {
  Way way;
  way.slots = 1;
  way.chunk_bytes = 16 << 10;
  return way;
}

INSTANTIATE_TEST_SUITE_P(Device, ChannelContractTest,
                         ::testing::Values(Contract("Staged", Way()),
                                           Contract("OneSlot", OneSlot()),
                                           Contract("InPlace", Ipc())),
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
