// Servers of one process, and what goes wrong between them.
#include "server/weights/weight_owner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "rendezvous/answerer.h"
#include "server/status/weight_views.h"
#include "server/weights/borrowed.h"
#include "server/weights/weight_member.h"
#include "tests/doubles/server/testing.h"
#include "weights/boxes.h"
#include "weights/digests.h"

namespace tryst {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30), kShort = absl::Milliseconds(300);

TensorLayout Replicated() {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kInt32;
  layout.shape = {4};
  return layout;
}

Tensor Ints(int32_t first) {
  Tensor tensor = *Tensor::Allocate(DType::kInt32, {4});
  for (int32_t i = 0; i < 4; ++i) static_cast<int32_t*>(tensor.mutable_data())[i] = first + i;
  return tensor;
}

// Answers when nobody waits any more.
class Mute : public Answerer {
 public:
  ~Mute() override {
    for (DoneFn& done : kept_) {
      std::move(done)({absl::AbortedError("it is over")});
    }
  }
  void Answer(const TensorKey&, const RecvArgs&, DoneFn done) override {
    MutexLock lock(&mu_);
    kept_.push_back(std::move(done));
  }

 private:
  Mutex mu_;
  std::vector<DoneFn> kept_ ABSL_GUARDED_BY(mu_);
};

class WeightOwnerTest : public testing::Test {
 protected:
  WeightOwnerTest()
      : first_server_(StartTestServer("owner", 0, nullptr)),
        second_server_(StartTestServer("owner", 1, first_server_.get())),
        member_server_(StartTestServer("member", 0, first_server_.get())),
        first_(Open(first_server_.get(), 0)),
        second_(Open(second_server_.get(), 1)),
        member_(*WeightMember::Open(member_server_.get(), Observer())) {}

  WeightMemberOptions Observer() {
    WeightMemberOptions options;
    options.set = "policy";
    options.owners = Owners();
    options.observes = true;
    return options;
  }
  std::vector<std::string> Owners() { return {first_server_->worker(), second_server_->worker()}; }
  std::unique_ptr<WeightOwner> Open(Server* server, uint32_t rank) {
    WeightOwnerOptions options;
    options.set = "policy";
    options.owners = Owners();
    options.rank = rank;
    return *WeightOwner::Open(server, options);
  }
  void Declare() {
    ASSERT_TRUE(first_->Declare({Replicated()}).ok());
    ASSERT_TRUE(second_->Declare({Replicated()}).ok());
  }
  static absl::Status Publish(WeightOwner* owner, uint64_t number, const Tensor& bytes) {
    return owner->Publish(number, "w", Box::Whole(bytes.shape()), bytes, Dense({4}));
  }
  // Both owners at once. The first's outcome and the second's.
  std::pair<absl::StatusOr<SealedVersion>, absl::StatusOr<SealedVersion>> SealBoth(
      uint64_t number) {
    absl::StatusOr<SealedVersion> second = absl::UnknownError("");
    std::thread other([&] { second = second_->Seal(number, "", kLong); });
    auto first = first_->Seal(number, "", kLong);
    other.join();
    return {std::move(first), std::move(second)};
  }
  void PublishAndSeal(uint64_t number) {
    ASSERT_TRUE(Publish(first_.get(), number, Ints(number)).ok());
    ASSERT_TRUE(Publish(second_.get(), number, Ints(number)).ok());
    const auto [first, second] = SealBoth(number);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(first->root, second->root);
  }
  absl::StatusOr<int32_t> FirstElement(const SealedVersion& version) {
    const Tensor into = Ints(0);
    const absl::Status fetched =
        member_->Fetch(version, {{"w", Box::Whole(into.shape()), into, Dense({4})}}, kLong);
    if (!fetched.ok()) return fetched;
    return into.data_as<int32_t>()[0];
  }
  // What an owner answers to an edge that no member of ours asks.
  absl::Status AnswerTo(const std::string& edge) {
    const auto key = TensorKey::Parse(
        absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0", first_server_->worker(),
                        first_server_->incarnation(), member_server_->worker(), edge));
    EXPECT_TRUE(key.ok()) << key.status();
    return (*member_server_->steps()->StartStep(9))->Recv(*key, {}, kLong).status();
  }

  std::unique_ptr<Server> first_server_, second_server_, member_server_;
  std::unique_ptr<WeightOwner> first_, second_;
  std::unique_ptr<WeightMember> member_;
};

