#include "channel/shm/copy_gauge.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

// A machine on which 16 KiB take so long, by the way.
int Copy(CopyGauge* gauge, int copies, int64_t cached_ns, int64_t streamed_ns) {
  int streamed = 0;
  for (int i = 0; i < copies; ++i) {
    const bool streams = gauge->Next();
    streamed += streams ? 1 : 0;
    gauge->Took(streams, 16 << 10, streams ? streamed_ns : cached_ns);
  }
  return streamed;
}

TEST(CopyGaugeTest, StaysInTheCacheWhereTheReaderIsNear) {
  CopyGauge gauge;
  EXPECT_LE(Copy(&gauge, 10'000, 700, 900), 20);
  EXPECT_FALSE(gauge.streams());
}

TEST(CopyGaugeTest, StreamsToADistantReader) {
  CopyGauge gauge;
  EXPECT_GE(Copy(&gauge, 10'000, 9000, 900), 9970);
  EXPECT_TRUE(gauge.streams());
}

TEST(CopyGaugeTest, FollowsAThreadThatIsMoved) {
  CopyGauge gauge;
  Copy(&gauge, 5000, 700, 900);
  Copy(&gauge, 10, 9000, 900);
  EXPECT_TRUE(gauge.streams());
  Copy(&gauge, 5000, 9000, 900);
  EXPECT_TRUE(gauge.streams());
  Copy(&gauge, 5000, 700, 900);
  EXPECT_FALSE(gauge.streams());
}

TEST(CopyGaugeTest, OneThatWasInterruptedIsNotTheRule) {
  CopyGauge gauge;
  Copy(&gauge, 1000, 700, 900);
  Copy(&gauge, 1, 4'000'000, 900);
  EXPECT_FALSE(gauge.streams());
  EXPECT_LE(Copy(&gauge, 1000, 700, 900), 40);
}

TEST(CopyGaugeTest, SmallCopiesSayNothing) {
  CopyGauge gauge;
  for (int i = 0; i < 1000; ++i) gauge.Took(gauge.Next(), 100, 1'000'000);
  EXPECT_FALSE(gauge.streams());
}

}  // namespace
}  // namespace tryst
