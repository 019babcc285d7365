#include "server/weights/patience.h"

#include <gtest/gtest.h>

#include <memory>

namespace tryst {
namespace {

TEST(HangingCancellationTest, IsCancelledWithWhatItHangsOn) {
  Cancellation on;
  HangingCancellation before(&on);
  EXPECT_FALSE(before.get()->cancelled());
  on.StartCancel();
  EXPECT_TRUE(before.get()->cancelled());
  HangingCancellation after(&on);
  EXPECT_TRUE(after.get()->cancelled()) << "also where that came first";
}

TEST(HangingCancellationTest, CancelsNothingButItself) {
  Cancellation on;
  auto gone = std::make_unique<HangingCancellation>(&on);
  gone->get()->StartCancel();
  EXPECT_FALSE(on.cancelled());
  gone.reset();
  on.StartCancel();
  HangingCancellation alone(nullptr);
  EXPECT_FALSE(alone.get()->cancelled());
}

}  // namespace
}  // namespace tryst
