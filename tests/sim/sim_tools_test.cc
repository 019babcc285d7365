// The tools of the simulator, on a protocol small enough to be seen through: a client
// writes a number to an echo server and waits for it to come back. It is run right, and
// then with faults of its own, each of which the tools must find.

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/promises.h"
#include "tests/sim/seed_runner.h"
#include "tests/sim/sim_alarms.h"
#include "tests/sim/turn_scheduler.h"
#include "verbs/sim/sim_ends.h"

namespace tryst {
namespace {

enum class Bug { kNone, kDropsOne, kAnswersTwice, kKeepsBudget, kFreesEarly, kNotFromSeed };

class EchoWorld {
 public:
  EchoWorld(uint64_t seed, Bug bug, uint32_t break_ppm)
      : bug_(bug), random_(seed), world_(seed + nondeterminism()), turns_(&world_, random_.Fork()) {
    Join(client_.AddQueuePair(), server_.AddQueuePair());
    for (SimEnd* end : {&client_, &server_}) {
      for (uint64_t i = 0; i < 64; ++i) EXPECT_TRUE(end->PostReceive(Pair(end), i).ok());
    }
    promises_.AddBudget("messages", [this] { return budget_; });
    turns_.Add([this] { return ClientStep(); });
    turns_.Add([this] { return ServerStep(); });
    turns_.set_after_turn([this] { promises_.Check(); });
    FaultPlan plan;
    plan.break_ppm = break_ppm;
    world_.SetFaultPlan(plan);
  }

  SeedResult Run() {
    turns_.RunUntil([this] { return sent_ == kRequests && promises_.owed() == 0; }, kEndNs);
    promises_.CheckEnd();
    SeedResult result;
    result.violations = promises_.violations();
    for (const std::string& each : world_.violations()) result.violations.push_back(each);
    result.trace_hash = world_.trace().hash();
    result.trace_tail = world_.trace().Tail(5);
    return result;
  }
  uint64_t failed() const { return failed_; }

 private:
  static constexpr uint64_t kRequests = 40;
  static constexpr int64_t kPatienceNs = 3'000'000'000;
  static constexpr int64_t kEndNs = 60'000'000'000;

  uint64_t nondeterminism() const {
    static uint64_t runs = 0;
    return bug_ == Bug::kNotFromSeed ? ++runs : 0;
  }

  static QueuePair* Pair(SimEnd* end) { return end->pairs[0].get(); }

  void Write(SimEnd* from, SimEnd* to, uint64_t number) {
    SendWork work = from->WriteTo(*to, number, number * 64);
    work.op = SendOp::kWriteWithImmediate;
    work.immediate = static_cast<uint32_t>(number);
    // A broken queue pair refuses; then the other side sees it broken as well, in time.
    static_cast<void>(from->Post(Pair(from), work, number * 64, 64));
  }

  bool ClientStep() {
    bool worked = false;
    if (!broken_ && sent_ < kRequests && random_.Below(4) == 0) {
      ids_.push_back(promises_.Owe("request", world_.NowNs() + kPatienceNs));
      ++budget_;
      if (bug_ == Bug::kFreesEarly && sent_ == 7) world_.Poison(&server_.memory[7 * 64], 8);
      Write(&client_, &server_, sent_++);
      worked = true;
    }
    for (const Completion& c : client_.Poll()) {
      worked = true;
      broken_ |= c.status != CompletionStatus::kOk;
      if (c.status == CompletionStatus::kOk && c.has_immediate) End(c.immediate);
    }
    if (broken_) FailAll();
    // Goes on as long as it has something to send, so that the others get turns too.
    return worked || (sent_ < kRequests && !broken_);
  }

  void End(uint64_t number) {
    if (bug_ == Bug::kDropsOne && number == 5) return;
    if (bug_ != Bug::kKeepsBudget || number != 6) --budget_;
    ended_.push_back(number);
    promises_.Keep(ids_[number]);
    if (bug_ == Bug::kAnswersTwice && number == 3) promises_.Keep(ids_[number]);
  }

  void FailAll() {
    Pair(&client_)->Break();
    Pair(&server_)->Break();
    for (uint64_t number = 0; number < sent_; ++number) {
      if (std::find(ended_.begin(), ended_.end(), number) != ended_.end()) continue;
      ++failed_;
      End(number);
    }
    sent_ = kRequests;
  }

