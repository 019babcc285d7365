#include "channel/pool/peer_paths.h"

#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr char kPeer[] = "/job:ps/replica:0/task:0";
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

TensorKey Key(const std::string& edge) {
  return TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:CPU:0", 1,
                               "/job:worker/replica:0/task:0/device:CPU:0", edge)
      ->At(0, 0);
}

// Keeps what is fetched until the test ends it, and tells the user what the test says.
class ScriptedChannel final : public Channel {
 public:
  ScriptedChannel(PathUser* user, const Clock* clock) : user(user), clock_(clock) {}
  void Fetch(int64_t step, const TensorKey& key, const RecvArgs& args, DoneFn&& done) override {
    out.push_back({step, key, args, std::move(done)});
    since_ns_.push_back(clock_->NowNs());
  }
  bool FetchMany(int64_t, absl::Span<const TensorKey>, const RecvArgs&, ManyDoneFn*) override {
    ++manys;
    return true;
  }
  bool FetchesInCallbacks() const override { return in_callbacks; }
  void AbortStep(int64_t, const absl::Status&) override { ++aborts; }
  void AskAhead(bool in_use) override { asks_ahead = in_use; }
  void Close(absl::Status why) override { closed = why; }
  bool Drained() const override { return out.empty(); }
  std::string Explain() const override { return "scripted"; }
  void View(PathView* view) const override {
    view->state = state;
    if (!state.empty()) view->why = "as the script says";
  }
  void ListOps(LiveOps* ops) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      LiveOp op;
      op.key = out[i].key;
      op.span.Begin(WaitsFor::kPeerSend, since_ns_[i]);
      ops->Add(std::move(op));
    }
  }
  std::vector<WaitingFetch> TakeWaiting() override {
    since_ns_.clear();
    return std::exchange(out, {});
  }
  bool OwesEnd(int64_t step, const TensorKey& key) const override {
    return owes.count({step, std::string(key.text())}) > 0;
  }
  bool OwesAnyEnd() const override { return !owes.empty(); }
  void Probe() override { ++probes; }
  void RetryNow() override { ++retries; }
  void EndFirst() {
    WaitingFetch fetch = std::move(out.front());
    out.erase(out.begin());
    since_ns_.erase(since_ns_.begin());
    std::move(fetch.done)({absl::OkStatus(), Tensor(), true});
  }

  PathUser* const user;
  std::vector<WaitingFetch> out;
  std::string state = "connected";  // Empty: it has no connection of its own.
  bool in_callbacks = true;
  int probes = 0;
  int retries = 0;
  int manys = 0;
  int aborts = 0;
  std::set<std::pair<int64_t, std::string>> owes;  // Ends of which the peer has not heard.
  bool asks_ahead = false;
  absl::Status closed;

 private:
  const Clock* const clock_;
  std::vector<int64_t> since_ns_;  // Each of `out` has it.
};

class ScriptedTransport final : public Transport {
 public:
  ScriptedTransport(std::string name, const Clock* clock,
                    std::map<std::string, ScriptedChannel*>* made)
      : name_(std::move(name)), clock_(clock), made_(made) {}
  const std::string& name() const override { return name_; }
  bool brings_any_size() const override { return any_size || name_ == "last"; }
  std::unique_ptr<Channel> MakeChannel(const std::string&, PathUser* user) override {
    auto channel = std::make_unique<ScriptedChannel>(user, clock_);
    (*made_)[name_] = channel.get();
    return channel;
  }

  bool any_size = false;

 private:
  const std::string name_;
  const Clock* const clock_;
  std::map<std::string, ScriptedChannel*>* const made_;
};

