#include "channel/pool/channel_pools.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr size_t kPollers = 3;

std::string Task(const std::string& job, size_t task) {
  return absl::StrCat("/job:", job, "/replica:0/task:", task);
}

TensorKey Key(const std::string& producer, const std::string& edge) {
  return TensorKeyPrefix::Make(producer + "/device:CPU:0", 1,
                               "/job:worker/replica:0/task:0/device:CPU:0", edge)
      ->At(0, 0);
}

// What was asked of the transports of all pollers, and on which threads.
struct Seen {
  Mutex mu;
  std::vector<std::pair<size_t, std::string>> fetches ABSL_GUARDED_BY(mu);  // Place and edge.
  std::vector<std::pair<size_t, std::string>> hellos ABSL_GUARDED_BY(mu);
  std::map<std::string, const void*> destinations ABSL_GUARDED_BY(mu);  // By edge.
  std::vector<size_t> aborts ABSL_GUARDED_BY(mu);
  int counted ABSL_GUARDED_BY(mu) = 0;  // How often counters were asked for.
  std::atomic<bool> takes_many{false};  // Whether the channels take FetchMany().
  bool wrong_thread ABSL_GUARDED_BY(mu) = false;
  std::function<void(size_t)> on_close;  // The place. On its poller.
};

// Ends each fetch in the next turn with a dead tensor.
class EchoChannel final : public Channel {
 public:
  EchoChannel(const TransportContext& context, Seen* seen) : context_(context), seen_(seen) {}
  void Fetch(int64_t, const TensorKey& key, const RecvArgs& args, FetchedFn&& done) override {
    {
      MutexLock lock(&seen_->mu);
      seen_->fetches.emplace_back(context_.place, std::string(key.edge()));
      seen_->destinations[std::string(key.edge())] = args.destination.data();
      seen_->wrong_thread |= !context_.poller->OnThread();
    }
    ++out_;
    context_.poller->PostFn([this, args, done = std::move(done)]() mutable {
      --out_;
      std::move(done)({absl::OkStatus(), Tensor(), true});
    });
  }
  bool FetchMany(int64_t step, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn* done) override {
    if (!seen_->takes_many) return false;
    for (const TensorKey& key : keys) {
      Fetch(step, key, args, [](Received&&) {});
    }
    std::move (*done)(absl::OkStatus(), {});
    return true;
  }
  void AbortStep(int64_t, const absl::Status&) override {
    MutexLock lock(&seen_->mu);
    seen_->aborts.push_back(context_.place);
  }
  void Close(absl::Status) override {}
  bool Drained() const override { return out_ == 0; }
  size_t fetches_out() const override { return static_cast<size_t>(out_); }
  std::string Explain() const override { return absl::StrCat("echo ", context_.place); }
  void ListOps(LiveOps*) const override {}

 private:
  const TransportContext context_;
  Seen* const seen_;
  int out_ = 0;
};

class EchoTransport final : public Transport {
 public:
  EchoTransport(const TransportContext& context, Seen* seen) : context_(context), seen_(seen) {}
  const std::string& name() const override { return name_; }
  std::unique_ptr<Channel> MakeChannel(const std::string&, ChannelUser*) override {
    return std::make_unique<EchoChannel>(context_, seen_);
  }
  void OnHello(const Hello& hello, HelloDone done) override {
    {
      MutexLock lock(&seen_->mu);
      seen_->hellos.emplace_back(context_.place, hello.worker);
      seen_->wrong_thread |= !context_.poller->OnThread();
    }
    std::move(done)(Hello());
  }
  void Close(const absl::Status&) override {
    if (seen_->on_close != nullptr) seen_->on_close(context_.place);
  }
  void AddCounters(Counters* counters) const override {
    {
      MutexLock lock(&seen_->mu);
      ++seen_->counted;
    }
    counters->Count("echoes", 1);
  }

 private:
  const std::string name_ = "echo";
  const TransportContext context_;
  Seen* const seen_;
};

