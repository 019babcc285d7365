#include "rendezvous/waiter.h"

#include <atomic>
#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace tryst {
namespace {

// Counts who waits, and gives its turns to everybody or to nobody.
class CountedTurns final : public Turns {
 public:
  explicit CountedTurns(bool gives) : gives_(gives) {}
  bool Enter() override {
    ++waiting;
    return gives_;
  }
  void TurnUntil(Waiter* waiter, int64_t) override {
    ++turned;
    waiter->End();
  }
  void Leave() override { --waiting; }
  void Wake() override {}

  int waiting = 0;
  int turned = 0;

 private:
  const bool gives_;
};

TEST(WaiterTest, WhoHasWaitedNoLongerCounts) {
  for (const bool gives : {false, true}) {
    const auto turns = std::make_shared<CountedTurns>(gives);
    Waiter waiter(turns);
    {
      WaitScope scope(&waiter);
      EXPECT_EQ(turns->waiting, 1);
      if (!gives) waiter.End();
      EXPECT_TRUE(scope.Until(Waiter::kForever));
    }
    EXPECT_EQ(turns->waiting, 0) << gives;
    EXPECT_EQ(turns->turned, gives ? 1 : 0);
  }
}

// It brings the tensors of others, and must not wait for its own.
TEST(WaiterTest, WhoDeliversForOthersGetsNoTurns) {
  const auto turns = std::make_shared<CountedTurns>(true);
  Waiter waiter(turns);
  {
    const DeliveringScope delivers;
    WaitScope scope(&waiter);
    EXPECT_EQ(turns->waiting, 0);
    waiter.End();
    EXPECT_TRUE(scope.Until(Waiter::kForever));
  }
  EXPECT_EQ(turns->waiting, 0);
  EXPECT_EQ(turns->turned, 0);
}

TEST(WaiterTest, AnEndJustBeforeTheSleepIsNotMissed) {
  constexpr int kRounds = 100'000;
  std::atomic<Waiter*> next{nullptr};
  std::thread ends([&next] {
    for (int round = 0; round < kRounds; ++round) {
      Waiter* waiter;
      while ((waiter = next.exchange(nullptr)) == nullptr) {
      }
      for (volatile int pause = round % 64; pause > 0; pause = pause - 1) {
      }
      waiter->End();
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    Waiter waiter;
    next = &waiter;
    EXPECT_TRUE(waiter.Wait(Waiter::kForever));
  }
  ends.join();
}

TEST(WaiterTest, AWaitEndsInTime) {
  Waiter waiter;
  EXPECT_FALSE(waiter.Wait(/*until_ns=*/0));
  EXPECT_FALSE(waiter.Wait(/*until_ns=*/1));
  waiter.End();
  EXPECT_TRUE(waiter.Wait(/*until_ns=*/0));
}

}  // namespace
}  // namespace tryst