class PeerPathsTest : public testing::Test {
 protected:
  PeerPathsTest() : poller_(&alarms_) {
    context_.poller = &poller_;
    context_.options = &options_;
    for (const char* name : {"best", "second", "last"}) {
      context_.transports.push_back(std::make_unique<ScriptedTransport>(name, &alarms_, &made_));
    }
    paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  }
  void Fetch(const std::string& edge) {
    paths_->Fetch(1, Key(edge), RecvArgs(), [](Received&&) {});
  }
  ScriptedChannel* On(const std::string& name) { return made_[name]; }
  size_t OutOn(const std::string& name) {
    return made_[name] == nullptr ? 0 : On(name)->out.size();
  }
  void Pass(int64_t ms) { PassTo(alarms_.NowNs() + ms * 1'000'000); }
  void PassTo(int64_t at_ns) {
    alarms_.AdvanceTo(at_ns);
    poller_.Turn();
  }
  std::vector<PathView> Views() const {
    std::vector<PathView> views;
    paths_->View(&views);
    return views;
  }

  VirtualAlarms alarms_;
  Poller poller_;
  ChannelPoolOptions options_;
  PathsContext context_;
  std::map<std::string, ScriptedChannel*> made_;
  std::unique_ptr<PeerPaths> paths_;
};

TEST_F(PeerPathsTest, TheBestIsTakenAndOthersAreNotTried) {
  Fetch("a");
  EXPECT_EQ(OutOn("best"), 1u);
  EXPECT_EQ(On("second"), nullptr);
  std::vector<PathView> views;
  paths_->View(&views);
  ASSERT_EQ(views.size(), 3u);
  EXPECT_TRUE(views[0].in_use);
  EXPECT_EQ(views[1].state, "not tried");
  EXPECT_EQ(views[1].why, "a better one is in use");
}

TEST_F(PeerPathsTest, WhatATurnedDownPathHasGoesOnByTheNextInOrder) {
  Fetch("a");
  Fetch("b");
  On("best")->user->OnRefused();
  ASSERT_EQ(OutOn("second"), 2u);
  EXPECT_EQ(On("second")->out[0].key, Key("a"));
  EXPECT_EQ(OutOn("best"), 0u);
  EXPECT_NE(paths_->Explain().find("turned down: best: as the script says"), std::string::npos)
      << paths_->Explain();
  On("best")->state.clear();  // It gives another reason.
  On("best")->user->OnRefused();
  EXPECT_NE(paths_->Explain().find("turned down: best: scripted"), std::string::npos)
      << paths_->Explain();
}

TEST_F(PeerPathsTest, AKeyWhoseTensorIsTooLargeStaysOnTheLastPathUntilItIsThere) {
  for (int i = 0; i < 3; ++i) Fetch("large");
  std::vector<WaitingFetch> moved = On("best")->TakeWaiting();
  Fetch("other");
  On("best")->user->OnTooLarge(std::move(moved));
  EXPECT_EQ(OutOn("last"), 3u);
  Fetch("large");
  EXPECT_EQ(OutOn("last"), 4u) << "it would overtake those before it";
  Fetch("other");
  EXPECT_EQ(OutOn("best"), 2u);
  while (OutOn("last") > 0) On("last")->EndFirst();
  Fetch("large");
  EXPECT_EQ(OutOn("best"), 3u);
}

// Both are tried less and less often, and serve fetches again once a try has succeeded.
TEST_F(PeerPathsTest, BothATurnedDownAndALeftPathAreTriedAgainAndTaken) {
  for (const bool refused : {true, false}) {
    Fetch("a");
    ScriptedChannel* const best = On("best");
    const int before = best->probes;
    if (refused) {
      best->user->OnRefused();
    } else {
      best->user->OnLeft(best->TakeWaiting());
    }
    EXPECT_EQ(OutOn("second"), 1u);
    for (int i = 0; i < 100; ++i) Pass(100);
    const int probes = best->probes - before;
    EXPECT_GE(probes, 3);
    EXPECT_LE(probes, 8) << "it was not tried less and less often";
    On("second")->EndFirst();
    best->user->OnUsable();
    Pass(2000);
    Fetch("b");
    EXPECT_EQ(OutOn("best"), 1u) << paths_->Explain();
    best->EndFirst();
    EXPECT_EQ(paths_->Explain(), "scripted");
  }
}

