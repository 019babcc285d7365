#include "tests/contract/channel_contract.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "rendezvous/derived_status.h"
#include "tests/process/pair/moment.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:ps/replica:0/task:0/device:CPU:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0/device:CPU:0";

// What is at once in the build that ships.
#ifdef __SANITIZE_THREAD__
constexpr std::chrono::milliseconds kAtOnce{5000};
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::milliseconds kAtOnce{2000};
#else
constexpr std::chrono::milliseconds kAtOnce{500};
#endif

}  // namespace

LocalRendezvous* StepTable::step(int64_t step_id) {
  MutexLock lock(&mu_);
  std::unique_ptr<LocalRendezvous>& step = steps_[step_id];
  if (step == nullptr) {
    step = std::make_unique<LocalRendezvous>(LocalRendezvous::Options(), alarms_);
  }
  return step.get();
}

void ChannelContractTest::SetUp() {
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  for (const auto& skip : GetParam().skips) {
    if (test.substr(0, test.find('/')) == skip.first) GTEST_SKIP() << skip.second;
  }
  world_ = GetParam().open();
}

void ChannelContractTest::TearDown() {
  if (world_ == nullptr || HasFailure() || IsSkipped()) return;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string wrong = world_->Audit();
  while (!wrong.empty() && std::chrono::steady_clock::now() < until) {
    usleep(5'000);
    wrong = world_->Audit();
  }
  EXPECT_EQ(wrong, "") << world_->Explain();
}

TensorKey ChannelContractTest::Key(const std::string& edge, uint64_t incarnation) const {
  if (incarnation == 0) incarnation = world_->producer_incarnation();
  return TensorKeyPrefix::Make(kProducer, incarnation, kConsumer, edge)->At(0, 0);
}

Tensor ChannelContractTest::Numbers(int64_t elements, float first) {
  Tensor tensor = *Tensor::Allocate(DType::kFloat, {elements});
  float* at = static_cast<float*>(tensor.mutable_data());
  for (int64_t i = 0; i < elements; ++i) at[i] = first + static_cast<float>(i % 1000);
  return tensor;
}

bool ChannelContractTest::IsNumbers(const Tensor& tensor, int64_t elements, float first) {
  if (tensor.dtype() != DType::kFloat || tensor.shape() != TensorShape({elements})) return false;
  const float* at = tensor.data_as<float>();
  for (int64_t i = 0; i < elements; ++i) {
    if (at[i] != first + static_cast<float>(i % 1000)) return false;
  }
  return true;
}

std::shared_ptr<ChannelContractTest::Pending> ChannelContractTest::StartFetch(
    int64_t step, const TensorKey& key, const RecvArgs& args) {
  auto pending = std::make_shared<Pending>();
  world_->consumer()->Fetch(step, key, args, pending->Done());
  return pending;
}

ChannelContractTest::Result ChannelContractTest::FetchNow(int64_t step, const TensorKey& key,
                                                          const RecvArgs& args) {
  Result result = StartFetch(step, key, args)->Wait();
  if (!result.ended) ADD_FAILURE() << "the fetch hangs\n" << world_->Explain();
  return result;
}

void ChannelContractTest::Send(int64_t step, const TensorKey& key, Tensor tensor, bool is_dead) {
  const absl::Status sent =
      world_->producer()->step(step)->Send(key, SendArgs(), std::move(tensor), is_dead);
  ASSERT_TRUE(sent.ok()) << sent;
}

TEST_P(ChannelContractTest, FetchesWhatWasSentBefore) {
  const TensorKey key = Key("a");
  Send(1, key, Numbers(16, 3));
  const Result result = FetchNow(1, key);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(IsNumbers(result.tensor, 16, 3));
  EXPECT_FALSE(result.is_dead);
}

TEST_P(ChannelContractTest, WaitsForWhatIsSentLater) {
  const TensorKey key = Key("a");
  auto pending = StartFetch(1, key);
  usleep(50'000);
  EXPECT_FALSE(pending->ended());
  Send(1, key, Numbers(16, 3));
  const Result result = pending->Wait();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(IsNumbers(result.tensor, 16, 3));
}

TEST_P(ChannelContractTest, EverySizeArrivesWhole) {
  int64_t step = 0;
  for (int64_t elements : {0, 1, 2, 17, 1000, 1900, 2000, 2048, 4096, 65'536, 65'537, 1'000'000}) {
    for (int round = 0; round < 3; ++round) {
      const TensorKey key = Key(absl::StrCat("size", elements));
      Send(++step, key, Numbers(elements, static_cast<float>(round)));
      const Result result = FetchNow(step, key);
      ASSERT_TRUE(result.status.ok()) << elements << ": " << result.status;
      EXPECT_TRUE(IsNumbers(result.tensor, elements, static_cast<float>(round))) << elements;
    }
  }
}

TEST_P(ChannelContractTest, ShapeMayChangeBetweenSteps) {
  const TensorKey key = Key("changing");
  int64_t step = 0;
  for (int64_t elements : {100'000, 10, 200'000, 300'000, 5, 0, 1'000'000}) {
    Send(++step, key, Numbers(elements, 1));
    const Result result = FetchNow(step, key);
    ASSERT_TRUE(result.status.ok()) << elements << ": " << result.status;
    EXPECT_TRUE(IsNumbers(result.tensor, elements, 1)) << elements;
  }
}

TEST_P(ChannelContractTest, LandsInTheCallersMemory) {
  int64_t step = 0;
  for (const bool by_reference : {false, true}) {
    for (int64_t elements : {1, 100, 10'000, 1'000'000}) {
      const TensorKey key = Key(absl::StrCat("into", elements));
      RecvArgs args;
      args.by_reference = by_reference;
      args.destination = *Tensor::Allocate(DType::kFloat, {elements});
      memset(args.destination.mutable_data(), 0xee, args.destination.bytes());
      Send(++step, key, Numbers(elements, 5));
      const Result result = FetchNow(step, key, args);
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.tensor.data(), args.destination.data()) << by_reference;
      EXPECT_TRUE(IsNumbers(args.destination, elements, 5));
    }
  }
}

TEST_P(ChannelContractTest, WrongDestinationIsRefusedAndTheNextFetchWorks) {
  for (int64_t elements : {8, 100'000}) {
    const TensorKey key = Key(absl::StrCat("wrong", elements));
    RecvArgs args;
    args.destination = *Tensor::Allocate(DType::kFloat, {elements + 1});
    memset(args.destination.mutable_data(), 0xee, args.destination.bytes());
    Send(1, key, Numbers(elements, 5));
    EXPECT_EQ(FetchNow(1, key, args).status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(IsNumbers(FetchNow(1, key).tensor, elements, 5)) << "it took nothing";
    Send(2, key, Numbers(elements, 5));
    EXPECT_TRUE(FetchNow(2, key).status.ok());
  }
}

TEST_P(ChannelContractTest, DeadTensorsCrossInOrder) {
  const TensorKey key = Key("dead");
  Send(1, key, Numbers(4, 1));
  Send(1, key, Tensor(), true);
  Send(1, key, Numbers(4, 2));
  EXPECT_TRUE(IsNumbers(FetchNow(1, key).tensor, 4, 1));
  const Result dead = FetchNow(1, key);
  EXPECT_TRUE(dead.status.ok()) << dead.status;
  EXPECT_TRUE(dead.is_dead);
  EXPECT_FALSE(dead.tensor.valid());
  EXPECT_TRUE(IsNumbers(FetchNow(1, key).tensor, 4, 2));
}

TEST_P(ChannelContractTest, StringsCross) {
  std::vector<std::string> elements = {"", "short", std::string(100, '\0'),
                                       std::string(3'000'000, 'x')};
  const TensorKey key = Key("strings");
  Send(1, key, *Tensor::FromStrings(elements, {2, 2}));
  Send(2, key, *Tensor::FromStrings({"tiny"}, {1}));
  Result result = FetchNow(1, key);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.tensor.shape(), TensorShape({2, 2}));
  EXPECT_EQ(
      std::vector<std::string>(result.tensor.strings().begin(), result.tensor.strings().end()),
      elements);
  result = FetchNow(2, key);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.tensor.strings()[0], "tiny");
}

TEST_P(ChannelContractTest, FetchesOfOneKeyMeetSendsInOrder) {
  const TensorKey key = Key("fifo");
  std::vector<std::shared_ptr<Pending>> pending;
  for (int i = 0; i < 300; ++i) pending.push_back(StartFetch(1, key));
  for (int i = 0; i < 300; ++i) Send(1, key, Numbers(i % 7 == 0 ? 5000 : 3, static_cast<float>(i)));
  for (int i = 0; i < 300; ++i) {
    const Result result = pending[static_cast<size_t>(i)]->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tensor.data_as<float>()[0], static_cast<float>(i));
  }
}

// A fetch that a callback makes, on any thread, comes after one that another thread made before.
TEST_P(ChannelContractTest, FetchesMadeInACallbackKeepTheirTurn) {
  for (int round = 0; round < 20; ++round) {
    const TensorKey gate = Key(absl::StrCat("gate", round));
    const TensorKey key = Key(absl::StrCat("turn", round));
    auto first = std::make_shared<Pending>();
    auto second = std::make_shared<Pending>();
    auto many = std::make_shared<Pending>();
    world_->consumer()->Fetch(1, gate, RecvArgs(), [&, second](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      std::thread([&] { world_->consumer()->Fetch(1, key, RecvArgs(), first->Done()); }).join();
      world_->consumer()->FetchMany(
          1, {key}, RecvArgs(),
          [done = many->Done()](absl::Status, absl::Span<Received> results) mutable {
            std::move(done)({results[0].status, results[0].tensor});
          });
      world_->consumer()->Fetch(1, key, RecvArgs(), second->Done());
    });
    Send(1, gate, Numbers(1, 0));
    for (int i = 1; i <= 3; ++i) Send(1, key, Numbers(1, static_cast<float>(i)));
    float expected = 1;
    for (const auto& one : {first, many, second}) {
      const Result result = one->Wait();
      ASSERT_TRUE(result.status.ok()) << result.status;
      ASSERT_EQ(result.tensor.data_as<float>()[0], expected++);
    }
  }
}

TEST_P(ChannelContractTest, ManyKeysAtOnceWithOneCallback) {
  constexpr int kKeys = 1000;
  std::vector<TensorKey> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(Key(absl::StrCat("many", i)));
  for (int i = 0; i < kKeys; i += 2)
    Send(1, keys[static_cast<size_t>(i)], Numbers(16, static_cast<float>(i)));
  Mutex mu;
  CondVar ended;
  int calls = 0;
  int right = 0;
  world_->consumer()->FetchMany(
      1, keys, RecvArgs(), [&](absl::Status first, absl::Span<Received> results) {
        MutexLock lock(&mu);
        EXPECT_TRUE(first.ok()) << first;
        for (size_t i = 0; i < results.size(); ++i) {
          right += IsNumbers(results[i].tensor, 16, static_cast<float>(i));
        }
        ++calls;
        ended.NotifyAll();
      });
  for (int i = 1; i < kKeys; i += 2)
    Send(1, keys[static_cast<size_t>(i)], Numbers(16, static_cast<float>(i)));
  MutexLock lock(&mu);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (calls == 0 && !ended.WaitUntil(&mu, until)) {
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(right, kKeys);
}

// Small tensors of the same keys, again and again: all here, some not yet, one too large or dead,
// into memory of the caller's that fits or not, some fetched alone beside it.
TEST_P(ChannelContractTest, SmallTensorsTogetherAgainAndAgain) {
  constexpr size_t kKeys = 12;
  std::vector<TensorKey> keys;
  for (size_t i = 0; i < kKeys; ++i) keys.push_back(Key(absl::StrCat("run", i)));
  float sent = 0;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const size_t late = round % 3 == 2 ? static_cast<size_t>(round) % kKeys : kKeys;
    const size_t odd = round % 4 == 3 ? static_cast<size_t>(round * 5) % kKeys : kKeys;
    const bool misfits = odd < kKeys && round % 8 == 3;
    const auto elements_of = [&](size_t i) -> int64_t { return i == odd && !misfits ? 3000 : 4; };
    std::vector<Tensor> destinations;
    for (size_t i = 0; round % 2 == 1 && i < kKeys; ++i) {
      const int64_t more = i == odd && misfits ? 1 : 0;
      destinations.push_back(*Tensor::Allocate(DType::kFloat, {elements_of(i) + more}));
    }
    std::vector<float> value(kKeys);
    const auto send = [&](size_t i) {
      value[i] = ++sent;
      Send(1, keys[i], Numbers(elements_of(i), value[i]));
    };
    for (size_t i = 0; i < kKeys; ++i) {
      if (i != late) send(i);
    }
    Moment ended;
    std::vector<Received> got;
    RecvArgs args;
    args.destinations = destinations;
    world_->consumer()->FetchMany(1, keys, args,
                                  [&](const absl::Status&, absl::Span<Received> results) {
                                    for (Received& result : results) got.push_back(result);
                                    ended.Come();
                                  });
    auto alone = late < kKeys ? StartFetch(1, keys[late]) : nullptr;
    if (late < kKeys) send(late);
    ASSERT_TRUE(ended.Wait(std::chrono::seconds(20)));
    for (size_t i = 0; i < kKeys; ++i) {
      if (i == odd && misfits) {
        EXPECT_TRUE(absl::IsInvalidArgument(got[i].status)) << got[i].status;
        continue;
      }
      ASSERT_TRUE(got[i].status.ok()) << i << ": " << got[i].status;
      EXPECT_TRUE(IsNumbers(got[i].tensor, elements_of(i), value[i])) << i;
      if (!destinations.empty()) {
        EXPECT_EQ(got[i].tensor.data(), destinations[i].data());
      }
    }
    if (odd < kKeys && misfits && odd != late) {
      EXPECT_TRUE(IsNumbers(FetchNow(1, keys[odd]).tensor, 4, value[odd])) << "it took it";
    }
    if (alone == nullptr) continue;
    const float first = value[late];
    send(late);
    const Result result = alone->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    // Where the first did not fit, this one gets it.
    const bool got_first = late == odd && misfits;
    EXPECT_TRUE(IsNumbers(result.tensor, elements_of(late), got_first ? first : value[late]));
    if (got_first) {
      EXPECT_TRUE(FetchNow(1, keys[late]).status.ok());
    }
  }
}

// One of each four keys has no destination, two have one, small and large, and one has one that
// does not fit.
TEST_P(ChannelContractTest, ManyKeysAtOnceIntoMemoryOfOnesOwn) {
  constexpr size_t kKeys = 40;
  const auto elements_of = [](size_t i) -> int64_t { return i % 4 == 2 ? 50'000 : 16; };
  std::vector<TensorKey> keys;
  std::vector<Tensor> destinations(kKeys);
  for (size_t i = 0; i < kKeys; ++i) {
    keys.push_back(Key(absl::StrCat("into", i)));
    if (i % 4 != 0) {
      destinations[i] = *Tensor::Allocate(DType::kFloat, {elements_of(i) + (i % 4 == 3)});
    }
    if (i % 2 == 0) Send(1, keys[i], Numbers(elements_of(i), static_cast<float>(i)));
  }
  Moment ended;
  absl::Status first_error;
  std::vector<Received> got;
  RecvArgs args;
  args.destinations = destinations;
  world_->consumer()->FetchMany(1, keys, args,
                                [&](const absl::Status& first, absl::Span<Received> results) {
                                  first_error = first;
                                  for (Received& result : results) got.push_back(result);
                                  ended.Come();
                                });
  for (size_t i = 1; i < kKeys; i += 2) {
    Send(1, keys[i], Numbers(elements_of(i), static_cast<float>(i)));
  }
  ASSERT_TRUE(ended.Wait(std::chrono::seconds(20)));
  EXPECT_EQ(first_error.code(), absl::StatusCode::kInvalidArgument) << first_error;
  for (size_t i = 0; i < kKeys; ++i) {
    if (i % 4 == 3) {
      EXPECT_EQ(got[i].status.code(), absl::StatusCode::kInvalidArgument) << got[i].status;
      EXPECT_TRUE(IsNumbers(FetchNow(1, keys[i]).tensor, 16, static_cast<float>(i)))
          << "it took it";
      continue;
    }
    ASSERT_TRUE(got[i].status.ok()) << i << ": " << got[i].status;
    EXPECT_TRUE(IsNumbers(got[i].tensor, elements_of(i), static_cast<float>(i))) << i;
    if (i % 4 != 0) {
      EXPECT_EQ(got[i].tensor.data(), destinations[i].data()) << i;
    }
  }
}

TEST_P(ChannelContractTest, CancelledFetchEndsAndConsumesNothing) {
  for (int64_t elements : {16, 1'000'000}) {
    const TensorKey key = Key(absl::StrCat("cancel", elements));
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    auto first = StartFetch(1, key, args);
    auto second = StartFetch(1, key);
    usleep(20'000);
    cancellation.StartCancel();
    EXPECT_EQ(first->Wait().status.code(), absl::StatusCode::kCancelled);
    usleep(20'000);
    Send(1, key, Numbers(elements, 9));
    const Result result = second->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_TRUE(IsNumbers(result.tensor, elements, 9));
  }
}

// Whether the tensor was met, under way or had landed when the fetch was cancelled.
TEST_P(ChannelContractTest, WhatACancelledFetchHadMetGoesToTheNextOne) {
  const TensorKey key = Key("given back");
  int cancelled = 0;
  for (int i = 0; i < 200; ++i) {
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    const int64_t elements = i % 2 == 0 ? 100 : 200'000;
    Send(1, key, Numbers(elements, static_cast<float>(i)));
    auto first = StartFetch(1, key, args);
    usleep(static_cast<useconds_t>(i * 5));
    cancellation.StartCancel();
    Result result = first->Wait();
    if (absl::IsCancelled(result.status)) {
      ++cancelled;
      result = FetchNow(1, key);
    }
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_TRUE(IsNumbers(result.tensor, elements, static_cast<float>(i)));
  }
  EXPECT_GT(cancelled, 0);
}

// Threads send under eight keys. Several receives of each key are out at any time; two in five are
// cancelled or reach their deadline. Every tensor that was sent must be received once, in order.
TEST_P(ChannelContractTest, CancelsAndDeadlinesLeaveTheOrderAsItWas) {
  constexpr int kKeys = 8;
  constexpr int kTensors = 1000;
  constexpr size_t kAhead = 6;
  const SteadyClock clock;
  struct Out {
    std::unique_ptr<Cancellation> cancellation = std::make_unique<Cancellation>();
    std::shared_ptr<Pending> pending;
  };
  std::atomic<int> not_received{0};
  const auto run_key = [&](int number) {
    const TensorKey key = Key(absl::StrCat("ordered", number));
    std::thread sender([&] {
      for (int i = 0; i < kTensors; ++i) {
        Send(1, key, Numbers(i % 50 == 7 ? 60'000 : 5, static_cast<float>(i)));
        if (i % 8 == 0) std::this_thread::yield();
      }
    });
    std::minstd_rand random(static_cast<uint32_t>(number) + 1);
    std::deque<Out> out;
    for (int next = 0; next < kTensors && !HasFailure();) {
      while (out.size() < kAhead) {
        Out one;
        RecvArgs args;
        const uint32_t what = random() % 10;
        if (what < 2) {
          args.deadline = Deadline::After(clock, absl::Microseconds(random() % 300));
        } else {
          args.cancellation = one.cancellation.get();
        }
        one.pending = StartFetch(1, key, args);
        out.push_back(std::move(one));
        if (random() % 5 == 0) out[random() % out.size()].cancellation->StartCancel();
      }
      const Result result = out.front().pending->Wait();
      out.pop_front();
      if (absl::IsCancelled(result.status) || absl::IsDeadlineExceeded(result.status)) {
        ++not_received;
        continue;
      }
      EXPECT_TRUE(result.status.ok()) << result.status << world_->Explain();
      if (!result.status.ok()) break;
      EXPECT_EQ(result.tensor.data_as<float>()[0], static_cast<float>(next)) << key.text();
      ++next;
    }
    for (Out& one : out) one.cancellation->StartCancel();
    for (Out& one : out) one.pending->Wait();
    sender.join();
  };
  std::vector<std::thread> consumers;
  for (int i = 0; i < kKeys; ++i) consumers.emplace_back(run_key, i);
  for (std::thread& consumer : consumers) consumer.join();
  EXPECT_GT(not_received, kKeys * kTensors / 50);
}

// Receives that wait, however many, delay no other.
TEST_P(ChannelContractTest, WhatIsThereComesAtOnceHoweverManyWait) {
  for (const int count : {500, 20'000}) {
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    std::vector<std::shared_ptr<Pending>> waiting;
    for (int i = 0; i < count; ++i) {
      waiting.push_back(StartFetch(1, Key(absl::StrCat("awaited", count, "_", i)), args));
    }
    for (int i = 0; i < 3; ++i) {
      const int64_t elements = i == 1 ? 200'000 : 5;
      Send(1, Key("there"), Numbers(elements, static_cast<float>(i)));
      const auto began = std::chrono::steady_clock::now();
      const Result result = StartFetch(1, Key("there"))->Wait(std::chrono::seconds(10));
      ASSERT_TRUE(result.status.ok()) << count << ": " << result.status << world_->Explain();
      EXPECT_TRUE(IsNumbers(result.tensor, elements, static_cast<float>(i)));
      // The first one waits behind the requests that were posted before it.
      if (i > 0) {
        EXPECT_LT(std::chrono::steady_clock::now() - began, kAtOnce) << count;
      }
    }
    // Each waiting receive then gets what is sent: some in their own memory, one dead, the rest
    // cancelled.
    const auto key = [&](int i) { return Key(absl::StrCat("awaited", count, "_", i)); };
    const int last = count - 1;
    Send(1, key(last), Numbers(7, 1));
    Send(1, key(last - 1), Tensor(), true);
    Send(1, key(3), Numbers(70'000, 2));
    EXPECT_TRUE(IsNumbers(waiting[static_cast<size_t>(last)]->Wait().tensor, 7, 1));
    EXPECT_TRUE(waiting[static_cast<size_t>(last - 1)]->Wait().is_dead);
    EXPECT_TRUE(IsNumbers(waiting[3]->Wait().tensor, 70'000, 2));
    cancellation.StartCancel();
    int received = 0;
    for (const auto& one : waiting) {
      const Result result = one->Wait();
      received += result.status.ok();
      EXPECT_TRUE(result.status.ok() || absl::IsCancelled(result.status)) << result.status;
      if (HasFailure()) return;
    }
    EXPECT_EQ(received, 3);
    // The cancelled ones have taken nothing and left nothing behind.
    Send(1, key(5), Numbers(2, 4));
    EXPECT_TRUE(IsNumbers(FetchNow(1, key(5)).tensor, 2, 4));
  }
}

TEST_P(ChannelContractTest, AnAbortedStepEndsAllThatWaitForIt) {
  constexpr int kWaiting = 3000;
  std::vector<std::shared_ptr<Pending>> theirs, ours, others;
  for (int i = 0; i < kWaiting; ++i) {
    theirs.push_back(StartFetch(1, Key(absl::StrCat("wanted", i))));
    ours.push_back(StartFetch(2, Key(absl::StrCat("wanted", i))));
    if (i % 100 == 0) others.push_back(StartFetch(3, Key(absl::StrCat("wanted", i))));
  }
  usleep(20'000);
  world_->producer()->step(1)->StartAbort(absl::InternalError("the kernel failed"));
  for (const auto& one : theirs) {
    const Result result = one->Wait();
    ASSERT_EQ(result.status.code(), absl::StatusCode::kInternal) << result.status;
  }
  world_->consumer()->AbortStep(2, absl::AbortedError("step 2 was given up"));
  for (const auto& one : ours) {
    ASSERT_EQ(one->Wait().status.code(), absl::StatusCode::kAborted) << one->Wait().status;
  }
  for (size_t i = 0; i < others.size(); ++i) {
    Send(3, Key(absl::StrCat("wanted", i * 100)), Numbers(3, static_cast<float>(i)));
    ASSERT_TRUE(IsNumbers(others[i]->Wait().tensor, 3, static_cast<float>(i)));
  }
}

TEST_P(ChannelContractTest, CancelledBeforeItStarts) {
  Cancellation cancellation;
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  EXPECT_EQ(FetchNow(1, Key("a"), args).status.code(), absl::StatusCode::kCancelled);
}

TEST_P(ChannelContractTest, DeadlineEndsTheFetchInTime) {
  const SteadyClock clock;
  RecvArgs args;
  args.deadline = Deadline::After(clock, absl::Milliseconds(80));
  const int64_t start_ns = clock.NowNs();
  const Result result = FetchNow(1, Key("never"), args);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded) << result.status;
  EXPECT_GE(clock.NowNs() - start_ns, 80'000'000);
  EXPECT_LT(clock.NowNs() - start_ns, 2'000'000'000);
}

// One cause has one code and one wording, whatever path the fetch took.
TEST_P(ChannelContractTest, ADeadlineACancelAndARestartAreSaidInTheSameWords) {
  Send(1, Key("met"), Numbers(1, 1));
  ASSERT_TRUE(FetchNow(1, Key("met")).status.ok());
  const std::string worker(Key("met").src().worker);
  const SteadyClock clock;
  RecvArgs args;
  args.deadline = Deadline::After(clock, absl::Milliseconds(200));
  EXPECT_EQ(FetchNow(1, Key("never"), args).status,
            absl::DeadlineExceededError(
                absl::StrCat("not received in time: waits for the peer's Send of ", worker)));
  Cancellation cancellation;
  RecvArgs cancelled;
  cancelled.cancellation = &cancellation;
  auto pending = StartFetch(1, Key("cancelled"), cancelled);
  usleep(50'000);
  cancellation.StartCancel();
  const absl::Status ended = pending->Wait().status;
  EXPECT_EQ(ended, FetchNow(1, Key("cancelled"), cancelled).status) << "before it has begun";
  EXPECT_EQ(ended.message(), "the fetch was cancelled by its caller");
  EXPECT_TRUE(IsDerived(ended));

  const uint64_t before = world_->producer_incarnation();
  auto old = StartFetch(1, Key("old"));
  usleep(50'000);
  if (!world_->RestartProducer() || world_->EndOfALife() != absl::StatusCode::kAborted) {
    world_->producer()->step(1)->StartAbort(absl::CancelledError("end of test"));
    old->Wait();
    return;
  }
  EXPECT_EQ(old->Wait().status, absl::AbortedError(absl::StrFormat(
                                    "%s has restarted: its incarnation was %016x and is %016x",
                                    worker, before, world_->producer_incarnation())));
}

TEST_P(ChannelContractTest, DeadlineWithCallersMemoryWaitsForTheLastWord) {
  const SteadyClock clock;
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kFloat, {100'000});
  memset(args.destination.mutable_data(), 0xee, args.destination.bytes());
  args.deadline = Deadline::After(clock, absl::Milliseconds(50));
  const TensorKey key = Key("late");
  EXPECT_EQ(FetchNow(1, key, args).status.code(), absl::StatusCode::kDeadlineExceeded);
  // What is sent from now on must not be written into the caller's memory.
  Send(1, key, Numbers(100'000, 1));
  usleep(50'000);
  const uint8_t* at = args.destination.data_as<uint8_t>();
  for (uint64_t i = 0; i < args.destination.bytes(); ++i) ASSERT_EQ(at[i], 0xee) << i;
  EXPECT_TRUE(IsNumbers(FetchNow(1, key).tensor, 100'000, 1));
}

TEST_P(ChannelContractTest, AbortOfTheProducersStepReachesTheConsumer) {
  auto pending = StartFetch(7, Key("aborted"));
  usleep(20'000);
  world_->producer()->step(7)->StartAbort(absl::InternalError("the kernel failed"));
  const Result result = pending->Wait();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal) << result.status;
  EXPECT_NE(result.status.message().find("the kernel failed"), absl::string_view::npos);
}

// However long its text is; the audit behind the test sees that nothing broke of it.
TEST_P(ChannelContractTest, WhyATensorFailsIsSaidWhole) {
  for (int64_t bytes = 0; bytes <= 1050; bytes = bytes == 240 ? 1000 : bytes + 1) {
    const std::string why(static_cast<size_t>(bytes), 'w');
    const int64_t step = 100 + bytes;
    world_->producer()->step(step)->StartAbort(absl::InternalError(why));
    const Result result = FetchNow(step, Key("failed"));
    ASSERT_EQ(result.status.code(), absl::StatusCode::kInternal) << bytes << ": " << result.status;
    ASSERT_TRUE(absl::StrContains(result.status.message(), why.substr(0, 900))) << bytes;
  }
}

TEST_P(ChannelContractTest, AbortOfTheConsumersStepEndsItsFetchesOnly) {
  auto aborted = StartFetch(7, Key("a"));
  auto other = StartFetch(8, Key("a"));
  usleep(20'000);
  world_->consumer()->AbortStep(7, absl::AbortedError("step 7 was given up"));
  EXPECT_EQ(aborted->Wait().status.code(), absl::StatusCode::kAborted);
  Send(8, Key("a"), Numbers(4, 4));
  EXPECT_TRUE(IsNumbers(other->Wait().tensor, 4, 4));
}

TEST_P(ChannelContractTest, CallbacksRunOnTheGivenExecutor) {
  ThreadPoolExecutor executor(1, 16);
  RecvArgs args;
  args.executor = &executor;
  const TensorKey key = Key("executor");
  std::vector<std::shared_ptr<Pending>> pending;
  for (int i = 0; i < 200; ++i) {
    Send(1, key, Numbers(2, static_cast<float>(i)));
    pending.push_back(StartFetch(1, key, args));
  }
  for (auto& one : pending) EXPECT_TRUE(one->Wait().status.ok());
}

TEST_P(ChannelContractTest, LandingMemoryStaysUnderItsCap) {
  const uint64_t cap = GetParam().landing_bytes;
  if (cap == 0) GTEST_SKIP() << "this back end has no landing cap";
  // Asks for four times the cap at once; drops each tensor when it has arrived.
  const int64_t elements = static_cast<int64_t>(cap / 8 / sizeof(float));
  std::vector<std::shared_ptr<Pending>> pending;
  for (int i = 0; i < 32; ++i) pending.push_back(StartFetch(1, Key(absl::StrCat("cap", i))));
  for (int i = 0; i < 32; ++i) {
    Send(1, Key(absl::StrCat("cap", i)), Numbers(elements, static_cast<float>(i)));
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    const Result result = pending[i]->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_TRUE(IsNumbers(result.tensor, elements, static_cast<float>(i)));
    pending[i].reset();
  }
  EXPECT_LE(world_->PinnedBytes().second, cap);
  // A tensor larger than the cap comes alone, whatever is lent to who waits for a Send.
  const auto waits = StartFetch(3, Key("nobody sends it"));
  const int64_t huge = static_cast<int64_t>(cap / sizeof(float)) + 1;
  Send(2, Key("huge"), Numbers(huge, 0));
  const Result alone = FetchNow(2, Key("huge"));
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  EXPECT_TRUE(IsNumbers(alone.tensor, huge, 0));
  RecvArgs own;
  own.destination = Numbers(huge, 0);
  Send(2, Key("own"), Numbers(huge, 9));
  const Result result = FetchNow(2, Key("own"), own);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(IsNumbers(result.tensor, huge, 9));
  world_->producer()->step(3)->StartAbort(absl::CancelledError("end of test"));
  EXPECT_FALSE(waits->Wait().status.ok());
}

TEST_P(ChannelContractTest, WhatWasReceivedMayBeHeldWhereNothingIsPinned) {
  const uint64_t cap = GetParam().landing_bytes;
  if (cap == 0 || GetParam().pins_memory) GTEST_SKIP() << "what is held takes landing memory";
  std::vector<Tensor> held;
  const int64_t elements = static_cast<int64_t>(cap / 4 / sizeof(float));
  for (int i = 0; i < 12; ++i) {
    Send(1, Key("held"), Numbers(elements, static_cast<float>(i)));
    const Result result = FetchNow(1, Key("held"));
    ASSERT_TRUE(result.status.ok()) << result.status;
    held.push_back(result.tensor);
  }
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_TRUE(IsNumbers(held[i], elements, static_cast<float>(i))) << i;
  }
}

// Nobody waits for the next look at what waits.
TEST_P(ChannelContractTest, RoomThatIsGivenBackIsTakenAtOnce) {
  const uint64_t cap = GetParam().landing_bytes;
  if (cap == 0) GTEST_SKIP() << "this back end has no landing cap";
  if (!GetParam().pins_memory) GTEST_SKIP() << "what is held takes no landing memory";
  const auto fetch = [&](int i, uint64_t bytes) {
    const TensorKey key = Key(absl::StrCat("room", i));
    Send(1, key, Numbers(static_cast<int64_t>(bytes / sizeof(float)), 0));
    return StartFetch(1, key);
  };
  const auto held = fetch(0, cap / 4 * 3);
  ASSERT_TRUE(held->Wait().status.ok());
  auto last = fetch(1, cap / 16 * 3);
  ASSERT_TRUE(last->Wait().status.ok());
  std::chrono::steady_clock::duration waited{};
  for (int i = 2; i < 7; ++i) {
    auto next = fetch(i, cap / 16 * 3);
    EXPECT_FALSE(next->ended());
    usleep(10'000);
    const auto began = std::chrono::steady_clock::now();
    last.reset();
    const Result result = next->Wait();
    waited += std::chrono::steady_clock::now() - began;
    ASSERT_TRUE(result.status.ok()) << result.status;
    last = std::move(next);
  }
  EXPECT_LT(waited, 5 * kAtOnce);
}

TEST_P(ChannelContractTest, SurvivesABrokenLink) {
  const TensorKey key = Key("broken");
  Send(1, key, Numbers(10, 1));
  ASSERT_TRUE(FetchNow(1, key).status.ok());
  if (!world_->BreakLink()) GTEST_SKIP() << "this back end has no link of its own to break";
  Send(1, key, Numbers(10, 2));
  const Result result = FetchNow(1, key);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(IsNumbers(result.tensor, 10, 2));
}

TEST_P(ChannelContractTest, NothingIsLostOrDoubledOverBrokenLinks) {
  const TensorKey key = Key("stream");
  Send(0, key, Numbers(1, 0));
  ASSERT_TRUE(FetchNow(0, key).status.ok());
  if (!world_->BreakLink()) GTEST_SKIP() << "this back end has no link of its own to break";
  constexpr int kTensors = 400;
  std::thread sender([&] {
    for (int i = 0; i < kTensors; ++i) {
      Send(1, key, Numbers(i % 5 == 0 ? 50'000 : 20, static_cast<float>(i)));
      if (i % 20 == 0) usleep(2'000);
    }
  });
  std::thread breaker([&] {
    for (int i = 0; i < 12; ++i) {
      usleep(7'000);
      world_->BreakLink();
    }
  });
  std::vector<std::shared_ptr<Pending>> pending;
  for (int i = 0; i < kTensors; ++i) pending.push_back(StartFetch(1, key));
  for (int i = 0; i < kTensors; ++i) {
    const Result result = pending[static_cast<size_t>(i)]->Wait();
    EXPECT_TRUE(result.status.ok()) << i << ": " << result.status << "\n" << world_->Explain();
    if (HasFailure()) break;  // The threads must be joined first.
    EXPECT_TRUE(IsNumbers(result.tensor, i % 5 == 0 ? 50'000 : 20, static_cast<float>(i)))
        << i << " is " << result.tensor.data_as<float>()[0];
  }
  sender.join();
  breaker.join();
}

TEST_P(ChannelContractTest, GoesOnByAnotherPathAndComesBack) {
  const TensorKey key = Key("moving");
  Send(0, key, Numbers(1, 0));
  ASSERT_TRUE(FetchNow(0, key).status.ok());
  if (!world_->LosePath(true)) GTEST_SKIP() << "this back end has one path";
  // The path is lost twice: at the consumer, then at the producer. At that moment some tensors have
  // been sent, some are waited for, and some are large.
  float next = 0;
  for (int round = 0; round < 2; ++round) {
    if (round > 0) world_->LosePath(true);
    constexpr int kTensors = 60;
    std::vector<std::shared_ptr<Pending>> pending;
    const auto elements = [](int i) { return i % 7 == 0 ? 200'000 : 20; };
    for (int i = 0; i < kTensors; ++i) pending.push_back(StartFetch(1, key));
    for (int i = 0; i < kTensors; ++i)
      Send(1, key, Numbers(elements(i), next + static_cast<float>(i)));
    for (int i = 0; i < kTensors; ++i) {
      const Result result = pending[static_cast<size_t>(i)]->Wait();
      ASSERT_TRUE(result.status.ok()) << i << ": " << result.status << world_->Explain();
      EXPECT_TRUE(IsNumbers(result.tensor, elements(i), next + static_cast<float>(i))) << i;
    }
    next += kTensors;
    EXPECT_NE(world_->Explain().find("left since"), std::string::npos) << world_->Explain();
    world_->LosePath(false);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (world_->Explain().find("left since") != std::string::npos &&
           std::chrono::steady_clock::now() < until) {
      usleep(10'000);
    }
    EXPECT_EQ(world_->Explain().find("left since"), std::string::npos) << world_->Explain();
    Send(1, key, Numbers(3, next));
    EXPECT_TRUE(IsNumbers(FetchNow(1, key).tensor, 3, next));
    ++next;
  }
}

// A standing receive on one path must not be waited for on another.
TEST_P(ChannelContractTest, WhatRecursGoesOnByAnotherPathAndComesBack) {
  const TensorKey key = Key("recurs");
  RecvArgs args;
  args.recurring = true;
  int64_t step = 0;
  const auto run_steps = [&](int count) {
    for (; count > 0; --count, ++step) {
      const float first = static_cast<float>(step);
      // Alternates: before its fetch, where it meets the standing receive, and after it.
      if (step % 2 == 0) Send(step, key, Numbers(20'000, first));
      auto pending = StartFetch(step, key, args);
      if (step % 2 != 0) Send(step, key, Numbers(20'000, first));
      const Result result = pending->Wait();
      ASSERT_TRUE(result.status.ok()) << step << ": " << result.status << world_->Explain();
      ASSERT_TRUE(IsNumbers(result.tensor, 20'000, first)) << step;
    }
  };
  run_steps(6);
  if (!world_->LosePath(true)) GTEST_SKIP() << "this back end has one path";
  for (int round = 0; round < 2; ++round) {
    if (round > 0) world_->LosePath(true);
    run_steps(6);
    // The tensor may already be on its way to the standing receive.
    Send(step, key, Numbers(20'000, static_cast<float>(step)));
    world_->LosePath(false);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (world_->Explain().find("left since") != std::string::npos &&
           std::chrono::steady_clock::now() < until) {
      usleep(10'000);
    }
    const Result result = FetchNow(step, key, args);
    ASSERT_TRUE(result.status.ok()) << result.status << world_->Explain();
    EXPECT_TRUE(IsNumbers(result.tensor, 20'000, static_cast<float>(step)));
    ++step;
    run_steps(6);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ChannelContractTest, WhatEndsWhileThePathIsLostGetsNobodyElsesTensor) {
  const TensorKey key = Key("gone");
  Send(0, key, Numbers(1, 0));
  ASSERT_TRUE(FetchNow(0, key).status.ok());
  if (!world_->LosePath(true)) GTEST_SKIP() << "this back end has one path";
  const SteadyClock clock;
  RecvArgs brief;
  brief.deadline = Deadline::After(clock, absl::Milliseconds(20));
  auto lost = StartFetch(1, key, brief);
  auto kept = StartFetch(1, key);
  EXPECT_EQ(lost->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  Send(1, key, Numbers(5, 7));
  EXPECT_TRUE(IsNumbers(kept->Wait().tensor, 5, 7));
  world_->LosePath(false);
}

TEST_P(ChannelContractTest, RestartedProducerFailsWhatWasPendingAndServesWhatComes) {
  auto pending = StartFetch(1, Key("old"));
  Send(1, Key("met"), Numbers(1, 1));
  ASSERT_TRUE(FetchNow(1, Key("met")).status.ok());
  const uint64_t before = world_->producer_incarnation();
  if (!world_->RestartProducer()) {
    world_->producer()->step(1)->StartAbort(absl::CancelledError("end of test"));
    pending->Wait();
    GTEST_SKIP() << "this world has no producer to restart";
  }
  const Result result = pending->Wait();
  EXPECT_EQ(result.status.code(), world_->EndOfALife()) << result.status;
  EXPECT_NE(result.status.message().find(absl::StrCat(absl::Hex(before, absl::kZeroPad16))),
            absl::string_view::npos)
      << result.status;
  Send(2, Key("new"), Numbers(3, 3));
  EXPECT_TRUE(IsNumbers(FetchNow(2, Key("new")).tensor, 3, 3));
}

// The caller learns of the restart by a heartbeat, say; the channel only when it connects again.
TEST_P(ChannelContractTest, WhoKnowsOfARestartBeforeTheChannelIsServedByTheNewLife) {
  Send(1, Key("met"), Numbers(1, 1));
  ASSERT_TRUE(FetchNow(1, Key("met")).status.ok());
  const TensorKey key = Key("early", world_->producer_incarnation() + 1);
  auto early = StartFetch(2, key);
  SteadyClock clock;
  for (const int64_t until_ns = clock.NowNs() + 50'000'000; clock.NowNs() < until_ns;) {
  }
  if (!world_->RestartProducer()) {
    world_->producer()->step(2)->StartAbort(absl::CancelledError("end of test"));
    early->Wait();
    GTEST_SKIP() << "this world has no producer to restart";
  }
  ASSERT_EQ(key.src_incarnation(), world_->producer_incarnation());
  Send(2, key, Numbers(3, 3));
  const Result result = early->Wait();
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(IsNumbers(result.tensor, 3, 3));
}

}  // namespace tryst
