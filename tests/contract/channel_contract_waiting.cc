#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/contract/channel_contract.h"
#include "tests/process/pair/moment.h"

// Waiting costs no slot: however many fetches wait for their Send, a fetch whose tensor is there
// gets it, whatever their order.
namespace tryst {
namespace {

constexpr size_t kMany = 600;  // More than any back end has slots.

}  // namespace

TEST_P(ChannelContractTest, ATensorThatIsThereComesWhileManyWait) {
  std::vector<std::shared_ptr<Pending>> waiting;
  for (size_t i = 0; i < kMany; ++i) waiting.push_back(StartFetch(1, Key(absl::StrCat("w", i))));
  for (int i = 0; i < 20; ++i) {
    const TensorKey key = Key(absl::StrCat("here", i));
    Send(2, key, Numbers(16 << i % 12, static_cast<float>(i)));
    const Result result = StartFetch(2, key)->Wait(std::chrono::seconds(5));
    ASSERT_TRUE(result.status.ok()) << result.status << "\n" << world_->Explain();
    ASSERT_TRUE(IsNumbers(result.tensor, 16 << i % 12, static_cast<float>(i)));
  }
  world_->consumer()->AbortStep(1, absl::AbortedError("enough"));
  for (auto& fetch : waiting) {
    ASSERT_EQ(fetch->Wait().status.code(), absl::StatusCode::kAborted) << world_->Explain();
  }
}

// A RecvMany ends once, with the outcome of each key: whether all tensors come, some fail, or none
// has been requested yet.
TEST_P(ChannelContractTest, AReceiveOfManyEndsOnceHoweverItsKeysEnd) {
  struct Joined {
    Moment ended;
    int ends = 0;
    absl::Status status;
    std::vector<Received> results;
  };
  const auto start = [this](int64_t step, const RecvArgs& args) {
    std::vector<TensorKey> keys;
    for (size_t i = 0; i < kMany; ++i) keys.push_back(Key(absl::StrCat("w", i)));
    auto joined = std::make_shared<Joined>();
    world_->consumer()->FetchMany(step, keys, args,
                                  [joined](const absl::Status& status, absl::Span<Received> all) {
                                    ++joined->ends;
                                    joined->status = status;
                                    for (Received& one : all) {
                                      joined->results.push_back(std::move(one));
                                    }
                                    joined->ended.Come();
                                  });
    return joined;
  };
  const auto send = [this](int64_t step, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Send(step, Key(absl::StrCat("w", i)), Numbers(4, static_cast<float>(i)));
    }
  };
  const auto check = [&](const std::shared_ptr<Joined>& joined, size_t came,
                         absl::StatusCode code) {
    ASSERT_TRUE(joined->ended.Wait()) << world_->Explain();
    EXPECT_EQ(joined->status.code(), came == kMany ? absl::StatusCode::kOk : code);
    ASSERT_EQ(joined->results.size(), kMany);
    for (size_t i = 0; i < kMany; ++i) {
      const Received& one = joined->results[i];
      if (i >= came) {
        ASSERT_EQ(one.status.code(), code) << i << ": " << one.status;
      } else {
        ASSERT_TRUE(one.status.ok()) << i << ": " << one.status;
        ASSERT_TRUE(IsNumbers(one.tensor, 4, static_cast<float>(i))) << i;
      }
    }
  };

  const SteadyClock clock;
  const int64_t began_ns = clock.NowNs();
  send(1, kMany);
  const auto all = start(1, {});
  check(all, kMany, absl::StatusCode::kOk);
  const absl::Duration taken = absl::Nanoseconds(clock.NowNs() - began_ns);

  const auto aborted = start(2, {});
  world_->consumer()->AbortStep(2, absl::AbortedError("enough"));
  check(aborted, 0, absl::StatusCode::kAborted);

  send(3, kMany / 2);
  RecvArgs args;
  // Half of them come by then, however slow the machine is.
  args.deadline = Deadline::After(clock, absl::Seconds(1) + 10 * taken);
  const auto late = start(3, args);
  check(late, kMany / 2, absl::StatusCode::kDeadlineExceeded);
  for (const auto& joined : {all, aborted, late}) EXPECT_EQ(joined->ends, 1);
}

