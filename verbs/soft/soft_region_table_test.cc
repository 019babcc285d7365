#include "verbs/soft/soft_region_table.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// 1, 1, 2, 2, 3, 3 ...: every key is drawn twice.
class Stutter {
 public:
  void operator()(absl::Span<uint8_t> out) {
    const uint32_t value = ++*calls_ / 2;
    memcpy(out.data(), &value, sizeof(value));
  }

 private:
  std::shared_ptr<uint32_t> calls_ = std::make_shared<uint32_t>(0);
};

SoftRegionRecord Record(uint64_t address, uint64_t bytes, uint32_t access) {
  SoftRegionRecord record;
  record.address = address;
  record.bytes = bytes;
  record.access = access;
  return record;
}

TEST(SoftRegionTableTest, KeysAreNeitherNullNorTwice) {
  SoftRegionTable table{Stutter()};
  SoftRegionRecord a = Record(100, 10, kRemoteWrite);
  SoftRegionRecord b = Record(100, 10, kRemoteWrite);
  table.Add(&a);
  table.Add(&b);
  EXPECT_EQ(a.local_key, 1u);
  EXPECT_EQ(a.remote_key, 2u);
  EXPECT_EQ(b.local_key, 3u);
  EXPECT_EQ(b.remote_key, 4u);
  table.Remove(&a);
  table.Remove(&b);
}

TEST(SoftRegionTableTest, RangeIsCheckedAtBothEnds) {
  SoftRegionTable table{Stutter()};
  const uint64_t last = std::numeric_limits<uint64_t>::max();
  SoftRegionRecord region = Record(100, 10, kRemoteWrite);
  table.Add(&region);
  const auto open = [&](uint64_t address, uint64_t bytes) {
    SoftRegionRecord* const pinned =
        table.PinRemote(region.remote_key, address, bytes, kRemoteWrite);
    if (pinned != nullptr) table.Unpin(pinned);
    EXPECT_EQ(pinned != nullptr, table.LocalRangeAllowed(region.local_key, address, bytes, true));
    return pinned != nullptr;
  };
  EXPECT_TRUE(open(100, 10));
  EXPECT_TRUE(open(109, 1));
  EXPECT_FALSE(open(99, 1));
  EXPECT_FALSE(open(100, 11));
  EXPECT_FALSE(open(109, 2));
  EXPECT_FALSE(open(110, 1));
  EXPECT_FALSE(open(105, last));
  EXPECT_FALSE(open(last, 1));
  EXPECT_FALSE(open(last - 5, 100));
  table.Remove(&region);
}

TEST(SoftRegionTableTest, KeysOfOneKindAreNotOfTheOther) {
  SoftRegionTable table{Stutter()};
  SoftRegionRecord region = Record(100, 10, kRemoteWrite | kRemoteRead);
  table.Add(&region);
  EXPECT_EQ(table.PinRemote(region.local_key, 100, 10, kRemoteWrite), nullptr);
  EXPECT_FALSE(table.LocalRangeAllowed(region.remote_key, 100, 10, false));
  table.Remove(&region);
}

TEST(SoftRegionTableTest, RemovalWaitsForThePin) {
  SoftRegionTable table{Stutter()};
  SoftRegionRecord region = Record(100, 10, kRemoteWrite);
  table.Add(&region);
  SoftRegionRecord* const pinned = table.PinRemote(region.remote_key, 100, 10, kRemoteWrite);
  ASSERT_EQ(pinned, &region);
  std::atomic<bool> removed{false};
  std::thread remover([&] {
    table.Remove(&region);
    removed.store(true);
  });
  // Its key opens nothing as soon as removal has begun, and it lasts until we let go.
  while (table.LocalRangeAllowed(region.local_key, 100, 10, false)) std::this_thread::yield();
  EXPECT_EQ(table.PinRemote(region.remote_key, 100, 10, kRemoteWrite), nullptr);
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(removed.load());
  table.Unpin(pinned);
  remover.join();
  EXPECT_TRUE(removed.load());
}