class ChannelPoolsTest : public ::testing::Test {
 protected:
  ChannelPoolsTest() {
    std::vector<std::unique_ptr<ChannelPool>> pools;
    for (size_t place = 0; place < kPollers; ++place) {
      pollers_.push_back(std::make_unique<Poller>(&clock_));
      ChannelPoolOptions options;
      options.self = Task("worker", 0);
      options.incarnation = 7;
      options.place = place;
      pools.push_back(std::make_unique<ChannelPool>(
          pollers_.back().get(), nullptr, nullptr,
          std::vector<TransportFactory>{[this](const TransportContext& context) {
            return std::make_unique<EchoTransport>(context, &seen_);
          }},
          options));
    }
    pools_ = std::make_unique<ChannelPools>(std::move(pools));
    EXPECT_TRUE(pools_->Open().ok());
    for (auto& poller : pollers_) poller->Start();
  }
  ~ChannelPoolsTest() override {
    EXPECT_TRUE(pools_->Stop(absl::CancelledError("over"), absl::Seconds(20)).ok());
    for (auto& poller : pollers_) poller->Stop();
    MutexLock lock(&seen_.mu);
    EXPECT_FALSE(seen_.wrong_thread);
  }

  // Fetches `keys` in one call, waits, and returns their statuses.
  std::vector<absl::Status> FetchMany(const std::vector<TensorKey>& keys,
                                      const RecvArgs& args = RecvArgs()) {
    struct Ended {
      Mutex mu;
      CondVar cv;
      bool ended ABSL_GUARDED_BY(mu) = false;
      std::vector<absl::Status> results ABSL_GUARDED_BY(mu);
    } ended;
    pools_->FetchMany(1, keys, args, [&ended](absl::Status, absl::Span<Received> received) {
      MutexLock lock(&ended.mu);
      for (const Received& one : received) {
        ended.results.push_back(one.is_dead ? one.status : absl::InternalError("not ours"));
      }
      ended.ended = true;
      ended.cv.NotifyOne();
    });
    MutexLock lock(&ended.mu);
    while (!ended.ended) ended.cv.Wait(&ended.mu);
    return ended.results;
  }

  const SteadyClock clock_;
  Seen seen_;
  std::vector<std::unique_ptr<Poller>> pollers_;
  std::unique_ptr<ChannelPools> pools_;
};

TEST(PlaceOfTest, TasksOfAJobAreSpreadEvenly) {
  for (const std::string job : {"worker", "ps", "a"}) {
    for (size_t pollers : {1u, 3u, 8u}) {
      std::vector<int> peers(pollers, 0);
      for (size_t task = 0; task < 3 * pollers; ++task) {
        ++peers[ChannelPools::PlaceOf(Task(job, task), pollers)];
      }
      for (const int count : peers) EXPECT_EQ(count, 3);
    }
  }
}

// Any text may be a name: a long number must not overflow, and a missing one must not crash.
TEST(PlaceOfTest, EveryNameHasAPlace) {
  for (const std::string name : {"", "7", "worker", "/task:99999999999999999999999999", "\xff"}) {
    EXPECT_LT(ChannelPools::PlaceOf(name, 5), 5u);
    EXPECT_EQ(ChannelPools::PlaceOf(name, 5), ChannelPools::PlaceOf(name, 5));
  }
}

TEST_F(ChannelPoolsTest, WhatIsBetweenUsAndAPeerIsOnOnePoller) {
  std::vector<TensorKey> keys;
  for (size_t task = 0; task < 9; ++task) {
    keys.push_back(Key(Task("ps", task), Task("ps", task)));
    Hello hello;
    hello.worker = Task("ps", task);
    hello.incarnation = 1;
    hello.epoch = 1;
    hello.path = "echo";
    pools_->OnHello(hello, [](absl::StatusOr<Hello>) {});
  }
  const std::vector<absl::Status> results = FetchMany(keys);
  ASSERT_EQ(results.size(), keys.size());
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
  for (auto& poller : pollers_) poller->RunAndWait([] {});
  MutexLock lock(&seen_.mu);
  ASSERT_EQ(seen_.fetches.size(), 9u);
  ASSERT_EQ(seen_.hellos.size(), 9u);
  std::set<size_t> places;
  for (const auto* told : {&seen_.fetches, &seen_.hellos}) {
    for (const auto& [place, peer] : *told) {
      EXPECT_EQ(place, ChannelPools::PlaceOf(peer, kPollers));
      places.insert(place);
    }
  }
  EXPECT_EQ(places.size(), kPollers);
}

