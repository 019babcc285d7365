#include "channel/pool/channel_pool.h"

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::string Task(int task) { return absl::StrCat("/job:p/replica:0/task:", task); }

TensorKey Key(int task, const std::string& edge) {
  return TensorKeyPrefix::Make(Task(task) + "/device:CPU:0", 1,
                               "/job:c/replica:0/task:0/device:CPU:0", edge)
      ->At(0, 0);
}

// What was asked of all transports, in its order.
struct Asked {
  std::vector<std::string> words;
  std::vector<WaitingFetch> out;
  std::vector<uint64_t> seeds;
  bool in_callbacks = false;
  bool takes_many = false;
  bool drained = true;
};

class NotedChannel final : public Channel {
 public:
  NotedChannel(Asked* asked, std::string name) : asked_(asked), name_(std::move(name)) {}
  void Fetch(int64_t step, const TensorKey& key, const RecvArgs& args, FetchedFn&& done) override {
    asked_->words.push_back(absl::StrCat("fetch ", key.edge(), " of ", step));
    asked_->out.push_back({step, key, args, std::move(done)});
  }
  bool FetchMany(int64_t, absl::Span<const TensorKey> keys, const RecvArgs&,
                 ManyFetchedFn*) override {
    if (!asked_->takes_many) return false;
    asked_->words.push_back(absl::StrCat("many ", keys.size()));
    return true;
  }
  bool FetchesInCallbacks() const override { return asked_->in_callbacks; }
  void AbortStep(int64_t step, const absl::Status& why) override {
    asked_->words.push_back(absl::StrCat("abort ", step, " ", why.message()));
  }
  void Close(absl::Status why) override {
    asked_->words.push_back(absl::StrCat("close ", name_, " ", why.message()));
  }
  bool Drained() const override { return asked_->out.empty(); }
  size_t fetches_out() const override { return asked_->out.size(); }
  std::string Explain() const override { return "channel to " + name_; }
  void ListOps(LiveOps* ops) const override { ops->Add(LiveOp()); }
  void Probe() override { asked_->words.push_back("probe " + name_); }

 private:
  Asked* const asked_;
  const std::string name_;
};

struct TransportOf {
  std::string name;
  absl::Status opens;
  bool optional = false;
};

class NotedTransport final : public Transport {
 public:
  NotedTransport(const TransportContext& context, TransportOf of, Asked* asked)
      : of_(std::move(of)), asked_(asked) {
    asked_->seeds.push_back(context.seed);
  }
  const std::string& name() const override { return of_.name; }
  absl::Status Open() override { return of_.opens; }
  bool is_optional() const override { return of_.optional; }
  std::unique_ptr<Channel> MakeChannel(const std::string& peer, ChannelUser* user) override {
    users[peer] = user;
    return std::make_unique<NotedChannel>(asked_, peer);
  }
  void OnHello(const Hello& hello, HelloDone done) override {
    asked_->words.push_back(absl::StrCat(of_.name, " hears ", hello.worker));
    std::move(done)(Hello());
  }
  void Maintain() override { asked_->words.push_back(of_.name + " maintains"); }
  void Close(const absl::Status& why) override {
    asked_->words.push_back(absl::StrCat("close ", of_.name, " ", why.message()));
  }
  bool Drained() const override { return asked_->drained; }
  void ExplainServing(const std::string& peer, std::string* out) const override {
    absl::StrAppend(out, of_.name, " serves '", peer, "'\n");
  }
  void View(const std::string& peer, std::vector<PathView>* views) const override {
    PathView view;
    view.peer = "serves " + peer;
    views->push_back(view);
  }
  void ListOps(LiveOps* ops) const override { ops->Add(LiveOp()); }
  void AddCounters(Counters* counters) const override { counters->Count(of_.name, 1); }

  std::map<std::string, ChannelUser*> users;

 private:
  const TransportOf of_;
  Asked* const asked_;
};

