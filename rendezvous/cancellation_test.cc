#include "rendezvous/cancellation.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace tryst {
namespace {

TEST(Cancellation, RunsCallbacksOnceInTheOrderOfRegistration) {
  Cancellation cancellation;
  std::vector<int> ran;
  const Cancellation::Token freed = cancellation.Register([&] { ran.push_back(-1); });
  EXPECT_NE(cancellation.Register([&] { ran.push_back(1); }), Cancellation::kNoToken);
  EXPECT_TRUE(cancellation.TryDeregister(freed));
  EXPECT_NE(cancellation.Register([&] { ran.push_back(2); }), Cancellation::kNoToken);
  EXPECT_FALSE(cancellation.cancelled());
  cancellation.StartCancel();
  cancellation.StartCancel();
  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
}

TEST(Cancellation, RefusesAfterCancelAndDestroysTheCallback) {
  Cancellation cancellation;
  cancellation.StartCancel();
  auto watched = std::make_shared<int>(0);
  EXPECT_EQ(cancellation.Register([watched] { FAIL(); }), Cancellation::kNoToken);
  EXPECT_EQ(watched.use_count(), 1);
}

TEST(Cancellation, TokensAreNotMistakenForTheirSuccessors) {
  Cancellation cancellation;
  bool ran = false;
  const Cancellation::Token old = cancellation.Register([] { FAIL(); });
  EXPECT_TRUE(cancellation.TryDeregister(old));
  const Cancellation::Token next = cancellation.Register([&] { ran = true; });
  EXPECT_NE(old, next);
  EXPECT_FALSE(cancellation.TryDeregister(old));
  EXPECT_FALSE(cancellation.TryDeregister(Cancellation::kNoToken));
  cancellation.StartCancel();
  EXPECT_TRUE(ran);
  EXPECT_FALSE(cancellation.TryDeregister(next));
}

TEST(Cancellation, DeregisterWaitsForARunningCallback) {
  Cancellation cancellation;
  std::atomic<bool> inside{false};
  std::atomic<bool> go_on{false};
  std::atomic<bool> ended{false};
  const Cancellation::Token token = cancellation.Register([&] {
    inside = true;
    while (!go_on) std::this_thread::yield();
    ended = true;
  });
  std::thread canceller([&] { cancellation.StartCancel(); });
  while (!inside) std::this_thread::yield();
  EXPECT_FALSE(cancellation.TryDeregister(token)) << "does not wait";
  std::thread releaser([&] { go_on = true; });
  EXPECT_FALSE(cancellation.Deregister(token));
  EXPECT_TRUE(ended);
  canceller.join();
  releaser.join();
}

// A callback may wait for the very thread that deregisters another.
TEST(Cancellation, DeregisterWaitsForNoOtherCallback) {
  Cancellation cancellation;
  std::atomic<bool> inside{false};
  std::atomic<bool> go_on{false};
  bool waited_in_vain = false;
  const Cancellation::Token before = cancellation.Register([] {});
  const Cancellation::Token token = cancellation.Register([&] {
    inside = true;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!go_on && !waited_in_vain) {
      std::this_thread::yield();
      waited_in_vain = std::chrono::steady_clock::now() > until;
    }
  });
  std::vector<int> ran;
  EXPECT_NE(cancellation.Register([&] { ran.push_back(1); }), Cancellation::kNoToken);
  auto watched = std::make_shared<int>(0);
  const Cancellation::Token behind = cancellation.Register([watched] { FAIL(); });
  const Cancellation::Token last = cancellation.Register([watched] { FAIL(); });
  EXPECT_NE(cancellation.Register([&] { ran.push_back(2); }), Cancellation::kNoToken);
  std::thread canceller([&] { cancellation.StartCancel(); });
  while (!inside) std::this_thread::yield();
  EXPECT_FALSE(cancellation.Deregister(before));
  EXPECT_TRUE(cancellation.Deregister(behind));
  EXPECT_TRUE(cancellation.TryDeregister(last));
  EXPECT_FALSE(cancellation.Deregister(last));
  EXPECT_EQ(watched.use_count(), 1);
  EXPECT_FALSE(cancellation.TryDeregister(token));
  go_on = true;
  canceller.join();
  EXPECT_FALSE(waited_in_vain);
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
}

TEST(Cancellation, ItsEndCancelsWhatIsRegistered) {
  std::vector<int> ran;
  CancellationRef late;
  Cancellation::Token token;
  {
    Cancellation cancellation;
    late = &cancellation;
    token = cancellation.Register([&] { ran.push_back(1); });
    EXPECT_NE(cancellation.Register([&] { ran.push_back(2); }), Cancellation::kNoToken);
  }
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  // A caller that registered may still ask after the owner is gone.
  EXPECT_TRUE(late->cancelled());
  EXPECT_FALSE(late->Deregister(token));
  EXPECT_EQ(late->Register([] { FAIL(); }), Cancellation::kNoToken);
}

TEST(Cancellation, MayEndInACallbackOfItsOwn) {
  auto cancellation = std::make_unique<Cancellation>();
  int ran = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(cancellation->Register([&] {
      cancellation.reset();
      ++ran;
    }),
              Cancellation::kNoToken);
  }
  Cancellation* const cancels = cancellation.get();
  cancels->StartCancel();
  EXPECT_EQ(ran, 3);
}

// Where the heap is AddressSanitizer's, it is that one which finds what is left.
TEST(Cancellation, NothingIsLeftOfOneWhoseCallbackThrows) {
  constexpr size_t kRounds = 2000;
  const auto round = [] {
    Cancellation cancellation;
    EXPECT_NE(cancellation.Register([] { throw 1; }), Cancellation::kNoToken);
    EXPECT_THROW(cancellation.StartCancel(), int);
  };
  round();
  const size_t before = mallinfo2().uordblks;
  for (size_t i = 0; i < kRounds; ++i) round();
  EXPECT_LT(mallinfo2().uordblks, before + kRounds * sizeof(CancellationState) / 2);
}

TEST(Cancellation, EachCallbackRunsOrIsDeregisteredNeverBoth) {
  for (int round = 0; round < 200; ++round) {
    Cancellation cancellation;
    std::atomic<int> ended{0};
    std::thread worker([&] {
      for (int i = 0; i < 20; ++i) {
        const Cancellation::Token token = cancellation.Register([&] { ++ended; });
        if (token == Cancellation::kNoToken || cancellation.TryDeregister(token)) ++ended;
      }
    });
    cancellation.StartCancel();
    worker.join();
    EXPECT_EQ(ended, 20);
  }
}

}  // namespace
}  // namespace tryst