TEST_F(PeerPathsTest, APeerThatWasStartedAnewIsTriedAtOnce) {
  Fetch("a");
  On("best")->user->OnRefused();
  Pass(1);
  EXPECT_EQ(On("best")->probes, 0);
  paths_->NoteIncarnation(7);
  Pass(1);
  EXPECT_EQ(On("best")->probes, 1);
  On("second")->EndFirst();
}

// Two ways at once would not keep the order of a key's sends.
TEST_F(PeerPathsTest, AKeyThatIsOutOnAnotherPathStaysThereUntilItHasEnded) {
  for (const bool refused : {true, false}) {
    Fetch("a");
    ScriptedChannel* const best = On("best");
    if (refused) {
      best->user->OnRefused();
    } else {
      best->user->OnLeft(best->TakeWaiting());
    }
    ASSERT_EQ(OutOn("second"), 1u);
    best->user->OnUsable();
    Fetch("a");
    Fetch("b");
    EXPECT_EQ(OutOn("second"), 2u) << "the key has left its path";
    EXPECT_EQ(OutOn("best"), 1u) << "another key has not come back";
    On("second")->EndFirst();
    On("second")->EndFirst();
    Pass(2000);
    Fetch("a");
    EXPECT_EQ(OutOn("best"), 2u) << "the key has not come back";
    best->EndFirst();
    best->EndFirst();
  }
}

// Its tensor may lie with the producer for the one that has ended, and goes back when that is
// heard.
TEST_F(PeerPathsTest, AKeyWhoseEndThePeerHasNotHeardOfStaysOnItsPath) {
  Fetch("x");
  On("best")->state = "";
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  Fetch("a");
  On("best")->user->OnUsable();
  ASSERT_EQ(OutOn("second"), 2u);
  On("second")->owes = {{1, std::string(Key("a").text())}};
  On("second")->EndFirst();
  On("second")->EndFirst();
  Pass(2000);  // What was out before is looked at again, and nothing is.
  Fetch("a");
  EXPECT_EQ(OutOn("second"), 1u) << "over the better path it could get a later tensor";
  Fetch("b");
  EXPECT_EQ(OutOn("best"), 1u) << "of this key nothing is owed";
  paths_->Fetch(2, Key("a"), RecvArgs(), [](Received&&) {});
  EXPECT_EQ(OutOn("second"), 2u) << "the key is out there";
  On("second")->EndFirst();
  On("second")->EndFirst();
  paths_->Fetch(2, Key("a"), RecvArgs(), [](Received&&) {});
  EXPECT_EQ(OutOn("best"), 2u) << "of this step nothing is owed";
  On("best")->EndFirst();
  On("best")->EndFirst();
  RecvArgs args;
  ManyDoneFn many;
  const TensorKey key = Key("a");
  Fetch("c");
  EXPECT_FALSE(paths_->FetchMany(1, {key}, args, &many)) << "one at a time while it owes";
  On("best")->EndFirst();
  On("second")->owes.clear();
  Fetch("a");
  EXPECT_EQ(OutOn("best"), 1u);
}

TEST_F(PeerPathsTest, AKeyMovesOnWithThePathThatItIsOutOn) {
  Fetch("a");
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  ASSERT_EQ(OutOn("second"), 1u);
  On("second")->user->OnLeft(On("second")->TakeWaiting());
  ASSERT_EQ(OutOn("last"), 1u);
  On("best")->user->OnUsable();
  Fetch("a");
  EXPECT_EQ(OutOn("last"), 2u) << "it would overtake the fetch that has moved";
  On("last")->EndFirst();
  On("last")->EndFirst();
}

// A fetch that is out from before a count moves uncounted.
TEST_F(PeerPathsTest, AKeyWaitsForAFetchThatMovedBeforeItWasCounted) {
  Fetch("large");
  std::vector<WaitingFetch> large = On("best")->TakeWaiting();
  Fetch("a");
  On("best")->user->OnTooLarge(std::move(large));  // Counts from here on.
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  ASSERT_EQ(OutOn("second"), 1u);
  On("best")->user->OnUsable();
  Fetch("a");
  EXPECT_EQ(OutOn("second"), 2u) << "it would overtake the fetch that has moved";
  On("second")->EndFirst();
  On("second")->EndFirst();
  On("last")->EndFirst();
}

