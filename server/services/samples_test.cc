#include "server/services/samples.h"

#include <cstring>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr char kWorker[] = "/job:ps/replica:0/task:0";
constexpr char kPeer[] = "/job:worker/replica:0/task:0";
constexpr uint64_t kIncarnation = 7;

class SamplesTest : public ::testing::Test {
 protected:
  SamplesTest() {
    StepRegistry::Options options;
    options.worker = kWorker;
    steps_ = *StepRegistry::Make(options, &alarms_, nullptr);
    sender_ = std::make_unique<SampleSender>(kWorker, kIncarnation, steps_.get(), &alarms_.clock());
  }
  absl::StatusCode Send(int64_t step, uint64_t bytes, uint32_t count,
                        const std::string& to = kPeer) {
    return sender_->Send(to, step, bytes, count).code();
  }
  static std::string Peer(size_t task) {
    return "/job:worker/replica:0/task:" + std::to_string(task);
  }

  VirtualAlarms alarms_;
  std::unique_ptr<StepRegistry> steps_;
  std::unique_ptr<SampleSender> sender_;
};

TEST_F(SamplesTest, PeerGetsWhatWasSent) {
  constexpr int64_t kStep = kLastSampleStep - 5;
  ASSERT_EQ(Send(kStep, 1000, 20), absl::StatusCode::kOk);
  const TensorKeyPrefix keys = *SampleKeys(kWorker, kIncarnation, kPeer);
  int good = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    steps_->Take(kStep, keys.At(0, i % kSampleKeys), RecvArgs(), [&good](Received&& received) {
      good += received.status.ok() && IsSample(received.tensor, 1000);
    });
  }
  EXPECT_EQ(good, 20);
  EXPECT_EQ(steps_->counters().waiting_sends, 0);
}

TEST_F(SamplesTest, OtherBytesAreTold) {
  Tensor tensor = *Tensor::Allocate(DType::kUint8, {8});
  memset(tensor.mutable_data(), 0, 8);
  EXPECT_FALSE(IsSample(tensor, 8));
  EXPECT_FALSE(IsSample(Tensor(), 8));
  EXPECT_FALSE(LooksLikeSample(tensor, 8)) << "its first byte is right, and its last is not";
}

TEST_F(SamplesTest, AStepThatIsOverHasNone) {
  steps_->AbortStep(kLastSampleStep, absl::InternalError("over"));
  EXPECT_EQ(Send(kLastSampleStep, 8, 1), absl::StatusCode::kInternal);
}

TEST_F(SamplesTest, LimitsHold) {
  EXPECT_EQ(Send(17, 8, 1), absl::StatusCode::kInvalidArgument);  // Step 17 is a job's.
  EXPECT_EQ(Send(kFirstSampleStep - 1, 8, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(INT64_MIN, 8, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(kLastSampleStep, 0, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(kLastSampleStep, kMostSampleBytes + 1, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(kLastSampleStep, 8, kMostSamples + 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(steps_->counters().waiting_sends, 0);
  EXPECT_EQ(Send(kFirstSampleStep, 8, 1), absl::StatusCode::kOk);
}

TEST_F(SamplesTest, AMinuteLaterTheyAreGoneAndOthersMayCome) {
  for (size_t i = 0; i < kMostSampledPeers; ++i) {
    ASSERT_EQ(Send(kLastSampleStep - static_cast<int64_t>(i), 8, 1, Peer(i)),
              absl::StatusCode::kOk);
  }
  EXPECT_EQ(Send(kLastSampleStep - 99, 8, 1, Peer(99)), absl::StatusCode::kResourceExhausted);
  alarms_.AdvanceBy(kSampleLife - absl::Seconds(1));
  sender_->Sweep();
  EXPECT_EQ(steps_->counters().waiting_sends, static_cast<int64_t>(kMostSampledPeers));
  alarms_.AdvanceBy(absl::Seconds(1));
  sender_->Sweep();
  EXPECT_EQ(steps_->counters().waiting_sends, 0);
  EXPECT_EQ(Send(kLastSampleStep - 99, 8, 1, Peer(99)), absl::StatusCode::kOk);
}

TEST_F(SamplesTest, NextStepOfAPeerEndsTheOneBefore) {
  ASSERT_EQ(Send(kLastSampleStep - 1, 8, 5), absl::StatusCode::kOk);
  ASSERT_EQ(Send(kLastSampleStep - 2, 8, 3), absl::StatusCode::kOk);
  EXPECT_EQ(steps_->counters().waiting_sends, 3);
  EXPECT_EQ(steps_->FindStep(kLastSampleStep - 1), nullptr);
}

}  // namespace
}  // namespace tryst