TEST_P(ChannelContractTest, WhatWaitsComesInTheOrderOfSends) {
  std::vector<std::shared_ptr<Pending>> waiting;
  std::vector<size_t> order;
  for (size_t i = 0; i < kMany; ++i) {
    waiting.push_back(StartFetch(1, Key(absl::StrCat("w", i))));
    order.push_back(i);
  }
  std::shuffle(order.begin(), order.end(), std::mt19937(20261));
  for (size_t i : order) {
    Send(1, Key(absl::StrCat("w", i)), Numbers(8 + 8 * static_cast<int64_t>(i), 1));
    // One after the other, so that each arrives while the rest still waits.
    const Result result = waiting[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << i << ": " << result.status << "\n" << world_->Explain();
    ASSERT_TRUE(IsNumbers(result.tensor, 8 + 8 * static_cast<int64_t>(i), 1));
    waiting[i].reset();  // This also frees the landing memory that the tensor holds.
  }
}

TEST_P(ChannelContractTest, FetchesOfOneKeyKeepTheirOrderWhileManyWait) {
  std::vector<std::shared_ptr<Pending>> waiting;
  for (size_t i = 0; i < kMany; ++i) {
    waiting.push_back(StartFetch(1, Key(absl::StrCat("w", i % (kMany / 4)))));
  }
  for (size_t i = 0; i < kMany; ++i) {
    Send(1, Key(absl::StrCat("w", i % (kMany / 4))), Numbers(4, static_cast<float>(i)));
  }
  for (size_t i = 0; i < kMany; ++i) {
    const Result result = waiting[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << i << ": " << result.status << "\n" << world_->Explain();
    ASSERT_TRUE(IsNumbers(result.tensor, 4, static_cast<float>(i))) << i;
  }
}

// Each key is sent when some keys that were requested after it have arrived.
TEST_P(ChannelContractTest, FetchesThatWaitForEachOtherAllCome) {
  constexpr size_t kKeys = 1000;
  std::mt19937 random(20262);
  std::vector<size_t> place(kKeys);  // The position of each key in the order of fetching.
  for (size_t i = 0; i < kKeys; ++i) place[i] = i;
  std::shuffle(place.begin(), place.end(), random);
  std::vector<std::shared_ptr<Pending>> fetches(kKeys);
  for (size_t i : place) fetches[i] = StartFetch(1, Key(absl::StrCat("k", i)));
  for (size_t i = 0; i < kKeys; ++i) {
    const size_t needed = i == 0 ? 0 : random() % i;
    if (i > 0) {
      const Result result = fetches[needed]->Wait();
      ASSERT_TRUE(result.status.ok()) << needed << ": " << result.status << "\n"
                                      << world_->Explain();
    }
    Send(1, Key(absl::StrCat("k", i)), Numbers(64, static_cast<float>(i)));
  }
  for (size_t i = 0; i < kKeys; ++i) {
    const Result result = fetches[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << i << ": " << result.status << "\n" << world_->Explain();
    ASSERT_TRUE(IsNumbers(result.tensor, 64, static_cast<float>(i)));
  }
}

TEST_P(ChannelContractTest, CancelsAmongManyThatWaitConsumeNothing) {
  Cancellation cancellation;
  RecvArgs cancelled;
  cancelled.cancellation = &cancellation;
  std::vector<std::shared_ptr<Pending>> waiting;
  for (size_t i = 0; i < kMany; ++i) {
    waiting.push_back(
        StartFetch(1, Key(absl::StrCat("w", i)), i % 2 == 0 ? cancelled : RecvArgs()));
  }
  // When this one arrives, all others have been requested or wait in line.
  Send(2, Key("here"), Numbers(4, 1));
  ASSERT_TRUE(FetchNow(2, Key("here")).status.ok());
  cancellation.StartCancel();
  for (size_t i = 0; i < kMany; i += 2) {
    ASSERT_EQ(waiting[i]->Wait().status.code(), absl::StatusCode::kCancelled);
  }
  for (size_t i = 0; i < kMany; ++i) {
    Send(1, Key(absl::StrCat("w", i)), Numbers(4, static_cast<float>(i)));
  }
  for (size_t i = 0; i < kMany; ++i) {
    const Result result = i % 2 == 0 ? FetchNow(1, Key(absl::StrCat("w", i))) : waiting[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << i << ": " << result.status << "\n" << world_->Explain();
    ASSERT_TRUE(IsNumbers(result.tensor, 4, static_cast<float>(i))) << i;
  }
}

TEST_P(ChannelContractTest, WhatWaitsOutlivesABrokenLink) {
  std::vector<std::shared_ptr<Pending>> waiting;
  for (size_t i = 0; i < kMany; ++i) waiting.push_back(StartFetch(1, Key(absl::StrCat("w", i))));
  Send(2, Key("here"), Numbers(4, 1));
  ASSERT_TRUE(FetchNow(2, Key("here")).status.ok());
  for (size_t i = 0; i < kMany; ++i) {
    if (i % 150 == 30 && !world_->BreakLink()) GTEST_SKIP() << "there is no link to break";
    Send(1, Key(absl::StrCat("w", i)), Numbers(4, static_cast<float>(i)));
  }
  for (size_t i = 0; i < kMany; ++i) {
    const Result result = waiting[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << i << ": " << result.status << "\n" << world_->Explain();
    ASSERT_TRUE(IsNumbers(result.tensor, 4, static_cast<float>(i))) << i;
  }
}

TEST_P(ChannelContractTest, WhatWaitsFailsWhenTheProducerIsRestarted) {
  // From here on the consumer knows the producer's incarnation.
  Send(2, Key("first"), Numbers(4, 1));
  ASSERT_TRUE(FetchNow(2, Key("first")).status.ok());
  std::vector<std::shared_ptr<Pending>> waiting;
  for (size_t i = 0; i < kMany; ++i) waiting.push_back(StartFetch(1, Key(absl::StrCat("w", i))));
  Send(2, Key("here"), Numbers(4, 1));
  ASSERT_TRUE(FetchNow(2, Key("here")).status.ok());
  if (!world_->RestartProducer()) GTEST_SKIP() << "there is one process";
  for (auto& fetch : waiting) {
    const Result result = fetch->Wait();
    ASSERT_EQ(result.status.code(), world_->EndOfALife()) << result.status << "\n"
                                                          << world_->Explain();
  }
  Send(3, Key("new"), Numbers(4, 2));
  EXPECT_TRUE(FetchNow(3, Key("new")).status.ok());
}

}  // namespace tryst
