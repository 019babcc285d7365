#include "channel/compat/over_list.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/transport.pb.h"

namespace tryst {
namespace {

OverList::Line LineOf(uint64_t number) {
  return {1, TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:CPU:0", 1,
                                   "/job:c/replica:0/task:0/device:CPU:0", absl::StrCat(number))
                 ->At(0, 0)};
}

// A request that says nothing of an ended fetch but that it is older than the oldest says that its
// tensor was delivered.
TEST(OverListTest, WhatIsUnwantedIsNamedBeforeItCountsAsDelivered) {
  OverList over;
  for (uint64_t serial = 1; serial <= 5; ++serial) {
    over.Add(serial, LineOf(serial), /*known=*/true, /*delivered=*/false);
  }
  EXPECT_EQ(over.unwanted(), 5u);
  std::vector<uint64_t> named;
  for (const uint64_t oldest : {3, 5, 6}) {
    rpc::FetchRequest request;
    std::vector<uint64_t> told;
    over.Fill(&request, 2, {}, &told);
    EXPECT_EQ(request.oldest_serial(), oldest);
    EXPECT_EQ(request.over_size(), request.unwanted_size());
    for (const uint64_t serial : request.unwanted()) {
      EXPECT_LT(serial, request.oldest_serial());
      named.push_back(serial);
    }
    over.Forget(told);
  }
  EXPECT_EQ(named, (std::vector<uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(over.unwanted(), 0u);
}

// The producer must have it back before it hears of a new request of that key.
TEST(OverListTest, ARequestNamesWhatItsKeyLeftBehind) {
  OverList over;
  for (uint64_t serial = 1; serial <= 5; ++serial) {
    over.Add(serial, LineOf(serial), true, false);
  }
  EXPECT_EQ(over.LeftOf(LineOf(5)), std::vector<uint64_t>{5});
  EXPECT_TRUE(over.LeftOf(LineOf(6)).empty());
  rpc::FetchRequest request;
  std::vector<uint64_t> told;
  over.Fill(&request, 1, over.LeftOf(LineOf(5)), &told);
  EXPECT_EQ(told, std::vector<uint64_t>{5});
  over.Forget(told);
  EXPECT_TRUE(over.LeftOf(LineOf(5)).empty());
}

// The producer may know all of them, or only the first, as the others were lost on their way.
TEST(OverListTest, ARequestNamesAllThatItsKeyLeftBehind) {
  OverList over;
  over.Add(1, LineOf(1), true, false);
  over.Add(2, LineOf(2), true, false);
  over.Add(3, LineOf(1), true, false);
  EXPECT_EQ(over.LeftOf(LineOf(1)), (std::vector<uint64_t>{1, 3}));
  over.Forget({1});
  EXPECT_EQ(over.LeftOf(LineOf(1)), std::vector<uint64_t>{3});
  over.Forget({3});
  EXPECT_TRUE(over.LeftOf(LineOf(1)).empty());
  EXPECT_EQ(over.LeftOf(LineOf(2)), std::vector<uint64_t>{2});
}

TEST(OverListTest, ARequestNamesOnlySoManyThatItsKeyLeftBehind) {
  constexpr uint64_t kMost = 256;
  OverList over;
  for (uint64_t serial = 1; serial <= kMost + 9; ++serial) over.Add(serial, LineOf(1), true, false);
  std::vector<uint64_t> left = over.LeftOf(LineOf(1));
  ASSERT_EQ(left.size(), kMost);
  EXPECT_EQ(left.front(), 1u);
  EXPECT_EQ(left[kMost - 2], kMost - 1) << "the oldest";
  EXPECT_EQ(left.back(), kMost + 9) << "and the newest";
  rpc::FetchRequest request;
  std::vector<uint64_t> told;
  over.Fill(&request, 10'000, {}, &told);
  EXPECT_EQ(told.size(), kMost + 9) << "a note names all";
  over.Forget(told);
  EXPECT_TRUE(over.LeftOf(LineOf(1)).empty());
  EXPECT_EQ(over.unwanted(), 0u);
}

TEST(OverListTest, WhatWasDeliveredIsToldOnce) {
  OverList over;
  for (uint64_t serial = 2; serial <= 6; ++serial) over.Add(serial, LineOf(serial), true, true);
  std::vector<uint64_t> told;
  rpc::FetchRequest request;
  over.Fill(&request, 3, {}, &told);
  EXPECT_EQ(told, (std::vector<uint64_t>{2, 3, 4}));
  over.Forget({3});
  for (const std::vector<uint64_t>& left : {std::vector<uint64_t>{2, 4, 5}, {2, 4, 5}}) {
    told.clear();
    request.Clear();
    over.Fill(&request, 3, {}, &told);
    EXPECT_EQ(told, left);
  }
}

// The first has not ended, and so those behind it cannot be named by one number.
TEST(OverListTest, OnlySoManyAreRememberedThatWereDelivered) {
  constexpr uint64_t kMost = 65536;
  OverList over;
  for (uint64_t serial = 2; serial < kMost + 12; ++serial) {
    EXPECT_EQ(over.MustBeTold(), serial - 2 >= kMost / 2);
    over.Add(serial, LineOf(1), true, true);
  }
  std::vector<uint64_t> told;
  rpc::FetchRequest request;
  over.Fill(&request, 100'000, {}, &told);
  EXPECT_EQ(told.size(), kMost);
  EXPECT_EQ(told.back(), kMost + 11) << "the newest";
  over.Forget(told);
  EXPECT_FALSE(over.MustBeTold());
}

TEST(OverListTest, WhatNobodyKnowsOfIsNotNamed) {
  OverList over;
  over.Add(1, LineOf(1), /*known=*/false, /*delivered=*/false);
  over.Add(3, LineOf(3), /*known=*/true, /*delivered=*/true);
  rpc::FetchRequest request;
  std::vector<uint64_t> told;
  over.Fill(&request, 10, {}, &told);
  EXPECT_EQ(told, std::vector<uint64_t>{3});
  EXPECT_EQ(request.unwanted_size(), 0);
  EXPECT_EQ(request.oldest_serial(), 2u) << "the second has not ended";
}

}  // namespace
}  // namespace tryst
