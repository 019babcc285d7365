#include "channel/ops/paged_blocks.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <vector>

#include "channel/ops/reuse_pool.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

struct Counted {
  explicit Counted(int* live) : live(live) { ++*live; }
  ~Counted() { --*live; }
  int* const live;
  std::array<char, 1000> room{};
};

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(PagedBlocks, AddressesStayAndClearGivesAllBack) {
  constexpr int kMany = 100'000;
  int live = 0;
  PagedBlocks<Counted> blocks;
  const int64_t before = ResidentBytes();
  for (int round = 0; round < 3; ++round) {
    Counted* const first = blocks.Make(&live);
    for (int i = 1; i < kMany; ++i) blocks.Make(&live);
    EXPECT_EQ(live, kMany);
    EXPECT_EQ(blocks.size(), size_t{kMany});
    size_t seen = 0;
    blocks.ForEach([&](const Counted& one) { seen += seen == 0 ? &one == first : 1; });
    EXPECT_EQ(seen, size_t{kMany});
    EXPECT_GT(ResidentBytes() - before, 90 << 20);
    blocks.Clear();
    EXPECT_EQ(live, 0);
    EXPECT_EQ(blocks.size(), 0u);
    EXPECT_LT(ResidentBytes() - before, 4 << 20);
  }
}

struct Renewed {
  void Renew() { ++renewals; }
  int renewals = 0;
};

TEST(ReusePool, ClearForgetsAllAndKeepsNoRoomForThem) {
  PagedBlocks<Renewed> blocks;
  ReusePool<Renewed> pool;
  const auto make = [&blocks] { return blocks.Make(); };
  std::vector<Renewed*> taken;
  for (size_t i = 0; i <= kMostIdleObjects; ++i) taken.push_back(pool.Take(make));
  EXPECT_FALSE(pool.is_idle_and_large());
  for (Renewed* one : taken) pool.Free(one);
  EXPECT_EQ(pool.Take(make)->renewals, 2);
  pool.Free(taken.back());
  EXPECT_TRUE(pool.is_idle_and_large());
  pool.Clear();
  EXPECT_TRUE(pool.all().empty());
  EXPECT_EQ(pool.all().capacity(), 0u);
  EXPECT_EQ(pool.Take(make)->renewals, 1) << "a new one";
}

}  // namespace
}  // namespace tryst