TEST_F(PeerPathsTest, AKeyWaitsForAFetchFromBeforeAlthoughThePathWasLeftSince) {
  Fetch("z");
  On("best")->user->OnRefused();
  Fetch("a");  // On the second, uncounted.
  ASSERT_EQ(OutOn("second"), 2u);
  On("best")->user->OnUsable();
  Fetch("other");
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  Pass(1500);  // It looks for what is out from before, while the second is in use.
  On("best")->user->OnUsable();
  Fetch("a");
  EXPECT_EQ(OutOn("best"), 0u) << "it would overtake the fetch that has moved";
  while (OutOn("second") > 0) On("second")->EndFirst();
}

// What is asked ahead on a path that is not used meets sends that others wait for.
TEST_F(PeerPathsTest, OnlyThePathInUseAsksAhead) {
  Fetch("a");
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  ASSERT_EQ(OutOn("second"), 1u);
  EXPECT_FALSE(On("best")->asks_ahead);
  On("second")->EndFirst();
  On("best")->user->OnUsable();
  EXPECT_TRUE(On("best")->asks_ahead);
  EXPECT_FALSE(On("second")->asks_ahead);
}

TEST_F(PeerPathsTest, AStepThatIsAbortedIsAbortedOnAllPaths) {
  Fetch("a");
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  paths_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_EQ(On("best")->aborts, 1);
  EXPECT_EQ(On("second")->aborts, 1);
  On("second")->EndFirst();
}

TEST_F(PeerPathsTest, WhereThereIsNoOtherItGoesOnTrying) {
  Fetch("a");
  On("best")->user->OnRefused();
  On("second")->user->OnRefused();
  ASSERT_EQ(OutOn("last"), 1u);
  On("last")->user->OnRefused();
  EXPECT_EQ(OutOn("last"), 1u);
  EXPECT_FALSE(On("last")->user->HasAnother());
  On("last")->EndFirst();
}

TEST_F(PeerPathsTest, WhatIsTooLargeComesByAPathForAnySize) {
  Fetch("a");
  EXPECT_TRUE(On("best")->user->HasForAnySize());
  On("best")->user->OnTooLarge(On("best")->TakeWaiting());
  EXPECT_EQ(OutOn("last"), 1u);
  EXPECT_FALSE(On("last")->user->HasForAnySize());
  std::vector<PathView> views;
  paths_->View(&views);
  EXPECT_EQ(views[0].note,
            "1 went over last instead: they, or earlier tensors of their key, are larger than "
            "landing_bytes");
  EXPECT_TRUE(views[0].in_use);
  On("last")->EndFirst();
}

TEST_F(PeerPathsTest, WhatIsTooLargeComesByTheBestGoodPathForAnySize) {
  static_cast<ScriptedTransport*>(context_.transports[1].get())->any_size = true;
  const auto too_large = [this] {
    Fetch("a");
    On("best")->user->OnTooLarge(On("best")->TakeWaiting());
  };
  too_large();
  ASSERT_EQ(OutOn("second"), 1u);
  std::vector<PathView> views;
  paths_->View(&views);
  EXPECT_EQ(views[0].note.substr(0, 18), "1 went over second");
  EXPECT_TRUE(On("second")->user->HasForAnySize());
  On("second")->EndFirst();
  Fetch("b");
  On("second")->user->OnLeft({});
  ASSERT_EQ(OutOn("best"), 1u) << "that one is still in use";
  On("best")->EndFirst();
  too_large();
  EXPECT_EQ(OutOn("last"), 1u) << "the second has failed";
  On("last")->EndFirst();
}

