#include "channel/device/fetch_lines.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

TensorKey Key(const std::string& edge) {
  auto key = TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:GPU:0", 1,
                                   "/job:worker/replica:0/task:0/device:GPU:0", edge);
  EXPECT_TRUE(key.ok()) << key.status();
  return key->At(0, 0);
}

DeviceManifest Transfer(uint64_t id) {
  DeviceManifest manifest;
  manifest.transfer = id;
  return manifest;
}

class Fetch final : public LinedFetch {
 public:
  void OnTurn(const DeviceManifest* met) override {
    ++turns;
    transfer = met == nullptr ? 0 : met->transfer;
    if (in_turn) in_turn();
  }
  int turns = 0;
  uint64_t transfer = 0;  // Met by one before it.
  std::function<void()> in_turn;
};

class FetchLinesTest : public ::testing::Test {
 protected:
  void EndGiveBack(size_t which = 0) {
    auto done = std::move(given_back_.at(which).second);
    given_back_.erase(given_back_.begin() + static_cast<std::ptrdiff_t>(which));
    std::move(done)();
  }
  const DeviceManifest met_ = Transfer(7);
  std::vector<std::pair<uint64_t, absl::AnyInvocable<void() &&>>> given_back_;
  FetchLines lines_{
      [this](const TensorKey&, uint64_t transfer, absl::AnyInvocable<void() &&> done) {
        given_back_.emplace_back(transfer, std::move(done));
      }};
};

TEST_F(FetchLinesTest, OneOfAKeyAndStepGoesOnAtATime) {
  Fetch first, second, of_another_key, of_another_step;
  lines_.Join(1, Key("a"), &first);
  lines_.Join(1, Key("a"), &second);
  lines_.Join(1, Key("b"), &of_another_key);
  lines_.Join(2, Key("a"), &of_another_step);
  EXPECT_EQ(first.turns, 1);
  EXPECT_EQ(second.turns, 0);
  EXPECT_EQ(of_another_key.turns, 1);
  EXPECT_EQ(of_another_step.turns, 1);
  lines_.Leave(&first, nullptr, false);
  EXPECT_EQ(second.turns, 1);
  EXPECT_EQ(second.transfer, 0u);
  for (Fetch* fetch : {&second, &of_another_key, &of_another_step}) {
    lines_.Leave(fetch, nullptr, false);
  }
  EXPECT_TRUE(lines_.empty());
  EXPECT_TRUE(given_back_.empty());
}

TEST_F(FetchLinesTest, WhatOneHadMetIsTheNextOnes) {
  Fetch first, second;
  lines_.Join(1, Key("a"), &first);
  lines_.Join(1, Key("a"), &second);
  lines_.Leave(&first, &met_, false);
  EXPECT_EQ(second.turns, 1);
  EXPECT_EQ(second.transfer, 7u);
  EXPECT_TRUE(given_back_.empty());
  lines_.Leave(&second, nullptr, false);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(FetchLinesTest, WithNobodyBehindItGoesBackBeforeAnotherOneAsks) {
  Fetch first, second, third;
  lines_.Join(1, Key("a"), &first);
  lines_.Leave(&first, &met_, false);
  ASSERT_EQ(given_back_.size(), 1u);
  EXPECT_EQ(given_back_[0].first, 7u);
  EXPECT_FALSE(lines_.empty());
  lines_.Join(1, Key("a"), &second);
  lines_.Join(1, Key("a"), &third);
  lines_.Leave(&second, nullptr, false);  // Cancelled while it waits.
  EXPECT_EQ(second.turns, 0);
  EXPECT_EQ(third.turns, 0);
  EndGiveBack();
  EXPECT_EQ(third.turns, 1);
  EXPECT_EQ(third.transfer, 0u) << "it asks the producer";
  lines_.Leave(&third, nullptr, false);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(FetchLinesTest, WhatCannotBeBroughtGoesBackAlthoughSomebodyWaits) {
  Fetch first, second;
  lines_.Join(1, Key("a"), &first);
  lines_.Join(1, Key("a"), &second);
  lines_.Leave(&first, &met_, true);
  EXPECT_EQ(second.turns, 0);
  ASSERT_EQ(given_back_.size(), 1u);
  EndGiveBack();
  EXPECT_EQ(second.turns, 1);
  lines_.Leave(&second, nullptr, false);
  EXPECT_TRUE(lines_.empty());
}

// None of them can take it: each is asked in its turn, none in the call of another one's.
TEST_F(FetchLinesTest, ManyThatEndInTheirTurnEndOneAfterTheOther) {
  constexpr size_t kFetches = 100'000;  // As calls within calls they would fill the stack.
  std::vector<Fetch> fetches(kFetches);
  for (Fetch& fetch : fetches) lines_.Join(1, Key("a"), &fetch);
  for (size_t i = 1; i < kFetches; ++i) {
    fetches[i].in_turn = [this, fetch = &fetches[i]] { lines_.Leave(fetch, &met_, false); };
  }
  lines_.Leave(&fetches[0], &met_, false);
  for (const Fetch& fetch : fetches) ASSERT_EQ(fetch.turns, 1);
  ASSERT_EQ(given_back_.size(), 1u);
  EndGiveBack();
  EXPECT_TRUE(lines_.empty());
}

}  // namespace
}  // namespace tryst
