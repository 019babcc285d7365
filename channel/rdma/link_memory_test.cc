#include "channel/rdma/link_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"
#include "verbs/forwarding_nic.h"

namespace tryst {
namespace {

uint64_t MappedBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(LinkMemoryTest, GoesWithItsLink) {
  SimWorld world(1);
  const std::unique_ptr<Nic> nic = world.OpenNic(0, SimNicOptions());
  const LinkOptions options;
  const uint64_t before = MappedBytes();
  for (int i = 0; i < 200; ++i) {
    LinkMemory memory;
    ASSERT_TRUE(memory.Open(nic.get(), options).ok());
  }
  // One of them alone, or what else the process maps meanwhile, is far less than half of all.
  const uint64_t one = 2 * uint64_t{options.ring_slots} * options.message_bytes;
  EXPECT_LT(MappedBytes(), before + 100 * one);
}

// Notes of each region whether its memory was still mapped when it ended.
class WatchingNic final : public ForwardingNic {
 public:
  WatchingNic(std::unique_ptr<Nic> nic, std::vector<bool>* mapped)
      : ForwardingNic(std::move(nic)), mapped_(mapped) {}
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    auto region = ForwardingNic::RegisterRegion(address, bytes, access);
    if (!region.ok()) return region;
    return std::make_unique<Watched>(*std::move(region), mapped_);
  }

 private:
  struct Watched final : ForwardingRegion {
    Watched(std::unique_ptr<Region> region, std::vector<bool>* mapped)
        : ForwardingRegion(std::move(region)), mapped(mapped) {}
    ~Watched() override {
      const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
      const uint64_t begin = address() / page * page;
      std::vector<unsigned char> resident((address() + bytes() - begin + page - 1) / page);
      // It fails where memory is not mapped.
      mapped->push_back(mincore(reinterpret_cast<void*>(begin), address() + bytes() - begin,
                                resident.data()) == 0);
    }
    std::vector<bool>* const mapped;
  };
  std::vector<bool>* const mapped_;
};

TEST(LinkMemoryTest, IsMappedForAsLongAsItIsRegistered) {
  SimWorld world(1);
  for (const bool immediates : {true, false}) {
    SimNicOptions nic_options;
    nic_options.limits.write_with_immediate = immediates;
    std::vector<bool> mapped;
    WatchingNic nic(world.OpenNic(0, nic_options), &mapped);
    {
      LinkMemory memory;
      ASSERT_TRUE(memory.Open(&nic, LinkOptions()).ok());
    }
    EXPECT_EQ(mapped, std::vector<bool>(immediates ? 2 : 3, true));
  }
}

}  // namespace
}  // namespace tryst
