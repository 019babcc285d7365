#include "channel/pool/peer_paths.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr char kPeer[] = "/job:ps/replica:0/task:0";

TensorKey Key(const std::string& edge) {
  return TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:CPU:0", 1,
                               "/job:worker/replica:0/task:0/device:CPU:0", edge)
      ->At(0, 0);
}

// Keeps what is fetched until the test ends it, and tells the user what the test says.
class ScriptedChannel final : public Channel {
 public:
  explicit ScriptedChannel(PathUser* user) : user(user) {}
  void Fetch(int64_t step, const TensorKey& key, const Args& args, DoneFn&& done) override {
    out.push_back({step, key, args, std::move(done)});
  }
  void AbortStep(int64_t, const absl::Status&) override { ++aborts; }
  void AskAhead(bool in_use) override { asks_ahead = in_use; }
  void Close(absl::Status) override {}
  bool Drained() const override { return out.empty(); }
  std::string Explain() const override { return "scripted"; }
  void View(PathView* view) const override {
    view->state = "connected";
    view->why = "as the script says";
  }
  void ListOps(LiveOps* ops) const override {
    for (const WaitingFetch& fetch : out) {
      LiveOp op;
      op.key = fetch.key;
      ops->Add(std::move(op));
    }
  }
  std::vector<WaitingFetch> TakeWaiting() override { return std::exchange(out, {}); }
  void Probe() override { ++probes; }
  void EndFirst() {
    WaitingFetch fetch = std::move(out.front());
    out.erase(out.begin());
    std::move(fetch.done)(absl::OkStatus(), Args(), fetch.args, Tensor(), true);
  }

  PathUser* const user;
  std::vector<WaitingFetch> out;
  int probes = 0;
  int aborts = 0;
  bool asks_ahead = false;
};

class ScriptedTransport final : public Transport {
 public:
  ScriptedTransport(std::string name, std::map<std::string, ScriptedChannel*>* made)
      : name_(std::move(name)), made_(made) {}
  const std::string& name() const override { return name_; }
  bool is_last_resort() const override { return name_ == "last"; }
  std::unique_ptr<Channel> MakeChannel(const std::string&, PathUser* user) override {
    auto channel = std::make_unique<ScriptedChannel>(user);
    (*made_)[name_] = channel.get();
    return channel;
  }

 private:
  const std::string name_;
  std::map<std::string, ScriptedChannel*>* const made_;
};

class PeerPathsTest : public testing::Test {
 protected:
  PeerPathsTest() : poller_(&alarms_) {
    context_.poller = &poller_;
    context_.options = &options_;
    for (const char* name : {"best", "second", "last"}) {
      context_.transports.push_back(std::make_unique<ScriptedTransport>(name, &made_));
    }
    paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  }
  void Fetch(const std::string& edge) {
    paths_->Fetch(1, Key(edge), Args(),
                  [](absl::Status, const Args&, const Args&, Tensor, bool) {});
  }
  ScriptedChannel* On(const std::string& name) { return made_[name]; }
  size_t OutOn(const std::string& name) {
    return made_[name] == nullptr ? 0 : On(name)->out.size();
  }
  void Pass(int64_t ms) {
    alarms_.AdvanceBy(absl::Milliseconds(ms));
    poller_.Turn();
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
  Fetch("a");
  Fetch("large");
  std::vector<WaitingFetch> large;
  large.push_back(std::move(On("best")->out[1]));
  On("best")->out.pop_back();
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

TEST_F(PeerPathsTest, WhatIsTooLargeComesByTheLastResort) {
  Fetch("a");
  EXPECT_TRUE(On("best")->user->HasLastResort());
  On("best")->user->OnTooLarge(On("best")->TakeWaiting());
  EXPECT_EQ(OutOn("last"), 1u);
  EXPECT_FALSE(On("last")->user->HasLastResort());
  std::vector<PathView> views;
  paths_->View(&views);
  EXPECT_EQ(views[0].note,
            "1 went over last instead: they, or earlier tensors of their key, are larger than "
            "landing_bytes");
  EXPECT_TRUE(views[0].in_use);
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
  Pass(10);
  On("best")->user->OnLeft(On("best")->TakeWaiting());
  EXPECT_EQ(OutOn("second"), 1u) << paths_->Explain();
  On("second")->EndFirst();
}

}  // namespace
}  // namespace tryst
