// What gRPC promises about waiting receives: their order, their cost and their ends.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "rendezvous/derived_status.h"
#include "tests/contract/grpc_world.h"

namespace tryst {

// This test uses only its world.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChannelContractTest);

namespace {

constexpr char kProducer[] = "/job:ps/replica:0/task:0/device:CPU:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0/device:CPU:0";

int64_t ResidentBytes() {
  FILE* file = fopen("/proc/self/statm", "r");
  long long pages = 0, resident = 0;
  if (fscanf(file, "%lld %lld", &pages, &resident) != 2) resident = 0;
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t HeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

// TRYST_WAITING sets how many receives wait.
int WaitingCount() {
  const char* said = getenv("TRYST_WAITING");
  return said != nullptr ? atoi(said) : 20'000;
}

// Collects the ends of receives.
class Ends {
 public:
  struct End {
    absl::Status status;
    float value = 0;
  };
  DoneFn Done(int number) {
    return [this, number](Received&& received) {
      MutexLock lock(&mu_);
      const float value = received.tensor.valid() ? received.tensor.data_as<float>()[0] : -1;
      EXPECT_TRUE(ends_.emplace(number, End{std::move(received.status), value}).second) << number;
      order_.push_back(number);
      changed_.NotifyAll();
    };
  }
  bool WaitFor(size_t count, std::chrono::seconds at_most = std::chrono::seconds(60)) {
    const auto until = std::chrono::steady_clock::now() + at_most;
    MutexLock lock(&mu_);
    while (ends_.size() < count) {
      if (changed_.WaitUntil(&mu_, until)) break;
    }
    return ends_.size() >= count;
  }
  size_t count() {
    MutexLock lock(&mu_);
    return ends_.size();
  }
  std::map<int, End> ends() {
    MutexLock lock(&mu_);
    return ends_;
  }
  End at(int number) {
    MutexLock lock(&mu_);
    return ends_[number];
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::map<int, End> ends_ ABSL_GUARDED_BY(mu_);
  std::vector<int> order_ ABSL_GUARDED_BY(mu_);
};

class GrpcWaitingTest : public ::testing::Test {
 protected:
  void Open(const GrpcWorldOptions& options = {}) { world_ = OpenGrpcWorld(options); }
  TensorKey Key(const std::string& edge) const {
    return TensorKeyPrefix::Make(kProducer, world_->producer_incarnation(), kConsumer, edge)
        ->At(0, 0);
  }
  static Tensor Number(float value, int64_t elements = 1) {
    Tensor tensor = *Tensor::Allocate(DType::kFloat, {elements});
    float* at = static_cast<float*>(tensor.mutable_data());
    for (int64_t i = 0; i < elements; ++i) at[i] = value;
    return tensor;
  }
  void Send(int64_t step, const TensorKey& key, float value, int64_t elements = 1) {
    const absl::Status sent =
        world_->producer()->step(step)->Send(key, SendArgs(), Number(value, elements), false);
    ASSERT_TRUE(sent.ok()) << sent;
  }
  void Fetch(int64_t step, const TensorKey& key, Ends* ends, int number,
             const RecvArgs& args = {}) {
    world_->consumer()->Fetch(step, key, args, ends->Done(number));
  }
  template <typename Condition>
  static bool Eventually(Condition condition, int seconds = 30) {
    for (int i = 0; i < seconds * 200; ++i) {
      if (condition()) return true;
      usleep(5'000);
    }
    return false;
  }

  Ends ends_;  // Declared first, because it must outlive the world.
  std::unique_ptr<GrpcWorld> world_;
};

// The producer has nothing to say of a tensor that was not sent, but it says that it is there: of
// the receive in a call of its own, and of the one in a batch.
TEST_F(GrpcWaitingTest, ReceivesMayWaitForLongerThanThePatience) {
  GrpcWorldOptions options;
  options.channel.patience = absl::Milliseconds(500);
  options.channel.max_asked = 1;
  Open(options);
  Fetch(1, Key("a"), &ends_, 0);
  Fetch(1, Key("b"), &ends_, 1);
  usleep(1'700'000);
  EXPECT_EQ(ends_.count(), 0u);
  EXPECT_EQ(world_->served().repetitions, 0u);
  Send(1, Key("a"), 3);
  Send(1, Key("b"), 4);
  ASSERT_TRUE(ends_.WaitFor(2));
  EXPECT_EQ(ends_.at(0).value, 3) << ends_.at(0).status;
  EXPECT_EQ(ends_.at(1).value, 4) << ends_.at(1).status;
}

// Sizes alternate between small and large: without order, a small later tensor would overtake a
// large earlier one.
TEST_F(GrpcWaitingTest, ReceivesOfOneKeyOutAtOnceComeInTheirOrder) {
  Open();
  constexpr int kTensors = 5000;
  constexpr int kPairs = 4;  // Pairs of receives of one key that are out at once.
  for (int i = 0; i < kTensors; i += kPairs) {
    const TensorKey key = Key(absl::StrCat("pair", i % 16));
    for (int j = 0; j < kPairs; ++j) Fetch(i, key, &ends_, i + j);
    for (int j = 0; j < kPairs; ++j) Send(i, key, static_cast<float>(i + j), j == 0 ? 4000 : 1);
    if (i % 400 != 0) continue;
    ASSERT_TRUE(ends_.WaitFor(static_cast<size_t>(i))) << world_->Explain();
  }
  ASSERT_TRUE(ends_.WaitFor(kTensors)) << world_->Explain();
  int wrong = 0;
  for (const auto& [number, end] : ends_.ends()) {
    ASSERT_TRUE(end.status.ok()) << end.status;
    wrong += end.value != static_cast<float>(number);
  }
  EXPECT_EQ(wrong, 0) << "of " << kTensors;
}

// Some receives are cancelled or time out at any stage; those that get a tensor get it in order.
TEST_F(GrpcWaitingTest, ReceivesThatEndEarlyLeaveTheOrderOfTheOthers) {
  Open();
  constexpr int kKeys = 8;
  constexpr int kRounds = 3000;  // For each key.
  std::mt19937 random(20261);
  std::vector<TensorKey> keys;
  for (int k = 0; k < kKeys; ++k) keys.push_back(Key(absl::StrCat("k", k)));
  std::vector<std::thread> senders;
  for (int k = 0; k < kKeys; ++k) {
    senders.emplace_back([&, k] {
      for (int i = 0; i < kRounds; ++i) {
        Send(1, keys[static_cast<size_t>(k)], static_cast<float>(i), i % 64 == 0 ? 100'000 : 3);
        if (i % 8 == 0) usleep(1'000);
      }
    });
  }
  const SteadyClock clock;
  std::vector<std::unique_ptr<Cancellation>> cancellations;
  // Receives until every key has delivered all of its tensors.
  int made = 0;
  const auto enough = [&] {
    std::vector<int> ok(kKeys);
    for (const auto& [number, end] : ends_.ends())
      ok[static_cast<size_t>(number % kKeys)] += end.status.ok();
    return *std::min_element(ok.begin(), ok.end()) >= kRounds;
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  for (int turn = 0; std::chrono::steady_clock::now() < until; ++turn) {
    for (int k = 0; k < kKeys; ++k) {
      const int number = made++;
      ASSERT_EQ(number % kKeys, k);
      RecvArgs args;
      cancellations.push_back(std::make_unique<Cancellation>());
      args.cancellation = cancellations.back().get();
      if (random() % 4 == 0) {
        args.deadline = Deadline::After(clock, absl::Microseconds(random() % 3000));
      }
      Fetch(1, keys[static_cast<size_t>(k)], &ends_, number, args);
    }
    if (random() % 2 == 0) {
      const size_t behind = random() % std::min<size_t>(cancellations.size(), 64);
      cancellations[cancellations.size() - 1 - behind]->StartCancel();
    }
    if (turn % 64 == 63) {
      if (made > static_cast<int>(ends_.count()) + 2000) usleep(20'000);
      if (turn % 512 == 511 && enough()) break;
    }
    if (turn % 8 == 0) usleep(500);
  }
  for (auto& sender : senders) sender.join();
  for (auto& cancellation : cancellations) cancellation->StartCancel();
  ASSERT_TRUE(ends_.WaitFor(static_cast<size_t>(made))) << world_->Explain();
  // What is left at the producer, in order.
  std::vector<std::vector<float>> values(kKeys);
  for (const auto& [number, end] : ends_.ends()) {
    if (end.status.ok()) {
      values[static_cast<size_t>(number % kKeys)].push_back(end.value);
    } else {
      EXPECT_TRUE(absl::IsCancelled(end.status) || absl::IsDeadlineExceeded(end.status))
          << end.status;
    }
  }
  int wrong = 0;
  int ended = 0;
  for (const auto& of : values) {
    for (size_t i = 0; i < of.size(); ++i) wrong += of[i] != static_cast<float>(i);
    ended += static_cast<int>(of.size());
  }
  printf("%d receives, %d with a tensor, %d out of order\n", made, ended, wrong);
  EXPECT_EQ(wrong, 0);
  int lost = 0;
  for (int k = 0; k < kKeys; ++k) {
    for (size_t i = values[static_cast<size_t>(k)].size(); i < kRounds; ++i) {
      Ends last;
      Fetch(1, keys[static_cast<size_t>(k)], &last, 0);
      if (!last.WaitFor(1, std::chrono::seconds(5))) {
        world_->consumer()->AbortStep(1, absl::AbortedError("lost"));
        ASSERT_TRUE(last.WaitFor(1));
        ++lost;
        break;
      }
      EXPECT_EQ(last.at(0).value, static_cast<float>(i)) << "key " << k;
    }
  }
  EXPECT_EQ(lost, 0);
}

// The producer keeps what it sent until it hears that it has landed.
TEST_F(GrpcWaitingTest, WhatHasLandedIsLetGoOfAlthoughAnOlderOneWaits) {
  GrpcWorldOptions options;
  options.channel.max_asked = 1;
  Open(options);
  Fetch(1, Key("waits"), &ends_, 0);
  const int receives = WaitingCount();
  std::vector<TensorKey> keys;
  for (int i = 0; i < receives; ++i) keys.push_back(Key(absl::StrCat("there", i)));
  for (const TensorKey& key : keys) Send(2, key, 1);
  Ends there;
  for (int i = 0; i < receives; ++i) Fetch(2, keys[static_cast<size_t>(i)], &there, i);
  ASSERT_TRUE(there.WaitFor(static_cast<size_t>(receives))) << world_->Explain();
  const auto kept = [this] {
    const FetchServer::Counts counts = world_->served();
    return counts.requests - counts.tensors;
  };
  EXPECT_TRUE(Eventually([&] { return kept() == 1; }, 10)) << kept() << " are kept";
}

TEST_F(GrpcWaitingTest, ReceivesThatWaitDoNotHoldUpATensorThatIsThere) {
  Open();
  const int waiting = WaitingCount();
  for (int i = 0; i < waiting; ++i) Fetch(1, Key(absl::StrCat("waits", i)), &ends_, i);
  Ends there;
  const SteadyClock clock;
  int64_t longest_ns = 0;
  for (int i = 0; i < 100; ++i) {
    const TensorKey key = Key(absl::StrCat("there", i));
    Send(2, key, static_cast<float>(i), i % 10 == 0 ? 300'000 : 1);
    const int64_t before_ns = clock.NowNs();
    Fetch(2, key, &there, i);
    ASSERT_TRUE(there.WaitFor(static_cast<size_t>(i) + 1, std::chrono::seconds(20)))
        << world_->Explain();
    if (i >= 10) longest_ns = std::max(longest_ns, clock.NowNs() - before_ns);
    EXPECT_EQ(there.at(i).value, static_cast<float>(i));
  }
  printf("with %d waiting the slowest of 90 took %.1f ms\n", waiting,
         static_cast<double>(longest_ns) / 1e6);
  // Waiting receives may be served in any order: here from the last to the first.
  for (int i = waiting - 1; i >= 0; --i)
    Send(1, Key(absl::StrCat("waits", i)), static_cast<float>(i));
  ASSERT_TRUE(ends_.WaitFor(static_cast<size_t>(waiting))) << ends_.count() << world_->Explain();
  for (const auto& [number, end] : ends_.ends()) {
    ASSERT_TRUE(end.status.ok()) << end.status;
    ASSERT_EQ(end.value, static_cast<float>(number));
  }
}

TEST_F(GrpcWaitingTest, AbortingManyThatWaitLeavesLittleBehind) {
  Open();
  const int waiting = WaitingCount();
  std::vector<TensorKey> keys;
  for (int i = 0; i < waiting; ++i) keys.push_back(Key(absl::StrCat("waits", i)));
  const int64_t before = ResidentBytes();
  const int64_t heap_before = HeapBytes();
  for (int i = 0; i < waiting; ++i) Fetch(1, keys[static_cast<size_t>(i)], &ends_, i);
  Ends there;
  Send(2, Key("there"), 1);
  Fetch(2, Key("there"), &there, 0);
  EXPECT_TRUE(there.WaitFor(1, std::chrono::seconds(30)));
  const int64_t waits = ResidentBytes();
  const int64_t heap_waits = HeapBytes() - heap_before;
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  world_->consumer()->AbortStep(1, absl::AbortedError("step 1 was given up"));
  ASSERT_TRUE(ends_.WaitFor(static_cast<size_t>(waiting)));
  const int64_t aborted_ns = clock.NowNs() - start_ns;
  EXPECT_TRUE(Eventually([&] { return world_->served().waiting == 0; }));
  const int64_t settled_ns = clock.NowNs() - start_ns;
  usleep(200'000);
  const int64_t after = ResidentBytes();
  const int64_t heap_after = HeapBytes() - heap_before;
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  printf(
      "%d waiting: %.1f MiB resident, %.1f in use (%lld B each, both ends); aborted: %.1f MiB "
      "resident, %.1f in use, after %.0f ms, and the producer knows after %.0f ms\n",
      waiting, mib(waits - before), mib(heap_waits), static_cast<long long>(heap_waits / waiting),
      mib(after - before), mib(heap_after), static_cast<double>(aborted_ns) / 1e6,
      static_cast<double>(settled_ns) / 1e6);
  if (HeapBytes() == 0)
    GTEST_SKIP() << "a sanitizer's heap keeps what is freed, and does not count";
  EXPECT_LT(after, waits + (32 << 20)) << "aborting took memory of its own";
  EXPECT_LT(heap_after, heap_waits) << "it is kept";
}

// Thousands of receives of one key, while the producer has no tensor: only the first is requested.
TEST_F(GrpcWaitingTest, ManyReceivesOfOneKeyEndInAnyOrder) {
  Open();
  constexpr int kWaiting = 20'000;
  const TensorKey key = Key("one");
  std::vector<std::unique_ptr<Cancellation>> cancellations;
  for (int i = 0; i < kWaiting; ++i) {
    cancellations.push_back(std::make_unique<Cancellation>());
    RecvArgs args;
    args.cancellation = cancellations.back().get();
    if (i % 3 == 0) args.destination = *Tensor::Allocate(DType::kFloat, {1});
    Fetch(1, key, &ends_, i, args);
  }
  // Cancels all but each tenth, from the first to the last.
  for (int i = 0; i < kWaiting; ++i) {
    if (i % 10 != 0) cancellations[static_cast<size_t>(i)]->StartCancel();
  }
  ASSERT_TRUE(ends_.WaitFor(kWaiting / 10 * 9));
  for (int i = 0; i < kWaiting / 10; ++i) Send(1, key, static_cast<float>(i));
  ASSERT_TRUE(ends_.WaitFor(kWaiting)) << world_->Explain();
  for (int i = 0; i < kWaiting; i += 10) {
    ASSERT_TRUE(ends_.at(i).status.ok()) << ends_.at(i).status;
    ASSERT_EQ(ends_.at(i).value, static_cast<float>(i / 10));
  }
}

TEST_F(GrpcWaitingTest, ATensorOverTheLimitIsRefusedAndTheOthersComeOn) {
  GrpcWorldOptions options;
  options.channel.max_tensor_bytes = 1000;
  Open(options);
  Send(1, Key("large"), 1, 251);
  Fetch(1, Key("large"), &ends_, 0);
  for (int i = 1; i < 100; ++i) {
    Send(1, Key(absl::StrCat("small", i)), static_cast<float>(i), 250);
    Fetch(1, Key(absl::StrCat("small", i)), &ends_, i);
  }
  ASSERT_TRUE(ends_.WaitFor(100));
  EXPECT_TRUE(absl::IsResourceExhausted(ends_.at(0).status)) << ends_.at(0).status;
  EXPECT_NE(ends_.at(0).status.message().find("1000: raise max_tensor_bytes"), std::string::npos);
  for (int i = 1; i < 100; ++i) EXPECT_EQ(ends_.at(i).value, static_cast<float>(i));
}

// Each has a call of its own, and gRPC takes a quarter of a millisecond to cancel it: when the last
// deadline has ended, none has been cancelled.
TEST_F(GrpcWaitingTest, AThousandDeadlinesThatPassAtOnceWaitForNoCancel) {
  constexpr int kWaiting = 1000;
  Open();
  const SteadyClock clock;
  RecvArgs args;
  args.deadline = Deadline::After(clock, absl::Seconds(5));
  int ends = 0;
  std::promise<uint64_t> cancelled;
  for (int i = 0; i < kWaiting; ++i) {
    world_->consumer()->Fetch(1, Key(absl::StrCat("never", i)), args, [&](Received&& received) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(received.status)) << received.status;
      if (++ends == kWaiting) cancelled.set_value(world_->served().alone);
    });
  }
  ASSERT_TRUE(Eventually([&] { return world_->served().waiting == kWaiting; }))
      << world_->served().waiting;
  EXPECT_EQ(cancelled.get_future().get(), 0u);
  EXPECT_TRUE(Eventually([&] { return world_->served().waiting == 0; }));
}

// How long the last of them waits for the others is what the thread that ends them works. That is
// measured: how late they are depends on what else the machine does.
TEST_F(GrpcWaitingTest, TenThousandDeadlinesThatPassAtOnceKeepTheirThreadShortly) {
  constexpr int kWaiting = 10'000;
  Open();
  const auto worked_ns = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  };
  struct Thread {
    int64_t first_ns = 0, last_ns = 0;
  };
  std::map<std::thread::id, Thread> threads;  // Nearly always one; a turn may pass to another.
  const SteadyClock clock;
  RecvArgs args;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  args.deadline = Deadline::After(clock, absl::Seconds(20));
#else
  args.deadline = Deadline::After(clock, absl::Seconds(5));
#endif
  int64_t ended_ns = 0;
  int ends = 0;
  std::promise<void> all;
  for (int i = 0; i < kWaiting; ++i) {
    world_->consumer()->Fetch(1, Key(absl::StrCat("never", i)), args, [&](Received&& received) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(received.status)) << received.status;
      Thread& here = threads[std::this_thread::get_id()];
      here.last_ns = worked_ns();
      if (here.first_ns == 0) here.first_ns = here.last_ns;
      ended_ns = clock.NowNs();
      if (++ends == kWaiting) all.set_value();
    });
  }
  ASSERT_TRUE(Eventually([&] { return world_->served().waiting == kWaiting; }))
      << world_->served().waiting;
  ASSERT_LT(clock.NowNs(), args.deadline.at_ns()) << "too slow to have them all wait at once";
  all.get_future().get();
  int64_t took_ns = 0;
  for (const auto& [id, thread] : threads) took_ns += thread.last_ns - thread.first_ns;
  printf("%d deadlines at once: the thread worked for %.1f ms, the last was %.1f ms late\n",
         kWaiting, static_cast<double>(took_ns) / 1e6,
         static_cast<double>(ended_ns - args.deadline.at_ns()) / 1e6);
#ifdef NDEBUG
  // 9 ms on an idle machine, and what caches that others use cost on a busy one. It was 300.
  EXPECT_LE(took_ns, 80'000'000);
#endif
  EXPECT_TRUE(Eventually([&] { return world_->served().waiting == 0; }));
}

TEST_F(GrpcWaitingTest, ADeadProducerEndsReceivesAskedInLineAndNewWithinPatience) {
  GrpcWorldOptions options;
  options.channel.patience = absl::Milliseconds(700);
  options.channel.max_asked = 16;
  Open(options);
  Send(1, Key("met"), 1);
  Fetch(1, Key("met"), &ends_, 0);
  ASSERT_TRUE(ends_.WaitFor(1));
  for (int i = 1; i <= 300; ++i) Fetch(1, Key(absl::StrCat("waits", i / 2)), &ends_, i);
  usleep(100'000);
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  world_->KillProducer();
  for (int i = 301; i <= 400; ++i) Fetch(1, Key(absl::StrCat("new", i)), &ends_, i);
  ASSERT_TRUE(ends_.WaitFor(401, std::chrono::seconds(10))) << world_->Explain();
  EXPECT_LT(clock.NowNs() - start_ns, 3'000'000'000);
  for (int i = 1; i <= 400; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(ends_.at(i).status)) << i << ": " << ends_.at(i).status;
  }
  ASSERT_TRUE(world_->RestartProducer());
}

TEST_F(GrpcWaitingTest, AProducerThatReturnsAsAnotherAbortsReceivesAskedAndInLine) {
  GrpcWorldOptions options;
  options.channel.patience = absl::Seconds(20);
  options.channel.max_asked = 16;
  Open(options);
  Send(1, Key("met"), 1);
  Fetch(1, Key("met"), &ends_, 0);
  ASSERT_TRUE(ends_.WaitFor(1));
  for (int i = 1; i <= 300; ++i) Fetch(1, Key(absl::StrCat("waits", i)), &ends_, i);
  ASSERT_TRUE(Eventually([&] { return world_->served().waiting == 300; }))
      << world_->served().waiting << " wait, " << world_->served().parked
      << " of them without a call, " << world_->served().requests << " requests, "
      << world_->served().refused << " refused; " << world_->Explain();
  ASSERT_TRUE(world_->RestartProducer());
  ASSERT_TRUE(ends_.WaitFor(301, std::chrono::seconds(10))) << world_->Explain();
  for (int i = 1; i <= 300; ++i) {
    EXPECT_TRUE(absl::IsAborted(ends_.at(i).status)) << i << ": " << ends_.at(i).status;
  }
  Send(2, Key("next"), 7);
  Fetch(2, Key("next"), &ends_, 301);
  ASSERT_TRUE(ends_.WaitFor(302));
  EXPECT_EQ(ends_.at(301).value, 7);
}

}  // namespace
}  // namespace tryst