TEST(SoftRegionTableTest, RenewalWaitsForThePin) {
  SoftRegionTable table{Stutter()};
  SoftRegionRecord region = Record(100, 10, kRemoteWrite);
  table.Add(&region);
  const uint32_t former = region.remote_key;
  SoftRegionRecord* const pinned = table.PinRemote(former, 100, 10, kRemoteWrite);
  ASSERT_EQ(pinned, &region);
  std::atomic<bool> renewed{false};
  std::thread renewer([&] {
    table.Renew(&region);
    renewed.store(true);
  });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(renewed.load()) << "who came by the former key may still be writing";
  table.Unpin(pinned);
  renewer.join();
  EXPECT_NE(region.remote_key, former);
  EXPECT_EQ(table.PinRemote(former, 100, 10, kRemoteWrite), nullptr);
  EXPECT_EQ(table.PinRemote(region.remote_key, 100, 10, kRemoteWrite), &region);
  table.Unpin(&region);
  table.Remove(&region);
}

// A peer may still hold it, and would write into what has it now.
TEST(SoftRegionTableTest, AKeyIsNotUsedAgainSoon) {
  const std::vector<uint32_t> drawn = {1, 2, 1, 2, 3, 4};
  size_t calls = 0;
  SoftRegionTable table([&](absl::Span<uint8_t> out) {
    memcpy(out.data(), &drawn[calls++ % drawn.size()], sizeof(uint32_t));
  });
  SoftRegionRecord a = Record(100, 10, kRemoteWrite);
  SoftRegionRecord b = Record(100, 10, kRemoteWrite);
  table.Add(&a);
  EXPECT_EQ(a.remote_key, 2u);
  table.Remove(&a);
  table.Add(&b);
  EXPECT_EQ(b.local_key, 3u);
  EXPECT_EQ(b.remote_key, 4u);
  table.Remove(&b);
}

TEST(SoftRegionTableTest, WhoWritesNeedsTheRightTo) {
  SoftRegionTable table{Stutter()};
  for (const uint32_t access : {kLocalWrite + 0, kRemoteWrite + 0, kRemoteRead + 0}) {
    SoftRegionRecord region = Record(100, 10, access);
    table.Add(&region);
    EXPECT_TRUE(table.LocalRangeAllowed(region.local_key, 100, 10, false));
    EXPECT_EQ(table.LocalRangeAllowed(region.local_key, 100, 10, true), access != kRemoteRead);
    table.Remove(&region);
  }
}

TEST(SoftRegionTableTest, APeerNeedsTheRightToo) {
  SoftRegionTable table{Stutter()};
  for (const uint32_t access : {kLocalWrite + 0, kRemoteWrite + 0, kRemoteRead + 0}) {
    SoftRegionRecord region = Record(100, 10, access);
    table.Add(&region);
    for (const uint32_t wanted : {kRemoteWrite + 0, kRemoteRead + 0}) {
      SoftRegionRecord* const pinned = table.PinRemote(region.remote_key, 100, 10, wanted);
      EXPECT_EQ(pinned != nullptr, access == wanted) << access << " for " << wanted;
      if (pinned != nullptr) table.Unpin(pinned);
    }
    table.Remove(&region);
  }
}

// The newest 4096 that were given back stay out of use.
TEST(SoftRegionTableTest, ManyKeysLaterAKeyIsUsedAgainTheOldestFirst) {
  std::vector<uint32_t> offered;
  uint32_t last = 0;
  SoftRegionTable table([&](absl::Span<uint8_t> out) {
    uint32_t key = 0;
    if (offered.empty()) {
      key = ++last;
    } else {
      key = offered.front();
      offered.erase(offered.begin());
    }
    memcpy(out.data(), &key, sizeof(key));
  });
  const auto retire_two = [&] {
    SoftRegionRecord region = Record(100, 10, kRemoteWrite);
    table.Add(&region);
    table.Remove(&region);
  };
  std::deque<SoftRegionRecord> kept;  // Their keys stay in use.
  const auto keep_two = [&] {
    kept.push_back(Record(100, 10, kRemoteWrite));
    table.Add(&kept.back());
    return kept.back();
  };
  for (int i = 0; i < 2048; ++i) retire_two();
  ASSERT_EQ(last, 4096u);
  offered = {1};
  EXPECT_EQ(keep_two().local_key, 4097u);
  for (const uint32_t oldest : {1u, 3u}) {
    retire_two();
    const uint32_t next = last + 1;
    offered = {oldest, oldest + 1, oldest + 2};
    const SoftRegionRecord again = keep_two();
    EXPECT_EQ(again.local_key, oldest);
    EXPECT_EQ(again.remote_key, oldest + 1);
    EXPECT_EQ(keep_two().local_key, next);
  }
}

}  // namespace
}  // namespace tryst
