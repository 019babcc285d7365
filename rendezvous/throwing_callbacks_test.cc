// What happens to the others when a caller's callback throws. Our own code never does.

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/step_registry.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

struct Thrown : std::runtime_error {
  explicit Thrown(int number) : std::runtime_error(absl::StrCat(number)), number(number) {}
  int number;
};

struct ThrowingCallbacks : testing::Test {
  DoneFn Throw(int number) {
    return [this, number](Received&&) {
      ran.push_back(number);
      throw Thrown(number);
    };
  }
  template <typename Fn>
  static int NumberThrownBy(Fn fn) {
    try {
      fn();
    } catch (const Thrown& thrown) {
      return thrown.number;
    }
    return -1;
  }

  std::vector<int> ran;
  VirtualAlarms alarms;
  std::unique_ptr<LocalRendezvous> rendezvous =
      std::make_unique<LocalRendezvous>(LocalRendezvous::Options(), &alarms);
};

TEST_F(ThrowingCallbacks, AnAbortEndsAllOfThemAndThrowsTheFirst) {
  RecvArgs late;
  late.deadline = Deadline::After(alarms, absl::Seconds(1));
  for (int i = 0; i < 10; ++i) {
    rendezvous->RecvAsync(LocalKey(absl::StrCat(i)), i % 2 == 0 ? RecvArgs() : late, Throw(i));
  }
  const auto neighbour = Receive(rendezvous.get(), LocalKey("n"));
  bool batch_ended = false;
  rendezvous->RecvManyAsync({LocalKey("b"), LocalKey("c")}, RecvArgs(),
                            [&](absl::Status, absl::Span<Received>) {
                              batch_ended = true;
                              throw Thrown(10);
                            });
  const int number = NumberThrownBy([&] { rendezvous->StartAbort(absl::InternalError("over")); });
  ASSERT_EQ(ran.size(), 10u) << "none is dropped";
  EXPECT_TRUE(batch_ended);
  EXPECT_GE(number, 0);
  EXPECT_EQ(neighbour->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(rendezvous->counters().waiting_receives, 0);
  rendezvous.reset();
  EXPECT_EQ(alarms.size(), 0u);
}

TEST_F(ThrowingCallbacks, ACancelEndsAllOfThemAndThrowsTheFirst) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  for (int i = 0; i < 10; ++i) rendezvous->RecvAsync(LocalKey(absl::StrCat(i)), args, Throw(i));
  EXPECT_EQ(NumberThrownBy([&] { cancellation.StartCancel(); }), 0);
  EXPECT_EQ(ran.size(), 10u);
  EXPECT_FALSE(cancellation.Deregister(1)) << "nothing runs any more";
}

TEST_F(ThrowingCallbacks, ASendAndAReceiveThrowToTheirCallerAndHaveHappened) {
  rendezvous->RecvAsync(LocalKey("a"), RecvArgs(), Throw(1));
  EXPECT_EQ(NumberThrownBy([&] { (void)SendNumber(rendezvous.get(), LocalKey("a"), 1); }), 1);
  ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), 2).ok());
  EXPECT_EQ(NumberThrownBy([&] { rendezvous->RecvAsync(LocalKey("a"), RecvArgs(), Throw(2)); }), 2);
  EXPECT_EQ(rendezvous->counters().delivered, 2);
  EXPECT_EQ(rendezvous->counters().waiting_sends, 0);
}

TEST_F(ThrowingCallbacks, SendManyDeliversTheRest) {
  for (int i = 0; i < 5; ++i)
    rendezvous->RecvAsync(LocalKey(absl::StrCat(i)), RecvArgs(), Throw(i));
  std::vector<SendItem> items;
  for (int i = 0; i < 10; ++i) items.push_back({LocalKey(absl::StrCat(i)), Number(i), false});
  EXPECT_GE(NumberThrownBy([&] { (void)rendezvous->SendMany(absl::MakeSpan(items), SendArgs()); }),
            0);
  EXPECT_EQ(ran.size(), 5u);
  for (int i = 5; i < 10; ++i) {
    EXPECT_EQ(Receive(rendezvous.get(), LocalKey(absl::StrCat(i)))->number(), i);
  }
}

TEST_F(ThrowingCallbacks, ABatchIsUsedAgain) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(SendNumber(rendezvous.get(), LocalKey("a"), i).ok());
    EXPECT_EQ(NumberThrownBy([&] {
                rendezvous->RecvManyAsync({LocalKey("a")}, RecvArgs(),
                                          [&](absl::Status, absl::Span<Received> results) {
                                            EXPECT_EQ(*results[0].tensor.data_as<int64_t>(), i);
                                            throw Thrown(i);
                                          });
              }),
              i);
  }
}

TEST_F(ThrowingCallbacks, EveryStepIsCleanedUp) {
  StepRegistry::Options options;
  options.worker = kWorker0;
  auto registry = *StepRegistry::Make(options, &alarms, nullptr);
  for (int i = 0; i < 3; ++i) {
    (*registry->StartStep(i))->RecvAsync(LocalKey("a"), RecvArgs(), Throw(i));
  }
  EXPECT_GE(NumberThrownBy([&] { registry->CleanupAll(); }), 0);
  EXPECT_EQ(ran.size(), 3u);
  EXPECT_EQ(registry->counters().steps, 0);
}

}  // namespace
}  // namespace tryst
