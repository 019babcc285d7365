#include "channel/ops/takes.h"

#include <malloc.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/release_memory.h"
#include "base/turned_clock.h"
#include "channel/poller/poller.h"
#include "channel/trace/live_ops.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr char kConsumer[] = "/job:c/replica:0/task:0";
constexpr uint32_t kMostParked = 100;

// Has everything.
class Stock final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey&, const RecvArgs&, DoneFn done) override {
    std::move(done)({absl::OkStatus()});
  }
  bool TakeHere(int64_t, TensorKey*, Place*, Received*) override { return false; }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t, const TensorKey&, Received) override {}
};

// Has nothing until the test says so, and does not hear of cancels.
class Slow final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey&, const RecvArgs& args, DoneFn done) override {
    asked.push_back(std::move(done));
    if (!meets_when_cancelled.valid()) return;
    token = args.cancellation->Register(
        [this, which = asked.size() - 1] { Meet(which, std::move(meets_when_cancelled)); });
  }
  bool TakeHere(int64_t, TensorKey*, Place*, Received* taken) override {
    if (!here.valid()) return false;
    taken->tensor = std::move(here);
    return true;
  }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t, const TensorKey&, Received taken) override {
    back.push_back(taken.tensor);
  }
  void Meet(size_t which, Tensor tensor) {
    std::move(asked[which])({absl::OkStatus(), std::move(tensor)});
  }

  std::vector<DoneFn> asked;
  std::vector<Tensor> back;
  Tensor here;                  // If it is valid, the next take finds it.
  Tensor meets_when_cancelled;  // If it is valid.
  Cancellation::Token token = Cancellation::kNoToken;
};

class NoUser final : public TakesUser {
  void OnTakeEnded(TakingOp*, ServeTake* take) override {
    met.push_back(take->taken.tensor);
    last = take->taken.status;
  }
  void OnHere() override {}
  void OnTakesIdle() override { ++idle; }

 public:
  std::vector<Tensor> met;
  int idle = 0;
  absl::Status last;
};

class TakesTest : public ::testing::Test {
 protected:
  TakesTest() {
    poller_.Turn();  // From here on this is its thread.
    takes_.SetEpoch(1);
  }

  std::vector<uint64_t> Told() {
    std::vector<uint64_t> told;
    takes_.TellHere(13, [&](absl::Span<const uint64_t> tickets) {
      told.insert(told.end(), tickets.begin(), tickets.end());
      return true;
    });
    return told;
  }

  const TensorKey key_ = TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:CPU:0", 1,
                                               std::string(kConsumer) + "/device:CPU:0", "edge")
                             ->At(0, 0);
  TurnedClock clock_;
  Poller poller_{&clock_};
  Stock stock_;
  NoUser user_;
  uint64_t given_back_ = 0;
  Takes takes_{&poller_, &stock_, &user_, kConsumer, kMostParked, &given_back_};
};

