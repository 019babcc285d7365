// For each key tensors come first in, first out, once and complete: both ends record what they did,
// and history.h judges it.
//
//   order_test [--tensors=24000] [--outstanding=64] [--rounds=2000] [--seed=N]
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "tests/process/promises/history.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr int kProducers = 8;  // Threads.
constexpr int kConsumers = 4;
constexpr uint32_t kKeys = 24;
// Tensors of a round: every thread sends one of each key.
constexpr int64_t kRound = int64_t{kProducers} * kKeys;
constexpr int64_t kElements[] = {1, 1, 8, 64, 500, 1000, 3000, 12'000};
constexpr int64_t kMarginNs = 5'000'000'000;  // For a loaded machine.
constexpr absl::Duration kStandsStill = absl::Seconds(15);

int64_t ElementsOf(uint32_t key) { return kElements[key % 8]; }
// A tensor's content: its key and its number.
int64_t Said(uint32_t key, int64_t number) { return (int64_t{key} << 40) | number; }
std::string EdgeOf(uint32_t key) { return absl::StrCat("k", key); }

// Sends `tensors` from eight threads, each of which uses every key, and reports what it sent.
int SendFromManyThreads(const Worker& self, const Numbers& numbers, WireLine* line) {
  const int64_t tensors = numbers.at("tensors");
  auto step = self.Step(1);
  std::string word;
  if (!line->Hear(&word)) return 3;
  std::vector<std::atomic<int64_t>> next(kKeys);
  std::vector<std::vector<SentTensor>> sent(kProducers);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kProducers; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(static_cast<uint64_t>(numbers.at("seed") + thread));
      std::vector<uint32_t> keys;
      for (int64_t i = 0; i < tensors / kProducers; ++i) {
        keys.push_back(static_cast<uint32_t>(i % kKeys));
      }
      std::shuffle(keys.begin(), keys.end(), random);
      for (uint32_t of : keys) {
        if (random() % 16 == 0) usleep(static_cast<useconds_t>(random() % 1000));
        SentTensor one;
        one.key = of;
        one.number = next[one.key].fetch_add(1);
        const TensorKey key = self.KeyTo(kThisEnd, EdgeOf(one.key));
        Tensor tensor = Numbered(Said(one.key, one.number), ElementsOf(one.key));
        one.before = NextStamp();
        if (!step->Send(key, {}, std::move(tensor), false).ok()) ++failed;
        one.after = NextStamp();
        sent[static_cast<size_t>(thread)].push_back(one);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_thread : sent) {
    for (const SentTensor& one : of_thread) {
      (void)line->Say(absl::StrCat(one.key, " ", one.number, " ", one.before, " ", one.after));
    }
  }
  (void)line->Say("over");
  (void)line->Hear(&word, absl::Minutes(10));
  return failed > 0 ? 2 : 0;
}

// A receive that has not ended.
struct Slot {
  MadeReceive made;
  Cancellation cancellation;
};

struct StormResult {
  Judgement judged;
  std::string error;  // An error that makes the run impossible to judge.
};

// The consumer's threads: they receive random keys, cancel some receives and give some a deadline,
// until everything that was sent has arrived.
class Storm {
 public:
  Storm(const Worker& self, const OtherEnd& other, bool mixed)
      : self_(self), mixed_(mixed), step_(self.Step(1)), state_(std::make_shared<State>()) {
    for (uint32_t key = 0; key < kKeys; ++key) keys_.push_back(other.Key(EdgeOf(key)));
  }

  void Run(int64_t tensors, int64_t outstanding, uint64_t seed) {
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < kConsumers; ++thread) {
      threads.emplace_back([this, tensors, outstanding, seed, thread] {
        Consume(tensors, outstanding / kConsumers, seed * 100 + thread);
      });
    }
    for (std::thread& thread : threads) thread.join();
    // One more receive of each key: nothing may be left.
    for (uint32_t key = 0; key < kKeys; ++key) Make(key, Kind::kDeadline, 50'000'000, false, false);
    Await(absl::Milliseconds(200));
    // These receives find nothing.
    const int64_t now_ns = SteadyNs();
    {
      MutexLock lock(&state_->mu);
      for (Slot& slot : state_->slots) {
        if (slot.made.may_fail_with != absl::StatusCode::kOk) continue;
        slot.made.may_fail_with = absl::StatusCode::kAborted;
        slot.made.fails_from_ns = now_ns;
        slot.made.ends_by_ns = now_ns + kMarginNs;
      }
    }
    step_->StartAbort(absl::AbortedError("the storm is over"));
    Await(absl::Seconds(10));
  }

  std::vector<MadeReceive> history() const {
    MutexLock lock(&state_->mu);
    std::vector<MadeReceive> made;
    for (const Slot& slot : state_->slots) made.push_back(slot.made);
    return made;
  }

 private:
  enum class Kind { kPlain, kCancel, kDeadline };
  struct State {
    mutable Mutex mu;
    std::deque<Slot> slots ABSL_GUARDED_BY(mu);
    size_t open ABSL_GUARDED_BY(mu) = 0;
    std::atomic<int64_t> received{0};
    // For each key: how many tensors have been received, or may still go to waiting receives. A
    // receive that must not fail is made only while there are more; otherwise it would wait for
    // ever.
    std::atomic<int64_t> claimed[kKeys] = {};
  };

  Slot* Make(uint32_t key, Kind kind, int64_t after_ns, bool in_place, bool destination,
             std::atomic<int64_t>* outstanding = nullptr) {
    Slot* slot = nullptr;
    {
      MutexLock lock(&state_->mu);
      slot = &state_->slots.emplace_back();
      ++state_->open;
    }
    MadeReceive* made = &slot->made;
    RecvArgs args;
    if (!in_place) args.executor = self_.server->executor();
    if (destination) args.destination = Numbered(-1, ElementsOf(key));
    made->key = key;
    if (kind == Kind::kCancel) {
      made->may_fail_with = absl::StatusCode::kCancelled;
      args.cancellation = &slot->cancellation;
    } else if (kind == Kind::kDeadline) {
      made->may_fail_with = absl::StatusCode::kDeadlineExceeded;
      made->fails_from_ns = SteadyNs() + after_ns;
      made->ends_by_ns = made->fails_from_ns + kMarginNs;
      args.deadline = Deadline::AtNs(made->fails_from_ns);
    }
    if (outstanding != nullptr) ++*outstanding;
    made->before = NextStamp();
    step_->RecvAsync(keys_[key], args, [state = state_, made, key, outstanding](Received&& got) {
      const int64_t now_ns = SteadyNs();
      const int64_t said = got.status.ok() ? NumberOf(got.tensor) : -1;
      MutexLock lock(&state->mu);
      ++made->calls;
      made->code = got.status.code();
      made->ended_ns = now_ns;
      if (got.status.ok()) {
        made->number = said & ((int64_t{1} << 40) - 1);
        made->whole = said >= 0 && said >> 40 == key;
        ++state->received;
      } else {
        --state->claimed[key];
      }
      --state->open;
      if (outstanding != nullptr) --*outstanding;
    });
    made->after = NextStamp();
    return slot;
  }

  void Consume(int64_t tensors, int64_t outstanding, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::deque<std::pair<int64_t, Slot*>> to_cancel;
    const auto cancel_due = [&](int64_t now_ns) {
      while (!to_cancel.empty() && to_cancel.front().first <= now_ns) {
        Slot* slot = to_cancel.front().second;
        to_cancel.pop_front();
        slot->made.fails_from_ns = SteadyNs();
        slot->made.ends_by_ns = slot->made.fails_from_ns + kMarginNs;
        slot->cancellation.StartCancel();
      }
    };
    int64_t last = -1;
    absl::Time since = absl::Now();
    // A callback may run after this thread has ended, but not after Run() has returned.
    std::atomic<int64_t>* out = &outstanding_[seed % kConsumers];
    while (state_->received < tensors) {
      cancel_due(SteadyNs());
      if (state_->received != last) {
        last = state_->received;
        since = absl::Now();
      } else if (absl::Now() - since > kStandsStill) {
        break;  // What is missing will be found as lost.
      }
      if (*out >= outstanding) {
        usleep(20);
        continue;
      }
      const auto key = static_cast<uint32_t>(random() % kKeys);
      const uint64_t dice = mixed_ ? random() % 10 : 9;
      const Kind kind = dice < 2 ? Kind::kCancel : dice < 4 ? Kind::kDeadline : Kind::kPlain;
      const auto after_ns = static_cast<int64_t>(random() % 3'000'000);
      if (state_->claimed[key]++ >= tensors / kKeys && kind == Kind::kPlain) {
        --state_->claimed[key];
        continue;
      }
      Slot* slot = Make(key, kind, after_ns, random() % 2 == 0, random() % 5 == 0, out);
      if (kind == Kind::kCancel) to_cancel.emplace_back(SteadyNs() + after_ns, slot);
    }
    cancel_due(kNeverNs);
  }

  void Await(absl::Duration longest) const {
    for (const absl::Time until = absl::Now() + longest; absl::Now() < until;) {
      {
        MutexLock lock(&state_->mu);
        if (state_->open == 0) return;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  const Worker self_;
  const bool mixed_;
  const std::shared_ptr<Rendezvous> step_;
  const std::shared_ptr<State> state_;
  std::vector<TensorKey> keys_;
  std::atomic<int64_t> outstanding_[kConsumers] = {};
};

bool HearSent(WireLine* line, std::vector<SentTensor>* sent) {
  std::string text;
  while (line->Hear(&text)) {
    if (text == "over") return true;
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    SentTensor one;
    if (words.size() != 4 || !absl::SimpleAtoi(words[0], &one.key) ||
        !absl::SimpleAtoi(words[1], &one.number) || !absl::SimpleAtoi(words[2], &one.before) ||
        !absl::SimpleAtoi(words[3], &one.after)) {
      return false;
    }
    sent->push_back(one);
  }
  return false;
}

StormResult RunStorm(const TestedPath& path, bool mixed) {
  const int64_t tensors = TestFlag("tensors", 24'000) / kRound * kRound;
  const int64_t seed = TestFlag("seed", 1);
  StormResult result;
  const PromisePair pair(path);
  auto other = pair.Start("send from many threads", {{"tensors", tensors}, {"seed", seed}});
  if (!other->AwaitReady()) return {{}, "the other end does not serve"};
  Storm storm(pair.self(), *other, mixed);
  const absl::Cleanup stop = [&] { (void)pair.self().server->Stop(absl::Seconds(2)); };
  const absl::Time begun = absl::Now();
  (void)other->line()->Say("go");
  storm.Run(tensors, TestFlag("outstanding", 64), static_cast<uint64_t>(seed));
  std::vector<SentTensor> sent;
  if (!HearSent(other->line(), &sent)) return {{}, "no history comes from the other end"};
  const std::vector<MadeReceive> made = storm.history();
  if (!pair.CameByThePath()) result.error = pair.self().server->Explain("");
  result.judged = JudgeHistory(sent, made);
  (void)other->line()->Say("end");
  if (other->Wait() != 0) result.error = absl::StrCat("a send failed: ", other->words());
  std::printf("%s%s: %zu sent, %zu receives, %.1f s: %s\n", path.name,
              mixed ? " with cancels and deadlines" : "", sent.size(), made.size(),
              absl::ToDoubleSeconds(absl::Now() - begun), result.judged.ToText().c_str());
  return result;
}

// Several tests share one run.
const StormResult& StormOver(const TestedPath& path, bool mixed) {
  static std::map<std::pair<std::string, bool>, StormResult> results;
  const auto at = std::make_pair(std::string(path.name), mixed);
  const auto found = results.find(at);
  if (found != results.end()) return found->second;
  return results[at] = RunStorm(path, mixed);
}

void ExpectNone(const StormResult& result, const std::vector<Breach>& breaches) {
  EXPECT_EQ(result.error, "");
  for (Breach breach : breaches) {
    EXPECT_EQ(result.judged.of(breach), 0u)
        << BreachName(breach) << " of " << result.judged.ToText();
  }
}

class Order : public testing::TestWithParam<TestedPath> {};
INSTANTIATE_TEST_SUITE_P(, Order, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Order, NothingIsLostOrDoubledUnderCancelsAndDeadlines) {
  SKIP_IF_KNOWN();
  ExpectNone(StormOver(GetParam(), true),
             {Breach::kLost, Breach::kDoubled, Breach::kInvented, Breach::kOpen});
}

TEST_P(Order, ReceivesFailOnlyAsTheyMayAndInTime) {
  SKIP_IF_KNOWN();
  ExpectNone(StormOver(GetParam(), true), {Breach::kFailed, Breach::kLate});
}

TEST_P(Order, FirstComeFirstServedUnderCancelsAndDeadlines) {
  SKIP_IF_KNOWN();
  ExpectNone(StormOver(GetParam(), true), {Breach::kOrder});
}

TEST_P(Order, NoReceiveIsOvertakenWhileItWaits) {
  SKIP_IF_KNOWN();
  ExpectNone(StormOver(GetParam(), true), {Breach::kOvertaken});
}

TEST_P(Order, FirstComeFirstServedWithManyReceivesOfOneKey) {
  SKIP_IF_KNOWN();
  ExpectNone(StormOver(GetParam(), false), {Breach::kLost, Breach::kDoubled, Breach::kInvented,
                                            Breach::kOpen, Breach::kFailed, Breach::kOrder});
}

// Sends all of "k" in order, and a tick now and then until it is told to stop.
int Tick(const Worker& self, const Numbers& numbers, WireLine* line) {
  auto step = self.Step(1);
  for (int64_t i = 0; i < numbers.at("sends"); ++i) {
    if (!step->Send(self.KeyTo(kThisEnd, "k"), {}, Numbered(i, 1), false).ok()) return 2;
  }
  const TensorKey tick = self.KeyTo(kThisEnd, "tick");
  std::atomic<bool> over{false};
  std::thread ticks([&] {
    while (!over && step->Send(tick, {}, Numbered(0, 1), false).ok()) usleep(50);
  });
  std::string word;
  (void)line->Hear(&word, absl::Minutes(10));
  over = true;
  ticks.join();
  return 0;
}

// Receives one key, alternately on a thread and inside the in-place `done` of another key.
class DoneReceiver {
 public:
  DoneReceiver(const Worker& self, const OtherEnd& other)
      : step_(self.Step(1)), k_(other.Key("k")), tick_(other.Key("tick")) {}

  // False: the ticks have stopped.
  bool Run(int64_t rounds) {
    AwaitTick();
    for (int64_t i = 0; i < rounds; ++i) {
      Make();
      wanted_ = true;
      const absl::Time until = absl::Now() + absl::Seconds(10);
      while (wanted_) {
        if (absl::Now() > until) return false;
        usleep(10);
      }
    }
    for (const absl::Time until = absl::Now() + absl::Seconds(10); absl::Now() < until;) {
      if (ended_ == 2 * rounds) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;  // Open receives are judged.
  }
  std::vector<MadeReceive> history() const {
    MutexLock lock(&mu_);
    return {made_.begin(), made_.end()};
  }

 private:
  void AwaitTick() {
    step_->RecvAsync(tick_, {}, [this](Received&& received) {
      if (!received.status.ok()) return;
      AwaitTick();
      if (!wanted_) return;
      Make();
      wanted_ = false;
    });
  }
  void Make() {
    MadeReceive* made = nullptr;
    {
      MutexLock lock(&mu_);
      made = &made_.emplace_back();
    }
    made->before = NextStamp();
    step_->RecvAsync(k_, {}, [this, made](Received&& received) {
      MutexLock lock(&mu_);
      ++made->calls;
      made->code = received.status.code();
      if (received.status.ok()) made->number = NumberOf(received.tensor);
      ++ended_;
    });
    made->after = NextStamp();
  }

  const std::shared_ptr<Rendezvous> step_;
  const TensorKey k_;
  const TensorKey tick_;
  std::atomic<bool> wanted_{false};
  std::atomic<int64_t> ended_{0};
  mutable Mutex mu_;
  std::deque<MadeReceive> made_ ABSL_GUARDED_BY(mu_);
};

TEST_P(Order, AReceiveInsideAnInPlaceDoneComesAfterThoseMadeBefore) {
  SKIP_IF_KNOWN();
  const int64_t rounds = TestFlag("rounds", 2000);
  const PromisePair pair(GetParam());
  auto other = pair.Start("tick", {{"sends", 2 * rounds}});
  ASSERT_TRUE(other->AwaitReady());
  DoneReceiver receiver(pair.self(), *other);
  const absl::Cleanup stop = [&] { (void)pair.self().server->Stop(absl::Seconds(2)); };
  ASSERT_TRUE(receiver.Run(rounds)) << "no tick comes any more";
  std::vector<SentTensor> sent;
  for (int64_t i = 0; i < 2 * rounds; ++i) {
    sent.push_back({0, i, static_cast<uint64_t>(2 * i + 1), static_cast<uint64_t>(2 * i + 2)});
  }
  const Judgement judged = JudgeHistory(sent, receiver.history());
  EXPECT_TRUE(judged.counts.empty()) << judged.ToText();
  EXPECT_TRUE(pair.CameByThePath()) << pair.self().server->Explain("");
  (void)other->line()->Say("end");
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(
      argc, argv,
      {{"send from many threads", &tryst::SendFromManyThreads}, {"tick", &tryst::Tick}});
}