class ChannelPoolTurnedTest : public testing::Test {
 protected:
  ChannelPoolTurnedTest() {
    options_.self = "/job:c/replica:0/task:0";
    options_.incarnation = 7;
  }
  ~ChannelPoolTurnedTest() override { End(); }
  absl::Status Open(const std::vector<TransportOf>& transports = {{"first", {}}}) {
    std::vector<TransportFactory> factories;
    for (const TransportOf& of : transports) {
      factories.push_back([this, of](const TransportContext& context) {
        auto made = std::make_unique<NotedTransport>(context, of, &asked_);
        made_[of.name] = made.get();
        return made;
      });
    }
    pool_ = std::make_unique<ChannelPool>(&poller_, nullptr, nullptr, factories, options_);
    const absl::Status opened = pool_->Open();
    poller_.Turn();  // From here on this is the poller thread.
    return opened;
  }
  void End() {
    if (pool_ == nullptr) return;
    pool_->Close(absl::CancelledError("over"));
    asked_.drained = true;
    for (int i = 0; i < 3; ++i) poller_.Turn();
    for (WaitingFetch& fetch : std::exchange(asked_.out, {})) {
      std::move(fetch.done)({absl::CancelledError("over")});
    }
    for (int i = 0; i < 3; ++i) poller_.Turn();
    EXPECT_TRUE(pool_->Drained());
    pool_.reset();
  }
  void Fetch(int task, const std::string& edge, int64_t step = 1) {
    pool_->Fetch(step, Key(task, edge), RecvArgs(), [](Received&&) {});
  }
  std::vector<std::string> Words() { return std::exchange(asked_.words, {}); }
  absl::Status Hear(Hello hello) {
    absl::Status answered = absl::UnknownError("no answer");
    pool_->OnHello(hello, [&](const absl::StatusOr<Hello>& answer) { answered = answer.status(); });
    poller_.Turn();
    return answered;
  }
  static Hello From(int task) {
    Hello hello;
    hello.worker = Task(task);
    hello.incarnation = 21;
    hello.epoch = 1;
    hello.path = "first";
    return hello;
  }

  VirtualAlarms alarms_;
  Poller poller_{&alarms_};
  ChannelPoolOptions options_;
  Asked asked_;
  std::map<std::string, NotedTransport*> made_;
  std::unique_ptr<ChannelPool> pool_;
};

TEST_F(ChannelPoolTurnedTest, WhatThisSystemHasNotIsLeftOutAndSaid) {
  ASSERT_TRUE(
      Open({{"none", absl::NotFoundError("no device"), true}, {"first", {}}, {"second", {}}}).ok());
  EXPECT_THAT(pool_->transport_names(), ElementsAre("first", "second"));
  Hello hello = From(1);
  hello.path = "none";
  EXPECT_EQ(Hear(hello), absl::UnimplementedError("this worker has no path none: no device"));
  hello.path = "another";
  EXPECT_EQ(Hear(hello),
            absl::UnimplementedError("this worker has no path another; there is: first, second"));
  EXPECT_THAT(Words(), IsEmpty());
  hello.path = "second";
  EXPECT_TRUE(Hear(hello).ok());
  EXPECT_EQ(Words().back(), absl::StrCat("second hears ", Task(1)));
  End();
  EXPECT_EQ(Open({{"must", absl::NotFoundError("no device")}}), absl::NotFoundError("no device"));
  pool_.reset();
}

TEST_F(ChannelPoolTurnedTest, AHelloIsExaminedBeforeItsTransportHearsIt) {
  ASSERT_TRUE(Open().ok());
  Hello hello = From(1);
  hello.incarnation = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Hear(hello)));
  hello = From(1);
  hello.worker = "";
  EXPECT_TRUE(absl::IsInvalidArgument(Hear(hello)));
  hello = From(1);
  hello.epoch = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Hear(hello)));
  hello = From(1);
  hello.protocol_oldest = hello.protocol_newest = 5;
  EXPECT_EQ(Hear(hello),
            absl::FailedPreconditionError(absl::StrCat(
                Task(1), " speaks protocol 5 to 5 and ", options_.self,
                " 4 to 4: run the same release on both, or two that follow each other")));
  hello.protocol_oldest = hello.protocol_newest = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(Hear(hello)));
  EXPECT_THAT(Words(), IsEmpty());
  hello.protocol_oldest = 2;
  hello.protocol_newest = 5;
  EXPECT_TRUE(Hear(hello).ok());
  hello.protocol_oldest = hello.protocol_newest = kProtocolOldest;
  EXPECT_TRUE(Hear(hello).ok());
  pool_->Close(absl::AbortedError("closed"));
  EXPECT_EQ(Hear(From(1)), absl::AbortedError("closed"));
}

// A path that it has turned down may be there in its new life.
TEST_F(ChannelPoolTurnedTest, APeersNewLifeIsToldToItsPaths) {
  ASSERT_TRUE(Open({{"first", {}}, {"second", {}}}).ok());
  Fetch(1, "a");
  poller_.Turn();
  made_["first"]->users[Task(1)]->OnRefused();
  (void)Words();
  EXPECT_TRUE(Hear(From(2)).ok());
  poller_.Turn();
  EXPECT_THAT(Words(), testing::Not(testing::Contains("probe " + Task(1))));
  EXPECT_TRUE(Hear(From(1)).ok());
  poller_.Turn();
  EXPECT_THAT(Words(), testing::Contains("probe " + Task(1)));
}

