#include "channel/pool/peer_paths.h"

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kPeer[] = "/job:ps/replica:0/task:0";

TensorKey Key(const std::string& edge) {
  return TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:CPU:0", 1,
                               "/job:worker/replica:0/task:0/device:CPU:0", edge)
      ->At(0, 0);
}

// What the peer hears and answers.
struct Peer {
  std::map<std::string, absl::Status> answers;  // To hellos, by path; none: it welcomes.
  std::vector<std::string> hellos;              // "best", and "best?" of one that probes.
  std::vector<std::string> asked;               // "best a": by which link, and for what.
  FetchSession* session = nullptr;              // The one that fetches, once it has a link.
};

// A link that is there with the answer to its hello.
class ScriptedLink final : public FetchLink, private FetchWords, private PollerFlush {
 public:
  ScriptedLink(FetchSession* session, Peer* peer) : session_(session), peer_(peer) {}
  ~ScriptedLink() override { session_->poller()->ForgetFlush(this); }

  void Break(const absl::Status& why) override {
    if (!session_->open()) return;
    session_->OnLinkBroken(why);
    session_->DrainAsks();
    session_->GoOn();
  }

 private:
  // ---- FetchWords ----
  void FlushSoon() override { session_->poller()->FlushThisTurn(this); }
  bool HasRoom(const FetchAsk&) override { return true; }
  bool SendRequest(FetchAsk* ask, bool) override {
    peer_->asked.push_back(absl::StrCat(session_->path(), " ", ask->of->key.edge()));
    return true;
  }
  bool SendCancel(const FetchAsk& ask) override {
    peer_->asked.push_back(absl::StrCat(session_->path(), " not ", ask.of->key.edge()));
    return true;
  }
  bool SendPark(const FetchAsk&) override { return true; }
  bool SendWaits(FetchAsk*) override { return true; }
  bool SendReplayed() override { return true; }
  bool SendUnwanted(absl::Span<const uint64_t>) override { return true; }
  size_t most_tickets() const override { return 1; }
  uint64_t most_run_bytes() const override { return 0; }
  void Flush() override {
    if (session_->open()) session_->SayAll();
  }

  // ---- FetchLink ----
  FetchWords* words() override { return this; }
  absl::Status Begin(Hello*) override {
    if (session_->session() == 0) (void)session_->UseSlots(8);
    return absl::OkStatus();
  }
  absl::Status UseAnswer(const Hello& answer) override {
    session_->MeetPeer(answer.incarnation, 1);
    session_->OnLinkOpen();
    if (!session_->is_probing()) peer_->session = session_;
    session_->OnWord();
    FlushSoon();
    return absl::OkStatus();
  }
  bool EndAttempt(const absl::Status&) override { return false; }
  bool Close(const absl::Status& why) override {
    if (session_->open()) {
      session_->OnLinkBroken(why);
      session_->EndSession();
      session_->DrainAsks();
    }
    return true;
  }
  std::string Explain() const override { return ""; }
  int64_t MostSilentMs() const override { return 1'000'000'000; }
  void AskForSign(bool) override {}
  absl::Status Overdue() override { return absl::OkStatus(); }
  FetchAsk* MakeAsk() override { return asks_.emplace_back(std::make_unique<FetchAsk>()).get(); }
  void DropAsks() override { asks_.clear(); }
  absl::Status MayFillDevice(int) const override { return absl::OkStatus(); }
  void OnWaits(FetchOp* op) override {
    if (session_->AwaitPeer(session_->live_asks() == 1 && op->ask->front == op)) FlushSoon();
  }
  bool MayPass(const FetchAsk&, const FetchOp&) const override { return true; }

  FetchSession* const session_;
  Peer* const peer_;
  std::vector<std::unique_ptr<FetchAsk>> asks_;
};

class ScriptedKind final : public Transport {
 public:
  ScriptedKind(std::string name, Peer* peer) {
    kind_.path = std::move(name);
    kind_.check_ms = 1'000'000;
    kind_.fetches_in_callbacks = true;
    kind_.make = [peer](FetchSession* session) {
      return std::make_unique<ScriptedLink>(session, peer);
    };
  }
  const std::string& name() const override { return kind_.path; }
  const FetchKind* fetch_kind() const override { return &kind_; }