// It drops what is here before it has read that it is, again and again.
TEST_F(TakesTest, AConsumerThatReadsNothingDoesNotMakeTheLineGrow) {
  ASSERT_TRUE(takes_.Waits(1, 0, key_));
  constexpr uint64_t kTimes = 100'000;
  for (uint64_t ticket = 2; ticket < kTimes; ++ticket) {
    ASSERT_TRUE(takes_.Waits(ticket, 0, key_));
    ASSERT_EQ(takes_.DropTickets({ticket}), 1u);
  }
  EXPECT_EQ(given_back_, kTimes - 2);
  const std::vector<uint64_t> told = Told();
  EXPECT_LT(told.size(), 2'000u);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.front(), 1u) << "this one is still waited for";
  EXPECT_EQ(takes_.DropTickets({1}), 1u);
  EXPECT_TRUE(takes_.idle());
}

// The same number each time.
TEST_F(TakesTest, NorDoesOneThatUsesATicketAgain) {
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(takes_.Waits(1, 0, key_));
    ASSERT_EQ(takes_.DropTickets({1}), 1u);
  }
  ASSERT_TRUE(takes_.Waits(1, 0, key_));
  EXPECT_LT(Told().size(), 2'000u);
  EXPECT_EQ(takes_.DropTickets({1}), 1u);
}

// It may have been told of it meanwhile, and the tensor is on its way.
TEST_F(TakesTest, ATicketThatIsNotParkedIsNotDropped) {
  ASSERT_TRUE(takes_.Waits(1, 0, key_));
  EXPECT_EQ(takes_.DropTickets({2, 1, 1}), 1u);
  EXPECT_EQ(given_back_, 1u);
  EXPECT_EQ(takes_.DropTickets({1}), 0u);
  EXPECT_TRUE(takes_.idle());
}

// max_waiting of them, and one for each that it lets go of.
TEST_F(TakesTest, OnlySoManyWaitWithoutASlot) {
  for (uint64_t ticket = 1; ticket <= kMostParked; ++ticket) {
    ASSERT_TRUE(takes_.Waits(ticket, 0, key_)) << ticket;
  }
  for (uint64_t ticket = kMostParked + 1; ticket < 10 * kMostParked; ++ticket) {
    ASSERT_FALSE(takes_.Waits(ticket, 0, key_)) << ticket;
  }
  EXPECT_EQ(takes_.DropTickets({1}), 1u);
  EXPECT_TRUE(takes_.Waits(kMostParked + 1, 0, key_));
  EXPECT_FALSE(takes_.Waits(kMostParked + 2, 0, key_));
  for (uint64_t ticket = 2; ticket <= kMostParked + 1; ++ticket) takes_.DropTickets({ticket});
  EXPECT_TRUE(takes_.idle());
}

class SlowTakesTest : public TakesTest {
 protected:
  SlowTakesTest() { takes_.SetEpoch(1); }
  static Tensor One() { return *Tensor::Allocate(DType::kInt64, {}); }

  const TensorKey other_ = TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:CPU:0", 1,
                                                 std::string(kConsumer) + "/device:CPU:0", "other")
                               ->At(0, 0);
  Slow slow_;
  Takes takes_{&poller_, &slow_, &user_, kConsumer, kMostParked, &given_back_};
};

// Nearly every take ends so: without a callback.
TEST_F(TakesTest, WhatIsHereEndsTheTakeInTheSameCall) {
  struct Quick final : TensorSource {
    void Take(int64_t, const TensorKey&, const RecvArgs&, DoneFn) override {
      ADD_FAILURE() << "the tensor is here";
    }
    bool TakeHere(int64_t, TensorKey*, Place*, Received* taken) override {
      taken->tensor = tensor;
      return true;
    }
    bool MayTake(const TensorKey&) const override { return true; }
    void GiveBack(int64_t, const TensorKey&, Received) override {}
    const Tensor tensor = *Tensor::Allocate(DType::kInt64, {});
  } quick;
  Takes takes(&poller_, &quick, &user_, kConsumer, kMostParked, &given_back_);
  takes.SetEpoch(1);
  TakingOp op;
  takes.Start(0, key_, &op);
  EXPECT_EQ(op.take, nullptr);
  ASSERT_EQ(user_.met.size(), 1u);
  EXPECT_TRUE(user_.met[0].SharesBytesWith(quick.tensor));
  ASSERT_TRUE(takes.Waits(9, 0, key_));
  EXPECT_TRUE(takes.has_here());
  EXPECT_TRUE(takes.Unpark(9, 0, key_, &op));
  EXPECT_EQ(user_.met.size(), 2u);
  EXPECT_TRUE(takes.idle());
}

TEST_F(SlowTakesTest, TheLastTakeToEndSaysThatAllAreIdle) {
  TakingOp first, second;
  takes_.Start(0, key_, &first);
  takes_.Start(0, other_, &second);
  slow_.Meet(0, One());
  poller_.Turn();
  EXPECT_EQ(user_.idle, 0);
  slow_.Meet(1, One());
  poller_.Turn();
  EXPECT_EQ(user_.idle, 1);
}

// One that waits without a slot, too, may meet its tensor while it is dropped.
TEST_F(SlowTakesTest, ATicketThatIsDroppedHoldsUpTheNextTakeOfItsKeyUntilItHasEnded) {
  ASSERT_TRUE(takes_.Waits(7, 0, key_));
  EXPECT_EQ(takes_.DropTickets({7}), 1u);
  EXPECT_TRUE(takes_.MustWait(key_));
  slow_.Meet(0, One());
  poller_.Turn();
  EXPECT_EQ(slow_.back.size(), 1u);
  EXPECT_FALSE(takes_.MustWait(key_));
}