TEST_F(ChannelPoolsTest, AManyOfOnePeerIsOneOnItsPoller) {
  std::vector<TensorKey> keys;
  for (int i = 0; i < 5; ++i) keys.push_back(Key(Task("ps", 1), absl::StrCat(i)));
  EXPECT_EQ(FetchMany(keys).size(), 5u);
  MutexLock lock(&seen_.mu);
  ASSERT_EQ(seen_.fetches.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(seen_.fetches[i].first, ChannelPools::PlaceOf(Task("ps", 1), kPollers));
    EXPECT_EQ(seen_.fetches[i].second, absl::StrCat(i));
  }
}

TEST_F(ChannelPoolsTest, AManyOfTwoPeersIsOneOnEachOfTheirPollers) {
  EXPECT_EQ(FetchMany({Key(Task("ps", 1), "a"), Key(Task("ps", 2), "b")}).size(), 2u);
  MutexLock lock(&seen_.mu);
  EXPECT_EQ(std::set(seen_.fetches.begin(), seen_.fetches.end()),
            (std::set<std::pair<size_t, std::string>>{
                {ChannelPools::PlaceOf(Task("ps", 1), kPollers), "a"},
                {ChannelPools::PlaceOf(Task("ps", 2), kPollers), "b"}}));
}

// A poller has some of the keys, and a tensor must not come into the memory of another one.
TEST_F(ChannelPoolsTest, EachOfAManyOfSeveralPeersHasItsDestination) {
  std::vector<TensorKey> keys;
  std::vector<Tensor> into;
  for (size_t task = 0; task < 3 * kPollers; ++task) {
    keys.push_back(Key(Task("ps", task), absl::StrCat(task)));
    into.push_back(task == 1 ? Tensor() : *Tensor::Allocate(DType::kInt64, {}));
  }
  RecvArgs args;
  args.destinations = into;
  EXPECT_EQ(FetchMany(keys, args).size(), keys.size());
  MutexLock lock(&seen_.mu);
  ASSERT_EQ(seen_.destinations.size(), keys.size());
  for (size_t task = 0; task < keys.size(); ++task) {
    EXPECT_EQ(seen_.destinations[absl::StrCat(task)], into[task].data()) << task;
  }
}

TEST_F(ChannelPoolsTest, AManyOfNoKeysEnds) { EXPECT_TRUE(FetchMany({}).empty()); }

TEST_F(ChannelPoolsTest, AnEndOfAStepWakesOnlyPollersThatHaveFetched) {
  EXPECT_EQ(FetchMany({Key(Task("ps", 1), "one")}).size(), 1u);
  pools_->AbortStep(1, absl::AbortedError("over"));
  for (auto& poller : pollers_) poller->RunAndWait([] {});
  MutexLock lock(&seen_.mu);
  ASSERT_EQ(seen_.aborts.size(), 1u);
  EXPECT_EQ(seen_.aborts[0], ChannelPools::PlaceOf(Task("ps", 1), kPollers));
}