 private:
  FetchKind kind_;
};

// Keeps what is fetched until the test ends it.
class ScriptedChannel final : public Channel {
 public:
  explicit ScriptedChannel(ChannelUser* user) : user(user) {}
  void Fetch(int64_t step, const TensorKey& key, const RecvArgs& args, FetchedFn&& done) override {
    out.push_back({step, key, args, std::move(done)});
  }
  size_t fetches_out() const override { return out.size(); }
  void AbortStep(int64_t, const absl::Status&) override { ++aborts; }
  void Close(absl::Status why) override { closed = why; }
  bool Drained() const override { return out.empty(); }
  std::string Explain() const override { return why; }
  void ListOps(LiveOps*) const override {}
  std::vector<WaitingFetch> TakeWaiting() override { return std::exchange(out, {}); }
  void Probe() override { ++probes; }
  void RetryNow() override { ++retries; }
  void EndFirst() {
    WaitingFetch fetch = std::move(out.front());
    out.erase(out.begin());
    std::move(fetch.done)({absl::OkStatus(), Tensor(), true});
  }

  ChannelUser* const user;
  std::vector<WaitingFetch> out;
  int probes = 0;
  int retries = 0;
  int aborts = 0;
  std::string why = "scripted";
  absl::Status closed;
};

class ScriptedTransport final : public Transport {
 public:
  explicit ScriptedTransport(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  std::unique_ptr<Channel> MakeChannel(const std::string&, ChannelUser* user) override {
    auto made = std::make_unique<ScriptedChannel>(user);
    channel = made.get();
    return made;
  }
  ScriptedChannel* channel = nullptr;  // Null: it was not tried.

 private:
  const std::string name_;
};

class PeerPathsTest : public testing::Test, private Bootstrap {
 protected:
  // Three kinds of links, the best first, and behind them a channel: "last".
  PeerPathsTest() : poller_(&alarms_) {
    SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
    options_.sessions.give_up_ms = 100;
    options_.sessions.patience_ms = 3'600'000;
    context_.poller = &poller_;
    context_.options = &options_;
    context_.common.poller = &poller_;
    context_.common.bootstrap = this;
    for (const char* name : {"best", "second", "third"}) {
      context_.transports.push_back(std::make_unique<ScriptedKind>(name, &peer_));
    }
    AddChannel("last");
    paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
    poller_.Turn();
  }
  ~PeerPathsTest() override {
    if (paths_ != nullptr) paths_->Close(absl::CancelledError("over"));
    for (ScriptedTransport* one : channels_) {
      while (one->channel != nullptr && !one->channel->out.empty()) one->channel->EndFirst();
    }
    Turns();
    EXPECT_TRUE(paths_ == nullptr || paths_->Drained());
    paths_.reset();
    SetLogSink(nullptr);
  }
  ScriptedTransport* AddChannel(const std::string& name, bool first = false) {
    auto made = std::make_unique<ScriptedTransport>(name);
    channels_.push_back(made.get());
    auto* const all = &context_.transports;
    all->insert(first ? all->begin() : all->end(), std::move(made));
    return channels_.back();
  }
  ScriptedChannel* last() { return channels_[0]->channel; }