TEST_F(PeerPathsTest, ALeftPathIsTriedAgainAfterTheLongestPauseAtMost) {
  options_.probe_ms = 1000;
  options_.probe_ms_most = 4000;
  Fetch("a");
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  for (int i = 0; i < 200; ++i) Pass(100);  // By now the pauses are the longest.
  for (int i = 0; i < 10; ++i) {
    const int before = On("best")->probes;
    for (int passed = 0; passed < 41; ++passed) Pass(100);
    EXPECT_GT(On("best")->probes, before);
    EXPECT_LE(On("best")->probes, before + 3) << "half of the longest pause at least";
  }
  On("second")->EndFirst();
}

TEST_F(PeerPathsTest, WhereNoneIsGoodTheOneThatWasLeftFirstIsTaken) {
  Fetch("a");
  for (const char* name : {"best", "second", "last"}) {
    Pass(10);
    On(name)->user->OnLeft(On(name)->TakeWaiting());
  }
  EXPECT_EQ(OutOn("best"), 1u) << paths_->Explain();
  EXPECT_EQ(Views()[0].state, "connected") << "it counts as good";
  EXPECT_EQ(Views()[1].state, "left");
  Pass(10);
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  EXPECT_EQ(OutOn("second"), 1u) << paths_->Explain();
  On("second")->EndFirst();
}

// A random time from half of the pause to all of it. The pause doubles, up to the longest.
TEST_F(PeerPathsTest, EachProbeComesAtItsTime) {
  options_.probe_ms = 1000;
  options_.probe_ms_most = 3000;
  for (const bool refused : {true, false}) {
    std::mt19937_64 random = context_.random;
    Pass(7);
    int64_t at_ns = alarms_.NowNs();
    Fetch("a");
    ScriptedChannel* const best = On("best");
    if (refused) {
      best->user->OnRefused();
    } else {
      best->user->OnLeft(best->TakeWaiting());
    }
    for (const int64_t pause_ms : {1000, 2000, 3000, 3000}) {
      const int64_t half_ns = pause_ms * 500'000;
      at_ns += half_ns + static_cast<int64_t>(random() % static_cast<uint64_t>(half_ns + 1));
      EXPECT_EQ(poller_.NextTimerNs(), at_ns) << pause_ms;
      const int before = best->probes;
      PassTo(at_ns - 1);
      EXPECT_EQ(best->probes, before) << pause_ms;
      PassTo(at_ns);
      EXPECT_EQ(best->probes, before + 1) << pause_ms;
    }
    On("second")->EndFirst();
    best->user->OnUsable();
    const int probes = best->probes;
    Pass(3000);
    EXPECT_EQ(best->probes, probes);
    EXPECT_EQ(poller_.NextTimerNs(), kNever) << "nothing is left to try";
  }
  EXPECT_EQ(On("second")->probes, 0);
}

// One that is worse than the one in use is not tried: it would not be taken.
TEST_F(PeerPathsTest, OnlyBetterPathsThanTheOneInUseAreTried) {
  Fetch("a");
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  Pass(100);
  On("best")->user->OnUsable();
  On("second")->user->OnLeft(On("second")->TakeWaiting());
  EXPECT_EQ(OutOn("best"), 1u) << "what the worse one had goes on by the one in use";
  EXPECT_EQ(OutOn("last"), 0u);
  for (int i = 0; i < 10; ++i) Pass(1000);
  EXPECT_EQ(On("second")->probes, 0);
  On("second")->user->OnUsable();
  Fetch("b");
  EXPECT_EQ(OutOn("best"), 2u) << "a worse one that works is not taken";
  On("best")->EndFirst();
  On("best")->EndFirst();
}

TEST_F(PeerPathsTest, NothingIsTriedOnceItIsGone) {
  Fetch("a");
  On("best")->user->OnRefused();
  On("second")->EndFirst();
  EXPECT_NE(poller_.NextTimerNs(), kNever);
  paths_.reset();
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
}

TEST_F(PeerPathsTest, WhatWasNeverTriedHasNothingToDrain) {
  EXPECT_TRUE(paths_->Drained());
  Fetch("a");
  EXPECT_FALSE(paths_->Drained());
  On("best")->EndFirst();
  EXPECT_EQ(On("second"), nullptr);
  EXPECT_TRUE(paths_->Drained());
}