// It meets its tensor on another thread while it is let go of.
TEST_F(SlowTakesTest, WhatATakeMeetsWhileItIsDroppedGoesBackBeforeTheNextAsks) {
  TakingOp first, second;
  takes_.Start(0, key_, &first);
  takes_.Drop(&first);
  takes_.Start(0, key_, &second);
  EXPECT_EQ(slow_.asked.size(), 1u) << "the next would meet what was sent later";
  TakingOp of_another;
  takes_.Start(0, other_, &of_another);
  EXPECT_EQ(slow_.asked.size(), 2u) << "another key need not wait";
  const Tensor tensor = One();
  slow_.Meet(0, tensor);
  poller_.Turn();
  ASSERT_EQ(slow_.back.size(), 1u);
  EXPECT_TRUE(slow_.back[0].SharesBytesWith(tensor));
  EXPECT_EQ(given_back_, 1u);
  ASSERT_EQ(slow_.asked.size(), 3u);
  slow_.Meet(2, tensor);
  slow_.Meet(1, One());
  poller_.Turn();
  EXPECT_EQ(user_.met.size(), 2u);
  EXPECT_TRUE(takes_.idle());
}

// The next take of the key may come in the same turn.
// It has asked for nothing yet, and never will.
TEST_F(SlowTakesTest, WhatWaitsForAnotherOfItsKeyIsDroppedLikeAnyOther) {
  TakingOp first, second, third;
  takes_.Start(0, key_, &first);
  takes_.Drop(&first);
  takes_.Start(0, key_, &second);
  takes_.Start(0, key_, &third);
  takes_.Drop(&second);
  slow_.Meet(0, One());
  poller_.Turn();
  ASSERT_EQ(slow_.asked.size(), 2u) << "the third alone asks";
  slow_.Meet(1, One());
  poller_.Turn();
  EXPECT_EQ(user_.met.size(), 1u);
  EXPECT_EQ(third.take, nullptr);
  EXPECT_TRUE(takes_.idle());
}

TEST_F(SlowTakesTest, WhatIsMetInTheCancelGoesBackAtOnce) {
  slow_.meets_when_cancelled = One();
  TakingOp op;
  takes_.Start(0, key_, &op);
  ASSERT_NE(op.take, nullptr);
  takes_.Drop(&op);
  EXPECT_EQ(slow_.back.size(), 1u);
  EXPECT_FALSE(takes_.MustWait(key_));
  poller_.Turn();
  EXPECT_EQ(slow_.back.size(), 1u);
  EXPECT_TRUE(takes_.idle());
}

TEST_F(SlowTakesTest, WhatIsHereAlreadyEndsTheRequestThatGoesOn) {
  TakingOp op, next;
  takes_.Start(3, key_, &op);
  ASSERT_TRUE(takes_.Park(&op, 7, 0));
  slow_.Meet(0, One());
  poller_.Turn();
  EXPECT_TRUE(user_.met.empty());
  EXPECT_TRUE(takes_.Unpark(7, 3, key_, &next));
  EXPECT_EQ(user_.met.size(), 1u);
  EXPECT_EQ(next.take, nullptr);
  EXPECT_TRUE(takes_.idle());
}

// As if it were new.
TEST_F(SlowTakesTest, ATakeIsUsedAgain) {
  for (size_t i = 0; i < 2000; ++i) {
    TakingOp op;
    takes_.Start(0, key_, &op);
    slow_.Meet(i, One());
    poller_.Turn();
  }
  EXPECT_EQ(user_.met.size(), 2000u);
  EXPECT_EQ(poller_.NextTimerNs(), INT64_MAX) << "there are so many that they are given back";
  TakingOp op;
  takes_.Start(0, key_, &op);
  takes_.Drop(&op);
  EXPECT_TRUE(takes_.MustWait(key_)) << "it has not ended";
  slow_.Meet(2000, One());
  poller_.Turn();
  EXPECT_EQ(slow_.back.size(), 1u);
  EXPECT_TRUE(takes_.idle());
}

TEST_F(SlowTakesTest, NothingIsLeftOfATakeThatWasGivenUp) {
  TakingOp op;
  takes_.Start(0, key_, &op);
  takes_.Drop(&op);
  slow_.Meet(0, One());
  poller_.Turn();
  EXPECT_EQ(slow_.back.size(), 1u);
  slow_.here = One();
  takes_.Start(0, key_, &op);
  EXPECT_EQ(user_.met.size(), 1u);
  EXPECT_TRUE(user_.last.ok()) << user_.last;
}

