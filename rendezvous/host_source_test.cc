#include "rendezvous/host_source.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rendezvous/step_registry.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

// A device, whose copies end when the test says so.
class Device final : public DeviceContext {
 public:
  static Tensor Memory(int32_t* value, int64_t elements = 1) {
    MemorySpace space;
    space.kind = MemorySpace::Kind::kDevice;
    return *Tensor::Adopt(value, DType::kInt32, {elements}, space, [] {});
  }
  absl::StatusOr<Tensor> Allocate(DType, const TensorShape&, const AllocatorAttributes&) override {
    return absl::UnimplementedError("nobody receives on this device");
  }
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done) override {
    copies_.push_back({from, into, std::move(done)});
  }
  size_t copies() const { return copies_.size(); }
  void EndCopy(const absl::Status& how = absl::OkStatus()) {
    Copying copy = std::move(copies_.front());
    copies_.erase(copies_.begin());
    memcpy(copy.into.mutable_data(), copy.from.data(), copy.from.bytes());
    std::move(copy.done)(how);
  }

 private:
  struct Copying {
    Tensor from, into;
    absl::AnyInvocable<void(absl::Status) &&> done;
  };
  std::vector<Copying> copies_;
};

class HostSourceTest : public ::testing::Test {
 protected:
  HostSourceTest() {
    StepRegistry::Options options;
    options.worker = kPs;
    options.incarnations[absl::StrCat(kPs, "/device:CPU:0")] = 1;
    options.step.check_immutable = false;  // Off, as in builds that ship.
    registry_ = *StepRegistry::Make(options, &alarms_, nullptr);
    step_ = *registry_->StartStep(1);
    source_ = std::make_unique<HostSource>(registry_.get());
  }

  void Send(int32_t* value, int64_t elements = 1) {
    SendArgs args;
    args.device_context = device_;
    ASSERT_TRUE(step_->Send(key_, args, Device::Memory(value, elements), false).ok());
  }
  void Take(std::vector<Received>* got, Cancellation* cancellation = nullptr) {
    RecvArgs args;
    args.cancellation = cancellation;
    source_->Take(1, key_, args,
                  [got](Received&& received) { got->push_back(std::move(received)); });
  }
  bool TakeHere(Received* got) {
    TensorSource::Place place;
    EXPECT_TRUE(source_->MayTake(key_));
    return source_->TakeHere(1, &key_, &place, got);
  }
  static int32_t Value(const Received& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    EXPECT_TRUE(received.tensor.on_host());
    return *received.tensor.data_as<int32_t>();
  }
  // What lies in the step, as it was sent.
  Received Sent() {
    Received got;
    registry_->Take(1, key_, {}, [&](Received&& received) { got = std::move(received); });
    return got;
  }

  VirtualAlarms alarms_;
  std::unique_ptr<StepRegistry> registry_;
  std::shared_ptr<Rendezvous> step_;
  std::unique_ptr<HostSource> source_;
  std::shared_ptr<Device> device_ = std::make_shared<Device>();
  TensorKey key_ = TensorKeyPrefix::Make(absl::StrCat(kPs, "/device:CPU:0"), 1,
                                         absl::StrCat(kWorker, "/device:CPU:0"), "edge")
                       ->At(0, 0);
  int32_t one_ = 1, two_ = 2;
};

TEST_F(HostSourceTest, CopiesWhatADeviceHas) {
  Send(&one_);
  std::vector<Received> got;
  Take(&got);
  EXPECT_EQ(source_->copying(), 1u);
  EXPECT_TRUE(got.empty());
  device_->EndCopy();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(Value(got[0]), 1);
  EXPECT_EQ(source_->copying(), 0u);
}

TEST_F(HostSourceTest, WhatIsHereMustBeTakenIfADeviceHasIt) {
  Send(&one_);
  Received here;
  EXPECT_FALSE(TakeHere(&here));
  EXPECT_FALSE(here.tensor.valid());
  Received sent = Sent();
  EXPECT_EQ(sent.tensor.data(), &one_);
  Tensor host = *Tensor::Allocate(DType::kInt32, {1});
  *static_cast<int32_t*>(host.mutable_data()) = 5;
  ASSERT_TRUE(step_->Send(key_, {}, host, false).ok());
  ASSERT_TRUE(TakeHere(&here));
  EXPECT_EQ(Value(here), 5);
}

TEST_F(HostSourceTest, WhatIsGivenBackIsWhatWasSentInItsPlace) {
  Send(&one_);
  Send(&two_);
  std::vector<Received> got;
  Take(&got);
  device_->EndCopy();
  ASSERT_EQ(got.size(), 1u);
  source_->GiveBack(1, key_, std::move(got[0]));
  const Received first = Sent();
  EXPECT_EQ(first.tensor.data(), &one_);
  EXPECT_EQ(first.send_context, device_);
  EXPECT_EQ(Sent().tensor.data(), &two_);
}

TEST_F(HostSourceTest, AFailedCopyLeavesTheTensorInItsPlace) {
  Send(&one_);
  Send(&two_);
  std::vector<Received> got;
  Take(&got);
  device_->EndCopy(absl::DataLossError("an uncorrectable error"));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(absl::IsDataLoss(got[0].status)) << got[0].status;
  EXPECT_EQ(source_->copying(), 0u);
  EXPECT_EQ(Sent().tensor.data(), &one_);
}

TEST_F(HostSourceTest, WhoCancelsDuringTheCopyGetsItAndMayGiveItBack) {
  Send(&one_);
  Cancellation cancellation;
  std::vector<Received> got;
  Take(&got, &cancellation);
  cancellation.StartCancel();
  EXPECT_TRUE(got.empty());
  device_->EndCopy();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(Value(got[0]), 1);
  source_->GiveBack(1, key_, std::move(got[0]));
  EXPECT_EQ(Sent().tensor.data(), &one_);
}

TEST_F(HostSourceTest, WithoutADeviceContextItIsRefusedAndStays) {
  device_ = nullptr;
  Send(&one_);
  std::vector<Received> got;
  Take(&got);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(absl::IsFailedPrecondition(got[0].status)) << got[0].status;
  EXPECT_EQ(Sent().tensor.data(), &one_);
}

TEST_F(HostSourceTest, WhatTheHostHasNoMemoryForStays) {
  Send(&one_, int64_t{1} << 60);
  std::vector<Received> got;
  Take(&got);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(got[0].status)) << got[0].status;
  EXPECT_EQ(device_->copies(), 0u);
  EXPECT_EQ(Sent().tensor.data(), &one_);
}

}  // namespace
}  // namespace tryst
