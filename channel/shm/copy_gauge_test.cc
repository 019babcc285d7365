#include "channel/shm/copy_gauge.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr int64_t kRoomBytes = 2 << 20;
constexpr int64_t kCopyBytes = 16 << 10;
constexpr int64_t kNearNs = 500, kSiblingCacheNs = 1000, kFarNs = 4200;
constexpr int64_t kStreamedNs = 310, kColdNs = 2600;

// A machine, and the room of a link on it, with 128 places for copies.
class Machine {
 public:
  // Copies `bytes`; returns how many of them were streamed.
  int64_t Copy(CopyGauge* gauge, int64_t bytes, int64_t cached_ns) {
    int64_t streamed = 0;
    for (int64_t done = 0; done < bytes; done += kCopyBytes) {
      bool& cold = is_cold_[next_++ % (kRoomBytes / kCopyBytes)];
      const bool streams = gauge->Next();
      streamed += streams ? kCopyBytes : 0;
      const int64_t through_ns = cold ? kColdNs : cached_ns;
      cold = streams;  // Streamed bytes must be fetched from memory before they are written again.
      gauge->Took(kCopyBytes, streams ? kStreamedNs : through_ns);
    }
    return streamed;
  }

 private:
  bool is_cold_[kRoomBytes / kCopyBytes] = {};
  uint64_t next_ = 0;
};

constexpr int64_t kGiB = 1 << 30, kMiB = 1 << 20;

TEST(CopyGaugeTest, StaysInTheCacheWhereTheReaderIsNear) {
  for (int64_t cached_ns : {kNearNs, kSiblingCacheNs}) {
    CopyGauge gauge(kRoomBytes);
    EXPECT_LE(Machine().Copy(&gauge, kGiB, cached_ns), 16 * kMiB);
    EXPECT_FALSE(gauge.streams());
  }
}

TEST(CopyGaugeTest, StreamsToADistantReader) {
  CopyGauge gauge(kRoomBytes);
  EXPECT_GE(Machine().Copy(&gauge, kGiB, kFarNs), kGiB - 32 * kMiB);
  EXPECT_TRUE(gauge.streams());
}

TEST(CopyGaugeTest, LeavesALostWayAtOnce) {
  CopyGauge gauge(kRoomBytes);
  Machine machine;
  machine.Copy(&gauge, kGiB, kNearNs);
  machine.Copy(&gauge, 8 * kMiB, kFarNs);
  EXPECT_TRUE(gauge.streams());
}

// One ordinary copy into room that was streamed to tells nothing.
TEST(CopyGaugeTest, ComesBackAlthoughTheRoomIsCold) {
  CopyGauge gauge(kRoomBytes);
  Machine machine;
  machine.Copy(&gauge, kGiB, kFarNs);
  ASSERT_TRUE(gauge.streams());
  machine.Copy(&gauge, 2 * kGiB, kNearNs);
  EXPECT_FALSE(gauge.streams());
}

TEST(CopyGaugeTest, RoomThatIsNewSaysNothing) {
  CopyGauge gauge(kRoomBytes);
  Machine machine;
  machine.Copy(&gauge, kRoomBytes, 50 * kFarNs);  // The first pass allocates the pages.
  EXPECT_LE(machine.Copy(&gauge, kGiB, kNearNs), 16 * kMiB);
}

TEST(CopyGaugeTest, OneThatWasInterruptedIsNotTheRule) {
  CopyGauge gauge(kRoomBytes);
  Machine machine;
  machine.Copy(&gauge, kGiB, kNearNs);
  machine.Copy(&gauge, kCopyBytes, 4'000'000);
  EXPECT_LE(machine.Copy(&gauge, kMiB, kNearNs), 0);
  EXPECT_FALSE(gauge.streams());
}

TEST(CopyGaugeTest, ATrialThatBeginsWithAnInterruptionIsFair) {
  CopyGauge gauge(kRoomBytes);
  Machine machine;
  machine.Copy(&gauge, kGiB, kFarNs);
  while (gauge.Next()) machine.Copy(&gauge, kCopyBytes, kNearNs);
  machine.Copy(&gauge, kRoomBytes, kNearNs);
  machine.Copy(&gauge, kCopyBytes, 4'000'000);  // The first copy that counts.
  machine.Copy(&gauge, kMiB, kNearNs);
  EXPECT_FALSE(gauge.streams());
}

TEST(CopyGaugeTest, SmallCopiesSayNothing) {
  CopyGauge gauge(kRoomBytes);
  for (int i = 0; i < 100'000; ++i) gauge.Took(100, 1'000'000);
  EXPECT_FALSE(gauge.streams());
  EXPECT_FALSE(gauge.Next());
}

}  // namespace
}  // namespace tryst
