#include "weights/log_lives.h"

#include <gtest/gtest.h>

namespace tryst {
namespace {

TEST(LogLivesTest, AnAnswerThatNamesNoLogCountsForNobody) {
  LogLives lives;
  EXPECT_FALSE(lives.Take(0, true));
  EXPECT_FALSE(lives.Take(0, false));
  EXPECT_EQ(lives.current(), 0u);
  EXPECT_TRUE(lives.Take(1, true));
  EXPECT_TRUE(lives.Take(1, false));
  EXPECT_FALSE(lives.Take(0, true));
  EXPECT_EQ(lives.current(), 1u);
}

}  // namespace
}  // namespace tryst
