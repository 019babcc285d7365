#include "server/weights/part_line.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tryst {
namespace {

class PartLineTest : public testing::Test {
 protected:
  static PartLine::Limits Small() {
    PartLine::Limits limits;
    limits.bytes = 100;
    limits.bytes_of_one = 60;
    limits.least = 0;
    limits.waiting_of_one = 2;
    limits.waiting = 4;
    return limits;
  }
  struct Outcome {
    absl::Status status = absl::UnknownError("it waits");
    Tensor tensor;
  };
  // The number of the ask tells one from another.
  std::shared_ptr<Outcome> Ask(const std::string& peer, uint64_t number, uint64_t bytes,
                               Cancellation* cancellation = nullptr) {
    auto outcome = std::make_shared<Outcome>();
    AskOfPeer ask;
    ask.ask.number = number;
    ask.peer = peer;
    ask.bytes = bytes;
    ask.args.cancellation = cancellation;
    ask.done = [outcome](Received&& received) {
      outcome->status = std::move(received.status);
      outcome->tensor = std::move(received.tensor);
    };
    line_->Enter(std::move(ask));
    return outcome;
  }
  static bool Waits(const std::shared_ptr<Outcome>& outcome) {
    return absl::IsUnknown(outcome->status);
  }

  InlineExecutor executor_;
  std::vector<uint64_t> made_;
  absl::Status trouble_;
  std::shared_ptr<PartLine> line_ = std::make_shared<PartLine>(
      Small(), &executor_, [this](const AskOfPeer& ask) -> absl::StatusOr<Tensor> {
        made_.push_back(ask.ask.number);
        if (!trouble_.ok()) return trouble_;
        return Tensor::Allocate(DType::kUint8, {40});
      });
};

TEST_F(PartLineTest, EmptyAnswersTakeRoomToo) {
  PartLine::Limits limits = Small();
  limits.least = 30;
  line_ = std::make_shared<PartLine>(
      limits, &executor_, [](const AskOfPeer&) { return Tensor::Allocate(DType::kUint8, {0}); });
  const auto first = Ask("a", 1, 0);
  const auto second = Ask("a", 2, 0);
  EXPECT_TRUE(second->status.ok());
  EXPECT_EQ(line_->bytes(), 60u);
  const auto third = Ask("a", 3, 0);
  EXPECT_TRUE(Waits(third)) << "90 bytes are more than one peer may have";
  first->tensor.Reset();
  EXPECT_TRUE(third->status.ok());
}

TEST_F(PartLineTest, WhatIsNotGivenBackIsBounded) {
  const auto first = Ask("a", 1, 40);
  EXPECT_TRUE(first->status.ok());
  const auto second = Ask("a", 2, 40);
  EXPECT_TRUE(Waits(second)) << "80 bytes are more than one peer may have";
  const auto other = Ask("b", 3, 40);
  EXPECT_TRUE(other->status.ok()) << "another peer's room is its own";
  const auto third = Ask("c", 4, 40);
  EXPECT_TRUE(Waits(third)) << "120 bytes are more than all may have";
  const auto small = Ask("d", 5, 10);
  EXPECT_TRUE(Waits(small)) << "it would take the room of the one before it";
  EXPECT_EQ(line_->bytes(), 80u);
  EXPECT_EQ(line_->waiting(), 3u);
  // A view of the bytes holds the room as well.
  Tensor view = *other->tensor.Slice(0, 1);
  other->tensor.Reset();
  EXPECT_TRUE(Waits(third));
  view.Reset();
  EXPECT_TRUE(third->status.ok());
  EXPECT_TRUE(small->status.ok());
  EXPECT_TRUE(Waits(second));
  first->tensor.Reset();
  EXPECT_TRUE(second->status.ok());
  EXPECT_EQ(made_, (std::vector<uint64_t>{1, 3, 4, 5, 2}));
  for (const auto& outcome : {second, third, small}) outcome->tensor.Reset();
  EXPECT_EQ(line_->bytes(), 0u);
}

TEST_F(PartLineTest, OneThatIsLargerThanTheBoundsGoesAlone) {
  const auto large = Ask("a", 1, 500);
  EXPECT_TRUE(large->status.ok());
  const auto next = Ask("b", 2, 1);
  EXPECT_TRUE(Waits(next));
  large->tensor.Reset();
  EXPECT_TRUE(next->status.ok());
}

TEST_F(PartLineTest, TheLineIsBounded) {
  const auto first = Ask("a", 1, 60);
  const auto second = Ask("a", 2, 60), third = Ask("a", 3, 60);
  const auto fourth = Ask("a", 4, 60);
  EXPECT_EQ(fourth->status.code(), absl::StatusCode::kResourceExhausted) << fourth->status;
  const auto fifth = Ask("b", 5, 60), sixth = Ask("c", 6, 60);
  EXPECT_TRUE(Waits(fifth) && Waits(sixth));
  EXPECT_EQ(Ask("d", 7, 60)->status.code(), absl::StatusCode::kResourceExhausted);
  line_->Close(absl::AbortedError("over"));
  for (const auto& outcome : {second, third, fifth, sixth, Ask("e", 8, 1)}) {
    EXPECT_EQ(outcome->status.code(), absl::StatusCode::kAborted);
  }
  EXPECT_EQ(made_.size(), 1u);
}

TEST_F(PartLineTest, WhoCancelsLeavesTheLineAtOnce) {
  Cancellation cancellation, before;
  const auto first = Ask("a", 1, 60);
  const auto second = Ask("a", 2, 60, &cancellation);
  cancellation.StartCancel();
  EXPECT_EQ(second->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(line_->waiting(), 0u);
  before.StartCancel();
  EXPECT_EQ(Ask("a", 3, 60, &before)->status.code(), absl::StatusCode::kCancelled);
  first->tensor.Reset();
  EXPECT_EQ(made_.size(), 1u) << "nobody makes what nobody wants";
  EXPECT_EQ(line_->bytes(), 0u);
}

TEST_F(PartLineTest, WhatCannotBeMadeHoldsNoRoom) {
  trouble_ = absl::NotFoundError("over");
  EXPECT_EQ(Ask("a", 1, 60)->status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(line_->bytes(), 0u);
  const auto first = Ask("a", 2, 60);
  EXPECT_EQ(first->status.code(), absl::StatusCode::kNotFound);
}

TEST_F(PartLineTest, AnAnswerMayOutliveTheLine) {
  const auto first = Ask("a", 1, 60);
  line_.reset();
  EXPECT_EQ(first->tensor.bytes(), 40u);
  first->tensor.Reset();
}

}  // namespace
}  // namespace tryst
