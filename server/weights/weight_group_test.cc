// Owners and members of one process that decide together, and what their calls say.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "rendezvous/rendezvous.h"
#include "server/status/weight_views.h"
#include "server/weights/leader_link.h"
#include "server/weights/weight_calls.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "tests/doubles/server/pretended_etcd.h"
#include "tests/doubles/server/testing.h"

namespace tryst {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30), kShort = absl::Milliseconds(300);
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

GroupTimes Quick() {
  GroupTimes times;
  times.permit_ns = times.lease_ns = 600'000'000;
  times.retry_ns = 100'000'000;
  times.silent_ns = 1'500'000'000;
  return times;
}

using Kind = WeightEvent::Kind;

class WeightGroupTest : public testing::Test {
 protected:
  explicit WeightGroupTest(const std::string& resolver = "")
      : owner_server_(StartTestServer("owner", 0, nullptr, resolver)),
        member_server_(StartTestServer("member", 0, owner_server_.get(), resolver)) {
    options_.set = "policy";
    options_.owners = {owner_server_->worker()};
    options_.times = Quick();
    options_.keep = 1;
    options_.log_in_etcd = !resolver.empty();
    owner_ = *WeightOwner::Open(owner_server_.get(), options_);
  }
  void Declare() {
    TensorLayout layout;
    layout.name = "w";
    layout.dtype = DType::kInt32;
    layout.shape = {4};
    ASSERT_TRUE(owner_->Declare({layout}).ok());
  }
  std::unique_ptr<WeightMember> Member(bool observes = false, Server* server = nullptr) {
    WeightMemberOptions options;
    options.set = "policy";
    options.owners = options_.owners;
    options.observes = observes;
    options.hold_bytes = observes ? 0 : 1024;
    options.times = Quick();
    return *WeightMember::Open(server == nullptr ? member_server_.get() : server, options);
  }
  void Seal(uint64_t number) {
    const Tensor bytes = *Tensor::Allocate(DType::kInt32, {4});
    for (int i = 0; i < 4; ++i) {
      static_cast<int32_t*>(bytes.mutable_data())[i] = static_cast<int32_t>(number);
    }
    ASSERT_TRUE(owner_->Publish(number, "w", Box::Whole(bytes.shape()), bytes, Dense({4})).ok());
    const auto sealed = owner_->Seal(number, "", kLong);
    ASSERT_TRUE(sealed.ok()) << sealed.status();
  }
  static absl::Status Stage(WeightMember* member, uint64_t number) {
    const Tensor into = *Tensor::Allocate(DType::kInt32, {4});
    const absl::Status staged = member->Stage(
        number, {{"w", Box::Whole(into.shape()), into, Dense({4})}}, absl::Seconds(30));
    if (!staged.ok()) return staged;
    EXPECT_EQ(into.data_as<int32_t>()[3], static_cast<int32_t>(number));
    return staged;
  }
  static void Expect(WeightMember* member, WeightEvent::Kind kind, uint64_t number) {
    const auto event = member->NextEvent(kLong);
    ASSERT_TRUE(event.ok()) << event.status();
    // Where the processors are busy, a permit may run out between two events.
    if (event->kind == Kind::kHeadless && kind != Kind::kHeadless) {
      return Expect(member, kind, number);
    }
    EXPECT_STREQ(WeightEventName(event->kind), WeightEventName(kind));
    EXPECT_EQ(event->number, number);
  }
  // Where the processors are busy, a lease or a permit may run out and come again.
  static bool Serves(const WeightMember& member, uint64_t number) {
    for (int i = 0; i < 3000; ++i) {
      if (member.Serve().number == number) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }
  static bool Confirms(const WeightMember& member) {
    for (int i = 0; i < 1000; ++i) {
      if (member.Serve().confirmed) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  // Has all members serve it. There is one, which `member` is.
  void Activate(WeightMember* member, uint64_t number) {
    Expect(member, Kind::kSealed, number);
    absl::Status activated;
    std::thread activates(
        [&] { activated = owner_->Activate(number, ActivateMode::kRolling, kLong); });
    Expect(member, Kind::kPrepare, number);
    EXPECT_TRUE(Stage(member, number).ok());
    EXPECT_TRUE(member->Vote(number, absl::OkStatus()).ok());
    Expect(member, Kind::kActive, number);
    EXPECT_TRUE(member->Switched(number).ok());
    activates.join();
    EXPECT_TRUE(activated.ok()) << activated;
    EXPECT_TRUE(Serves(*member, number));
  }

  std::unique_ptr<Server> owner_server_, member_server_;
  WeightOwnerOptions options_;
  std::unique_ptr<WeightOwner> owner_;
};

TEST_F(WeightGroupTest, AVersionBecomesActiveByABarrier) {
  Declare();
  const auto member = Member();
  EXPECT_EQ(member->Serve().number, 0u);
  Seal(5);
  Expect(member.get(), Kind::kSealed, 5);
  absl::Status activated;
  std::thread activates([&] { activated = owner_->Activate(5, ActivateMode::kBarrier, kLong); });
  Expect(member.get(), Kind::kPrepare, 5);
  EXPECT_TRUE(Stage(member.get(), 5).ok());
  ASSERT_TRUE(member->Vote(5, absl::OkStatus()).ok());
  Expect(member.get(), Kind::kHold, 5);
  ASSERT_TRUE(member->Held(5).ok());
  Expect(member.get(), Kind::kActive, 5);
  EXPECT_EQ(member->Serve().number, 0u) << "it has not switched";
  ASSERT_TRUE(member->Switched(5).ok());
  activates.join();
  EXPECT_TRUE(activated.ok()) << activated;
  EXPECT_TRUE(Serves(*member, 5));
  EXPECT_TRUE(Confirms(*member));
  EXPECT_EQ(member->Active(kLong)->name.number, 5u);
  EXPECT_NE(member->Explain().find("has a permit"), std::string::npos) << member->Explain();
  // Who comes when the version is no longer the newest still gets it.
  Seal(6);
  Seal(7);
  const auto late = Member();
  for (;;) {
    const auto event = late->NextEvent(kLong);
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->kind == Kind::kPrepare) break;
  }
  // What is active it stages again, and a vote on the first stage is none on the second.
  ASSERT_TRUE(late->Vote(5, absl::ResourceExhaustedError("no memory")).ok());
  absl::Status again;
  for (int i = 0; i < 1000 && again.ok(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    again = late->Vote(5, absl::OkStatus());
  }
  EXPECT_EQ(again.code(), kPrecondition) << again;
  for (bool prepared = false; !prepared;) {
    const auto event = late->NextEvent(kLong);
    ASSERT_TRUE(event.ok()) << event.status();
    prepared = event->kind == Kind::kPrepare;
  }
  EXPECT_TRUE(Stage(late.get(), 5).ok());
  EXPECT_TRUE(late->Vote(5, absl::OkStatus()).ok());
  WeightView leader;
  for (int i = 0; i < 1000 && leader.members < 2; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    leader = owner_server_->weight_views()->List().at(0);
  }
  EXPECT_EQ(leader.members, 2u);
  EXPECT_EQ(leader.behind, 1u) << "it has not switched";
  EXPECT_EQ(leader.awaited, std::vector<uint64_t>{late->View().incarnation});
}

TEST_F(WeightGroupTest, AVoteOfNoDropsTheVersionForAll) {
  Declare();
  const auto member = Member(), other = Member();
  for (const WeightMember* one : {member.get(), other.get()}) {
    for (int i = 0; i < 1000 && one->Explain().find("member of 2") == std::string::npos; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    ASSERT_NE(one->Explain().find("member of 2"), std::string::npos) << one->Explain();
  }
  Seal(5);
  absl::Status activated;
  std::thread activates([&] { activated = owner_->Activate(5, ActivateMode::kRolling, kLong); });
  for (WeightMember* one : {member.get(), other.get()}) {
    Expect(one, Kind::kSealed, 5);
    Expect(one, Kind::kPrepare, 5);
  }
  ASSERT_TRUE(member->Vote(5, absl::OkStatus()).ok());
  ASSERT_TRUE(other->Vote(5, absl::ResourceExhaustedError("no memory")).ok());
  activates.join();
  EXPECT_EQ(activated.code(), absl::StatusCode::kAborted) << activated;
  Expect(member.get(), Kind::kDropped, 5);
  Expect(other.get(), Kind::kDropped, 5);
  EXPECT_EQ(member->Vote(5, absl::OkStatus()).code(), kPrecondition);
  EXPECT_EQ(owner_->Activate(5, ActivateMode::kRolling, kLong).code(), absl::StatusCode::kAborted);
}

TEST_F(WeightGroupTest, WhatIsNotStagedHasNoAnswers) {
  EXPECT_EQ(owner_->Activate(5, ActivateMode::kRolling, kLong).code(), kPrecondition);
  Declare();
  const auto member = Member(), observer = Member(/*observes=*/true);
  for (const absl::Status& status :
       {member->Vote(5, absl::OkStatus()), member->Held(5), member->Switched(5),
        Stage(member.get(), 5), observer->Vote(5, absl::OkStatus()), observer->Held(5),
        observer->Switched(5), Stage(observer.get(), 5), observer->NextEvent(kShort).status(),
        observer->Active(kShort).status()}) {
    EXPECT_EQ(status.code(), kPrecondition) << status;
  }
  EXPECT_EQ(member->NextEvent(kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(member->Active(kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(WeightGroupTest, EveryWaitEndsWhenItIsCancelled) {
  Declare();
  const auto member = Member();
  const Tensor bytes = *Tensor::Allocate(DType::kInt32, {4});
  const auto cancelled = [](auto call) {
    Cancellation cancellation;
    std::thread later([&] {
      absl::SleepFor(absl::Milliseconds(200));
      cancellation.StartCancel();
    });
    const absl::Time begun = absl::Now();
    const absl::Status status = call(Patience(absl::Seconds(60), &cancellation));
    later.join();
    EXPECT_LT(absl::Now() - begun, absl::Seconds(20));
    return status.code() == absl::StatusCode::kCancelled;
  };
  EXPECT_TRUE(cancelled([&](const Patience& p) { return member->NextEvent(p).status(); }));
  EXPECT_TRUE(cancelled([&](const Patience& p) { return member->Active(p).status(); }));
  EXPECT_TRUE(cancelled([&](const Patience& p) { return member->Newer(0, p).status(); }));
  Seal(5);
  Expect(member.get(), Kind::kSealed, 5);
  EXPECT_TRUE(
      cancelled([&](const Patience& p) { return owner_->Activate(5, ActivateMode::kRolling, p); }));
  // The member has a stage now that it does not vote for, and another activation may wait for it.
  Expect(member.get(), Kind::kPrepare, 5);
  EXPECT_EQ(owner_->Activate(5, ActivateMode::kRolling, kShort).code(),
            absl::StatusCode::kDeadlineExceeded);
  // A worker that is not there is not asked any longer, either.
  WeightMemberOptions options;
  options.set = "policy";
  options.owners = {"/job:nobody/replica:0/task:0"};
  options.observes = true;
  const auto lonely = *WeightMember::Open(member_server_.get(), options);
  const absl::Status status = lonely->Newer(0, kShort).status();
  EXPECT_FALSE(status.ok());
}

TEST_F(WeightGroupTest, WhoHasNothingToAskWaitsForNoLeader) {
  options_.owners = {"/job:nobody/replica:0/task:0", member_server_->worker()};
  options_.rank = 1;
  auto owner = *WeightOwner::Open(member_server_.get(), options_);
  absl::SleepFor(absl::Milliseconds(500));  // Its thread has had a turn.
  const absl::Time begun = absl::Now();
  owner.reset();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(2));
}

TEST_F(WeightGroupTest, WithoutALeaderThePermitRunsOut) {
  Declare();
  const auto member = Member();
  Seal(5);
  Activate(member.get(), 5);
  EXPECT_TRUE(Serves(*member, 5));
  EXPECT_EQ(member->View().serves, 5u);
  owner_.reset();
  EXPECT_TRUE(Serves(*member, 0));
  EXPECT_EQ(member->View().serves, 0u);
  Expect(member.get(), Kind::kHeadless, 5);
  EXPECT_EQ(member->View().permits_lost, 1u);
  // The log was in the owner's memory, so its next life knows of no version.
  owner_ = *WeightOwner::Open(owner_server_.get(), options_);
  Declare();
  absl::SleepFor(absl::Seconds(2));
  EXPECT_EQ(member->Serve().number, 0u);
}

TEST_F(WeightGroupTest, WithoutEtcdTheLogIsNotKeptThere) {
  options_.log_in_etcd = true;
  options_.set = "other";
  EXPECT_EQ(WeightOwner::Open(owner_server_.get(), options_).status().code(), kPrecondition);
}

class EtcdBehind {
 protected:
  std::unique_ptr<PretendedEtcd> etcd_ = std::make_unique<PretendedEtcd>();
};
class WeightGroupInEtcdTest : protected EtcdBehind, public WeightGroupTest {
 protected:
  WeightGroupInEtcdTest() : WeightGroupTest("etcd:" + etcd_->address()) {}
};

TEST_F(WeightGroupInEtcdTest, TheNextLifeOfTheFirstOwnerGoesOn) {
  Declare();
  const auto member = Member();
  Seal(5);
  Activate(member.get(), 5);
  EXPECT_NE(etcd_->Get("/tryst.weights/lab/policy/head"), "");
  owner_.reset();
  EXPECT_TRUE(Serves(*member, 0)) << "nobody renews its permit";
  owner_ = *WeightOwner::Open(owner_server_.get(), options_);
  Declare();
  EXPECT_TRUE(Serves(*member, 5)) << owner_->Explain() << "; " << member->Explain();
  EXPECT_TRUE(Confirms(*member));
  // Numbers only go up, and what is sealed now can be activated.
  const Tensor bytes = *Tensor::Allocate(DType::kInt32, {4});
  if (owner_->Publish(4, "w", Box::Whole(bytes.shape()), bytes, Dense({4})).ok()) {
    EXPECT_FALSE(owner_->Seal(4, "", kLong).ok());
  }
  Seal(6);
  absl::Status activated;
  std::thread activates([&] { activated = owner_->Activate(6, ActivateMode::kRolling, kLong); });
  for (bool prepared = false; !prepared;) {
    const auto event = member->NextEvent(kLong);
    ASSERT_TRUE(event.ok()) << event.status();
    prepared = event->kind == Kind::kPrepare;
  }
  EXPECT_TRUE(Stage(member.get(), 6).ok());
  EXPECT_TRUE(member->Vote(6, absl::OkStatus()).ok());
  Expect(member.get(), Kind::kActive, 6);
  EXPECT_TRUE(member->Switched(6).ok());
  activates.join();
  EXPECT_TRUE(activated.ok()) << activated;
  EXPECT_TRUE(Serves(*member, 6));
}

// Each of two owners has a half.
TEST_F(WeightGroupInEtcdTest, AnotherOwnerLeadsWhenTheFirstOneIsGone) {
  const std::string resolver = "etcd:" + etcd_->address();
  const auto second_server = StartTestServer("owner", 1, owner_server_.get(), resolver);
  owner_.reset();
  options_.owners.push_back(second_server->worker());
  owner_ = *WeightOwner::Open(owner_server_.get(), options_);
  for (int i = 0; i < 1000 && !absl::StrContains(owner_->Explain(), "; leads;"); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  options_.rank = 1;
  auto second = *WeightOwner::Open(second_server.get(), options_);
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kInt32;
  layout.shape = {4};
  layout.owners = {0, 1};
  layout.mesh = {2};
  layout.placements = {{0}};
  ASSERT_TRUE(owner_->Declare({layout}).ok());
  ASSERT_TRUE(second->Declare({layout}).ok());
  const auto seal = [&](uint64_t number) {
    const auto by = [&](WeightOwner* owner, int64_t begin) {
      const Tensor half = *Tensor::Allocate(DType::kInt32, {2});
      for (int i = 0; i < 2; ++i) {
        static_cast<int32_t*>(half.mutable_data())[i] = static_cast<int32_t>(number);
      }
      EXPECT_TRUE(owner->Publish(number, "w", {{begin}, {2}}, half, Dense({2})).ok());
      const auto sealed = owner->Seal(number, "", kLong);
      EXPECT_TRUE(sealed.ok()) << sealed.status();
    };
    std::thread other([&] { by(second.get(), 2); });
    by(owner_.get(), 0);
    other.join();
  };
  const auto member = Member();
  seal(5);
  Activate(member.get(), 5);
  seal(6);
  Expect(member.get(), Kind::kSealed, 6);
  const auto six = member->Find(6, kLong);
  ASSERT_TRUE(six.ok()) << six.status();
  const Tensor into = *Tensor::Allocate(DType::kInt32, {4});
  ASSERT_TRUE(member->Fetch(*six, {{"w", {{0}, {4}}, into, Dense({4})}}, kLong).ok());
  absl::SleepFor(absl::Milliseconds(500));  // The leader hears what it has.
  // The first owner is gone for good.
  owner_.reset();
  owner_server_->Stop(absl::ZeroDuration()).IgnoreError();
  for (int i = 0; i < 1000 && !absl::StrContains(second->Explain(), "; leads;"); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  absl::SleepFor(absl::Nanoseconds(Quick().permit_ns));  // What the first one gave is over.
  EXPECT_TRUE(Serves(*member, 5)) << second->Explain() << "; " << member->Explain();
  EXPECT_TRUE(Confirms(*member));
  // What was sealed is activated, and who comes gets it, too.
  absl::Status activated;
  std::thread activates([&] { activated = second->Activate(6, ActivateMode::kRolling, kLong); });
  for (bool prepared = false; !prepared;) {
    const auto event = member->NextEvent(kLong);
    ASSERT_TRUE(event.ok()) << event.status();
    prepared = event->kind == Kind::kPrepare;
  }
  const absl::Status staged = Stage(member.get(), 6);
  EXPECT_TRUE(staged.ok()) << staged;
  EXPECT_TRUE(member->Vote(6, staged).ok());
  Expect(member.get(), Kind::kActive, 6);
  EXPECT_TRUE(member->Switched(6).ok());
  activates.join();
  EXPECT_TRUE(activated.ok()) << activated;
  EXPECT_TRUE(Serves(*member, 6));
  const auto late_server = StartTestServer("member", 1, second_server.get(), resolver);
  const auto late = Member(/*observes=*/false, late_server.get());
  for (bool prepared = false; !prepared;) {
    const auto event = late->NextEvent(kLong);
    ASSERT_TRUE(event.ok()) << event.status();
    prepared = event->kind == Kind::kPrepare;
  }
  const auto newest = late->Newer(0, kLong);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->name.number, 6u) << "the first owner cannot say so";
  const absl::Status of_late = Stage(late.get(), 6);
  EXPECT_TRUE(of_late.ok()) << of_late;
  second.reset();
}

TEST_F(WeightGroupInEtcdTest, WhoComesToAnOwnersNextLifeGetsTheActiveVersionOfAMember) {
  Declare();
  const auto member = Member();
  Seal(5);
  Activate(member.get(), 5);
  owner_.reset();
  owner_ = *WeightOwner::Open(owner_server_.get(), options_);
  Declare();
  EXPECT_TRUE(Serves(*member, 5)) << owner_->Explain() << "; " << member->Explain();
  const auto server = StartTestServer("member", 1, owner_server_.get(), "etcd:" + etcd_->address());
  const auto late = Member(/*observes=*/false, server.get());
  for (bool prepared = false; !prepared;) {
    const auto event = late->NextEvent(kLong);
    ASSERT_TRUE(event.ok()) << event.status();
    prepared = event->kind == Kind::kPrepare;
  }
  // What the version is, how it is laid out and its bytes: the owner has none of the first and the
  // last.
  const auto newest = late->Newer(0, kLong);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->name.number, 5u);
  const absl::Status staged = Stage(late.get(), 5);
  EXPECT_TRUE(staged.ok()) << staged;
  EXPECT_TRUE(late->Vote(5, staged).ok());
  Expect(late.get(), Kind::kActive, 5);
  EXPECT_TRUE(late->Switched(5).ok());
  EXPECT_TRUE(Serves(*late, 5));
  EXPECT_EQ(member->View().sent_on, 16u);
}

// Somebody has put back a backup of etcd.
TEST_F(WeightGroupInEtcdTest, ALogThatWasSetBackIsComplainedOfOnce) {
  static std::atomic<size_t> lines{0};
  SetLogSink([](LogSeverity, const char*, int, absl::string_view text) {
    lines += absl::StrContains(text, "was set back");
  });
  const std::string prefix = "/tryst.weights/lab/policy/";
  Declare();
  Seal(5);
  const std::string earlier = etcd_->Get(prefix + "head");
  Seal(6);
  const uint64_t renewals = etcd_->renewals();
  etcd_->Put(prefix + "head", earlier);
  const Tensor bytes = *Tensor::Allocate(DType::kInt32, {4});
  ASSERT_TRUE(owner_->Publish(7, "w", Box::Whole(bytes.shape()), bytes, Dense({4})).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(owner_->Seal(7, "", kShort).status()));
  std::string explained;
  for (int i = 0; i < 3000 && !absl::StrContains(explained, "was set back"); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    explained = owner_->Explain();
  }
  // The leader asks again, and its lease is renewed meanwhile.
  for (int i = 0; i < 3000 && etcd_->renewals() < renewals + 8; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    EXPECT_TRUE(absl::StrContains(owner_->Explain(), "was set back")) << owner_->Explain();
  }
  EXPECT_TRUE(absl::StrContains(explained, absl::StrCat("begin with ", prefix))) << explained;
  const std::string note = owner_server_->weight_views()->List().at(0).note;
  EXPECT_TRUE(absl::StrContains(note, "was set back")) << note;
  EXPECT_EQ(lines, 1u);
  SetLogSink(nullptr);
}

TEST_F(WeightGroupInEtcdTest, ASealThatIsLateIsWaitedForAgain) {
  Declare();
  Seal(5);
  const Tensor bytes = *Tensor::Allocate(DType::kInt32, {4});
  const auto publish = [&](uint64_t number) {
    return owner_->Publish(number, "w", Box::Whole(bytes.shape()), bytes, Dense({4}));
  };
  etcd_->SetAnswers(false);
  for (const uint64_t number : {6, 7}) {
    ASSERT_TRUE(publish(number).ok());
    for (int i = 0; i < 2; ++i) {
      const absl::Status late = owner_->Seal(number, "", kShort).status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
      EXPECT_TRUE(absl::StrContains(late.message(), "may still become sealed")) << late;
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(publish(8))) << "neither is over";
  absl::StatusOr<SealedVersion> waits = absl::UnknownError("");
  std::thread other([&] { waits = owner_->Seal(6, "", kLong); });
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE(absl::IsAlreadyExists(owner_->Seal(6, "", kShort).status())) << "one waits already";
  etcd_->SetAnswers(true);
  other.join();
  EXPECT_TRUE(waits.ok()) << waits.status();
  EXPECT_TRUE(absl::IsAlreadyExists(owner_->Seal(6, "", kShort).status())) << "it has ended";
  const auto sealed = owner_->Seal(7, "", kLong);
  EXPECT_TRUE(sealed.ok()) << sealed.status();
  ASSERT_TRUE(publish(8).ok());
  EXPECT_TRUE(owner_->Seal(8, "", kLong).ok());
}

// The leader has heard that it is ready, and seals it when nobody waits.
TEST_F(WeightGroupInEtcdTest, ASealThatCameMeanwhileIsFoundByTheNextCall) {
  Declare();
  Seal(5);
  const Tensor bytes = *Tensor::Allocate(DType::kInt32, {4});
  ASSERT_TRUE(owner_->Publish(6, "w", Box::Whole(bytes.shape()), bytes, Dense({4})).ok());
  etcd_->SetAnswers(false);
  EXPECT_TRUE(absl::IsDeadlineExceeded(owner_->Seal(6, "label", kShort).status()));
  etcd_->SetAnswers(true);
  for (int i = 0; i < 500 && owner_server_->weight_views()->List().at(0).newest != 6; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  const auto sealed = owner_->Seal(6, "", kLong);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->label, "label");
}

TEST_F(WeightGroupInEtcdTest, WithoutEtcdNothingIsDecided) {
  Declare();
  const auto member = Member();
  Seal(5);
  Activate(member.get(), 5);
  etcd_.reset();
  EXPECT_TRUE(Serves(*member, 0)) << "the leader cannot keep its lease";
  EXPECT_EQ(owner_->Activate(5, ActivateMode::kRolling, kShort).code(),
            absl::StatusCode::kDeadlineExceeded);
}

// Takes every ask, and answers none until it is told to.
class Mute final : public Answerer {
 public:
  void Answer(const TensorKey& key, const RecvArgs&, DoneFn done) override {
    MutexLock lock(&mu_);
    ++asked_[ParseEdge("mute", key.edge())->kind];
    kept_.push_back(std::move(done));
  }
  size_t asked(WeightAsk::Kind kind) {
    MutexLock lock(&mu_);
    return asked_[kind];
  }
  // Ends those that came first.
  void End(size_t count) {
    MutexLock lock(&mu_);
    for (; count > 0 && !kept_.empty(); --count, kept_.pop_front()) {
      std::move(kept_.front())({absl::AbortedError("it is over")});
    }
  }

 private:
  Mutex mu_;
  std::map<WeightAsk::Kind, size_t> asked_ ABSL_GUARDED_BY(mu_);
  std::deque<DoneFn> kept_ ABSL_GUARDED_BY(mu_);
};

TEST_F(WeightGroupTest, ALeaderThatDoesNotAnswerIsAskedSoMuchAlone) {
  constexpr size_t kMostOut = 8;
  const auto mute = std::make_shared<Mute>();
  owner_server_->steps()->SetAnswerer(WeightsPrefix("mute"), mute);
  std::atomic<size_t> questions{10 * kMostOut}, turns{0};
  LeaderLink::Parts parts;
  parts.server = member_server_.get();
  parts.set = "mute";
  parts.leaders = {owner_server_->worker()};
  parts.incarnation = 1;
  parts.patience_ns = absl::ToInt64Nanoseconds(absl::Hours(1));
  parts.turn = [&](const LeaderLink::Heard&, std::vector<Question>* asks) {
    asks->resize(questions.exchange(0));
    ++turns;
    return BootClock().NowNs() + absl::ToInt64Nanoseconds(absl::Hours(1));
  };
  LeaderLink link(parts);
  WeightCalls calls(member_server_.get(), "mute");
  const auto asked = [&] { return mute->asked(WeightAsk::Kind::kQuestion); };
  // Once all that the link has asked by now has come: another ask goes the same way behind it. A
  // turn asks when it has been counted.
  const auto all_asked = [&] {
    const size_t before = turns;
    for (int i = 0; i < 3000 && turns < before + 2; ++i) {
      link.Wake();
      absl::SleepFor(absl::Milliseconds(10));
    }
    const size_t probes = mute->asked(WeightAsk::Kind::kNewer);
    calls.Start({owner_server_->worker(), WeightAsk()}, Patience(kLong),
                [](const absl::StatusOr<Tensor>&) {});
    for (int i = 0; i < 3000 && mute->asked(WeightAsk::Kind::kNewer) == probes; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    return asked();
  };
  EXPECT_EQ(all_asked(), kMostOut);
  mute->End(2);
  for (int i = 0; i < 3000 && asked() < kMostOut + 2; ++i) {
    questions = kMostOut;
    link.Wake();
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(all_asked(), kMostOut + 2) << "as many as have ended";
  link.Stop();
  mute->End(SIZE_MAX);
}

TEST_F(WeightGroupTest, QuestionsOfStrangersAreRefused) {
  const auto ask = [&](const std::string& edge) {
    const auto key = TensorKey::Parse(absl::StrFormat(
        "%s/device:CPU:0;%016x;%s/device:CPU:0;|weights|policy|%s;0:0", owner_server_->worker(),
        owner_server_->incarnation(), member_server_->worker(), edge));
    EXPECT_TRUE(key.ok()) << key.status();
    return (*member_server_->steps()->StartStep(9))->Recv(*key, {}, kShort).status().code();
  };
  EXPECT_EQ(ask("question|ff"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ask("question|"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ask("news|0123456789abcdef"), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace tryst
