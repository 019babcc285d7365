#include "channel/arena/arena.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

std::shared_ptr<Arena> Make(uint64_t cap_bytes) {
  ArenaOptions options;
  options.cap_bytes = cap_bytes;
  options.segment_bytes = 1 << 20;
  options.first_segment_bytes = 256 << 10;
  return Arena::Make(options);
}

TEST(ArenaTest, IsAlignedAsItSays) {
  auto arena = Make(16 << 20);
  for (uint64_t bytes : {1, 63, 64, 1000, 4095, 4096, 5000, 100'000, 3'000'000}) {
    auto storage = arena->Allocate(bytes);
    ASSERT_TRUE(storage.ok()) << storage.status();
    const uintptr_t at = reinterpret_cast<uintptr_t>((*storage)->data());
    EXPECT_GE((*storage)->bytes(), bytes);
    EXPECT_EQ(at % (bytes >= 4096 ? 4096 : 64), 0u) << bytes;
    const MemorySpace space = (*storage)->space();
    EXPECT_EQ(space.kind, MemorySpace::Kind::kShared);
    const auto segment = arena->FindSegment(space.segment_id);
    ASSERT_NE(segment, nullptr);
    EXPECT_EQ(segment->data() + space.segment_offset, (*storage)->data());
    memset((*storage)->data(), 0xab, bytes);
  }
  EXPECT_EQ(arena->counters().used_bytes, 0u);
}

TEST(ArenaTest, ABlockThatComesBackGoesOutAgain) {
  auto arena = Make(16 << 20);
  const void* first = (*arena->Allocate(100'000))->data();
  const uint64_t made = arena->counters().segments_made;
  for (int i = 0; i < 100; ++i) EXPECT_EQ((*arena->Allocate(100'000))->data(), first);
  EXPECT_EQ(arena->counters().segments_made, made);
}

// Several wait for room in one arena, and it is awaited until the last has what it waits for.
TEST(ArenaTest, IsAwaitedAsLongAsSomebodyWaits) {
  auto arena = Make(16 << 20);
  EXPECT_FALSE(arena->awaited());
  arena->SetAwaited(true);
  arena->SetAwaited(true);
  arena->SetAwaited(false);
  EXPECT_TRUE(arena->awaited());
  arena->SetAwaited(false);
  EXPECT_FALSE(arena->awaited());
}

TEST(ArenaTest, TheCapHoldsAndSaysSo) {
  auto arena = Make(1 << 20);
  std::vector<StorageRef> held;
  for (;;) {
    auto storage = arena->Allocate(100'000);
    if (!storage.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(storage.status())) << storage.status();
      break;
    }
    held.push_back(*std::move(storage));
    ASSERT_LT(held.size(), 20u);
  }
  EXPECT_GE(held.size(), 5u);
  EXPECT_LE(arena->counters().segment_bytes, 1u << 20);
  EXPECT_EQ(arena->counters().refusals, 1u);
  EXPECT_FALSE(arena->Allocate(2 << 20).ok()) << "larger than the cap";
  held.pop_back();
  EXPECT_TRUE(arena->Allocate(100'000).ok());
  held.clear();
  // Blocks kept in one size are freed for another.
  EXPECT_TRUE(arena->Allocate(900'000).ok());
}

TEST(ArenaTest, WhatNobodyUsesGoesBackToTheSystem) {
  auto arena = Make(64 << 20);
  {
    std::vector<StorageRef> held;
    for (int i = 0; i < 40; ++i) held.push_back(*arena->Allocate(400'000));
  }
  const uint64_t most = arena->counters().segment_bytes;
  EXPECT_GE(most, 40u * 400'000);
  const uint64_t dropped = arena->segments_dropped();
  arena->Trim();  // It was used since the last Trim().
  EXPECT_EQ(arena->counters().segment_bytes, most);
  arena->Trim();
  EXPECT_LT(arena->counters().segment_bytes, most / 4);
  EXPECT_GT(arena->segments_dropped(), dropped);
}

TEST(ArenaTest, RawMemoryIsThereUntilItIsFreed) {
  auto arena = Make(16 << 20);
  void* memory = arena->AllocateRaw(50'000);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(arena->SpaceOf(memory).kind, MemorySpace::Kind::kShared);
  EXPECT_EQ(arena->SpaceOf(&memory).kind, MemorySpace::Kind::kHost);
  EXPECT_GT(arena->counters().used_bytes, 0u);
  arena->Free(memory);
  arena->Free(nullptr);
  EXPECT_EQ(arena->counters().used_bytes, 0u);
  EXPECT_EQ(arena->AllocateRaw(64 << 20), nullptr);
}

TEST(ArenaTest, OutlivesItsOwnerForWhatIsLent) {
  auto arena = Make(16 << 20);
  Tensor tensor = *arena->AllocateTensor(DType::kFloat, {1000});
  arena.reset();
  memset(tensor.mutable_data(), 1, tensor.bytes());
  tensor = Tensor();
}

// A server has stopped, and a peer has a tensor of it still.
TEST(ArenaTest, KeepsNothingWhenNobodyAllocatesAnyMore) {
  auto arena = Arena::Make(ArenaOptions());
  auto holder = std::make_shared<StorageRef>(*arena->Allocate(4096));
  const std::weak_ptr<StorageRef> kept = holder;
  arena->KeepWhile(std::move(holder), [] { return false; });
  const Tensor lent = *arena->AllocateTensor(DType::kUint8, {4096});
  arena->Trim();
  EXPECT_FALSE(kept.expired());
  arena.reset();
  EXPECT_TRUE(kept.expired());
  memset(lent.mutable_data(), 1, 4096);  // What is lent stays.
}

TEST(ArenaTest, EachFurtherSegmentIsAsLargeAsAllBeforeItUpToALimit) {
  auto arena = Make(64 << 20);
  std::vector<StorageRef> held;
  std::vector<uint64_t> grown;
  for (uint64_t before = 0; grown.size() < 6;) {
    held.push_back(*arena->Allocate(256 << 10));
    const uint64_t now = arena->counters().segment_bytes;
    if (now > before) grown.push_back(now - before);
    before = now;
  }
  EXPECT_THAT(grown,
              testing::ElementsAre(256 << 10, 256 << 10, 512 << 10, 1 << 20, 1 << 20, 1 << 20));
}

// One that holds a single tensor has no room to cut.
TEST(ArenaTest, ASmallTensorLiesBesideALargeOne) {
  auto arena = Make(16 << 20);
  const StorageRef large = *arena->Allocate(900'000);
  const StorageRef small = *arena->Allocate(1000);
  EXPECT_NE(small->space().segment_id, large->space().segment_id);
}

// A list of references that outlives its channel gives its blocks back when room is needed.
TEST(ArenaTest, AsksThoseItKeepsWhenItHasNoRoom) {
  auto arena = Make(1 << 20);
  auto holder = std::make_shared<StorageRef>(*arena->Allocate(900'000));
  bool over = false;
  arena->KeepWhile(std::move(holder), [&over] { return over; });
  EXPECT_FALSE(arena->Allocate(800'000).ok());
  over = true;
  EXPECT_TRUE(arena->Allocate(800'000).ok());
}

TEST(ArenaTest, ThoseItKeepsMayAllocateWhenTheyAreAsked) {
  auto arena = Make(1 << 20);
  auto holder = std::make_shared<StorageRef>(*arena->Allocate(900'000));
  int asked = 0;
  arena->KeepWhile(holder, [&, held = holder.get()] {
    EXPECT_FALSE(arena->Allocate(800'000).ok());
    *held = StorageRef();
    return ++asked == 1;
  });
  holder.reset();
  EXPECT_TRUE(arena->Allocate(800'000).ok());
  EXPECT_EQ(asked, 1);
}

// What one thread is asking about may be free in a moment.
TEST(ArenaTest, WhoFindsNoRoomWaitsForThoseWhoAreBeingAsked) {
  auto arena = Make(1 << 20);
  auto holder = std::make_shared<StorageRef>(*arena->Allocate(900'000));
  std::thread other;
  arena->KeepWhile(holder, [&, held = holder.get()] {
    other = std::thread([&] { EXPECT_TRUE(arena->Allocate(200'000).ok()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    *held = StorageRef();
    return true;
  });
  holder.reset();
  EXPECT_TRUE(arena->Allocate(200'000).ok());
  other.join();
}

TEST(ArenaTest, SaysInWhichPagesItLies) {
  ArenaOptions options;
  options.cap_bytes = 64 << 20;
  auto arena = Arena::Make(options);
  auto storage = arena->Allocate(3 << 20);
  ASSERT_TRUE(storage.ok());
  const ArenaCounters counters = arena->counters();
  EXPECT_TRUE(counters.huge_bytes == 0 || counters.huge_bytes == counters.segment_bytes);
  EXPECT_THAT(arena->Explain(), testing::ContainsRegex("huge pages, transparent ones for the rest: "
                                                       "(unknown|(none|yes) \\(shmem_enabled is "
                                                       "(always|within_size|advise|never|deny|force"
                                                       ")\\))"));
}

TEST(ArenaTest, ThreadsShareIt) {
  auto arena = Make(64 << 20);
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&arena, seed] {
      std::mt19937_64 random(seed);
      std::vector<std::pair<StorageRef, uint8_t>> held;
      for (int i = 0; i < 2000; ++i) {
        if (held.size() > 8) {
          const size_t at = random() % held.size();
          const uint8_t* bytes = static_cast<const uint8_t*>(held[at].first->data());
          ASSERT_EQ(bytes[0], held[at].second);
          ASSERT_EQ(bytes[held[at].first->bytes() - 1], held[at].second);
          held.erase(held.begin() + static_cast<ptrdiff_t>(at));
        }
        auto storage = arena->Allocate(1 + random() % 60'000);
        ASSERT_TRUE(storage.ok()) << storage.status();
        const uint8_t mark = static_cast<uint8_t>(random());
        memset((*storage)->data(), mark, (*storage)->bytes());
        held.emplace_back(*std::move(storage), mark);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->counters().used_bytes, 0u);
}

}  // namespace
}  // namespace tryst