// What a process has said may come after the first word of the one that took its place.
TEST_F(ChannelPoolTurnedTest, AHelloOfAProcessThatHasEndedIsRefused) {
  ASSERT_TRUE(Open().ok());
  const int64_t began_ns = poller_.now_ns();
  const auto life = [](uint64_t incarnation, int64_t started_us) {
    Hello hello = From(1);
    hello.incarnation = incarnation;
    hello.started_us = started_us;
    return hello;
  };
  EXPECT_TRUE(Hear(life(31, 1000)).ok());
  EXPECT_TRUE(Hear(life(30, 2000)).ok());
  (void)Words();
  EXPECT_TRUE(absl::IsAborted(Hear(life(31, 1000))));
  EXPECT_TRUE(absl::IsAborted(Hear(life(32, 1999)))) << "it was never heard before";
  EXPECT_THAT(Words(), ElementsAre());
  EXPECT_TRUE(Hear(life(30, 2000)).ok());
  EXPECT_TRUE(Hear(life(33, 2000)).ok());
  EXPECT_TRUE(Hear(life(34, 0)).ok()) << "it does not say";
  EXPECT_TRUE(Hear(life(33, 2000)).ok());
  EXPECT_TRUE(Hear(From(2)).ok());
  // One that goes on to speak lives: its clock was set back.
  alarms_.AdvanceTo(began_ns + 10 * kSecondNs - 1);
  poller_.Turn();
  EXPECT_TRUE(absl::IsAborted(Hear(life(31, 1000))));
  EXPECT_TRUE(Hear(life(33, 2000)).ok()) << "the time runs from its first hello";
  alarms_.AdvanceTo(began_ns + 10 * kSecondNs);
  poller_.Turn();
  EXPECT_TRUE(Hear(life(31, 1000)).ok());
}

TEST_F(ChannelPoolTurnedTest, OfSoManyWorkersTheLongestUnheardIsForgotten) {
  ASSERT_TRUE(Open().ok());
  Hello former = From(1), again = From(1);
  former.started_us = 1;
  again.incarnation = 22;
  again.started_us = 2;
  EXPECT_TRUE(Hear(again).ok());
  const int64_t began_ns = poller_.now_ns();
  for (int task = 2; task < 4098; ++task) {
    alarms_.AdvanceTo(began_ns + task);
    poller_.Turn();
    if (task == 4097) {
      EXPECT_TRUE(absl::IsAborted(Hear(former))) << "4,096 are known";
    }
    EXPECT_TRUE(Hear(From(task)).ok());
  }
  EXPECT_TRUE(Hear(former).ok());
}

TEST_F(ChannelPoolTurnedTest, EachSecondTheTransportsMaintainThemselves) {
  ASSERT_TRUE(Open().ok());
  const int64_t began_ns = poller_.now_ns();
  EXPECT_EQ(poller_.NextTimerNs(), began_ns + kSecondNs);
  for (int i = 1; i <= 3; ++i) {
    alarms_.AdvanceTo(began_ns + i * kSecondNs);
    poller_.Turn();
    EXPECT_THAT(Words(), ElementsAre("first maintains"));
    EXPECT_EQ(poller_.NextTimerNs(), began_ns + (i + 1) * kSecondNs);
  }
  pool_->Close(absl::CancelledError("over"));
  poller_.Turn();
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
  EXPECT_TRUE(absl::IsCancelled(Hear(From(1))));
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
}

TEST_F(ChannelPoolTurnedTest, FurtherPollersSleepUntilTheirFirstPeer) {
  options_.place = 1;
  for (const bool fetches : {true, false}) {
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(poller_.NextTimerNs(), kNever);
    if (fetches) {
      Fetch(1, "a");
      poller_.Turn();
    } else {
      EXPECT_TRUE(Hear(From(1)).ok());
    }
    const int64_t first_ns = alarms_.NowNs() + kSecondNs;
    EXPECT_EQ(poller_.NextTimerNs(), first_ns);
    alarms_.AdvanceTo(first_ns - 1);
    Fetch(2, "b");
    poller_.Turn();
    EXPECT_EQ(poller_.NextTimerNs(), first_ns) << "the second one begins nothing anew";
    End();
  }
}

