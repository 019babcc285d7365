#include "server/process/lean_heap.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// It comes first, as the others leave a heap that is large.
TEST(LeanHeapTest, LargeBlocksAreKeptForTheNextOnes) {
  KeepLargeBlocks();
  constexpr int kRounds = 50;
  constexpr int kBlocks = 4;
  constexpr size_t kBytes = 1 << 20;
  rusage before = {};
  for (int round = 0; round <= kRounds; ++round) {
    std::vector<std::unique_ptr<std::vector<char>>> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique<std::vector<char>>(kBytes, 'x'));
    }
    if (round > 0) continue;
    ASSERT_EQ(getrusage(RUSAGE_SELF, &before), 0);
  }
  rusage after = {};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &after), 0);
  const auto pages = static_cast<int64_t>(kBytes) / sysconf(_SC_PAGESIZE);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, kRounds * kBlocks * pages / 10);
}

// Holes of 32 KiB lie between small allocations that stay, so none of them is at the heap's end.
TEST(LeanHeapTest, HolesThatStayGoBackToTheSystem) {
  LeanHeap heap;
  constexpr int kHoles = 2000;
  constexpr size_t kHoleBytes = 32 << 10;
  std::vector<std::unique_ptr<std::vector<char>>> comes;
  std::vector<std::unique_ptr<std::vector<char>>> stays;
  for (int i = 0; i < kHoles; ++i) {
    comes.push_back(std::make_unique<std::vector<char>>(kHoleBytes, 'x'));
    stays.push_back(std::make_unique<std::vector<char>>(100, 'y'));
  }
  comes.clear();
  const uint64_t before = ResidentBytes();
  // Memory that was just freed may be used again at once, so the first look keeps it.
  EXPECT_FALSE(heap.Look());
  EXPECT_GT(ResidentBytes() + (4 << 20), before);
  EXPECT_TRUE(heap.Look());
  EXPECT_LT(ResidentBytes() + kHoles * kHoleBytes / 2, before);
  EXPECT_FALSE(heap.Look());
  for (const auto& kept : stays) ASSERT_EQ(kept->at(99), 'y');
}

TEST(LeanHeapTest, TightHeapIsLeftAlone) {
  LeanHeap heap;
  // More than an earlier test may have left free.
  const std::vector<std::vector<char>> kept(5000, std::vector<char>(32 << 10, 'x'));
  EXPECT_FALSE(heap.Look());
  EXPECT_FALSE(heap.Look());
}

}  // namespace
}  // namespace tryst