TEST_F(SlowTakesTest, ATensorForAnotherIsNotTaken) {
  const TensorKey foreign =
      TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:CPU:0", 1,
                            "/job:other/replica:0/task:0/device:CPU:0", "edge")
          ->At(0, 0);
  TakingOp op;
  takes_.Start(0, foreign, &op);
  EXPECT_TRUE(absl::IsPermissionDenied(user_.last)) << user_.last;
  EXPECT_TRUE(slow_.asked.empty());
  EXPECT_TRUE(takes_.idle());
  slow_.here = One();
  ToldKey told;
  told.key = foreign;
  Received taken;
  EXPECT_FALSE(takes_.Here(0, &told, &taken));
  EXPECT_TRUE(slow_.here.valid()) << "it was taken";
}

TEST_F(SlowTakesTest, ATicketGoesOnForItsOwnKeyAndStepAlone) {
  TakingOp op, next;
  takes_.Start(3, key_, &op);
  ASSERT_TRUE(takes_.Park(&op, 7, 0));
  EXPECT_FALSE(takes_.Unpark(8, 3, key_, &next));
  EXPECT_FALSE(takes_.Unpark(7, 4, key_, &next));
  EXPECT_FALSE(takes_.Unpark(7, 3, other_, &next));
  EXPECT_EQ(next.take, nullptr);
  EXPECT_TRUE(takes_.Unpark(7, 3, key_, &next));
  slow_.Meet(0, One());
  poller_.Turn();
  EXPECT_EQ(user_.met.size(), 1u);
  EXPECT_TRUE(takes_.idle());
}

// The list of what waits is in the order of age, and says how old each is.
TEST_F(SlowTakesTest, WhatWaitsWithoutASlotHasWaitedSinceItsRequestCame) {
  TakingOp op;
  takes_.Start(3, key_, &op);
  ASSERT_TRUE(takes_.Park(&op, 7, 250));
  LiveOps ops(1, 3), of_another_step(1, 4);
  takes_.ListOps(LiveOp(), &ops);
  takes_.ListOps(LiveOp(), &of_another_step);
  EXPECT_TRUE(of_another_step.Take().empty());
  const std::vector<LiveOp> waiting = ops.Take();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].span.since_ns(), 250);
  EXPECT_EQ(waiting[0].span.waits_for(), WaitsFor::kLocalSend);
  EXPECT_EQ(waiting[0].step, 3);
  EXPECT_EQ(takes_.DropTickets({7}), 1u);
  slow_.Meet(0, One());
  poller_.Turn();
  // One of a consumer that says so again over a new link: since then, as far as we know.
  clock_.now_ns += 1'000'000;
  poller_.Turn();
  ASSERT_TRUE(takes_.Waits(8, 3, other_));
  LiveOps again(1);
  takes_.ListOps(LiveOp(), &again);
  const std::vector<LiveOp> said = again.Take();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].span.since_ns(), poller_.now_ns());
  EXPECT_EQ(takes_.DropTickets({8}), 1u);
  slow_.Meet(1, One());
  poller_.Turn();
  EXPECT_TRUE(takes_.idle());
}

// A burst of them is over; what it took goes back when none was under way for a second.
TEST_F(SlowTakesTest, ManyTakesGiveTheirMemoryBack) {
  for (const size_t count : {size_t{1024}, size_t{1025}, size_t{16384}}) {
    const uint64_t bursts = poller_.bursts_over();
    const size_t before = slow_.asked.size();
    std::vector<TakingOp> ops(count);
    for (TakingOp& op : ops) takes_.Start(0, key_, &op);
    for (size_t i = 0; i < count; ++i) slow_.Meet(before + i, Tensor());
    poller_.Turn();
    EXPECT_TRUE(takes_.idle());
    EXPECT_EQ(poller_.NextTimerNs() != INT64_MAX, count > 1024) << count;
    clock_.now_ns += 999'000'000;
    poller_.Turn();
    EXPECT_EQ(poller_.NextTimerNs() != INT64_MAX, count > 1024) << count;
    clock_.now_ns += 2'000'000;
    poller_.Turn();
    EXPECT_EQ(poller_.NextTimerNs(), INT64_MAX);
    EXPECT_EQ(poller_.bursts_over() - bursts, count == 16384 ? 1u : 0u);
  }
  TakingOp op;
  takes_.Start(0, key_, &op);
  slow_.Meet(slow_.asked.size() - 1, One());
  poller_.Turn();
  EXPECT_TRUE(user_.met.back().valid());
}