TEST_F(WeightOwnerTest, AVersionIsFetchedAndReplacedByTheNext) {
  Declare();
  absl::StatusOr<SealedVersion> newest = absl::UnknownError("");
  std::thread waiting([&] { newest = member_->Newer(0, kLong); });
  absl::SleepFor(absl::Milliseconds(100));
  PublishAndSeal(5);
  waiting.join();
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->name.number, 5u);
  EXPECT_EQ(*FirstElement(*newest), 5);
  EXPECT_EQ(member_->Newer(5, kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  // The owner keeps two versions.
  PublishAndSeal(6);
  EXPECT_EQ(*FirstElement(*newest), 5);
  PublishAndSeal(9);
  const auto over = FirstElement(*newest).status();
  EXPECT_EQ(over.code(), absl::StatusCode::kNotFound) << over;
  EXPECT_NE(over.message().find("which holds these versions: 6, 9"), absl::string_view::npos)
      << over;
  EXPECT_EQ(member_->Newer(5, kLong)->name.number, 9u);
}

// Borrowed memory, which the caller writes as soon as it may.
class WeightsBorrowedTest : public WeightOwnerTest {
 protected:
  WeightsBorrowedTest() { Declare(); }
  static absl::Status Borrow(WeightOwner* owner, uint64_t number, const Tensor& bytes) {
    return owner->Borrow(number, "w", Box::Whole(bytes.shape()), bytes, Dense({4}));
  }
  SealedVersion BorrowAndSeal(uint64_t number, const Tensor& first, const Tensor& second) {
    EXPECT_TRUE(Borrow(first_.get(), number, first).ok());
    EXPECT_TRUE(Borrow(second_.get(), number, second).ok());
    EXPECT_TRUE(SealBoth(number).first.ok());
    return *member_->Find(number, kLong);
  }
  // In turn from both owners.
  absl::Status FetchTwice(const SealedVersion& version, int32_t first) {
    for (int i = 0; i < 2; ++i) {
      const auto element = FirstElement(version);
      if (!element.ok()) return element.status();
      EXPECT_EQ(*element, first);
    }
    return absl::OkStatus();
  }
  static void Overwrite(const Tensor& bytes) { memset(bytes.mutable_data(), 0xee, bytes.bytes()); }
};

TEST_F(WeightsBorrowedTest, WhatIsBorrowedIsFetchedFromWhereItLies) {
  const Tensor first = Ints(5), second = Ints(5);
  const SealedVersion version = BorrowAndSeal(5, first, second);
  EXPECT_TRUE(FetchTwice(version, 5).ok());
  Overwrite(first);
  Overwrite(second);
  EXPECT_EQ(FirstElement(version).status().code(), absl::StatusCode::kDataLoss)
      << "it was written too soon, so nothing that was copied may have been delivered";
}

TEST_F(WeightsBorrowedTest, AWaitEndsWhenLaterVersionsHaveReplacedIt) {
  const Tensor first = Ints(5), second = Ints(5);
  (void)BorrowAndSeal(5, first, second);
  PublishAndSeal(6);
  const absl::Status early = first_->Release(5, ReleaseHow::kWait, kShort);
  EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
  EXPECT_NE(early.message().find("version 5 still has 1 boxes"), absl::string_view::npos) << early;
  absl::Status released = absl::UnknownError("");
  std::thread waits([&] { released = first_->Release(5, ReleaseHow::kWait, kLong); });
  PublishAndSeal(7);  // Two are kept.
  waits.join();
  EXPECT_TRUE(released.ok()) << released;
  EXPECT_TRUE(first_->Release(6, ReleaseHow::kWait, kShort).ok()) << "it has borrowed nothing";
}

TEST_F(WeightsBorrowedTest, ACopyTakesItsPlace) {
  const Tensor first = Ints(5), second = Ints(5);
  const SealedVersion version = BorrowAndSeal(5, first, second);
  ASSERT_TRUE(first_->Release(5, ReleaseHow::kCopy, kLong).ok());
  ASSERT_TRUE(second_->Release(5, ReleaseHow::kCopy, kLong).ok());
  Overwrite(first);
  Overwrite(second);
  EXPECT_TRUE(FetchTwice(version, 5).ok());
}

// Another thread releases what is being published, at whatever moment.
TEST_F(WeightOwnerTest, WhatIsStillBeingBorrowedIsCopied) {
  TensorLayout large = Replicated();
  large.shape = {8 << 20};
  ASSERT_TRUE(first_->Declare({large}).ok());
  ASSERT_TRUE(second_->Declare({large}).ok());
  const Tensor bytes = *Tensor::Allocate(DType::kInt32, large.shape);
  memset(bytes.mutable_data(), 1, bytes.bytes());
  const Box whole = Box::Whole(large.shape);
  for (uint64_t number = 5; number < 10; ++number) {
    const Tensor lent = *Tensor::Allocate(DType::kInt32, large.shape);
    memset(lent.mutable_data(), 1, lent.bytes());
    std::atomic<bool> published{false};
    std::thread publishes([&] {
      const absl::Status borrowed = first_->Borrow(number, "w", whole, lent, Dense({8 << 20}));
      EXPECT_TRUE(borrowed.ok()) << borrowed;
      published = true;
    });
    while (!published) {
      const absl::Status released = first_->Release(number, ReleaseHow::kCopy, kLong);
      EXPECT_TRUE(released.ok()) << released;
    }
    publishes.join();
    EXPECT_TRUE(first_->Release(number, ReleaseHow::kCopy, kLong).ok());
    memset(lent.mutable_data(), 0xee, lent.bytes());
    ASSERT_TRUE(second_->Publish(number, "w", whole, bytes, Dense({8 << 20})).ok());
    const auto [first, second] = SealBoth(number);
    EXPECT_TRUE(first.ok()) << first.status();
    const absl::Status fetched =
        member_->Fetch(*first, {{"w", whole, lent, Dense({8 << 20})}}, kLong);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
}

TEST_F(WeightsBorrowedTest, WhatIsDroppedIsRefused) {
  const Tensor first = Ints(5), second = Ints(5);
  const SealedVersion version = BorrowAndSeal(5, first, second);
  ASSERT_TRUE(first_->Release(5, ReleaseHow::kDrop, kLong).ok());
  Overwrite(first);
  EXPECT_TRUE(FetchTwice(version, 5).ok()) << "the other owner has it still";
  ASSERT_TRUE(second_->Release(5, ReleaseHow::kDrop, kLong).ok());
  const absl::Status gone = FirstElement(version).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kAborted) << gone;
  EXPECT_NE(gone.message().find("released version 5"), absl::string_view::npos) << gone;
  // It was the newest one; the next is told all the same.
  EXPECT_EQ(member_->Newer(0, kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  PublishAndSeal(6);
  EXPECT_EQ(member_->Newer(0, kLong)->name.number, 6u);
  // One that is not sealed.
  ASSERT_TRUE(Borrow(first_.get(), 7, first).ok());
  ASSERT_TRUE(first_->Release(7, ReleaseHow::kDrop, kLong).ok());
  EXPECT_EQ(Borrow(first_.get(), 7, first).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(WeightsBorrowedTest, TheActiveVersionIsNotDropped) {
  const Tensor first = Ints(5), second = Ints(5);
  (void)BorrowAndSeal(5, first, second);
  WeightMemberOptions votes = Observer();
  votes.observes = false;
  const auto member = *WeightMember::Open(member_server_.get(), votes);
  std::thread engine([&] {
    for (;;) {
      const auto event = member->NextEvent(kLong);
      ASSERT_TRUE(event.ok()) << event.status();
      if (event->kind == WeightEvent::Kind::kPrepare) {
        const Tensor into = Ints(0);
        const absl::Status staged = member->Stage(
            event->number, {{"w", Box::Whole(into.shape()), into, Dense({4})}}, kLong);
        EXPECT_TRUE(member->Vote(event->number, staged).ok());
      }
      if (event->kind != WeightEvent::Kind::kActive) continue;
      EXPECT_TRUE(member->Switched(event->number).ok());
      return;
    }
  });
  const absl::Status activated = first_->Activate(5, ActivateMode::kRolling, kLong);
  engine.join();
  ASSERT_TRUE(activated.ok()) << activated;
  const absl::Status refused = first_->Release(5, ReleaseHow::kDrop, kShort);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(first_->Release(5, ReleaseHow::kCopy, kLong).ok());
}

TEST_F(WeightsBorrowedTest, OnlyWhatLiesDenseIsBorrowed) {
  const Tensor wide = *Tensor::Allocate(DType::kInt32, {8});
  const auto borrow = [&](Strides lies) {
    return first_->Borrow(5, "w", {{0}, {4}}, wide, lies).code();
  };
  EXPECT_EQ(borrow({0, {2}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(borrow({5, {1}}), absl::StatusCode::kOutOfRange) << "it ends outside";
  EXPECT_EQ(
      first_->Borrow(5, "w", {{0}, {4}}, *Tensor::Allocate(DType::kFloat, {4}), Dense({4})).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(borrow({4, {1}}), absl::StatusCode::kOk) << "what was refused is not taken";
}

TEST(Borrowed, IsReturnedWhenNobodyHasIt) {
  bool freed = false;
  int32_t memory[4] = {1, 2, 3, 4};
  Tensor from = *Tensor::Adopt(memory, DType::kInt32, {4}, MemorySpace(), [&] { freed = true; });
  Borrowed borrowed;
  Tensor box = *borrowed.Borrow(5, from, 2, {2});
  from.Reset();
  EXPECT_EQ(box.data(), memory + 2);
  EXPECT_TRUE(borrowed.AwaitReturned(4, kShort, 1).ok());
  Tensor answer = *box.Slice(1, 1);
  box.Reset();
  EXPECT_TRUE(absl::IsDeadlineExceeded(borrowed.AwaitReturned(5, kShort, 1))) << "it is read still";
  EXPECT_FALSE(freed);
  Cancellation cancellation;
  std::thread cancels([&] { cancellation.StartCancel(); });
  EXPECT_TRUE(absl::IsCancelled(borrowed.AwaitReturned(5, Patience(kLong, &cancellation), 1)));
  cancels.join();
  std::thread borrows([&] { (void)*borrowed.Borrow(6, Ints(6), 0, {4}); });
  EXPECT_TRUE(absl::IsUnavailable(borrowed.AwaitReturned(5, kLong, 1))) << "more was borrowed";
  borrows.join();
  EXPECT_EQ(borrowed.lent(), 2u);
  std::thread reads([&] { answer.Reset(); });
  EXPECT_TRUE(borrowed.AwaitReturned(5, kLong, 2).ok());
  reads.join();
  EXPECT_TRUE(freed);
}

TEST_F(WeightOwnerTest, AnOwnerThatDoesNotComeDropsTheVersion) {
  Declare();
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  const auto alone = first_->Seal(5, "", kShort);
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kAborted) << alone.status();
  EXPECT_NE(alone.status().message().find("owner 1"), absl::string_view::npos) << alone.status();
  // Who comes later hears of it.
  ASSERT_TRUE(Publish(second_.get(), 5, Ints(5)).ok());
  const auto late = second_->Seal(5, "", kLong);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kAborted) << late.status();
  PublishAndSeal(6);
  EXPECT_EQ(*FirstElement(*member_->Newer(0, kLong)), 6);
}

TEST_F(WeightOwnerTest, AnOwnerThatHasGoneDropsTheVersionLongBeforeThePatienceIsOver) {
  Declare();
  PublishAndSeal(5);
  second_.reset();
  ASSERT_TRUE(Publish(first_.get(), 6, Ints(6)).ok());
  const absl::Time begun = absl::Now();
  const auto alone = first_->Seal(6, "", absl::Minutes(5));
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kAborted) << alone.status();
  EXPECT_NE(alone.status().message().find("nothing is heard of it"), absl::string_view::npos)
      << alone.status();
  EXPECT_EQ(*FirstElement(*member_->Newer(0, kLong)), 5);
}

TEST_F(WeightOwnerTest, AnOwnersNextLifeEndsTheSealThatItsFormerLifeWasIn) {
  Declare();
  PublishAndSeal(5);
  ASSERT_TRUE(Publish(first_.get(), 6, Ints(6)).ok());
  absl::StatusOr<SealedVersion> sealed = absl::UnknownError("");
  const absl::Time begun = absl::Now();
  std::thread waits([&] { sealed = first_->Seal(6, "", absl::Minutes(5)); });
  absl::SleepFor(absl::Milliseconds(100));
  second_.reset();
  second_ = Open(second_server_.get(), 1);
  ASSERT_TRUE(second_->Declare({Replicated()}).ok());
  waits.join();
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  EXPECT_EQ(sealed.status().code(), absl::StatusCode::kAborted) << sealed.status();
  EXPECT_NE(sealed.status().message().find("the owners have changed"), absl::string_view::npos)
      << sealed.status();
  PublishAndSeal(7);
}

// A drop and another attempt come while a large box is being copied for the first.
TEST_F(WeightOwnerTest, WhatWasPublishedBeforeADropIsNotInTheNextAttempt) {
  TensorLayout large = Replicated(), small = Replicated();
  large.name = "large";
  large.shape = {8 << 20};
  Tensor bytes = *Tensor::Allocate(DType::kInt32, large.shape);
  memset(bytes.mutable_data(), 1, bytes.bytes());
  ASSERT_TRUE(first_->Declare({small, large}).ok());
  ASSERT_TRUE(second_->Declare({small, large}).ok());
  for (uint64_t number = 5; number < 25; number += 2) {
    absl::Status copied = absl::UnknownError("");
    std::thread slow([&] {
      copied = first_->Publish(number, "large", Box::Whole(large.shape), bytes, Dense({8 << 20}));
    });
    absl::SleepFor(absl::Milliseconds(number));
    first_->Drop(number);
    (void)Publish(first_.get(), number + 1, Ints(1));
    const absl::Status again = Publish(first_.get(), number, Ints(1));
    slow.join();
    EXPECT_TRUE(copied.ok() || absl::IsAborted(copied) || absl::IsAlreadyExists(copied)) << copied;
    const auto sealed = first_->Seal(number, "", kShort);
    EXPECT_FALSE(sealed.ok()) << again;
    EXPECT_NE(sealed.status().code(), absl::StatusCode::kDeadlineExceeded)
        << "both boxes count as published: " << sealed.status();
    first_->Drop(number);
    first_->Drop(number + 1);
  }
}

TEST_F(WeightOwnerTest, ADroppedNumberIsNotTakenAgain) {
  Declare();
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  first_->Drop(5);
  const absl::Status again = Publish(first_.get(), 5, Ints(5));
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
  EXPECT_NE(again.message().find("take a higher one"), absl::string_view::npos) << again;
}

// What makes it did not come as far as its first box.
TEST_F(WeightOwnerTest, WhatIsDroppedBeforeItIsPublishedEndsTheSealsOfOthers) {
  Declare();
  for (const auto& [seals, drops, number] :
       {std::tuple(first_.get(), second_.get(), 5), {second_.get(), first_.get(), 6}}) {
    ASSERT_TRUE(Publish(seals, number, Ints(number)).ok());
    absl::Status sealed;
    std::thread waits(
        [&, seals = seals, number = number] { sealed = seals->Seal(number, "", kLong).status(); });
    absl::SleepFor(absl::Milliseconds(200));  // It has asked. A drop before that is noted, too.
    const absl::Time dropped = absl::Now();
    drops->Drop(number);
    waits.join();
    EXPECT_LT(absl::Now() - dropped, kLong / 2);
    EXPECT_TRUE(absl::IsAborted(sealed)) << sealed;
    EXPECT_NE(sealed.message().find("was dropped"), absl::string_view::npos) << sealed;
  }
  PublishAndSeal(7);
}

TEST_F(WeightOwnerTest, ADropBeforeTheFirstBoxLeavesWhatIsSealedOrWasDropped) {
  Declare();
  PublishAndSeal(5);
  first_->Drop(4);
  first_->Drop(5);
  EXPECT_EQ(*FirstElement(*member_->Newer(0, kLong)), 5);
  ASSERT_TRUE(Publish(first_.get(), 6, Ints(6)).ok());
  EXPECT_TRUE(absl::IsAborted(first_->Seal(6, "", kShort).status()));
  first_->Drop(6);
  ASSERT_TRUE(Publish(second_.get(), 6, Ints(6)).ok());
  const absl::Status late = second_->Seal(6, "", kLong).status();
  EXPECT_NE(late.message().find("is not ready"), absl::string_view::npos) << "why: " << late;
}

TEST_F(WeightOwnerTest, WhatIsBelowASealedVersionIsOver) {
  Declare();
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  PublishAndSeal(6);
  ASSERT_TRUE(Publish(first_.get(), 7, Ints(5)).ok());
  PublishAndSeal(8);
  PublishAndSeal(9);  // Neither has a place that this one lacks.
  EXPECT_EQ(*FirstElement(*member_->Newer(0, kLong)), 9);
}

// Ranks start at different times.
TEST_F(WeightOwnerTest, ASealWaitsForWhoHasNotOpenedTheSetYet) {
  second_.reset();
  ASSERT_TRUE(first_->Declare({Replicated()}).ok());
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  absl::StatusOr<SealedVersion> first = absl::UnknownError("");
  std::thread sealing([&] { first = first_->Seal(5, "", kLong); });
  absl::SleepFor(absl::Milliseconds(300));
  second_ = Open(second_server_.get(), 1);
  ASSERT_TRUE(second_->Declare({Replicated()}).ok());
  ASSERT_TRUE(Publish(second_.get(), 5, Ints(5)).ok());
  const auto second = second_->Seal(5, "", kLong);
  sealing.join();
  EXPECT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST_F(WeightOwnerTest, AnOwnerThatIsOpenedAgainAnswers) {
  first_ = Open(first_server_.get(), 0);  // The former one is closed after it.
  second_ = Open(second_server_.get(), 1);
  Declare();
  PublishAndSeal(5);
  EXPECT_EQ(*FirstElement(*member_->Newer(0, kLong)), 5);
}

TEST_F(WeightOwnerTest, ALabelIsAnyBytes) {
  Declare();
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  ASSERT_TRUE(Publish(second_.get(), 5, Ints(5)).ok());
  absl::StatusOr<SealedVersion> second = absl::UnknownError("");
  std::thread other([&] { second = second_->Seal(5, "", kLong); });
  const std::string label = "step \xff\xfe";
  ASSERT_TRUE(first_->Seal(5, label, kLong).ok());
  other.join();
  const auto heard = member_->Newer(0, kLong);
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->label, label);
}

TEST_F(WeightOwnerTest, ALabelThatIsTooLongIsRefused) {
  Declare();
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  const auto sealed = first_->Seal(5, std::string(1025, 'l'), kLong);
  EXPECT_EQ(sealed.status().code(), absl::StatusCode::kInvalidArgument) << sealed.status();
}

// Its server is gone, or it stands still: nothing comes back for any of its shares.
TEST_F(WeightOwnerTest, AReplicaThatDoesNotAnswerIsPassedBy) {
  Declare();
  PublishAndSeal(5);
  const auto version = member_->Newer(0, kLong);
  ASSERT_TRUE(version.ok()) << version.status();
  ASSERT_TRUE(FirstElement(*version).ok());  // Lists and layouts are known.
  auto mute = std::make_shared<Mute>();
  second_server_->steps()->SetAnswerer("|weights|policy|", mute);
  std::vector<WeightMember::Item> items;
  std::vector<Tensor> into;
  for (int i = 0; i < 20; ++i) {
    into.push_back(Ints(0));
    items.push_back({"w", Box::Whole(into.back().shape()), into.back(), Dense({4})});
  }
  const absl::Time began = absl::Now();
  const absl::Status fetched = member_->Fetch(*version, items, absl::Seconds(12));
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_LT(absl::Now() - began, absl::Seconds(9)) << "it is tried once";
  for (const Tensor& tensor : into) EXPECT_EQ(tensor.data_as<int32_t>()[0], 5);
  second_server_->steps()->RemoveAnswerer("|weights|policy|", mute.get());
  mute.reset();  // It ends what it has kept, so that its server stops.
}

TEST_F(WeightOwnerTest, ReplicasHaveTheSameBytes) {
  Declare();
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  ASSERT_TRUE(Publish(second_.get(), 5, Ints(6)).ok());
  const auto [first, second] = SealBoth(5);
  EXPECT_EQ(first.status().code(), absl::StatusCode::kDataLoss) << first.status();
  EXPECT_NE(first.status().message().find("owners 0 and 1"), absl::string_view::npos);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAborted) << second.status();
  EXPECT_EQ(member_->Newer(0, kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(WeightOwnerTest, OwnersDeclareTheSame) {
  ASSERT_TRUE(first_->Declare({Replicated()}).ok());
  TensorLayout other = Replicated();
  other.dtype = DType::kUint32;
  ASSERT_TRUE(second_->Declare({other}).ok());
  ASSERT_TRUE(Publish(first_.get(), 5, Ints(5)).ok());
  const Tensor bytes = *Tensor::Allocate(DType::kUint32, {4});
  ASSERT_TRUE(Publish(second_.get(), 5, bytes).ok());
  const auto [first, second] = SealBoth(5);
  EXPECT_EQ(first.status().code(), absl::StatusCode::kInvalidArgument) << first.status();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAborted) << second.status();
}

TEST_F(WeightOwnerTest, WhatAnOwnerMayNotDo) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(first_->Seal(5, "", kLong).status().code(), absl::StatusCode::kFailedPrecondition);
  Declare();
  EXPECT_EQ(first_->Declare({Replicated()}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(first_->Seal(5, "", kLong).status().code(), absl::StatusCode::kFailedPrecondition);
  const Tensor ints = Ints(5), floats = *Tensor::Allocate(DType::kFloat, {4});
  EXPECT_EQ(first_->Publish(5, "v", {{0}, {4}}, ints, Dense({4})).code(), kInvalid);
  EXPECT_EQ(first_->Publish(5, "w", {{0}, {3}}, ints, Dense({3})).code(), kInvalid);
  EXPECT_EQ(first_->Publish(5, "w", {{0}, {4}}, floats, Dense({4})).code(), kInvalid);
  EXPECT_EQ(first_->Publish(5, "w", {{0}, {4}}, ints, {1, {1}}).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(first_->Publish(5, "w", {{0}, {4}}, Tensor(), Dense({4})).code(), kInvalid);
  // None of these has taken the place of what is right.
  EXPECT_TRUE(Publish(first_.get(), 5, ints).ok());
  EXPECT_EQ(Publish(first_.get(), 5, ints).code(), kInvalid);
  first_->Drop(5);
  PublishAndSeal(7);
  EXPECT_EQ(Publish(first_.get(), 7, ints).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Publish(first_.get(), 6, ints).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Publish(first_.get(), 8, ints).ok());
  EXPECT_TRUE(Publish(first_.get(), 9, ints).ok());
  EXPECT_EQ(Publish(first_.get(), 10, ints).code(), absl::StatusCode::kResourceExhausted);
}

// 0 stands for none, and above the highest number no other could come.
TEST_F(WeightOwnerTest, SomeNumbersAreNoVersions) {
  TensorLayout of_the_first = Replicated();  // The second owner has nothing to publish.
  of_the_first.owners = {0};
  of_the_first.mesh = {1};
  of_the_first.placements = {{}};
  for (WeightOwner* owner : {first_.get(), second_.get()}) {
    const absl::Status declared = owner->Declare({of_the_first});
    ASSERT_TRUE(declared.ok()) << declared;
  }
  for (const uint64_t number : {uint64_t{0}, UINT64_MAX}) {
    for (const absl::Status& status :
         {Publish(first_.get(), number, Ints(5)), first_->Seal(number, "", kShort).status(),
          second_->Seal(number, "", kShort).status()}) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << number << ": " << status;
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(first_->Activate(0, ActivateMode::kRolling, kLong)));
  ASSERT_TRUE(Publish(first_.get(), UINT64_MAX - 1, Ints(5)).ok());
  EXPECT_TRUE(SealBoth(UINT64_MAX - 1).first.ok());
}

TEST_F(WeightOwnerTest, StrangersAsksAreRefused) {
  Declare();
  PublishAndSeal(5);
  const SealedVersion version = *member_->Newer(0, kLong);
  const std::string part = absl::StrFormat("|weights|policy|part|5.%016x|", version.name.birth);
  const auto answer_to_part = [this](const std::string& edge) {
    return AnswerTo(edge + "|0|0000000000000000");
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(answer_to_part(part + "0|1+2|0").ok());
  EXPECT_TRUE(answer_to_part(part + "0|1+0|0").ok());
  EXPECT_TRUE(answer_to_part(part + "0|1+0|5").ok());
  EXPECT_TRUE(answer_to_part(part + "0|1+2|18446744073709551615").ok());
  EXPECT_EQ(answer_to_part(part + "0|1+4|0").code(), kInvalid);
  EXPECT_EQ(answer_to_part(part + "0|9223372036854775807+9223372036854775807|0").code(), kInvalid);
  EXPECT_EQ(answer_to_part(part + "0||0").code(), kInvalid);
  EXPECT_EQ(answer_to_part(part + "0|0+1,0+1|0").code(), kInvalid);
  EXPECT_EQ(answer_to_part(part + "1|0+1|0").code(), kInvalid);
  EXPECT_EQ(answer_to_part(part + "4294967295|0+1|0").code(), kInvalid);
  EXPECT_EQ(answer_to_part("|weights|policy|part|5.0000000000000000|0|0+1|0").code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(AnswerTo("|weights|policy|nothing|1").code(), kInvalid);
  EXPECT_EQ(AnswerTo("|weights|policy|layouts|x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(AnswerTo("|weights|other|newer|1").code(), absl::StatusCode::kUnavailable);
}

// However many ask, and however long they keep it.
TEST_F(WeightOwnerTest, LayoutsAndListsAreInMemoryOnce) {
  Declare();
  PublishAndSeal(5);
  const SealedVersion version = *member_->Newer(0, kLong);
  const auto answer_to = [this](const std::string& edge) {
    Tensor answer;
    first_server_->steps()->Take(
        9,
        *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0",
                                          first_server_->worker(), first_server_->incarnation(),
                                          member_server_->worker(), edge)),
        {}, [&](Received&& received) {
          EXPECT_TRUE(received.status.ok()) << received.status;
          answer = std::move(received.tensor);
        });
    return answer;
  };
  for (const std::string& edge :
       {absl::StrCat("|weights|policy|layouts|", version.name.layouts.ToString()),
        absl::StrFormat("|weights|policy|list|5.%016x", version.name.birth)}) {
    const Tensor first = answer_to(edge), second = answer_to(edge);
    ASSERT_TRUE(first.valid()) << edge;
    EXPECT_EQ(first.data(), second.data()) << edge;
  }
}

TEST_F(WeightOwnerTest, AnotherReplicaServesWhenOneIsGone) {
  Declare();
  PublishAndSeal(5);
  const SealedVersion version = *member_->Newer(0, kLong);
  second_.reset();
  // Items go to the owners in turn.
  const std::vector<Tensor> into = {Ints(0), Ints(0)};
  const Box whole = Box::Whole(into[0].shape());
  const absl::Status fetched = member_->Fetch(
      version, {{"w", whole, into[0], Dense({4})}, {"w", whole, into[1], Dense({4})}}, kLong);
  ASSERT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(into[0].data_as<int32_t>()[3], 8);
  EXPECT_EQ(into[1].data_as<int32_t>()[3], 8);
  first_.reset();
  EXPECT_EQ(FirstElement(version).status().code(), absl::StatusCode::kUnavailable);
}

// Answers whatever it is asked with the same bytes and their digest.
class Liar final : public Answerer {
 public:
  explicit Liar(std::string bytes) : bytes_(std::move(bytes)) {}
  void Answer(const TensorKey&, const RecvArgs&, DoneFn done) override {
    Tensor answer = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(bytes_.size())});
    memcpy(answer.mutable_data(), bytes_.data(), bytes_.size());
    std::move(done)({absl::OkStatus(), answer});
  }

 private:
  const std::string bytes_;
};

TEST_F(WeightOwnerTest, WhatWasNotSealedIsNotDelivered) {
  Declare();
  PublishAndSeal(5);
  const SealedVersion version = *member_->Newer(0, kLong);
  ASSERT_EQ(*FirstElement(version), 5);
  const std::string other(16, 'x');
  const std::string with_digest = other + EncodeDigests({DigestOf(other)});
  // The other owner has the right bytes.
  first_server_->steps()->SetAnswerer("|weights|policy|", std::make_shared<Liar>(with_digest));
  EXPECT_EQ(*FirstElement(version), 5);
  second_server_->steps()->SetAnswerer("|weights|policy|", std::make_shared<Liar>(with_digest));
  const Tensor into = Ints(70);
  const auto fetch = [&](const Box& box) {
    return member_->Fetch(version, {{"w", box, into, Dense(box.extent)}}, kLong).code();
  };
  EXPECT_EQ(fetch({{0}, {4}}), absl::StatusCode::kDataLoss);
  // A part is too short, or another than its digest says.
  EXPECT_EQ(fetch({{0}, {2}}), absl::StatusCode::kDataLoss);
  for (Server* server : {first_server_.get(), second_server_.get()}) {
    server->steps()->SetAnswerer("|weights|policy|", std::make_shared<Liar>(with_digest.substr(8)));
  }
  EXPECT_EQ(fetch({{0}, {2}}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(into.data_as<int32_t>()[0], 70) << "nothing was written";
  // Neither a version nor layouts nor a list are believed.
  EXPECT_EQ(member_->Newer(0, kLong).status().code(), absl::StatusCode::kDataLoss);
  const auto anew = *WeightMember::Open(member_server_.get(), Observer());
  EXPECT_EQ(anew->Layouts(version, kLong).status().code(), absl::StatusCode::kDataLoss);
}

// An answer of one element has 4 bytes and a digest of 16.
TEST_F(WeightOwnerTest, AnOwnerAnswersWithinItsBounds) {
  WeightOwnerOptions options;
  options.set = "small";
  options.owners = {first_server_->worker()};
  options.answers.bytes = options.answers.bytes_of_one = 40;
  options.answers.waiting_of_one = 8;
  const auto owner = *WeightOwner::Open(first_server_.get(), options);
  ASSERT_TRUE(owner->Declare({Replicated()}).ok());
  ASSERT_TRUE(Publish(owner.get(), 5, Ints(70)).ok());
  ASSERT_TRUE(owner->Seal(5, "", kLong).ok());
  WeightMemberOptions observer = Observer();
  observer.set = "small";
  observer.owners = options.owners;
  const auto member = *WeightMember::Open(member_server_.get(), observer);
  const SealedVersion version = *member->Newer(0, kLong);
  const Tensor into = Ints(0);
  std::vector<WeightMember::Item> items;
  for (int i = 0; i < 64; ++i) {
    const int64_t at = i % 4;
    items.push_back({"w", {{at}, {1}}, into, {at, {1}}});
  }
  const absl::Status fetched = member->Fetch(version, items, kLong);
  ASSERT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(into.data_as<int32_t>()[3], 73);
  // Several fetches at once ask for more than the line has room for.
  std::vector<absl::Status> ends(16);
  std::vector<std::thread> threads;
  for (absl::Status& end : ends) {
    threads.emplace_back([&] { end = member->Fetch(version, items, kLong); });
  }
  for (std::thread& thread : threads) thread.join();
  int refused = 0;
  for (const absl::Status& end : ends) {
    EXPECT_TRUE(end.ok() || absl::IsResourceExhausted(end)) << end;
    refused += !end.ok();
  }
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(member->Fetch(version, items, kLong).ok());
}

TEST_F(WeightOwnerTest, WhoWaitsHearsThatTheOwnerLeaves) {
  Declare();
  absl::Status newest, sealed;
  std::thread member([&] { newest = member_->Newer(0, kLong).status(); });
  ASSERT_TRUE(Publish(second_.get(), 5, Ints(5)).ok());
  std::thread owner([&] { sealed = second_->Seal(5, "", kLong).status(); });
  absl::SleepFor(absl::Milliseconds(200));
  first_.reset();
  member.join();
  owner.join();
  EXPECT_EQ(newest.code(), absl::StatusCode::kAborted) << newest;
  EXPECT_EQ(sealed.code(), absl::StatusCode::kAborted) << sealed;
}

TEST_F(WeightOwnerTest, WhatIsFoundByItsNumberIsAtAllOwners) {
  TensorLayout layout = Replicated();
  layout.owners = {0, 1};
  layout.mesh = {2};
  layout.placements = {{0}};
  ASSERT_TRUE(first_->Declare({layout}).ok());
  ASSERT_TRUE(second_->Declare({layout}).ok());
  for (uint64_t number = 1; number <= 40; ++number) {
    const Tensor half = *Tensor::Allocate(DType::kInt32, {2});
    static_cast<int32_t*>(half.mutable_data())[0] = static_cast<int32_t>(number);
    ASSERT_TRUE(first_->Publish(number, "w", {{0}, {2}}, half, Dense({2})).ok());
    ASSERT_TRUE(second_->Publish(number, "w", {{2}, {2}}, half, Dense({2})).ok());
    std::thread seals([&] { EXPECT_TRUE(SealBoth(number).second.ok()); });
    const auto version = member_->Find(number, kLong);
    EXPECT_TRUE(version.ok()) << version.status();
    const auto into = *Tensor::Allocate(DType::kInt32, {2});
    const absl::Status fetched =
        member_->Fetch(*version, {{"w", {{2}, {2}}, into, Dense({2})}}, kLong);
    EXPECT_TRUE(fetched.ok()) << fetched;
    EXPECT_EQ(into.data_as<int32_t>()[0], static_cast<int32_t>(number));
    seals.join();
  }
}

TEST_F(WeightOwnerTest, OfWhatAMemberHasOnlyChangesCome) {
  constexpr int64_t kRows = 512, kColumns = 300;
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kInt32;
  layout.shape = {kRows, kColumns};
  layout.owners = {0, 1};
  layout.mesh = {2};
  layout.placements = {{0}};
  ASSERT_TRUE(first_->Declare({layout}).ok());
  ASSERT_TRUE(second_->Declare({layout}).ok());
  std::vector<int32_t> now(kRows * kColumns);
  for (size_t i = 0; i < now.size(); ++i) now[i] = static_cast<int32_t>(i * 2654435761u);
  const auto publish = [&](uint64_t number) {
    const Tensor rows = *Tensor::Allocate(DType::kInt32, {kRows / 2, kColumns});
    for (const auto& [owner, begin] :
         {std::pair(first_.get(), int64_t{0}), std::pair(second_.get(), kRows / 2)}) {
      memcpy(rows.mutable_data(), &now[begin * kColumns], rows.bytes());
      ASSERT_TRUE(owner
                      ->Publish(number, "w", {{begin, 0}, {kRows / 2, kColumns}}, rows,
                                Dense({kRows / 2, kColumns}))
                      .ok());
    }
    const auto [first, second] = SealBoth(number);
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  };
  const auto change = [&now](size_t every) {
    for (size_t i = 0; i < now.size(); i += every) ++now[i];
  };
  const Tensor into = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
  auto* const came = static_cast<int32_t*>(into.mutable_data());
  // Every second one of 100 columns from row 10 on, transposed: parts of both owners' boxes.
  const Box columns = {{10, 7}, {kRows - 10, 100}};
  const Strides turned = {3, {1, 2 * kRows}};
  const Tensor turned_into = *Tensor::Allocate(DType::kInt32, {3 + 200 * kRows});
  const auto fetch = [&](uint64_t number, uint64_t has) {
    const uint64_t before = member_->View().bytes;
    const auto version = member_->Find(number, kLong);
    EXPECT_TRUE(version.ok()) << version.status();
    const absl::Status fetched =
        member_->Fetch(*version,
                       {{"w", Box::Whole(layout.shape), into, Dense({kRows, kColumns}), has},
                        {"w", columns, turned_into, turned, has}},
                       kLong);
    EXPECT_TRUE(fetched.ok()) << fetched;
    EXPECT_EQ(memcmp(came, now.data(), into.bytes()), 0);
    for (int64_t row = 0; row < kRows - 10; ++row) {
      for (int64_t column = 0; column < 100; ++column) {
        EXPECT_EQ(turned_into.data_as<int32_t>()[3 + row + 2 * kRows * column],
                  now[(row + 10) * kColumns + column + 7]);
      }
    }
    return member_->View().bytes - before;
  };
  constexpr uint64_t kAll = 4 * (kRows * kColumns + (kRows - 10) * 100);
  publish(5);
  EXPECT_EQ(fetch(5, 0), kAll);
  change(1000);
  publish(6);
  EXPECT_LT(fetch(6, 5), kAll / 50);
  EXPECT_LT(fetch(6, 6), 100u) << "nothing has changed";
  // What lies there is not of that version, but for one half: that one alone comes once.
  came[0] ^= 1;
  const uint64_t again = fetch(6, 6);
  EXPECT_GT(again, 4u * kRows / 2 * kColumns);
  EXPECT_LT(again, 4u * kRows / 2 * kColumns + 100);
  EXPECT_EQ(fetch(6, 4), kAll) << "no owner has that version";
  // Where all has changed the delta would be no shorter.
  change(1);
  publish(7);
  const auto sent = [this] {
    return first_server_->weight_views()->List().at(0).bytes +
           second_server_->weight_views()->List().at(0).bytes;
  };
  const uint64_t before = sent();
  EXPECT_EQ(fetch(7, 6), kAll);
  EXPECT_EQ(sent() - before, kAll) << "and nothing was sent in vain";
}

TEST_F(WeightOwnerTest, WhatAMemberMayNotAsk) {
  Declare();
  PublishAndSeal(5);
  const SealedVersion version = *member_->Newer(0, kLong);
  const auto fetch = [&](const std::string& tensor, const Box& box, const Tensor& into,
                         const Strides& places) {
    return member_->Fetch(version, {{tensor, box, into, places}}, kLong).code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Tensor into = Ints(0);
  EXPECT_EQ(fetch("v", {{0}, {4}}, into, Dense({4})), kInvalid);
  EXPECT_EQ(fetch("w", {{0}, {5}}, into, Dense({5})), kInvalid);
  EXPECT_EQ(fetch("w", {{0}, {4}}, into, {0, {0}}), kInvalid);
  EXPECT_EQ(fetch("w", {{0}, {4}}, into, {1, {1}}), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(fetch("w", {{0}, {4}}, *Tensor::Allocate(DType::kUint32, {4}), Dense({4})), kInvalid);
  EXPECT_FALSE(WeightMember::Open(first_server_.get(), Observer()).ok());
  WeightMemberOptions other = Observer();
  other.set = "a|b";
  EXPECT_FALSE(WeightMember::Open(member_server_.get(), other).ok());
  other = Observer();
  other.owners.clear();
  EXPECT_FALSE(WeightMember::Open(member_server_.get(), other).ok());
}

}  // namespace
}  // namespace tryst