TEST_F(ChannelPoolsTest, OnePollerThatIsStuckHidesNoOther) {
  for (size_t task = 0; task < kPollers; ++task) FetchMany({Key(Task("ps", task), "one")});
  std::atomic<bool> go_on{false};
  pollers_[0]->PostFn([&] {
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  std::vector<PathView> views;
  const absl::Status seen = pools_->ViewPaths("", &views);
  EXPECT_EQ(seen.code(), absl::StatusCode::kDeadlineExceeded) << seen;
  std::set<size_t> places;
  for (const PathView& view : views) places.insert(view.place);
  EXPECT_EQ(places, (std::set<size_t>{1, 2}));
  Counters counters;
  go_on = true;
  EXPECT_TRUE(pools_->AskCounters(&counters).ok());
  EXPECT_EQ(counters.all().at("echoes").value, static_cast<int64_t>(kPollers));
  EXPECT_EQ(counters.all().at("pollers").value, static_cast<int64_t>(kPollers));
}

// What a turn's tasks say goes when the turn ends. An answer whose tensor was there before the stop
// must not be said in the turn that closes its connection.
TEST_F(ChannelPoolsTest, WhatWasSaidBeforeAStopIsSent) {
  struct Word final : PollerFlush {
    void Flush() override { sent = true; }
    bool sent = false;
  } word;
  Poller* const poller = pollers_[0].get();
  std::atomic<bool> sent_first{false};
  seen_.on_close = [&](size_t place) {
    if (place == 0) sent_first = word.sent;
  };
  std::atomic<bool> go_on{false};
  poller->PostFn([&] {
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  poller->PostFn([&] { poller->FlushThisTurn(&word); });
  std::thread stops(
      [&] { EXPECT_TRUE(pools_->Stop(absl::CancelledError("over"), absl::Seconds(20)).ok()); });
  std::this_thread::sleep_for(
      std::chrono::milliseconds(20));  // So that it has posted what it will.
  go_on = true;
  stops.join();
  EXPECT_TRUE(sent_first);
  seen_.on_close = nullptr;
}

// One pool, turned by the test.
class ChannelPoolTest : public ::testing::Test {
 protected:
  ChannelPoolTest()
      : pool(&poller, nullptr, nullptr, {[this](const TransportContext& context) {
          return std::make_unique<EchoTransport>(context, &seen);
        }},
             Options()) {
    EXPECT_TRUE(pool.Open().ok());
    poller.Turn();  // From here on this is the poller thread.
  }
  ~ChannelPoolTest() override {
    pool.Close(absl::CancelledError("over"));
    for (int i = 0; i < 10; ++i) poller.Turn();
    EXPECT_TRUE(pool.Drained());
  }
  static ChannelPoolOptions Options() {
    ChannelPoolOptions options;
    options.self = Task("worker", 0);
    options.incarnation = 7;
    return options;
  }

  const SteadyClock clock;
  Poller poller{&clock};
  Seen seen;
  ChannelPool pool;
};

// What was asked earlier, on another thread, goes first.
TEST_F(ChannelPoolTest, AManyOvertakesNothingThatIsPosted) {
  seen.takes_many = true;
  const auto ignore = [](Received&&) {};
  std::thread([&] { pool.Fetch(1, Key(Task("ps", 0), "first"), RecvArgs(), ignore); }).join();
  int ended = 0;
  pool.FetchMany(1, {Key(Task("ps", 0), "second"), Key(Task("ps", 0), "third")}, RecvArgs(),
                 [&ended](const absl::Status&, absl::Span<Received>) { ++ended; });
  for (int i = 0; i < 3; ++i) poller.Turn();
  EXPECT_EQ(ended, 1);
  MutexLock lock(&seen.mu);
  ASSERT_EQ(seen.fetches.size(), 3u);
  EXPECT_EQ(seen.fetches[0].second, "first");
  EXPECT_EQ(seen.fetches[1].second, "second");
}

// Who has given up waiting for a poller has given its memory up, too.
TEST_F(ChannelPoolTest, APollerThatComesLateAnswersNobody) {
  absl::Status asked;
  std::thread([&] {
    Counters counters;
    asked = pool.AskCounters(&counters);
  }).join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(asked)) << asked;
  poller.Turn();
  MutexLock lock(&seen.mu);
  EXPECT_EQ(seen.counted, 0);
}

// Who stops a pool frees what its callbacks use, so a fetch that another thread has posted counts.
TEST_F(ChannelPoolTest, IsNotDrainedWhileAFetchIsPosted) {
  pool.Close(absl::CancelledError("over"));
  poller.Turn();
  EXPECT_TRUE(pool.Drained());
  absl::Status one, many;
  std::thread([&] {
    pool.Fetch(1, Key(Task("ps", 0), "one"), RecvArgs(),
               [&one](Received&& received) { one = std::move(received.status); });
  }).join();
  EXPECT_FALSE(pool.Drained()) << "the fetch is posted";
  poller.Turn();
  EXPECT_TRUE(absl::IsCancelled(one)) << one;
  EXPECT_TRUE(pool.Drained());
  std::thread([&] {
    pool.FetchMany(
        1, {Key(Task("ps", 0), "one"), Key(Task("ps", 0), "two")}, RecvArgs(),
        [&many](absl::Status status, absl::Span<Received>) { many = std::move(status); });
  }).join();
  EXPECT_FALSE(pool.Drained());
  poller.Turn();
  EXPECT_FALSE(pool.Drained()) << "its end is posted";
  poller.Turn();
  EXPECT_TRUE(absl::IsCancelled(many)) << many;
  EXPECT_TRUE(pool.Drained());
}

}  // namespace
}  // namespace tryst
