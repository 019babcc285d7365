#include "verbs/soft/soft_send_ring.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

class SoftSendRingTest : public ::testing::Test {
 protected:
  static QueuePairOptions Options() {
    QueuePairOptions options;
    options.send_depth = 64;
    options.max_entries = 2;
    options.max_inline_bytes = 16;
    return options;
  }
  static SendWork Work(uint64_t id, absl::Span<const Entry> entries = {}) {
    SendWork work;
    work.id = id;
    work.entries = entries;
    return work;
  }
  static Entry EntryOf(const std::string& text) {
    return {reinterpret_cast<uint64_t>(text.data()), text.size(), 0};
  }
  void Start(uint32_t sequence) {
    SoftSend& send = ring_.at(ring_.next());
    send.started = true;
    send.sequence = sequence;
    ring_.Advance();
  }
  std::string InlineBytes(uint64_t i) {
    const Entry& bytes = *ring_.entries(i);
    return std::string(reinterpret_cast<const char*>(bytes.address), bytes.bytes);
  }

  SoftContext context_{SoftNicOptions()};
  SoftSendRing ring_{&context_, Options()};
};

TEST_F(SoftSendRingTest, APeersAnswerIsToWhatWasStarted) {
  EXPECT_EQ(ring_.Find(0), SoftSendRing::kNone);
  for (uint64_t id = 1; id <= 3; ++id) ring_.Post(Work(id));
  EXPECT_EQ(ring_.Find(0), SoftSendRing::kNone) << "nothing is started";
  Start(7);
  Start(8);
  EXPECT_EQ(ring_.Find(7), ring_.oldest());
  EXPECT_EQ(ring_.Find(8), ring_.oldest() + 1);
  EXPECT_EQ(ring_.Find(9), SoftSendRing::kNone);
  EXPECT_EQ(ring_.Find(0), SoftSendRing::kNone) << "the third is not started";
  EXPECT_EQ(ring_.TakeOldest()->id, 1u);
  EXPECT_EQ(ring_.Find(7), SoftSendRing::kNone);
}

// Also in a ring that has grown, and whose first places are used again.
TEST_F(SoftSendRingTest, WorksKeepWhatTheyWerePostedWith) {
  const std::string one = "one", two = " and two";
  const Entry both[] = {EntryOf(one), EntryOf(two)};
  uint64_t posted = 0, taken = 0;
  for (const uint64_t most : {6, 20, 64}) {
    for (; posted - taken < most; ++posted) {
      SendWork work = Work(posted, both);
      work.signaled = posted % 2 == 0;
      work.inline_data = posted % 4 == 0;
      work.immediate = static_cast<uint32_t>(posted);
      ring_.Post(work);
    }
    for (uint64_t i = ring_.oldest(); i < ring_.oldest() + most; ++i) {
      const SoftSend& send = ring_.at(i);
      EXPECT_EQ(send.id, i);
      EXPECT_EQ(send.immediate, i);
      EXPECT_EQ(send.signaled, i % 2 == 0);
      EXPECT_EQ(send.total, one.size() + two.size());
      EXPECT_EQ(send.inline_data, i % 4 == 0);
      ASSERT_EQ(send.entries, i % 4 == 0 ? 1 : 2);
      if (i % 4 == 0) {
        EXPECT_EQ(InlineBytes(i), "one and two");
      } else {
        EXPECT_EQ(ring_.entries(i)[0].address, both[0].address);
        EXPECT_EQ(ring_.entries(i)[1].bytes, two.size());
      }
    }
    for (int i = 0; i < 5; ++i) EXPECT_EQ(ring_.TakeOldest()->id, taken++);
  }
}

TEST_F(SoftSendRingTest, ItIsKnownWhetherAnyWaitsIsStartedOrUnsignaled) {
  EXPECT_TRUE(ring_.empty());
  ring_.Post(Work(1));
  EXPECT_FALSE(ring_.empty());
  EXPECT_TRUE(ring_.any_waits());
  EXPECT_FALSE(ring_.any_started());
  EXPECT_FALSE(ring_.AnyUnsignaled());
  Start(0);
  EXPECT_FALSE(ring_.any_waits());
  EXPECT_TRUE(ring_.any_started());
  SendWork silent = Work(2);
  silent.signaled = false;
  ring_.Post(silent);
  EXPECT_TRUE(ring_.AnyUnsignaled());
}

TEST_F(SoftSendRingTest, WhatExceedsALimitIsRefused) {
  const std::string text(17, 't');
  const Entry most[] = {{0, 8, 0}, {0, 8, 0}, {0, 8, 0}};
  EXPECT_TRUE(ring_.Check(Work(1, absl::MakeConstSpan(most, 2))).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ring_.Check(Work(1, most))));
  SendWork work = Work(1, absl::MakeConstSpan(most, 2));
  work.inline_data = true;
  EXPECT_TRUE(ring_.Check(work).ok());
  work.op = SendOp::kRead;
  EXPECT_TRUE(absl::IsInvalidArgument(ring_.Check(work))) << "a READ has no bytes";
  const Entry large = EntryOf(text);
  work = Work(1, absl::MakeConstSpan(&large, 1));
  EXPECT_TRUE(ring_.Check(work).ok());
  work.inline_data = true;
  EXPECT_TRUE(absl::IsInvalidArgument(ring_.Check(work)));
  const uint64_t limit = context_.options.limits.max_message_bytes;
  const Entry halves[] = {{0, limit, 0}, {0, 1, 0}};
  EXPECT_TRUE(ring_.Check(Work(1, absl::MakeConstSpan(halves, 1))).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ring_.Check(Work(1, halves))));
}

}  // namespace
}  // namespace tryst
