#include "rendezvous/host_fetcher.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rendezvous/packed_tensor.h"

namespace tryst {
namespace {

Tensor Int(int32_t value) {
  Tensor tensor = *Tensor::Allocate(DType::kInt32, {1});
  *static_cast<int32_t*>(tensor.mutable_data()) = value;
  return tensor;
}

Tensor OnDevice(int32_t* value, int64_t elements = 1) {
  MemorySpace space;
  space.kind = MemorySpace::Kind::kDevice;
  return *Tensor::Adopt(value, DType::kInt32, {elements}, space, [] {});
}

// Brings each tensor when the test says so.
class ByHand final : public TensorFetcher {
 public:
  void Fetch(int64_t, const TensorKey&, const RecvArgs& args, FetchedFn&& done) override {
    args_.push_back(args);
    fetches_.push_back(std::move(done));
  }
  void FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyFetchedFn) override {
    ++many_;
  }
  void AbortStep(int64_t, const absl::Status&) override { ++aborts_; }
  void End(Received&& received) {
    FetchedFn done = std::move(fetches_.front());
    fetches_.erase(fetches_.begin());
    std::move(done)(std::move(received));
  }
  void Bring(int32_t value) { End({absl::OkStatus(), Int(value)}); }

  std::vector<FetchedFn> fetches_;
  std::vector<RecvArgs> args_;
  int many_ = 0;
  int aborts_ = 0;
};

class Device final : public DeviceContext {
 public:
  absl::StatusOr<Tensor> Allocate(DType, const TensorShape& shape,
                                  const AllocatorAttributes&) override {
    asked = shape;
    if (full) return absl::ResourceExhaustedError("the device is full");
    return OnDevice(&memory);
  }
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done) override {
    copies_.push_back({from, into, std::move(done)});
  }
  void EndCopy(const absl::Status& how = absl::OkStatus()) {
    Copying copy = std::move(copies_.front());
    copies_.erase(copies_.begin());
    if (how.ok()) memcpy(copy.into.mutable_data(), copy.from.data(), copy.from.bytes());
    std::move(copy.done)(how);
  }
  size_t copies() const { return copies_.size(); }

  bool full = false;
  int32_t memory = 0;
  TensorShape asked;

 private:
  struct Copying {
    Tensor from, into;
    absl::AnyInvocable<void(absl::Status) &&> done;
  };
  std::vector<Copying> copies_;
};

class HostFetcherTest : public ::testing::Test {
 protected:
  HostFetcherTest() { args_.device_context = device_; }

  static TensorKey Key(const std::string& device, const std::string& edge = "edge") {
    return TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:CPU:0", 1,
                                 "/job:worker/replica:0/task:0/device:" + device, edge)
        ->At(0, 0);
  }
  void Fetch(const RecvArgs& args, int64_t step = 1, const std::string& edge = "edge") {
    fetcher_.Fetch(step, Key("GPU:0", edge), args,
                   [this](Received&& received) { got_.push_back(std::move(received)); });
  }
  // Brings a tensor in memory of whoever brings it, which sets `*freed` when nobody refers to it.
  void BringTheirs(int32_t* theirs, bool* freed) {
    by_hand_.End({absl::OkStatus(), *Tensor::Adopt(theirs, DType::kInt32, {1}, MemorySpace(),
                                                   [freed] { *freed = true; })});
  }

  ByHand by_hand_;
  HostFetcher fetcher_{&by_hand_};
  std::shared_ptr<Device> device_ = std::make_shared<Device>();
  RecvArgs args_;
  std::vector<Received> got_;
};

TEST_F(HostFetcherTest, AReceiveMaySayThatItWantsItOnTheDevice) {
  EXPECT_FALSE(HostFetcher::WantsDevice(Key("CPU:0"), args_));
  args_.on_device = true;
  EXPECT_TRUE(HostFetcher::WantsDevice(Key("CPU:0"), args_));
  args_.device_context = nullptr;
  EXPECT_FALSE(HostFetcher::WantsDevice(Key("CPU:0"), args_)) << "no device is known";
}

TEST_F(HostFetcherTest, CopiesIntoMemoryOfTheDevice) {
  int32_t there = 0;
  for (const Tensor& destination : {Tensor(), OnDevice(&there)}) {
    args_.destination = destination;
    Fetch(args_);
    EXPECT_FALSE(by_hand_.args_.back().destination.valid());
    EXPECT_EQ(by_hand_.args_.back().device_context, nullptr);
    by_hand_.Bring(5);
    EXPECT_EQ(fetcher_.copying(), 1u);
    EXPECT_TRUE(got_.empty());
    device_->EndCopy();
    ASSERT_EQ(got_.size(), 1u);
    ASSERT_TRUE(got_[0].status.ok()) << got_[0].status;
    EXPECT_EQ(got_[0].tensor.data(), destination.valid() ? &there : &device_->memory);
    EXPECT_EQ(fetcher_.copying(), 0u);
    got_.clear();
  }
  EXPECT_EQ(there, 5);
  EXPECT_EQ(device_->memory, 5);
}