// Nor is room kept for as many, in slots or without one.
TEST_F(SlowTakesTest, AfterManyTakesTheHeapIsAsItWas) {
  constexpr size_t kMany = 30'000;
  Takes takes(&poller_, &slow_, &user_, kConsumer, kMany, &given_back_);
  takes.SetEpoch(1);
  const auto heap_bytes = [] { return static_cast<int64_t>(mallinfo2().uordblks); };
  const int64_t before = heap_bytes();
  {
    std::vector<TakingOp> ops(kMany);
    std::vector<uint64_t> tickets;
    for (TakingOp& op : ops) {
      takes.Start(0, key_, &op);
      tickets.push_back(tickets.size() + 1);
      ASSERT_TRUE(takes.Waits(tickets.back(), 0, other_));
    }
    for (size_t i = 0; i < 2 * kMany; ++i) slow_.Meet(i, Tensor());
    poller_.Turn();
    EXPECT_TRUE(takes.TellHere(kMany, [](absl::Span<const uint64_t>) { return true; }));
    EXPECT_EQ(takes.DropTickets(tickets), kMany);
  }
  clock_.now_ns += 1'001'000'000;
  poller_.Turn();
  EXPECT_EQ(poller_.NextTimerNs(), INT64_MAX);
  ReleaseMemory(&slow_.asked);
  ReleaseMemory(&slow_.back);
  ReleaseMemory(&user_.met);
  EXPECT_LT(heap_bytes() - before, int64_t{kMany});
}

TEST_F(SlowTakesTest, WhatIsHereIsToldAsFarAsThereIsRoom) {
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) {
    ASSERT_TRUE(takes_.Waits(ticket, 0, key_));
    slow_.Meet(ticket - 1, One());
  }
  poller_.Turn();
  std::vector<uint64_t> told;
  size_t room = 2;
  const auto tell = [&](absl::Span<const uint64_t> tickets) {
    if (room < tickets.size()) return false;
    room -= tickets.size();
    told.insert(told.end(), tickets.begin(), tickets.end());
    return true;
  };
  EXPECT_FALSE(takes_.TellHere(1, tell));
  EXPECT_EQ(told, (std::vector<uint64_t>{1, 2}));
  EXPECT_TRUE(takes_.has_here());
  room = 9;
  EXPECT_TRUE(takes_.TellHere(1, tell));
  EXPECT_EQ(told, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_FALSE(takes_.has_here());
  EXPECT_EQ(takes_.DropTickets({1, 2, 3}), 3u);
  EXPECT_EQ(slow_.back.size(), 3u);
}

TEST_F(SlowTakesTest, ATicketIsANumberOfItsOwn) {
  TakingOp first, second;
  takes_.Start(0, key_, &first);
  takes_.Start(0, key_, &second);
  EXPECT_FALSE(takes_.Park(&first, 0, 0)) << "0 is no ticket";
  EXPECT_TRUE(takes_.Park(&first, 7, 0));
  EXPECT_FALSE(takes_.Park(&second, 7, 0)) << "it is another's";
  EXPECT_NE(second.take, nullptr) << "it stays in its slot";
  for (size_t i = 0; i < 2; ++i) slow_.Meet(i, One());
  poller_.Turn();
  EXPECT_EQ(user_.met.size(), 1u);
  EXPECT_EQ(takes_.DropTickets({7}), 1u);
  EXPECT_TRUE(takes_.idle());
}

TEST_F(SlowTakesTest, OnlySoManyArePutAside) {
  std::vector<TakingOp> ops(kMostParked + 1);
  for (uint64_t i = 0; i <= kMostParked; ++i) {
    takes_.Start(0, key_, &ops[i]);
    EXPECT_EQ(takes_.Park(&ops[i], i + 1, 0), i < kMostParked) << i;
  }
  EXPECT_EQ(takes_.parked(), kMostParked);
  for (uint64_t i = 0; i <= kMostParked; ++i) slow_.Meet(i, One());
  poller_.Turn();
  for (uint64_t i = 0; i < kMostParked; ++i) takes_.DropTickets({i + 1});
  EXPECT_TRUE(takes_.idle());
}

}  // namespace
}  // namespace tryst
