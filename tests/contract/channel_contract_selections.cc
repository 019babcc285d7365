#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "rendezvous/fetch_group.h"
#include "rendezvous/routing_rendezvous.h"
#include "rendezvous/selected.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/contract/channel_contract.h"

// Selections, whatever brings the bytes: they are copied above it, and it must neither keep nor
// write what it has no business with.
namespace tryst {
namespace {

constexpr char kCanary = 0x5a;

Tensor Bytes(uint64_t bytes, char fill) {
  const Tensor tensor =
      *Tensor::Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(bytes)}));
  memset(tensor.mutable_data(), fill, bytes);
  return tensor;
}

// Every second block of a pool goes, from the last to the first, into blocks of another size.
struct Scattered {
  explicit Scattered(uint64_t unit, uint32_t blocks = 12) : pool(Bytes(2 * blocks * unit, 0)) {
    auto* const at = static_cast<uint8_t*>(pool.mutable_data());
    for (uint64_t i = 0; i < pool.bytes(); ++i) at[i] = static_cast<uint8_t>(i * 31 + i / 251);
    for (uint32_t i = blocks; i > 0; --i) there.push_back(2 * i - 1);
    runs = {{5, 3 * unit, 4 * unit, blocks / 3}};
    into = Bytes(4 * unit * blocks / 3 + 10, kCanary);
    from = Selection::Indices(there, unit);
  }
  Tensor Sent(const TensorKey& key, bool digests) const {
    return *GatherTensor(key, pool, from, digests, nullptr);
  }
  std::string Expected() const {
    std::string sent, expected(into.bytes(), kCanary);
    for (const uint32_t block : there) sent.append(At(block), from.unit);
    for (uint64_t i = 0; i < runs[0].count; ++i) {
      sent.copy(&expected[runs[0].offset + i * runs[0].stride], runs[0].bytes, i * runs[0].bytes);
    }
    return expected;
  }
  const char* At(uint32_t block) const { return pool.data_as<char>() + block * from.unit; }
  std::string Seen() const { return std::string(into.data_as<char>(), into.bytes()); }

  Tensor pool, into;
  std::vector<uint32_t> there;
  std::vector<ByteRun> runs;
  Selection from;
  GatherResult result;
};

// The consumer's side of a step.
class GatheringStep {
 public:
  GatheringStep(const TensorKey& key, int64_t step, TensorFetcher* fetcher)
      : step_(RoutingRendezvous::Make(std::string(key.dst().worker), step, {}, &alarms_, nullptr,
                                      fetcher)) {}
  RoutingRendezvous* get() const { return step_.get(); }
  void Gather(const TensorKey& key, Scattered* what, bool digests, FetchGroup* group, DoneFn done) {
    RecvArgs args;
    args.destination = what->into;
    SelectedLanding landing(Selection::Runs(what->runs));
    landing.digests = digests;
    landing.result = &what->result;
    if (group == nullptr) {
      return step_->RecvSelectedAsync(key, args, landing, std::move(done));
    }
    group->RecvSelectedAsync(step_.get(), key, args, landing, std::move(done));
  }

 private:
  VirtualAlarms alarms_;
  const std::shared_ptr<RoutingRendezvous> step_;
};

}  // namespace