TEST_F(ChannelPoolTurnedTest, AFetchOfThePollerItselfBeginsAtOnceWhereItsChannelAllows) {
  ASSERT_TRUE(Open().ok());
  Fetch(1, "a");
  EXPECT_THAT(Words(), IsEmpty()) << "inside a callback";
  poller_.Turn();
  EXPECT_THAT(Words(), ElementsAre("fetch a of 1"));
  asked_.in_callbacks = true;
  Fetch(1, "b");
  EXPECT_THAT(Words(), ElementsAre("fetch b of 1"));
  std::thread([&] { Fetch(1, "c"); }).join();
  EXPECT_THAT(Words(), IsEmpty());
  Fetch(1, "d");
  EXPECT_THAT(Words(), IsEmpty()) << "it would overtake";
  poller_.Turn();
  EXPECT_THAT(Words(), ElementsAre("fetch c of 1", "fetch d of 1"));
  // An abort ends what was fetched before it, and nothing else.
  std::thread([&] { pool_->AbortStep(1, absl::AbortedError("over")); }).join();
  Fetch(1, "e");
  poller_.Turn();
  EXPECT_THAT(Words(), ElementsAre("abort 1 over", "fetch e of 1"));
  Fetch(1, "f");
  EXPECT_THAT(Words(), ElementsAre("fetch f of 1"));
  pool_->Close(absl::AbortedError("closed"));
  poller_.Turn();
  (void)Words();
  absl::Status late;
  pool_->Fetch(1, Key(1, "g"), RecvArgs(),
               [&](Received&& received) { late = std::move(received.status); });
  poller_.Turn();
  EXPECT_THAT(Words(), IsEmpty());
  EXPECT_EQ(late, absl::AbortedError("closed"));
}

TEST_F(ChannelPoolTurnedTest, AnAbortWithoutAFetchWakesNobody) {
  ASSERT_TRUE(Open().ok());
  const uint64_t tasks = poller_.tasks_run();
  pool_->AbortStep(1, absl::AbortedError("over"));
  poller_.Turn();
  EXPECT_EQ(poller_.tasks_run(), tasks);
  Fetch(1, "a");
  Fetch(2, "b");
  poller_.Turn();
  (void)Words();
  pool_->AbortStep(3, absl::AbortedError("over"));
  poller_.Turn();
  EXPECT_THAT(Words(), ElementsAre("abort 3 over", "abort 3 over")) << "on the way to each peer";
}

TEST_F(ChannelPoolTurnedTest, AManyIsOneCallWhereAllAreOfOnePeer) {
  ASSERT_TRUE(Open().ok());
  asked_.takes_many = true;
  const auto many = [&](const std::vector<TensorKey>& keys) {
    pool_->FetchMany(1, keys, RecvArgs(), [](const absl::Status&, absl::Span<Received>) {});
  };
  many({Key(1, "a"), Key(1, "b")});
  EXPECT_THAT(Words(), ElementsAre("many 2")) << "at once, for this is the poller thread";
  many({Key(1, "a"), Key(2, "b")});
  EXPECT_THAT(Words(), IsEmpty());
  poller_.Turn();
  EXPECT_THAT(Words(), ElementsAre("fetch a of 1", "fetch b of 1"));
  std::thread([&] { many({Key(1, "a"), Key(1, "b"), Key(1, "c")}); }).join();
  poller_.Turn();
  EXPECT_THAT(Words(), ElementsAre("many 3"));
  asked_.takes_many = false;
  many({Key(1, "a")});
  poller_.Turn();
  EXPECT_THAT(Words(), ElementsAre("fetch a of 1"));
}