TEST_F(PeerPathsTest, NothingIsTriedOnceItIsClosed) {
  Fetch("a");
  On("best")->user->OnRefused();
  EXPECT_FALSE(paths_->Drained());
  paths_->Close(absl::AbortedError("over"));
  EXPECT_EQ(On("best")->closed, absl::AbortedError("over"));
  EXPECT_EQ(On("second")->closed, absl::AbortedError("over"));
  EXPECT_EQ(On("last"), nullptr);
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
  On("second")->user->OnLeft(On("second")->TakeWaiting());
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
  EXPECT_FALSE(paths_->Drained());
  On("last")->EndFirst();
  EXPECT_TRUE(paths_->Drained());
}

TEST_F(PeerPathsTest, ABetterNetworkHasAllOfThemTriedAtOnce) {
  options_.probe_ms = 1000;
  Fetch("a");
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  for (int i = 0; i < 50; ++i) Pass(100);
  const int probes = On("best")->probes;
  EXPECT_GE(probes, 2);
  std::mt19937_64 random = context_.random;
  On("second")->user->OnNetworkChange();
  EXPECT_EQ(On("best")->retries, 1);
  EXPECT_EQ(On("second")->retries, 1);
  EXPECT_EQ(On("last"), nullptr);
  PassTo(alarms_.NowNs());
  EXPECT_EQ(On("best")->probes, probes + 1);
  EXPECT_EQ(poller_.NextTimerNs(),
            alarms_.NowNs() + 500'000'000 + static_cast<int64_t>(random() % 500'000'001))
      << "the pauses begin anew";
  On("second")->EndFirst();
}

// A life that has begun is one reason to ask again, and what was left is tried by the pauses alone.
TEST_F(PeerPathsTest, APeersNewLifeIsNewsOnceAndForWhatItHasTurnedDown) {
  Fetch("a");
  On("best")->user->OnRefused();
  On("second")->user->OnLeft(On("second")->TakeWaiting());
  paths_->NoteIncarnation(7);
  PassTo(alarms_.NowNs());
  EXPECT_EQ(On("best")->probes, 1);
  EXPECT_EQ(On("second")->probes, 0);
  paths_->NoteIncarnation(7);
  PassTo(alarms_.NowNs());
  EXPECT_EQ(On("best")->probes, 1);
  std::mt19937_64 random = context_.random;
  paths_->NoteIncarnation(8);
  PassTo(alarms_.NowNs());
  EXPECT_EQ(On("best")->probes, 2);
  EXPECT_EQ(On("second")->probes, 0);
  const auto pause_ns = 500'000'000 + static_cast<int64_t>(random() % 500'000'001);
  On("second")->user->OnUsable();
  EXPECT_EQ(poller_.NextTimerNs(), alarms_.NowNs() + pause_ns) << "the pauses begin anew";
  On("last")->EndFirst();
}

TEST_F(PeerPathsTest, AManyAndACallbackNeedAllFetchesOnOnePath) {
  const TensorKey key = Key("many");
  const auto many = [&] {
    ManyDoneFn done = [](const absl::Status&, absl::Span<Received>) {};
    return paths_->FetchMany(1, absl::MakeConstSpan(&key, 1), RecvArgs(), &done);
  };
  EXPECT_TRUE(many());
  ScriptedChannel* const best = On("best");
  EXPECT_EQ(best->manys, 1);
  EXPECT_EQ(paths_->InCallbacks(), best);
  best->in_callbacks = false;
  EXPECT_EQ(paths_->InCallbacks(), nullptr);
  best->in_callbacks = true;
  Fetch("a");
  best->user->OnLeft(best->TakeWaiting());
  On("second")->EndFirst();
  Fetch("b");
  On("second")->EndFirst();
  EXPECT_FALSE(many()) << "a path is left, and what comes back to it has to be counted";
  EXPECT_EQ(paths_->InCallbacks(), nullptr);
  best->user->OnUsable();
  EXPECT_FALSE(many());
  Fetch("c");  // It finds that none is out.
  EXPECT_TRUE(many());
  EXPECT_EQ(best->manys, 2);
  EXPECT_EQ(On("second")->manys, 0);
  EXPECT_EQ(paths_->InCallbacks(), best);
  best->EndFirst();
}