  bool ServerStep() {
    const std::vector<Completion> done = server_.Poll();
    for (const Completion& c : done) {
      if (c.status != CompletionStatus::kOk) {
        Pair(&client_)->Break();
      } else if (c.has_immediate) {
        Write(&server_, &client_, c.immediate);
      }
    }
    return !done.empty();
  }

  const Bug bug_;
  SimRandom random_;
  SimWorld world_;
  SimEnd client_{&world_, 0, 4096};
  SimEnd server_{&world_, 1, 4096};
  Promises promises_{&world_.clock()};
  TurnScheduler turns_;
  std::vector<Promises::Id> ids_;
  std::vector<uint64_t> ended_;
  uint64_t sent_ = 0;
  uint64_t failed_ = 0;
  int64_t budget_ = 0;
  bool broken_ = false;
};

// Runs some seeds and gives back what was printed; empty when all is well.
std::string Seeds(Bug bug, uint32_t break_ppm) {
  SeedOptions options;
  options.seeds = 30;
  std::ostringstream out;
  RunSeeds(
      options, "./echo", [&](uint64_t seed) { return EchoWorld(seed, bug, break_ppm).Run(); }, out);
  return out.str();
}

TEST(SimToolsTest, RightCodeKeepsItsPromises) {
  EXPECT_EQ(Seeds(Bug::kNone, 0), "");
  EXPECT_EQ(Seeds(Bug::kNone, 20'000), "");
  uint64_t failed = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    EchoWorld world(seed, Bug::kNone, 20'000);
    EXPECT_TRUE(world.Run().violations.empty());
    failed += world.failed();
  }
  EXPECT_GT(failed, 0u) << "the faults did nothing";
}

TEST(SimToolsTest, EveryBugIsFoundAndTheSeedReplaysIt) {
  const struct {
    Bug bug;
    const char* found;
  } kBugs[] = {{Bug::kDropsOne, "request: waits for ever"},
               {Bug::kAnswersTwice, "was kept twice"},
               {Bug::kKeepsBudget, "messages: 1 not given back"},
               {Bug::kFreesEarly, "poisoned memory"}};
  for (const auto& each : kBugs) {
    const std::string out = Seeds(each.bug, 0);
    EXPECT_NE(out.find(each.found), std::string::npos) << out;
    EXPECT_NE(out.find("seed 1 fails; replay it with: ./echo --seeds 1 --from 1\n"),
              std::string::npos)
        << out;
    EXPECT_EQ(out.find("seed 2"), std::string::npos) << "stops at the first";
    EXPECT_EQ(out.find("went another way"), std::string::npos) << out;
    EXPECT_NE(out.find(" ns  complete"), std::string::npos) << "no trace: " << out;
  }
}

TEST(SimToolsTest, RunThatTheSeedDoesNotDecideIsFound) {
  SeedOptions options;
  options.seeds = 1;
  std::ostringstream out;
  const auto run = [](uint64_t seed) {
    SeedResult result = EchoWorld(seed, Bug::kNotFromSeed, 0).Run();
    result.violations = {"made up"};
    return result;
  };
  EXPECT_EQ(RunSeeds(options, "./echo", run, out), 1u);
  EXPECT_NE(out.str().find("went another way"), std::string::npos) << out.str();
}

TEST(SimToolsTest, KeepGoingRunsAllSeeds) {
  SeedOptions options;
  options.seeds = 10;
  options.from = 5;
  options.keep_going = true;
  std::vector<uint64_t> seen;
  std::ostringstream out;
  const auto run = [&seen](uint64_t seed) {
    if (seen.empty() || seen.back() != seed) seen.push_back(seed);
    SeedResult result;
    if (seed % 3 == 0) result.violations = {"third"};
    return result;
  };
  EXPECT_EQ(RunSeeds(options, "x", run, out), 3u);
  EXPECT_EQ(seen.front(), 5u);
  EXPECT_EQ(seen.back(), 14u);
}

TEST(SimToolsTest, CommandLine) {
  std::ostringstream errors;
  const char* const good[] = {"sim", "--seeds", "12", "--from", "7", "--keep-going", "--verbose"};
  const auto options = ParseSeedOptions(7, good, errors);
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->seeds, 12u);
  EXPECT_EQ(options->from, 7u);
  EXPECT_TRUE(options->keep_going && options->verbose);
  const char* const missing[] = {"sim", "--seeds"};
  const char* const wrong[] = {"sim", "--from", "x"};
  const char* const unknown[] = {"sim", "--sedes"};
  EXPECT_FALSE(ParseSeedOptions(2, missing, errors).has_value());
  EXPECT_FALSE(ParseSeedOptions(3, wrong, errors).has_value());
  EXPECT_FALSE(ParseSeedOptions(2, unknown, errors).has_value());
  EXPECT_NE(errors.str().find("usage: sim"), std::string::npos);
}

TEST(SimToolsTest, SchedulerVariesTheOrderAndStopsWhenStuck) {
  std::vector<std::string> orders;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SimWorld world(1);
    TurnScheduler turns(&world, SimRandom(seed));
    std::string order;
    for (const char c : {'a', 'b', 'c'}) {
      turns.Add([&order, c] {
        order += c;
        return false;
      });
    }
    EXPECT_FALSE(turns.RunUntil([] { return false; }, 1'000'000'000));
    EXPECT_LT(world.NowNs(), 1'000'000) << "nothing can happen any more";
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(order);
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST(SimToolsTest, PausedWorkersMissTheirTurnsAndComeBack) {
  SimWorld world(1);
  TurnScheduler turns(&world, SimRandom(1));
  int64_t ran_at_ns = -1;
  TurnScheduler::WorkerId self = 0;
  self = turns.Add([&] {
    ran_at_ns = world.NowNs();
    turns.Remove(self);
    return true;
  });
  turns.Pause(self, 5'000);
  EXPECT_TRUE(turns.RunUntil([&] { return ran_at_ns >= 0; }, 1'000'000));
  EXPECT_EQ(ran_at_ns, 5'000);
  turns.RunFor(100);
  EXPECT_EQ(turns.turns(), 1u);
}

TEST(SimToolsTest, OverdueAndLateAreNotedOnceEach) {
  SimWorld world(1);
  Promises promises(&world.clock());
  const Promises::Id overdue = promises.Owe("one", 100);
  const Promises::Id late = promises.Owe("two", 100);
  const Promises::Id in_time = promises.Owe("three", 200);
  world.RunUntil(100);
  promises.Check();
  EXPECT_TRUE(promises.violations().empty());
  world.RunUntil(200);
  promises.Keep(late);
  promises.Keep(in_time);
  promises.Check();
  promises.Check();
  promises.Keep(overdue);
  promises.Keep(77);
  promises.CheckEnd();
  EXPECT_EQ(promises.violations(),
            (std::vector<std::string>{"at 200 ns: two: 100 ns too late",
                                      "at 200 ns: one: owed since 0 ns, overdue",
                                      "at 200 ns: promise 77 was never made"}));
}

TEST(SimToolsTest, AlarmsAndExecutorRunOnVirtualTime) {
  SimWorld world(1);
  SimAlarms alarms(&world, SimRandom(1), 100);
  int rang = 0;
  const Alarms::Token token = alarms.Set(Deadline::AtNs(1000), [&] { ++rang; });
  const Alarms::Token cancelled = alarms.Set(Deadline::AtNs(1000), [&] { rang += 100; });
  EXPECT_EQ(alarms.Set(Deadline::Never(), [] {}), Alarms::kNoToken);
  EXPECT_TRUE(alarms.Cancel(cancelled));
  EXPECT_FALSE(alarms.Cancel(Alarms::kNoToken));
  world.RunUntil(999);
  EXPECT_EQ(rang, 0);
  world.RunUntil(1100);
  EXPECT_EQ(rang, 1);
  EXPECT_FALSE(alarms.Cancel(token));

  SimExecutor executor(&world, SimRandom(2), 1000, 1);
  int ran = 0;
  Executor::Work one = [&] { ran += 1; };
  Executor::Work two = [&] { ran += 10; };
  EXPECT_TRUE(executor.TryRun(&one));
  EXPECT_FALSE(executor.TryRun(&two));
  EXPECT_EQ(ran, 0);
  executor.Run(std::move(two));
  EXPECT_EQ(ran, 10);
  world.RunFor(1000);
  EXPECT_EQ(ran, 11);
  EXPECT_EQ(executor.queued(), 0u);
}

}  // namespace
}  // namespace tryst