TEST_P(ChannelContractTest, SelectedBytesLandWhereTheirSelectionSays) {
  GatheringStep step(Key("s0"), 1, world_->consumer());
  int number = 0;
  for (const uint64_t unit : {1, 60, 3000, 90'000}) {
    for (const bool digests : {false, true}) {
      const TensorKey key = Key(absl::StrCat("s", number++));
      Scattered what(unit);
      if (number % 3 == 0) Send(1, key, what.Sent(key, digests));
      auto pending = std::make_shared<Pending>();
      step.Gather(key, &what, digests, nullptr, pending->Done());
      if (number % 3 != 0) Send(1, key, what.Sent(key, digests));
      const Result got = pending->Wait();
      ASSERT_TRUE(got.status.ok()) << got.status << world_->Explain();
      EXPECT_TRUE(what.Seen() == what.Expected()) << unit;
      EXPECT_TRUE(what.result.failed.empty());
      ASSERT_EQ(what.result.digests.size(), digests ? what.runs[0].count : 0);
      for (uint64_t i = 0; digests && i < what.runs[0].count; ++i) {
        const char* const span = what.into.data_as<char>() + 5 + i * what.runs[0].stride;
        EXPECT_EQ(what.result.digests[i], Crc32c(0, span, what.runs[0].bytes));
      }
    }
  }
}

// What is cancelled has written nothing, writes nothing later, and takes no tensor.
TEST_P(ChannelContractTest, AGroupOfGathersIsFencedAndLosesNothing) {
  constexpr size_t kGathers = 24;
  const SteadyClock clock;
  for (int64_t round = 0; round < 4; ++round) {
    GatheringStep step(Key("g0"), 10 + round, world_->consumer());
    FetchGroup group(&clock);
    std::vector<std::unique_ptr<Scattered>> all;
    std::vector<std::shared_ptr<Pending>> pending;
    for (size_t i = 0; i < kGathers; ++i) {
      const TensorKey key = Key(absl::StrCat("g", i));
      all.push_back(std::make_unique<Scattered>(i % 4 == 0 ? 40'000 : 100));
      pending.push_back(std::make_shared<Pending>());
      if (i % 3 == 0) Send(10 + round, key, all[i]->Sent(key, false));
      step.Gather(key, all[i].get(), false, &group, pending[i]->Done());
      if (i % 3 == 1) Send(10 + round, key, all[i]->Sent(key, false));
    }
    if (round % 2 == 0) pending[0]->Wait();  // Some are there, and others on their way.
    auto fence = std::make_shared<Pending>();
    group.StartCancel([done = fence->Done()](const FenceReport&) mutable {
      std::move(done)({absl::OkStatus()});
    });
    ASSERT_TRUE(fence->Wait().status.ok()) << world_->Explain();
    size_t cancelled = 0;
    for (size_t i = 0; i < kGathers; ++i) {
      ASSERT_TRUE(pending[i]->ended()) << "it is behind the fence";
      const absl::Status status = pending[i]->Wait().status;
      if (status.ok()) {
        EXPECT_TRUE(all[i]->Seen() == all[i]->Expected());
        continue;
      }
      ++cancelled;
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
      EXPECT_EQ(all[i]->Seen(), std::string(all[i]->into.bytes(), kCanary));
      EXPECT_EQ(all[i]->result.failed.size(), all[i]->runs[0].count);
    }
    EXPECT_GE(cancelled, kGathers / 3) << "they were never sent";
    for (size_t i = 0; i < kGathers; ++i) {
      if (pending[i]->Wait().status.ok()) continue;
      const TensorKey key = Key(absl::StrCat("g", i));
      if (i % 3 == 2) Send(10 + round, key, all[i]->Sent(key, false));
      auto again = std::make_shared<Pending>();
      step.Gather(key, all[i].get(), false, nullptr, again->Done());
      const Result got = again->Wait();
      ASSERT_TRUE(got.status.ok()) << i << ": " << got.status << world_->Explain();
      EXPECT_TRUE(all[i]->Seen() == all[i]->Expected()) << i;
    }
  }
}

TEST_P(ChannelContractTest, WhatDoesNotFitASelectionIsThereForTheNext) {
  GatheringStep step(Key("f"), 20, world_->consumer());
  const TensorKey key = Key("f");
  Scattered small(10), large(5000);
  Send(20, key, large.Sent(key, false));
  Send(20, key, small.Sent(key, true));
  const auto gather = [&](Scattered* what, bool digests) {
    auto pending = std::make_shared<Pending>();
    step.Gather(key, what, digests, nullptr, pending->Done());
    return pending->Wait().status;
  };
  EXPECT_TRUE(absl::IsInvalidArgument(gather(&small, true)));
  EXPECT_EQ(small.Seen(), std::string(small.into.bytes(), kCanary));
  EXPECT_TRUE(gather(&large, false).ok());
  EXPECT_TRUE(large.Seen() == large.Expected());
  EXPECT_TRUE(absl::IsInvalidArgument(gather(&small, false))) << "it has digests";
  EXPECT_TRUE(gather(&small, true).ok());
  EXPECT_TRUE(small.Seen() == small.Expected());
}

}  // namespace tryst