TEST_F(HostFetcherTest, WhatIsForTheHostPassesThrough) {
  fetcher_.Fetch(1, Key("CPU:0"), args_, [](Received&&) {});
  EXPECT_EQ(by_hand_.args_.back().device_context, device_);
  args_.alloc_attrs.on_host = true;
  Fetch(args_);
  EXPECT_EQ(by_hand_.args_.back().device_context, device_);
  by_hand_.Bring(1);
  by_hand_.Bring(2);
  EXPECT_EQ(device_->copies(), 0u);
  ASSERT_EQ(got_.size(), 1u);
  EXPECT_EQ(*got_[0].tensor.data_as<int32_t>(), 2);
}

TEST_F(HostFetcherTest, DeadTensorsAndFailuresAreNotCopied) {
  Fetch(args_);
  by_hand_.End({absl::OkStatus(), Tensor(), true});
  Fetch(args_);
  by_hand_.End({absl::AbortedError("the step is over")});
  EXPECT_EQ(device_->copies(), 0u);
  ASSERT_EQ(got_.size(), 2u);
  EXPECT_TRUE(got_[0].is_dead);
  EXPECT_TRUE(absl::IsAborted(got_[1].status));
}

TEST_F(HostFetcherTest, WhatCannotBeCopiedIsForTheNextFetchOfItsKey) {
  int32_t large[2] = {};
  RecvArgs wrong = args_;
  wrong.destination = OnDevice(large, 2);
  Fetch(wrong);
  by_hand_.Bring(1);
  ASSERT_EQ(got_.size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(got_[0].status)) << got_[0].status;

  device_->full = true;
  Fetch(args_);
  ASSERT_EQ(got_.size(), 2u) << "it waits for another one";
  EXPECT_TRUE(absl::IsResourceExhausted(got_[1].status)) << got_[1].status;

  device_->full = false;
  Fetch(args_);
  device_->EndCopy(absl::InternalError("the copy failed"));
  EXPECT_TRUE(absl::IsInternal(got_.back().status)) << got_.back().status;
  Fetch(args_);
  device_->EndCopy();
  ASSERT_TRUE(got_.back().status.ok()) << got_.back().status;
  EXPECT_EQ(device_->memory, 1);
  EXPECT_EQ(by_hand_.args_.size(), 1u);  // Nothing more was fetched.
}

TEST_F(HostFetcherTest, WhatIsKeptHoldsNothingOfWhereItCame) {
  for (const bool full : {true, false}) {
    int32_t theirs = 5;
    bool freed = false;
    device_->full = full;
    Fetch(args_);
    BringTheirs(&theirs, &freed);
    if (!full) device_->EndCopy(absl::InternalError("the copy failed"));
    EXPECT_FALSE(got_.back().status.ok());
    EXPECT_TRUE(freed) << full;
    theirs = 0;
    device_->full = false;
    Fetch(args_);
    device_->EndCopy();
    EXPECT_EQ(device_->memory, 5);
  }
}

TEST_F(HostFetcherTest, NothingIsKeptOfAStepThatEndedDuringTheCopy) {
  Fetch(args_);
  by_hand_.Bring(1);
  fetcher_.AbortStep(1, absl::AbortedError("the step is over"));
  device_->EndCopy(absl::InternalError("the copy failed"));
  ASSERT_EQ(got_.size(), 1u);
  Fetch(args_);
  EXPECT_EQ(by_hand_.fetches_.size(), 1u) << "it got what nobody lets go of any more";
  by_hand_.Bring(2);
  device_->EndCopy(absl::InternalError("the copy failed"));
  Fetch(args_);
  device_->EndCopy();
  EXPECT_EQ(device_->memory, 2) << "of one that began later it is";
}

TEST_F(HostFetcherTest, NoneOfManyIsLostAndFurtherOnesWait) {
  constexpr size_t kMany = 2000;
  std::vector<TensorKey> keys;
  for (size_t i = 0; i < kMany; ++i) keys.push_back(Key("GPU:0", absl::StrCat(i)));
  device_->full = true;
  fetcher_.FetchMany(1, keys, args_, [](const absl::Status&, absl::Span<Received>) {});
  for (size_t i = 0; i < kMany; ++i) by_hand_.Bring(static_cast<int32_t>(i));

  device_->full = false;
  Fetch(args_, 1, "another");
  EXPECT_TRUE(by_hand_.fetches_.empty()) << "what came for it might have to be kept, too";
  ASSERT_EQ(got_.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(got_[0].status)) << got_[0].status;
  for (size_t i = 0; i < kMany; ++i) {
    Fetch(args_, 1, absl::StrCat(i));
    ASSERT_EQ(device_->copies(), 1u) << i;
    device_->EndCopy();
    ASSERT_EQ(device_->memory, static_cast<int32_t>(i));
  }
  Fetch(args_, 1, "another");
  EXPECT_EQ(by_hand_.fetches_.size(), 1u);
}