TEST_F(PeerPathsTest, WithoutATransportAFetchSaysWhatIsMissing) {
  context_.transports.clear();
  context_.missing.emplace_back("rdma", absl::NotFoundError("no device\n"));
  paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  absl::Status ended;
  paths_->Fetch(1, Key("a"), RecvArgs(),
                [&](Received&& received) { ended = std::move(received.status); });
  EXPECT_EQ(ended, absl::UnavailableError(
                       "no path is left to /job:ps/replica:0/task:0; /job:ps/replica:0/task:0: "
                       "not asked yet\n  no rdma here: no device\\n"));
  const TensorKey key = Key("many");
  ManyDoneFn done = [](const absl::Status&, absl::Span<Received>) {};
  EXPECT_FALSE(paths_->FetchMany(1, absl::MakeConstSpan(&key, 1), RecvArgs(), &done));
  EXPECT_EQ(paths_->InCallbacks(), nullptr);
  EXPECT_TRUE(paths_->Drained());
}

// What is fetched later is counted. Noted as out from before, it would keep its key on the other
// path for ever where the key is always fetched again.
TEST_F(PeerPathsTest, AKeyThatIsFetchedAgainAndAgainComesBack) {
  Fetch("a");
  On("best")->user->OnRefused();
  Pass(10);
  On("best")->user->OnUsable();
  const int64_t usable_ns = alarms_.NowNs();
  EXPECT_EQ(poller_.NextTimerNs(), usable_ns + 1'000'000'000);
  Pass(10);
  Fetch("a");
  ASSERT_EQ(OutOn("second"), 2u) << "the first is from before";
  On("second")->EndFirst();
  PassTo(usable_ns + 999'999'999);
  EXPECT_EQ(poller_.NextTimerNs(), usable_ns + 1'000'000'000);
  PassTo(usable_ns + 1'000'000'000);
  EXPECT_EQ(poller_.NextTimerNs(), kNever) << "it looks no more";
  On("second")->EndFirst();
  Fetch("a");
  EXPECT_EQ(OutOn("best"), 1u);
  On("best")->EndFirst();
}

TEST_F(PeerPathsTest, EachSecondItSeesWhatIsOutFromBefore) {
  Fetch("a");
  On("best")->user->OnRefused();
  On("best")->user->OnUsable();  // At the same moment.
  for (int i = 1; i <= 3; ++i) {
    const int64_t at_ns = alarms_.NowNs() + 1'000'000'000;
    EXPECT_EQ(poller_.NextTimerNs(), at_ns);
    PassTo(at_ns);
    Fetch("a");
    EXPECT_EQ(OutOn("second"), 1u + static_cast<size_t>(i));
  }
  while (OutOn("second") > 0) On("second")->EndFirst();
}

TEST_F(PeerPathsTest, WhatPeopleAreToldOfEachPath) {
  Pass(3);
  Fetch("a");
  const int64_t made_ns = alarms_.NowNs();
  ScriptedChannel* const best = On("best");
  best->state.clear();
  Pass(2);
  std::vector<PathView> views = Views();
  EXPECT_EQ(views[0].peer, kPeer);
  EXPECT_EQ(views[0].path, "best");
  EXPECT_TRUE(views[0].in_use);
  EXPECT_EQ(views[0].health, PathHealth::kWorking);
  EXPECT_EQ(views[0].state, "in use");
  EXPECT_EQ(views[0].why, "scripted");
  EXPECT_EQ(views[0].since_ns, made_ns);
  EXPECT_EQ(views[0].under_way, 1u);
  EXPECT_EQ(views[0].note, "");

  best->user->OnLeft(best->TakeWaiting());
  const int64_t left_ns = alarms_.NowNs();
  On("second")->user->OnRefused();
  Pass(250);
  views = Views();
  EXPECT_FALSE(views[0].in_use);
  EXPECT_EQ(views[0].health, PathHealth::kFailing);
  EXPECT_EQ(views[0].state, "left");
  EXPECT_EQ(views[0].why, "scripted");
  EXPECT_EQ(views[0].since_ns, left_ns);
  EXPECT_EQ(views[0].under_way, 0u);
  EXPECT_FALSE(views[1].in_use);
  EXPECT_EQ(views[1].health, PathHealth::kIdle);
  EXPECT_EQ(views[1].state, "turned down");
  EXPECT_EQ(views[1].why, "second: as the script says");
  EXPECT_EQ(views[1].since_ns, 0) << "since when, the channel says";
  EXPECT_TRUE(views[2].in_use);
  EXPECT_EQ(views[2].state, "connected");
  EXPECT_EQ(views[2].health, PathHealth::kIdle) << "the channel's word";
  EXPECT_EQ(paths_->Explain(),
            "scripted\n  left since 250 ms: best: scripted; tried again every 1000 ms"
            "\n  turned down: second: as the script says");
  LiveOps ops(9);
  paths_->ListOps(&ops);
  EXPECT_EQ(ops.Take().size(), 1u);

  best->user->OnUsable();
  On("last")->state.clear();
  views = Views();
  EXPECT_EQ(views[2].health, PathHealth::kIdle);
  EXPECT_EQ(views[2].state, "spare");
  EXPECT_EQ(views[2].why, "scripted");
  On("last")->EndFirst();
  paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  views = Views();
  EXPECT_EQ(views[0].state, "not tried");
  EXPECT_EQ(views[0].why, "") << "it will be the first to be tried";
  EXPECT_EQ(paths_->Explain(), "/job:ps/replica:0/task:0: not asked yet");
}

// The lines of the log, which have no other place to go.
std::vector<std::string>* logged = nullptr;

TEST_F(PeerPathsTest, TheLogTellsOfEachChangeOnce) {
  std::vector<std::string> lines;
  logged = &lines;
  SetLogSink([](LogSeverity severity, const char*, int, absl::string_view text) {
    logged->push_back(absl::StrCat(severity == LogSeverity::kWarning ? "W " : "I ", text));
  });
  options_.self = "us";
  Fetch("a");
  ScriptedChannel* const best = On("best");
  best->user->OnRefused();
  best->user->OnRefused();
  best->user->OnUsable();
  Fetch("b");
  best->user->OnLeft(best->TakeWaiting());
  Pass(20);
  best->user->OnUsable();
  best->user->OnUsable();
  for (const char* edge : {"large", "larger"}) {
    best->user->OnTooLarge({});
    Fetch(edge);
    best->user->OnTooLarge(best->TakeWaiting());
  }
  SetLogSink(nullptr);
  EXPECT_THAT(
      lines,
      testing::ElementsAre(
          "I us cannot reach /job:ps/replica:0/task:0 by best: as the script says",
          "I us now reaches /job:ps/replica:0/task:0 by best; earlier it could not: best: as the "
          "script says",
          "W us now reaches /job:ps/replica:0/task:0 by second, and moves 1 fetches there, because "
          "best failed: as the script says",
          "I us reaches /job:ps/replica:0/task:0 by best again, after 20 ms by second",
          absl::StrCat("I us fetches ", Key("large").text(),
                       " over last, because the tensor is larger than landing_bytes of best; "
                       "`tryst explain` counts further such tensors, which are not logged")));
  EXPECT_EQ(Views()[0].note,
            "2 went over last instead: they, or earlier tensors of their key, are larger than "
            "landing_bytes");
  for (const char* name : {"second", "last"}) {
    while (OutOn(name) > 0) On(name)->EndFirst();
  }
}

}  // namespace
}  // namespace tryst
