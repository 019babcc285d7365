// A member that keeps to a rate, and its owner.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "rendezvous/cancellation.h"
#include "server/members/membership.h"
#include "server/status/weight_views.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "tests/doubles/server/cut_proxy.h"
#include "tests/doubles/server/testing.h"
#include "weights/boxes.h"
#include "weights/pace.h"

namespace tryst {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int64_t kRows = 64, kColumns = 64, kParts = 8;
constexpr uint64_t kBytes = kRows * kColumns * sizeof(int32_t);

class WeightPaceTest : public testing::Test {
 protected:
  WeightPaceTest() {
    for (int task = 0; task < 2; ++task) {
      servers_.push_back(StartTestServer("owner", task, task == 0 ? nullptr : servers_[0].get()));
      names_.push_back(servers_.back()->worker());
    }
    member_server_ = StartTestServer("member", 0, servers_[0].get());
    std::vector<std::thread> seals;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      owners_.push_back(OpenOwner(rank));
      seals.emplace_back([owner = owners_.back().get()] {
        const absl::Status sealed = owner->Seal(5, "", kLong).status();
        EXPECT_TRUE(sealed.ok()) << sealed;
      });
    }
    for (std::thread& seal : seals) seal.join();
  }
  // Each has all of it.
  std::unique_ptr<WeightOwner> OpenOwner(uint32_t rank) {
    WeightOwnerOptions options;
    options.set = "policy";
    options.owners = names_;
    options.rank = rank;
    options.times.silent_ns = absl::ToInt64Nanoseconds(kLong);  // The machine may be busy.
    auto owner = *WeightOwner::Open(servers_[rank].get(), options);
    TensorLayout layout;
    layout.name = "w";
    layout.dtype = DType::kInt32;
    layout.shape = {kRows, kColumns};
    EXPECT_TRUE(owner->Declare({layout}).ok());
    const Tensor bytes = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
    for (int32_t i = 0; i < kRows * kColumns; ++i) {
      static_cast<int32_t*>(bytes.mutable_data())[i] = i;
    }
    const Box whole = Box::Whole(bytes.shape());
    EXPECT_TRUE(owner->Publish(5, "w", whole, bytes, Dense(whole.extent)).ok());
    return owner;
  }
  void Open(uint64_t bytes_per_second) {
    WeightMemberOptions options;
    options.set = "policy";
    options.owners = names_;
    options.observes = true;
    options.bytes_per_second = bytes_per_second;
    member_ = *WeightMember::Open(member_server_.get(), options);
    auto version = member_->Find(5, kLong);
    ASSERT_TRUE(version.ok()) << version.status();
    version_ = *std::move(version);
  }
  uint64_t SentBy(size_t owner) const {
    return servers_[owner]->weight_views()->List().front().bytes;
  }
  // In parts, which the owners are asked for in turn.
  absl::Status Fetch(const Patience& patience, int64_t parts = kParts) {
    into_ = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
    std::vector<WeightMember::Item> items;
    for (int64_t part = 0; part < parts; ++part) {
      const Box box{{part * kRows / kParts, 0}, {kRows / kParts, kColumns}};
      items.push_back(
          {"w", box, into_, PartOf(Box::Whole({kRows, kColumns}), Dense({kRows, kColumns}), box)});
    }
    return member_->Fetch(version_, items, patience);
  }

  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::string> names_;
  std::unique_ptr<Server> member_server_;
  std::vector<std::unique_ptr<WeightOwner>> owners_;
  std::unique_ptr<WeightMember> member_;
  SealedVersion version_;
  Tensor into_;
};

TEST_F(WeightPaceTest, AFetchComesNoFasterThanTheRate) {
  constexpr uint64_t kRate = kBytes;
  Open(kRate);
  const absl::Time begun = absl::Now();
  const absl::Status fetched = Fetch(kLong);
  const absl::Duration took = absl::Now() - begun;
  EXPECT_TRUE(fetched.ok()) << fetched;
  for (int32_t i = 0; i < kRows * kColumns; ++i) ASSERT_EQ(into_.data_as<int32_t>()[i], i);
  EXPECT_EQ(member_->View().bytes, kBytes);
  // The last part may be asked for when all others are paid, but for a burst.
  const absl::Duration most = absl::Seconds(1), burst = absl::Nanoseconds(Pace::kBurstNs);
  EXPECT_GE(took, most - most / kParts - burst);
}

TEST_F(WeightPaceTest, FetchesShareTheRate) {
  Open(2 * kBytes);
  const absl::Time begun = absl::Now();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Fetch(kLong).ok());
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(1500 - 63 - 250));
}

TEST_F(WeightPaceTest, ACancelIsHeardInAPause) {
  Open(kBytes / 512);  // A part takes a minute.
  Cancellation cancellation;
  absl::Status fetched;
  std::thread fetches([&] { fetched = Fetch(Patience(absl::Hours(1), &cancellation)); });
  while (member_->View().bytes == 0) absl::SleepFor(absl::Milliseconds(5));
  absl::SleepFor(absl::Milliseconds(200));
  const absl::Time begun = absl::Now();
  cancellation.StartCancel();
  fetches.join();
  EXPECT_TRUE(absl::IsCancelled(fetched)) << fetched;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(20));
  EXPECT_EQ(member_->View().bytes, kBytes / kParts);
}

TEST_F(WeightPaceTest, AFetchEndsInTimeInAPause) {
  Open(kBytes / 512);
  const absl::Time begun = absl::Now();
  const absl::Status fetched = Fetch(absl::Milliseconds(700));
  EXPECT_TRUE(absl::IsDeadlineExceeded(fetched)) << fetched;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(20));
}

// Whoever owes nothing may be silent: in a pause the first owner cannot be reached, and nobody
// finds out.
TEST_F(WeightPaceTest, NobodyIsSuspectedInAPause) {
  Open(kBytes / kParts / 4);  // A pause of 4 s behind each part.
  CutProxy silent(std::stoi(servers_[0]->address().substr(servers_[0]->address().rfind(':') + 1)));
  silent.Swallow();
  absl::Status fetched;
  std::thread fetches([&] { fetched = Fetch(kLong, 3); });
  while (member_->View().bytes == 0) absl::SleepFor(absl::Milliseconds(5));
  const auto is_at = [&](const std::string& address) {
    const absl::Status announced =
        member_server_->members()->Announce({names_[0], address, servers_[0]->incarnation()});
    EXPECT_TRUE(announced.ok()) << announced;
  };
  is_at(silent.address());
  absl::SleepFor(absl::Milliseconds(3300));
  is_at(servers_[0]->address());
  fetches.join();
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(SentBy(0), 2 * kBytes / kParts);
}

}  // namespace
}  // namespace tryst