  // Bootstrap.
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    if (hello.path != "none") {
      peer_.hellos.push_back(absl::StrCat(hello.path, hello.probes ? "?" : ""));
    }
    absl::Status answered = peer_.answers[hello.path];
    if (hello.path == "none") answered = absl::UnimplementedError("no path none");
    Hello answer = hello;
    answer.worker = kPeer;
    answer.incarnation = incarnation_;
    waiting_.push_back([done = std::move(done), answer, answered]() mutable {
      if (answered.ok()) return std::move(done)(answer);
      std::move(done)(answered);
    });
  }
  void Turns() {
    for (int i = 0; i < 10; ++i) {
      for (auto& answer : std::exchange(waiting_, {})) std::move(answer)();
      poller_.Turn();
    }
  }
  void Fetch(const std::string& edge) {
    paths_->Fetch(1, Key(edge), RecvArgs(),
                  [this](Received&& received) { ended_.push_back(received.status); });
    Turns();
  }
  void Pass(int64_t ms) { PassTo(alarms_.NowNs() + ms * 1'000'000); }
  void PassTo(int64_t at_ns) {
    alarms_.AdvanceTo(at_ns);
    Turns();
  }
  void PassSlowly(int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += 5) Pass(5);
  }
  // The peer has no such path.
  void Refuse(const std::string& path) {
    peer_.answers[path] = absl::UnimplementedError("no " + path);
  }
  // Its link breaks, and another one does not open.
  void Fail(const std::string& path) {
    peer_.answers[path] = absl::UnavailableError("cut");
    peer_.session->link()->Break(absl::UnavailableError("cut"));
    PassSlowly(2000);
  }
  std::vector<std::string> Asked() { return std::exchange(peer_.asked, {}); }
  std::vector<std::string> Hellos() { return std::exchange(peer_.hellos, {}); }
  int Probes(const std::string& path) {
    int count = 0;
    for (const std::string& hello : Hellos()) count += hello == path + "?";
    return count;
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
  Peer peer_;
  uint64_t incarnation_ = 1;
  std::vector<absl::AnyInvocable<void() &&>> waiting_;
  std::vector<ScriptedTransport*> channels_;
  std::vector<absl::Status> ended_;
  std::unique_ptr<PeerPaths> paths_;
};

TEST_F(PeerPathsTest, TheBestIsTakenAndOthersAreNotTried) {
  Fetch("a");
  EXPECT_THAT(Asked(), ElementsAre("best a"));
  EXPECT_THAT(Hellos(), ElementsAre("best"));
  const std::vector<PathView> views = Views();
  ASSERT_EQ(views.size(), 4u);
  EXPECT_TRUE(views[0].in_use);
  EXPECT_EQ(views[0].under_way, 1u);
  EXPECT_EQ(views[1].state, "not tried");
  EXPECT_EQ(views[1].why, "a better one is in use");
  EXPECT_EQ(last(), nullptr);
}

TEST_F(PeerPathsTest, WhatATurnedDownKindWasForGoesOnByTheNextInOrder) {
  Refuse("best");
  Refuse("second");
  Fetch("a");
  Fetch("b");
  EXPECT_THAT(Hellos(), ElementsAre("best", "second", "third"));
  EXPECT_THAT(Asked(), ElementsAre("third a", "third b"));
  EXPECT_THAT(paths_->Explain(), HasSubstr("over third: connected"));
  EXPECT_THAT(paths_->Explain(), HasSubstr("turned down: best: no best"));
  EXPECT_EQ(Views()[0].state, "turned down");
  EXPECT_EQ(Views()[0].why, "best: no best");
  EXPECT_FALSE(Views()[0].in_use);
  EXPECT_TRUE(Views()[2].in_use);
  peer_.answers["best"] = absl::UnimplementedError("another reason");
  PassSlowly(1000);
  EXPECT_THAT(paths_->Explain(), HasSubstr("turned down: best: another reason"));
}

// What is under way stays so while the better one is tried beside it.
TEST_F(PeerPathsTest, BothATurnedDownAndALeftPathAreTriedAgainAndTaken) {
  for (const bool refused : {true, false}) {
    if (refused) {
      Refuse("best");
      Fetch("a");
    } else {
      Fail("best");
    }
    EXPECT_THAT(Asked(), testing::Contains("second a"));
    EXPECT_EQ(Views()[0].state, refused ? "turned down" : "left");
    Hellos();
    const uint64_t epoch = Views()[1].epoch;
    PassSlowly(10'000);
    const int probes = Probes("best");
    EXPECT_GE(probes, 2);
    EXPECT_LE(probes, 8) << "it was not tried less and less often";
    EXPECT_EQ(Views()[1].epoch, epoch) << "the link in use has ended";
    EXPECT_THAT(Asked(), IsEmpty());
    peer_.answers.clear();
    PassSlowly(30'000);
    EXPECT_THAT(Hellos(), testing::Contains("best")) << "the session moves";
    EXPECT_THAT(Asked(), ElementsAre("best a")) << "and asks again";
    EXPECT_TRUE(Views()[0].in_use);
    EXPECT_EQ(Views()[1].state, "spare");
    EXPECT_EQ(Views()[1].health, PathHealth::kIdle) << "nothing goes by it";
    EXPECT_THAT(paths_->Explain(), Not(HasSubstr("turned down")));
    EXPECT_THAT(paths_->Explain(), Not(HasSubstr("left since")));
    PassSlowly(5000);
    EXPECT_EQ(Probes("best"), 0);
  }
  EXPECT_THAT(ended_, IsEmpty());
}

// One that answers whoever tries it, and then brings nothing.
TEST_F(PeerPathsTest, APathThatFailsAgainAndAgainIsTakenEverLessOften) {
  options_.probe_ms = 200;
  options_.probe_ms_most = 20'000;
  Fetch("a");
  int moves = 0;
  for (int round = 0; round < 60; ++round) {
    if (peer_.session->path() == "best") {
      ++moves;
      Fail("best");
      peer_.answers.clear();
    }
    PassSlowly(1000);
  }
  EXPECT_GE(moves, 3);
  EXPECT_LE(moves, 9);
}

TEST_F(PeerPathsTest, APeerThatWasStartedAnewIsAskedAtOnceForWhatItHasTurnedDown) {
  Refuse("best");
  Fetch("a");
  Hellos();
  paths_->NoteIncarnation(7);
  Pass(1);
  EXPECT_THAT(Hellos(), ElementsAre("best?"));
  Pass(20);
  paths_->NoteIncarnation(7);
  Pass(1);
  EXPECT_THAT(Hellos(), IsEmpty()) << "that is no news";
  paths_->NoteIncarnation(8);
  Pass(1);
  EXPECT_THAT(Hellos(), ElementsAre("best?"));
}

TEST_F(PeerPathsTest, ALeftPathWaitsForItsPauseWhateverLifeThePeerHas) {
  Fetch("a");
  Fail("best");
  Hellos();
  options_.probe_ms = options_.probe_ms_most = 1'000'000;
  PassSlowly(30'000);  // The next pause is one of these.
  Hellos();
  paths_->NoteIncarnation(7);
  Pass(1);
  EXPECT_THAT(Hellos(), IsEmpty());
}

TEST_F(PeerPathsTest, WherePeerRefusesEveryKindItsFetchesGoByTheChannel) {
  for (const char* path : {"best", "second", "third"}) Refuse(path);
  Fetch("a");
  Fetch("b");
  ASSERT_NE(last(), nullptr);
  ASSERT_EQ(last()->out.size(), 2u);
  EXPECT_EQ(last()->out[0].key, Key("a"));
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(paths_->InCallbacks(), nullptr);
  EXPECT_TRUE(Views()[3].in_use);
  EXPECT_EQ(Views()[3].state, "in use");
  EXPECT_EQ(Views()[3].health, PathHealth::kWorking);
  EXPECT_EQ(paths_->Explain().substr(0, 8), "scripted");
}

// Two channels at once would not keep the order of a key's sends.
TEST_F(PeerPathsTest, TheOnlyKindIsTriedAgainWhenItWasRefused) {
  paths_->Close(absl::CancelledError("over"));
  Turns();
  paths_.reset();
  context_.transports.erase(context_.transports.begin() + 1, context_.transports.begin() + 3);
  paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  Refuse("best");
  Fetch("a");
  ASSERT_NE(last(), nullptr);
  ASSERT_EQ(last()->out.size(), 1u);
  last()->EndFirst();
  peer_.answers["best"] = absl::OkStatus();
  PassSlowly(20'000);
  Fetch("b");
  EXPECT_TRUE(last()->out.empty()) << "it goes by the kind that works again";
}

TEST_F(PeerPathsTest, FetchesComeBackFromTheChannelWhenNoneIsOut) {
  for (const char* path : {"best", "second", "third"}) Refuse(path);
  Fetch("a");
  ASSERT_EQ(last()->out.size(), 1u);
  peer_.answers.clear();
  PassSlowly(5000);
  Fetch("b");
  EXPECT_EQ(last()->out.size(), 2u) << "a is out there";
  last()->EndFirst();
  Fetch("a");
  EXPECT_EQ(last()->out.size(), 2u);
  last()->EndFirst();
  last()->EndFirst();
  EXPECT_THAT(Asked(), IsEmpty());
  Fetch("c");
  EXPECT_THAT(Asked(), ElementsAre("best c"));
  EXPECT_TRUE(last()->out.empty());
}

// An embedder's own way of reaching a peer, before all of ours.
TEST_F(PeerPathsTest, AChannelThatIsTurnedDownHandsOverWhatItHas) {
  paths_.reset();
  ScriptedTransport* const own = AddChannel("own", /*first=*/true);
  paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  Fetch("a");
  Fetch("b");
  ASSERT_EQ(own->channel->out.size(), 2u);
  own->channel->user->OnRefused();
  Turns();
  EXPECT_THAT(Asked(), ElementsAre("best a", "best b"));
  EXPECT_THAT(paths_->Explain(), HasSubstr("turned down: own: scripted"));
  own->channel->why = "another reason";
  own->channel->user->OnRefused();
  EXPECT_THAT(paths_->Explain(), HasSubstr("turned down: own: another reason"));
  PassSlowly(1000);
  EXPECT_GE(own->channel->probes, 1);
  own->channel->user->OnUsable();
  Fetch("c");
  EXPECT_THAT(Asked(), ElementsAre("best c")) << "others are out there";
  paths_->AbortStep(1, absl::AbortedError("over"));
  Turns();
  EXPECT_EQ(own->channel->aborts, 1);
  EXPECT_EQ(ended_.size(), 3u);
  Fetch("d");
  EXPECT_TRUE(own->channel->out.empty()) << "the peer has not heard of the ends";
}

TEST_F(PeerPathsTest, WhereThereIsNoOtherItGoesOnTrying) {
  paths_.reset();
  context_.transports.pop_back();
  paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  channels_.clear();
  for (const char* path : {"best", "second", "third"}) Refuse(path);
  Fetch("a");
  PassSlowly(3000);
  const std::vector<std::string> hellos = Hellos();
  EXPECT_GT(std::count(hellos.begin(), hellos.end(), "third"), 3);
  EXPECT_THAT(ended_, IsEmpty());
  peer_.answers.erase("third");
  PassSlowly(2000);
  EXPECT_THAT(Asked(), ElementsAre("third a"));
}

// Each in turn, since one of them may work again.
TEST_F(PeerPathsTest, WhereNoneIsGoodTheOneThatWasLeftFirstIsTaken) {
  options_.probe_ms = options_.probe_ms_most = 1'000'000;
  Fetch("a");
  for (const char* path : {"best", "second", "third"}) {
    peer_.answers[path] = absl::UnavailableError("cut");
  }
  Fail("best");
  PassSlowly(6000);
  std::vector<std::string> order;
  for (const std::string& hello : Hellos()) {
    if (order.empty() || order.back() != hello) order.push_back(hello);
  }
  ASSERT_GE(order.size(), 5u);
  order.resize(5);
  EXPECT_THAT(order, ElementsAre("best", "second", "third", "best", "second"));
  EXPECT_EQ(last(), nullptr) << "the peer may hold what it was asked for";
}

// A random time from half of the pause to all of it. The pause doubles, up to the longest.
TEST_F(PeerPathsTest, EachProbeComesAtItsTime) {
  options_.probe_ms = 1000;
  options_.probe_ms_most = 3000;
  Refuse("best");
  (void)paths_->InCallbacks();  // It makes the session, which draws a number.
  std::mt19937_64 random = context_.random;
  int64_t at_ns = alarms_.NowNs();
  Fetch("a");
  int probes = 0;
  for (const int64_t pause_ms : {1000, 2000, 3000, 3000}) {
    const int64_t half_ns = pause_ms * 500'000;
    at_ns += half_ns + static_cast<int64_t>(random() % static_cast<uint64_t>(half_ns + 1));
    if (probes++ == 1) (void)random();  // The session that probes has drawn one.
    Hellos();
    PassTo(at_ns - 1);
    EXPECT_EQ(Probes("best"), 0) << pause_ms;
    PassTo(at_ns);
    EXPECT_EQ(Probes("best"), 1) << pause_ms;
  }
}

TEST_F(PeerPathsTest, ABetterNetworkHasAllOfThemTriedAtOnce) {
  Fetch("a");
  Fail("best");
  PassSlowly(20'000);
  Hellos();
  paths_->RetryNow();
  Pass(1);
  EXPECT_EQ(Probes("best"), 1);
  PassSlowly(1000);
  EXPECT_GE(Probes("best"), 1) << "the pauses begin anew";
}

TEST_F(PeerPathsTest, NothingIsTriedOnceItIsClosed) {
  Refuse("best");
  Fetch("a");
  paths_->Close(absl::AbortedError("over"));
  Turns();
  EXPECT_THAT(ended_, ElementsAre(absl::AbortedError("over")));
  Hellos();
  PassSlowly(10'000);
  EXPECT_EQ(Probes("best"), 0);
  EXPECT_TRUE(paths_->Drained());
}

TEST_F(PeerPathsTest, WhatWasNeverTriedHasNothingToDrain) {
  EXPECT_TRUE(paths_->Drained());
  Fetch("a");
  EXPECT_FALSE(paths_->Drained());
}

TEST_F(PeerPathsTest, WithoutATransportAFetchSaysWhatIsMissing) {
  paths_.reset();
  context_.transports.clear();
  channels_.clear();
  context_.missing.emplace_back("rdma", absl::NotFoundError("no device\n"));
  paths_ = std::make_unique<PeerPaths>(&context_, kPeer);
  Fetch("a");
  EXPECT_THAT(ended_, ElementsAre(absl::UnavailableError(
                          "no path is left to /job:ps/replica:0/task:0; /job:ps/replica:0/task:0: "
                          "not asked yet\n  no rdma here: no device\\n")));
  const TensorKey key = Key("many");
  ManyFetchedFn done = [](const absl::Status&, absl::Span<Received>) {};
  EXPECT_FALSE(paths_->FetchMany(1, absl::MakeConstSpan(&key, 1), RecvArgs(), &done));
  EXPECT_EQ(paths_->InCallbacks(), nullptr);
  EXPECT_TRUE(paths_->Drained());
}

}  // namespace
}  // namespace tryst