TEST_F(ChannelPoolTurnedTest, TheResultsOfAManyAreEachInItsPlace) {
  ASSERT_TRUE(Open().ok());
  const Tensor tensor = *Tensor::Allocate(DType::kInt64, {});
  const std::vector<Tensor> into = {Tensor(), *Tensor::Allocate(DType::kInt64, {}), Tensor()};
  int ended = 0;
  absl::Status first;
  std::vector<Received> results;
  {
    std::vector<Tensor> only_during_the_call = into;
    RecvArgs args;
    args.destinations = only_during_the_call;
    pool_->FetchMany(1, {Key(1, "a"), Key(2, "b"), Key(1, "c")}, args,
                     [&](absl::Status status, absl::Span<Received> received) {
                       ++ended;
                       first = std::move(status);
                       results.assign(received.begin(), received.end());
                     });
  }
  poller_.Turn();
  ASSERT_EQ(asked_.out.size(), 3u);
  EXPECT_TRUE(asked_.out[1].args.destination.SharesBytesWith(into[1]));
  EXPECT_FALSE(asked_.out[0].args.destination.valid());
  const auto end = [&](size_t which, const absl::Status& status, Tensor result, bool is_dead) {
    std::move(asked_.out[which].done)({status, std::move(result), is_dead});
  };
  end(2, absl::NotFoundError("no c"), Tensor(), false);
  end(1, absl::DataLossError("no b"), Tensor(), false);
  end(0, absl::OkStatus(), tensor, true);
  asked_.out.clear();
  EXPECT_EQ(ended, 0) << "inside a callback of a fetch";
  EXPECT_FALSE(pool_->Drained());
  poller_.Turn();
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(first, absl::DataLossError("no b"));
  EXPECT_TRUE(results[0].tensor.SharesBytesWith(tensor));
  EXPECT_TRUE(results[0].is_dead);
  EXPECT_FALSE(results[1].is_dead);
  EXPECT_EQ(results[2].status, absl::NotFoundError("no c"));
  pool_->FetchMany(1, {}, RecvArgs(), [&](const absl::Status& status, absl::Span<Received> none) {
    ++ended;
    EXPECT_TRUE(status.ok());
    EXPECT_TRUE(none.empty());
  });
  EXPECT_EQ(ended, 1);
  poller_.Turn();
  poller_.Turn();
  EXPECT_EQ(ended, 2);
}

TEST_F(ChannelPoolTurnedTest, ItIsDrainedWhenAllOfItIs) {
  ASSERT_TRUE(Open({{"first", {}}, {"second", {}}}).ok());
  Fetch(1, "a");
  poller_.Turn();
  (void)Words();
  EXPECT_FALSE(pool_->Drained()) << "it is open";
  asked_.drained = false;
  pool_->Close(absl::CancelledError("over"));
  pool_->Close(absl::CancelledError("again"));
  poller_.Turn();
  EXPECT_THAT(Words(),
              ElementsAre("close " + Task(1) + " over", "close first over", "close second over"));
  asked_.out.clear();
  EXPECT_FALSE(pool_->Drained()) << "a transport is not";
  asked_.drained = true;
  EXPECT_TRUE(pool_->Drained());
}

// What a NIC or a peer may still write would be given back.
TEST_F(ChannelPoolTurnedTest, ItDoesNotGoBeforeItIsDrained) {
  ASSERT_TRUE(Open().ok());
  EXPECT_DEATH(pool_.reset(), "Drained");
}

TEST_F(ChannelPoolTurnedTest, PeopleAreToldOfOnePeerOrOfAll) {
  ASSERT_TRUE(Open().ok());
  Fetch(1, "a");
  Fetch(2, "b");
  poller_.Turn();
  EXPECT_EQ(pool_->Explain(Task(2)),
            absl::StrCat("channel to ", Task(2), "\nfirst serves '", Task(2), "'\n"));
  EXPECT_EQ(pool_->Explain(""),
            absl::StrCat("channel to ", Task(1), "\nchannel to ", Task(2), "\nfirst serves ''\n"));
  auto views = pool_->ViewPaths(Task(1));
  ASSERT_TRUE(views.ok());
  ASSERT_EQ(views->size(), 2u);
  EXPECT_EQ((*views)[0].peer, Task(1));
  EXPECT_EQ((*views)[1].peer, "serves " + Task(1));
  EXPECT_EQ(pool_->ViewPaths("")->size(), 3u);
  LiveOps ops(9);
  EXPECT_TRUE(pool_->ListOps(&ops).ok());
  EXPECT_EQ(ops.Take().size(), 3u) << "of two channels and a transport";
  Counters counters;
  EXPECT_TRUE(pool_->AskCounters(&counters).ok());
  EXPECT_EQ(counters.all().at("first").value, 1);
}

TEST_F(ChannelPoolTurnedTest, TheSeedDecidesThoseOfItsTransports) {
  std::vector<std::vector<uint64_t>> seeds;
  for (const uint64_t seed : {1u, 1u, 2u}) {
    options_.seed = seed;
    ASSERT_TRUE(Open({{"first", {}}, {"second", {}}}).ok());
    seeds.push_back(std::exchange(asked_.seeds, {}));
    End();
  }
  EXPECT_EQ(seeds[0], seeds[1]);
  EXPECT_NE(seeds[0], seeds[2]);
  EXPECT_NE(seeds[0][0], seeds[0][1]);
}

}  // namespace
}  // namespace tryst
