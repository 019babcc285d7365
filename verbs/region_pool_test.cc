#include "verbs/region_pool.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbs/sim/sim_world.h"

namespace tryst {
namespace {

class RegionPoolTest : public testing::Test {
 protected:
  static RegionPoolOptions Options() {
    RegionPoolOptions options;
    options.uses = {
        {"eager", 4096, 3}, {"acks", 100, 2}, {"landing", 1 << 20, 2}, {"hellos", 4096, 1}};
    return options;
  }

  std::unique_ptr<RegionPool> Open(const RegionPoolOptions& options) {
    auto pool = RegionPool::Create(nic_.get(), options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  SimWorld world_{1};
  std::unique_ptr<SimNic> nic_ = world_.OpenNic(0);
};

TEST_F(RegionPoolTest, ClassesAreTheSumOfTheUses) {
  auto pool = Open(Options());
  const std::vector<RegionPoolClass> classes = pool->Classes();
  ASSERT_EQ(classes.size(), 3u);
  EXPECT_EQ(classes[0].chunk_bytes, 128u);
  EXPECT_EQ(classes[0].chunks, 2u);
  EXPECT_EQ(classes[1].chunk_bytes, 4096u);
  EXPECT_EQ(classes[1].chunks, 4u);
  EXPECT_EQ(pool->max_chunk_bytes(), uint64_t{1} << 20);
  EXPECT_EQ(pool->region().bytes(), 2 * 128u + 4 * 4096 + 2 * (1 << 20));
  EXPECT_EQ(DescribeUses(Options().uses),
            "100 B x (acks 2) + 4096 B x (eager 3 + hellos 1) + 1048576 B x (landing 2) = "
            "2113736 B");
}

TEST_F(RegionPoolTest, ChunksAreAlignedApartAndInsideTheRegion) {
  RegionPoolOptions options = Options();
  options.alignment_bytes = 512;
  auto pool = Open(options);
  std::vector<RegionChunk> chunks;
  for (const uint64_t bytes : {0, 1, 513, 4096, 4000, 2000, 4097, 1 << 20}) {
    chunks.push_back(pool->Take(bytes));
    ASSERT_TRUE(chunks.back()) << bytes;
    EXPECT_GE(chunks.back().bytes(), bytes);
    const auto address = reinterpret_cast<uint64_t>(chunks.back().data());
    EXPECT_EQ(address % 512, 0u);
    EXPECT_GE(address, pool->region().address());
    EXPECT_LE(address + chunks.back().bytes(), pool->region().address() + pool->region().bytes());
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const RegionChunk& a, const RegionChunk& b) { return a.data() < b.data(); });
  for (size_t i = 1; i < chunks.size(); ++i) {
    EXPECT_GE(chunks[i].data(), chunks[i - 1].data() + chunks[i - 1].bytes());
  }
  EXPECT_EQ(pool->taken(), 8u);
}

TEST_F(RegionPoolTest, NoRoomIsAnEmptyChunkAndTakesNobodyElses) {
  auto pool = Open(Options());
  RegionChunk one = pool->Take(100);
  RegionChunk two = pool->Take(100);
  EXPECT_TRUE(one && two);
  EXPECT_FALSE(pool->Take(100)) << "larger chunks belong to other uses";
  EXPECT_TRUE(pool->Take(4096));
  uint8_t* const data = one.data();
  one.Reset();
  one.Reset();
  EXPECT_FALSE(one);
  const RegionChunk again = pool->Take(1);
  EXPECT_EQ(again.data(), data);
  const RegionPoolClass counters = pool->Classes()[0];
  EXPECT_EQ(counters.taken, 2u);
  EXPECT_EQ(counters.taken_max, 2u);
  EXPECT_EQ(counters.takes, 3u);
  EXPECT_EQ(counters.no_room, 1u);
}

TEST_F(RegionPoolTest, MovesCarryTheLoan) {
  auto pool = Open(Options());
  RegionChunk one = pool->Take(100);
  RegionChunk two = std::move(one);
  EXPECT_FALSE(one);
  EXPECT_TRUE(two);
  two = pool->Take(100);
  EXPECT_EQ(pool->taken(), 1u);
  RegionChunk& same = two;
  two = std::move(same);
  EXPECT_EQ(pool->taken(), 1u);
}

TEST_F(RegionPoolTest, LimitsThatDoNotAddUpAreRefusedWithTheSum) {
  RegionPoolOptions options = Options();
  options.max_bytes = 2 << 20;
  const absl::Status status = RegionPool::Create(nic_.get(), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("eager 3 + hellos 1"), absl::string_view::npos) << status;
  options = Options();
  options.uses[0].chunks = ~size_t{0};
  EXPECT_EQ(RegionPool::Create(nic_.get(), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.uses = {{"none", 0, 4}};
  EXPECT_EQ(RegionPool::Create(nic_.get(), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.uses = {};
  EXPECT_EQ(RegionPool::Create(nic_.get(), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options = Options();
  options.alignment_bytes = 48;
  EXPECT_EQ(RegionPool::Create(nic_.get(), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  world_.FailRegistrations(0, 1);
  EXPECT_EQ(RegionPool::Create(nic_.get(), Options()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(RegionPoolTest, MemoryOutlivesThePoolButNotItsRegistration) {
  auto pool = Open(Options());
  RegionChunk kept = pool->Take(4096);
  EXPECT_EQ(nic_->regions(), 1u);
  pool.reset();
  EXPECT_EQ(nic_->regions(), 0u);
  std::fill_n(kept.data(), 4096, 7);
  EXPECT_EQ(kept.data()[4095], 7);
}

class Watch final : public RegionPoolWatcher {
 public:
  void OnTake(void* data, uint64_t bytes) override { lent += out.insert(data).second ? bytes : 0; }
  void OnGive(void* data, uint64_t bytes) override { lent -= out.erase(data) == 1 ? bytes : 0; }
  std::set<void*> out;
  uint64_t lent = 0;
};

TEST_F(RegionPoolTest, WatcherSeesEveryLoan) {
  Watch watch;
  RegionPoolOptions options = Options();
  options.watcher = &watch;
  auto pool = Open(options);
  RegionChunk one = pool->Take(1);
  RegionChunk two = pool->Take(4096);
  EXPECT_EQ(watch.lent, 128u + 4096);
  one.Reset();
  EXPECT_EQ(watch.lent, 4096u);
  EXPECT_EQ(watch.out.count(two.data()), 1u);
}

#ifndef NDEBUG
#ifdef ADDRESS_SANITIZER
TEST_F(RegionPoolTest, TouchingAChunkThatWasGivenBackDies) {
  auto pool = Open(Options());
  RegionChunk chunk = pool->Take(4096);
  uint8_t* const data = chunk.data();
  chunk.Reset();
  EXPECT_DEATH(data[5] = 1, "use-after-poison");
}
#else
TEST_F(RegionPoolTest, ChunkThatWasGivenBackIsFilled) {
  auto pool = Open(Options());
  RegionChunk chunk = pool->Take(4096);
  EXPECT_EQ(chunk.data()[0], RegionPool::kPoison);
  std::fill_n(chunk.data(), 4096, 7);
  const uint8_t* const data = chunk.data();
  chunk.Reset();
  EXPECT_EQ(data[0], RegionPool::kPoison);
  EXPECT_EQ(data[4095], RegionPool::kPoison);
}
#endif
#endif

TEST_F(RegionPoolTest, ThreadsTakeAndGiveAtOnce) {
  RegionPoolOptions options;
  options.uses = {{"small", 64, 5}, {"large", 1024, 5}};
  auto pool = Open(options);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<RegionChunk> held;
      for (int i = 0; i < 20000; ++i) {
        RegionChunk chunk = pool->Take(random() % 1024);
        if (chunk) {
          // Nobody else has it: what we write is what we find.
          chunk.data()[0] = static_cast<uint8_t>(t);
          held.push_back(std::move(chunk));
        }
        if (held.size() > random() % 4) {
          wrong += held.front().data()[0] == t ? 0 : 1;
          held.erase(held.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(pool->taken(), 0u);
}

}  // namespace
}  // namespace tryst
