#include "verbs/patience.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(PatienceTest, EndsAfterItsBudgetForOneWhoLooks) {
  Patience patience(1000);
  int64_t now_ns = 5000;
  EXPECT_FALSE(patience.Exhausted(now_ns));
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(patience.Exhausted(now_ns += 100));
  EXPECT_TRUE(patience.Exhausted(now_ns += 100));
}

TEST(PatienceTest, OurOwnAbsenceIsNotThePeers) {
  Patience patience(1000);
  EXPECT_FALSE(patience.Exhausted(0));
  EXPECT_FALSE(patience.Exhausted(1'000'000)) << "one look is not enough, however late";
  EXPECT_FALSE(patience.Exhausted(2'000'000));
  EXPECT_FALSE(patience.Exhausted(3'000'000));
  EXPECT_TRUE(patience.Exhausted(4'000'000));
}

TEST(PatienceTest, SleeperWhoLooksWhenToldWaitsForItsBudget) {
  Patience patience(1000);
  int64_t now_ns = 0;
  int looks = 0;
  while (!patience.Exhausted(now_ns)) {
    const int64_t next_ns = patience.next_ns(now_ns);
    ASSERT_GT(next_ns, now_ns);
    now_ns = next_ns;
    ASSERT_LT(++looks, 10);
  }
  EXPECT_GE(now_ns, 1000);
  EXPECT_LE(now_ns, 1010);
}

TEST(PatienceTest, RestartForgets) {
  Patience patience(1000);
  for (int64_t now_ns = 0; now_ns < 900; now_ns += 100) EXPECT_FALSE(patience.Exhausted(now_ns));
  patience.Restart();
  for (int64_t now_ns = 900; now_ns < 1900; now_ns += 100) {
    EXPECT_FALSE(patience.Exhausted(now_ns));
  }
}

TEST(PatienceTest, ForEver) {
  Patience patience(Patience::kForEver);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(patience.Exhausted(int64_t{i} << 50));
  EXPECT_EQ(patience.next_ns(5), Patience::kForEver);
}

TEST(PatienceTest, NoneAtAllStillLooksTwice) {
  Patience patience(1);
  EXPECT_FALSE(patience.Exhausted(10));
  EXPECT_TRUE(patience.Exhausted(11));
}

}  // namespace
}  // namespace tryst