TEST_F(HostFetcherTest, WhatIsKeptComesBeforeWhatWasFetchedBehindIt) {
  Fetch(args_);
  Fetch(args_);
  by_hand_.Bring(1);
  device_->EndCopy(absl::InternalError("the copy failed"));
  by_hand_.Bring(2);
  device_->EndCopy();
  EXPECT_EQ(device_->memory, 1);
  Fetch(args_);
  device_->EndCopy();
  EXPECT_EQ(device_->memory, 2);
}

// What is not copied waits behind it, too.
TEST_F(HostFetcherTest, NothingThatWasSentLaterOvertakesWhatIsKept) {
  for (const bool dead : {true, false}) {
    const Received second = {absl::OkStatus(), dead ? Tensor() : *Tensor::FromStrings({"2"}, {1}),
                             dead};
    got_.clear();
    Fetch(args_);
    Fetch(args_);
    by_hand_.Bring(1);
    device_->EndCopy(absl::InternalError("the copy failed"));
    by_hand_.End(Received(second));
    ASSERT_EQ(device_->copies(), 1u) << "it has overtaken what was sent before";
    device_->EndCopy();
    ASSERT_EQ(got_.size(), 2u);
    EXPECT_FALSE(got_[1].is_dead);
    EXPECT_EQ(device_->memory, 1);
    device_->memory = 0;
    Fetch(args_);
    ASSERT_EQ(got_.size(), 3u);
    EXPECT_TRUE(got_[2].status.ok()) << got_[2].status;
    EXPECT_EQ(got_[2].is_dead, dead);
    if (!dead) {
      EXPECT_EQ(got_[2].tensor.strings()[0], "2");
    }
  }
}

TEST_F(HostFetcherTest, WhatIsKeptGoesWithItsStep) {
  for (int64_t step : {1, 2}) {
    Fetch(args_, step);
    by_hand_.Bring(static_cast<int32_t>(step));
    device_->EndCopy(absl::InternalError("the copy failed"));
  }
  fetcher_.AbortStep(1, absl::AbortedError("the step is over"));
  EXPECT_EQ(by_hand_.aborts_, 1);
  Fetch(args_, 1);
  EXPECT_EQ(by_hand_.fetches_.size(), 1u);
  Fetch(args_, 2);
  EXPECT_EQ(by_hand_.fetches_.size(), 1u);
  device_->EndCopy();
  EXPECT_EQ(device_->memory, 2);
}

TEST_F(HostFetcherTest, MoreThanEightDimensionsAreUnpackedOnTheHost) {
  const TensorShape nine_dims = *TensorShape::Make(std::vector<int64_t>(9, 1));
  Tensor packed = *Pack(*Int(7).Reshape(nine_dims));
  Fetch(args_);
  by_hand_.End({absl::OkStatus(), packed});
  ASSERT_EQ(device_->copies(), 1u);
  EXPECT_EQ(device_->asked, nine_dims);
  device_->EndCopy();
  ASSERT_TRUE(got_[0].status.ok()) << got_[0].status;
  EXPECT_EQ(device_->memory, 7);

  memset(packed.mutable_data(), 0xff, packed.bytes());
  Fetch(args_);
  by_hand_.End({absl::OkStatus(), packed});
  ASSERT_EQ(got_.size(), 2u);
  EXPECT_TRUE(absl::IsDataLoss(got_[1].status)) << got_[1].status;
}

TEST_F(HostFetcherTest, ADestinationThereNeedsADeviceContext) {
  int32_t there = 0;
  args_.destination = OnDevice(&there);
  args_.device_context = nullptr;
  Fetch(args_);
  ASSERT_EQ(got_.size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(got_[0].status)) << got_[0].status;
}

TEST_F(HostFetcherTest, ManyAreJoinedUnlessADeviceIsAmongThem) {
  const std::vector<TensorKey> keys = {Key("CPU:0"), Key("GPU:0")};
  size_t ended = 0;
  const auto done = [&](const absl::Status& status, absl::Span<Received> results) {
    EXPECT_TRUE(status.ok()) << status;
    ended += results.size();
  };
  fetcher_.FetchMany(1, absl::MakeConstSpan(keys).subspan(0, 1), args_, done);
  EXPECT_EQ(by_hand_.many_, 1);
  fetcher_.FetchMany(1, keys, args_, done);
  EXPECT_EQ(by_hand_.many_, 1);
  by_hand_.Bring(1);
  by_hand_.Bring(2);
  EXPECT_EQ(ended, 0u);
  device_->EndCopy();
  EXPECT_EQ(ended, 2u);
}

}  // namespace
}  // namespace tryst
