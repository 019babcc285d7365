// When a producer dies, every receive of its tensors ends within its patience, on every path.
//
//   ends_test [--kills=1000] [--returns=100] [--seed=N] [--patience_ms=2000] [--margin_ms=3000]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr int kAtOnce = 5;          // Producers that live and die at the same time.
constexpr int kKeys = 200;          // Received from each producer: many times the slots.
constexpr int64_t kSentKeys = 150;  // How many of them the producer sends, if it lives long enough.
constexpr int64_t kElements[] = {1, 500, 40'000, 500'000};

absl::Duration Patience() { return absl::Milliseconds(TestFlag("patience_ms", 2000)); }
absl::Duration Margin() { return kSlowness * absl::Milliseconds(TestFlag("margin_ms", 3000)); }

int64_t ElementsOf(int64_t key) { return kElements[key % 4]; }

// Sends the keys that it is told, in a random order and at a random pace, until it dies.
int Drip(const Worker& self, const Numbers& numbers, WireLine* line) {
  std::mt19937_64 random(static_cast<uint64_t>(numbers.at("seed")));
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < numbers.at("keys"); ++key) keys.push_back(key);
  std::shuffle(keys.begin(), keys.end(), random);
  auto step = self.Step(numbers.at("step"));
  for (int64_t key : keys) {
    if (random() % 4 == 0) usleep(static_cast<useconds_t>(random() % 10'000));
    const TensorKey name = self.KeyTo(kThisEnd, absl::StrCat("k", key));
    if (!step->Send(name, {}, Numbered(key, ElementsOf(key)), false).ok()) return 2;
  }
  std::string end;
  (void)line->Hear(&end, absl::Hours(1));
  return 0;
}

// What the kills led to.
struct Toll {
  Mutex mu;
  std::map<std::string, size_t> ends ABSL_GUARDED_BY(mu);  // By code.
  // After the death, or after the receive if that was later.
  int64_t latest_ns ABSL_GUARDED_BY(mu) = 0;
  std::string latest ABSL_GUARDED_BY(mu);
  // Receives that were late, never ended, or ended twice.
  std::vector<std::string> late ABSL_GUARDED_BY(mu);
  // Receives with another code or with other bytes.
  std::vector<std::string> wrong ABSL_GUARDED_BY(mu);

  // Counts receive `which` of `receives`, whose producer died at `died_ns`.
  void Count(const Receives& receives, size_t which, int64_t key, int64_t died_ns,
             const std::string& who) {
    const Receives::End end = receives.at(which);
    const int64_t after_ns = end.ended_ns - std::max(died_ns, end.asked_ns);
    const std::string what = absl::StrCat(
        who, ": a receive made ", end.asked_ns < died_ns ? "before" : "after", " its death");
    MutexLock lock(&mu);
    if (end.calls != 1) {
      ++ends["never"];
      late.push_back(absl::StrCat(what, " ended ", end.calls, " times"));
      return;
    }
    ++ends[absl::StatusCodeToString(end.status.code())];
    if (end.status.ok()) {
      if (NumberOf(end.tensor) != key) wrong.push_back(absl::StrCat(what, " got other bytes"));
      return;
    }
    const std::string how = absl::StrCat(what, " ended after ", after_ns / 1'000'000, " ms with ",
                                         end.status.ToString());
    if (after_ns > latest_ns) {
      latest_ns = after_ns;
      latest = how;
    }
    if (after_ns > absl::ToInt64Nanoseconds(Patience() + Margin())) late.push_back(how);
    if (!absl::IsUnavailable(end.status)) wrong.push_back(how);
  }
};

class Ends : public testing::TestWithParam<TestedPath> {};
INSTANTIATE_TEST_SUITE_P(, Ends, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

// One producer: receives are made, some of which wait in line; it dies; and more receives follow.
void KillOne(const PromisePair& pair, OtherEnd* other, int64_t step_id, uint64_t seed, Toll* toll) {
  std::mt19937_64 random(seed);
  auto step = pair.self().Step(step_id);
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < kKeys; ++key) keys.push_back(key);
  std::shuffle(keys.begin(), keys.end(), random);
  Receives receives;
  const auto receive = [&](int64_t key) {
    RecvArgs args;
    if (random() % 4 == 0) args.destination = Numbered(-1, ElementsOf(key));
    if (random() % 2 == 0) args.executor = pair.self().server->executor();
    receives.Make(step.get(), other->Key(absl::StrCat("k", key)), args);
  };
  for (int64_t key : keys) receive(key);
  absl::SleepFor(absl::Microseconds(random() % 300'000));
  const int64_t died_ns = SteadyNs();
  other->Kill();
  const auto receive_more = [&] {
    for (int64_t key = kKeys; key < kKeys + 20; ++key) {
      receive(key);
      keys.push_back(key);
    }
  };
  receive_more();
  absl::SleepFor(Patience() / 2);
  receive_more();
  absl::SleepFor(Patience());
  receive_more();
  (void)receives.AwaitAll(Patience() + 2 * Margin());
  const std::string who = absl::StrCat(other->name(), " in step ", step_id);
  for (size_t i = 0; i < keys.size(); ++i) toll->Count(receives, i, keys[i], died_ns, who);
  pair.self().server->steps()->CleanupStep(step_id);
}

// False: a producer did not start.
bool KillMany(const TestedPath& path, Toll* toll) {
  const int64_t kills = TestFlag("kills", kAtOnce);
  std::mt19937_64 random(static_cast<uint64_t>(TestFlag("seed", 1)));
  const PromisePair pair(
      path, With({kFewSlotsFlag}, {absl::StrCat("--patience=", absl::FormatDuration(Patience()))}),
      kAtOnce);
  for (int64_t done = 0; done < kills;) {
    std::vector<std::unique_ptr<OtherEnd>> others;
    const int64_t first = done;
    for (int task = 0; task < kAtOnce && done < kills; ++task, ++done) {
      others.push_back(pair.Start(
          "drip",
          {{"step", done + 1}, {"keys", kSentKeys}, {"seed", static_cast<int64_t>(random() >> 1)}},
          task));
    }
    for (auto& other : others) {
      if (!other->AwaitReady()) return false;
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < others.size(); ++i) {
      threads.emplace_back(KillOne, std::cref(pair), others[i].get(),
                           first + static_cast<int64_t>(i) + 1, random(), toll);
    }
    for (std::thread& thread : threads) thread.join();
  }
  MutexLock lock(&toll->mu);
  std::printf("%s: %lld kills; the latest: %s\n", path.name, static_cast<long long>(kills),
              toll->latest.c_str());
  for (const auto& [code, count] : toll->ends) std::printf("  %s %zu\n", code.c_str(), count);
  return true;
}

// Two tests share one run.
Toll* TollOver(const TestedPath& path) {
  static std::map<std::string, std::unique_ptr<Toll>> tolls;
  std::unique_ptr<Toll>& toll = tolls[path.name];
  if (toll == nullptr) {
    toll = std::make_unique<Toll>();
    EXPECT_TRUE(KillMany(path, toll.get()));
  }
  return toll.get();
}

TEST_P(Ends, EveryReceiveOfAKilledProducerEndsWithinPatience) {
  SKIP_IF_KNOWN();
  Toll* toll = TollOver(GetParam());
  MutexLock lock(&toll->mu);
  EXPECT_FALSE(toll->ends.empty());
  EXPECT_TRUE(toll->late.empty()) << toll->late.size() << " late, the first: " << toll->late[0];
}

TEST_P(Ends, EveryReceiveOfAKilledProducerThatFailsIsUnavailable) {
  SKIP_IF_KNOWN();
  Toll* toll = TollOver(GetParam());
  MutexLock lock(&toll->mu);
  EXPECT_GT(toll->ends["UNAVAILABLE"], 0u);
  EXPECT_TRUE(toll->wrong.empty())
      << toll->wrong.size() << " wrong ends, the first: " << toll->wrong[0];
}

// The producer is stopped: it keeps the connection open and says nothing. When it goes on, later
// receives are served.
TEST_P(Ends, ReceivesOfAStoppedProducerEndWithinPatience) {
  SKIP_IF_KNOWN();
  // gRPC sends a keepalive only after 6 s.
  const absl::Duration patience =
      GetParam().name == std::string("Grpc") ? absl::Seconds(9) : Patience();
  const PromisePair pair(
      GetParam(),
      With({kFewSlotsFlag}, {absl::StrCat("--patience=", absl::FormatDuration(patience))}));
  auto other = pair.Start("drip", {{"step", 1}, {"keys", kSentKeys}, {"seed", 7}});
  ASSERT_TRUE(other->AwaitReady());
  auto step = pair.self().Step(1);
  Receives sent, never;
  for (int i = 0; i < kSentKeys; ++i) sent.Make(step.get(), other->Key(absl::StrCat("k", i)));
  ASSERT_TRUE(sent.AwaitAll(absl::Seconds(30)));
  for (int i = 0; i < 2 * kKeys; ++i) {
    RecvArgs args;
    if (i % 4 == 0) args.destination = Numbered(-1, 10);
    never.Make(step.get(), other->Key(absl::StrCat("never ", i)), args);
  }
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(never.open(), never.size());
  other->Stop();
  const int64_t stopped_ns = SteadyNs();
  never.Make(step.get(), other->Key("made while it stands still"));
  EXPECT_TRUE(never.AwaitAll(patience + 2 * Margin())) << never.open() << " of them wait";
  for (size_t i = 0; i < never.size(); ++i) {
    const Receives::End end = never.at(i);
    EXPECT_TRUE(absl::IsUnavailable(end.status)) << end.status;
    EXPECT_LE(end.ended_ns - stopped_ns, absl::ToInt64Nanoseconds(patience + Margin()));
  }
  // It is back and has not sent that tensor, so a receive waits.
  other->GoOn();
  const int64_t until_ns = SteadyNs() + absl::ToInt64Nanoseconds(10 * Margin());
  for (bool waits = false; !waits;) {
    ASSERT_LT(SteadyNs(), until_ns) << "nothing waits for a producer that is there again";
    Receives again;
    again.Make(step.get(), other->Key("never 0"), {});
    waits = !again.AwaitAll(absl::Seconds(1));
  }
}

// Waits for tensors of the test's process. 0: they have come.
int Fetch(const Worker& self, const Numbers& numbers, WireLine* line) {
  auto step = self.Step(1);
  Receives receives;
  for (int64_t key = 0; key < numbers.at("keys"); ++key) {
    receives.Make(step.get(), KeyBetween(kThisEnd, static_cast<uint64_t>(numbers.at("incarnation")),
                                         self.server->worker(), absl::StrCat("k", key)));
  }
  if (!receives.Await(0, absl::Seconds(30)) || !line->Say("one is here")) return 2;
  (void)receives.AwaitAll(absl::Minutes(1));
  for (size_t i = 0; i < receives.size(); ++i) {
    if (receives.at(i).ok()) continue;
    std::printf("%s\n", receives.at(i).status.ToString().c_str());
    return 3;
  }
  return 0;
}

// The consumer is stopped for longer than its patience, as a virtual machine is. The tensors that
// it waits for were sent meanwhile, and it does not blame who sent them.
TEST_P(Ends, AConsumerThatWasStoppedGetsWhatItWaitsFor) {
  SKIP_IF_KNOWN();
  const PromisePair pair(
      GetParam(),
      With({kFewSlotsFlag}, {absl::StrCat("--patience=", absl::FormatDuration(Patience()))}));
  const int64_t incarnation = static_cast<int64_t>(pair.self().server->incarnation());
  auto other = pair.Start("fetch", {{"keys", kKeys}, {"incarnation", incarnation}});
  ASSERT_TRUE(other->AwaitReady());
  auto step = pair.self().Step(1);
  const auto send = [&](int64_t key) {
    EXPECT_TRUE(step->Send(pair.self().KeyTo(other->name(), absl::StrCat("k", key)), {},
                           Numbered(key, ElementsOf(key)), false)
                    .ok());
  };
  send(0);
  std::string heard;
  ASSERT_TRUE(other->line()->Hear(&heard, absl::Minutes(1)));
  // So long that the fetches wait for longer than the patience when the connection breaks.
  absl::SleepFor(Patience());
  other->Stop();
  for (int64_t key = 1; key < kKeys / 2; ++key) send(key);
  absl::SleepFor(3 * Patience());
  for (int64_t key = kKeys / 2; key < kKeys; ++key) send(key);
  other->GoOn();
  EXPECT_EQ(other->Wait(), 0) << other->words();
}

// One producer dies at a random moment and returns.
void KillAndReturn(const PromisePair& pair, int64_t step_id, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto step = pair.self().Step(step_id);
  const Numbers numbers = {
      {"step", step_id}, {"keys", kSentKeys}, {"seed", static_cast<int64_t>(seed >> 1)}};
  Receives receives;
  {
    auto other = pair.Start("drip", numbers);
    ASSERT_TRUE(other->AwaitReady());
    for (int i = 0; i < kKeys; ++i) receives.Make(step.get(), other->Key(absl::StrCat("k", i)));
    absl::SleepFor(absl::Microseconds(random() % 200'000));
    other->Kill();
    receives.Make(step.get(), other->Key("made after its death"));
    auto again = pair.Start("drip", numbers);
    ASSERT_TRUE(again->AwaitReady());
    receives.Make(step.get(), other->Key("made after its return"));
    Receives of_the_new;
    for (int i = 0; i < kSentKeys; ++i) {
      of_the_new.Make(step.get(), again->Key(absl::StrCat("k", i)));
    }
    EXPECT_TRUE(of_the_new.AwaitAll(absl::Seconds(15))) << of_the_new.open() << " of the new wait";
    for (size_t i = 0; i < of_the_new.size(); ++i) {
      ASSERT_TRUE(of_the_new.at(i).ok()) << of_the_new.at(i).status;
    }
    EXPECT_TRUE(receives.AwaitAll(absl::Seconds(15))) << receives.open() << " of the old wait";
  }
  std::map<std::string, int> codes;
  for (size_t i = 0; i < receives.size(); ++i) {
    const Receives::End end = receives.at(i);
    ++codes[end.calls == 0 ? "WAITS" : absl::StatusCodeToString(end.status.code())];
    // Shared memory sees the death itself, before the producer can return.
    const bool at_its_death =
        absl::IsUnavailable(end.status) && absl::StrContains(end.status.message(), "has ended");
    EXPECT_TRUE(end.ok() || absl::IsAborted(end.status) || at_its_death) << end.status;
  }
  EXPECT_GT(codes["ABORTED"] + codes["UNAVAILABLE"], 0);
  std::printf("  returned:");
  for (const auto& [code, count] : codes) std::printf(" %s %d", code.c_str(), count);
  std::printf("\n");
  pair.self().server->steps()->CleanupStep(step_id);
}

TEST_P(Ends, AProducerThatReturnsEndsTheReceivesOfItsFormerLife) {
  SKIP_IF_KNOWN();
  std::mt19937_64 random(static_cast<uint64_t>(TestFlag("seed", 1)));
  const PromisePair pair(GetParam(), With({kFewSlotsFlag}, {"--patience=30s"}));
  for (int64_t i = 1; i <= TestFlag("returns", 3) && !HasFailure(); ++i) {
    KillAndReturn(pair, i, random());
  }
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(argc, argv, {{"drip", &tryst::Drip}, {"fetch", &tryst::Fetch}});
}
