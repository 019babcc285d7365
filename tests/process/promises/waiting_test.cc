// Waiting receives delay neither tensors that are there, nor each other, on every path.
//
//   waiting_test [--keys=100000] [--seed=N]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr int64_t kThere = 8;  // Tensors that are there.

// Sends the tensors that are there, and the late ones when it is told to.
int SendLate(const Worker& self, const Numbers& numbers, WireLine* line) {
  auto step = self.Step(1);
  for (int64_t i = 0; i < kThere; ++i) {
    const TensorKey key = self.KeyTo(kThisEnd, "there", static_cast<uint64_t>(i));
    if (!step->Send(key, {}, Numbered(i, i % 2 == 0 ? 1 : 50'000), false).ok()) return 2;
  }
  std::string word;
  if (!line->Say("sent") || !line->Hear(&word, absl::Minutes(10))) return 3;
  for (int64_t i = 0; i < numbers.at("late"); ++i) {
    const TensorKey key = self.KeyTo(kThisEnd, "late", static_cast<uint64_t>(i));
    if (!step->Send(key, {}, Numbered(i, 1), false).ok()) return 2;
  }
  return line->Hear(&word, absl::Minutes(10)) ? 0 : 3;
}

class Waiting : public testing::TestWithParam<TestedPath> {
 protected:
  // A tensor that is there arrives at once although `late` receives wait, and then these get
  // theirs.
  void ComesPast(int64_t late) {
    const PromisePair pair(GetParam());
    auto step = pair.self().Step(1);
    auto other = pair.Start("send late", {{"late", late}});
    ASSERT_TRUE(other->AwaitReady());
    std::string word;
    ASSERT_TRUE(other->line()->Hear(&word));
    Receives waiting;
    Receives there;
    const auto receive_one = [&](int64_t i) {
      const size_t which = there.Make(step.get(), other->Key("there", static_cast<uint64_t>(i)));
      // The first waits for the connection and for all earlier requests.
      const absl::Duration limit = kSlowness * absl::Seconds(i == 0 ? 20 : 1);
      ASSERT_TRUE(there.Await(which, limit)) << "a tensor that is there does not come in " << limit
                                             << " while " << waiting.open() << " receives wait";
      ASSERT_TRUE(there.at(which).ok()) << there.at(which).status;
      EXPECT_EQ(NumberOf(there.at(which).tensor), i);
    };
    for (int64_t i = 0; i < late; ++i) {
      waiting.Make(step.get(), other->Key("late", static_cast<uint64_t>(i)));
    }
    double slowest = 0;
    for (int64_t i = 0; i < kThere; ++i) {
      ASSERT_NO_FATAL_FAILURE(receive_one(i));
      if (i > 0) slowest = std::max(slowest, there.at(static_cast<size_t>(i)).seconds());
    }
    EXPECT_TRUE(pair.CameByThePath()) << pair.self().server->Explain("");
    ASSERT_TRUE(other->line()->Say("send"));
    ASSERT_TRUE(waiting.AwaitAll(absl::Seconds(60))) << waiting.open() << " still wait";
    for (size_t i = 0; i < waiting.size(); ++i) {
      ASSERT_TRUE(waiting.at(i).ok()) << waiting.at(i).status;
      ASSERT_EQ(NumberOf(waiting.at(i).tensor), static_cast<int64_t>(i));
    }
    std::printf("%s: past %lld waiting: first %.3f s, then at most %.4f s\n", GetParam().name,
                static_cast<long long>(late), there.at(0).seconds(), slowest);
    ASSERT_TRUE(other->line()->Say("end"));
    EXPECT_EQ(other->Wait(), 0) << other->words();
  }
};
INSTANTIATE_TEST_SUITE_P(, Waiting, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Waiting, ATensorThatIsThereComesPast500) {
  SKIP_IF_KNOWN();
  ComesPast(500);
}
TEST_P(Waiting, ATensorThatIsThereComesPast1500) {
  SKIP_IF_KNOWN();
  ComesPast(1500);
}
TEST_P(Waiting, ATensorThatIsThereComesPast20000) {
  SKIP_IF_KNOWN();
  ComesPast(20'000);
}

// A dataflow graph over two workers. Each key belongs to one worker, which sends it after it has
// received some earlier keys of the other. Both make all their receives at the start, in any order.
// By induction over the keys, every key can be sent. So if nothing arrives while keys are open,
// receives wait for each other.
struct Graph {
  Graph(int64_t keys, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> of_side[2];
    for (int64_t key = 0; key < keys; ++key) {
      const int side = static_cast<int>(random() % 2);
      owner.push_back(side);
      needs.emplace_back();
      const std::vector<int64_t>& others = of_side[1 - side];
      for (size_t i = random() % 4; i > 0 && !others.empty(); --i) {
        // Mostly recent keys, so that the graph is deep.
        const size_t back =
            random() % (random() % 8 == 0 ? others.size() : std::min<size_t>(others.size(), 50));
        needs.back().push_back(others[others.size() - 1 - back]);
      }
      std::sort(needs.back().begin(), needs.back().end());
      needs.back().erase(std::unique(needs.back().begin(), needs.back().end()), needs.back().end());
      of_side[side].push_back(key);
    }
  }
  std::vector<int> owner;
  std::vector<std::vector<int64_t>> needs;
};

int64_t GraphElements(int64_t key) { return key % 100 == 0 ? 40'000 : 1 + key % 7; }

// One side of a graph.
class Dataflow {
 public:
  Dataflow(const Worker& self, int side, std::string peer, uint64_t peer_incarnation,
           const Numbers& numbers)
      : self_(self),
        side_(side),
        peer_(std::move(peer)),
        peer_incarnation_(peer_incarnation),
        graph_(numbers.at("keys"), static_cast<uint64_t>(numbers.at("seed"))),
        step_(self.Step(1)),
        missing_(graph_.owner.size()),
        unblocks_(graph_.owner.size()) {}

  // Returns "" when every key was sent and received.
  std::string Run(uint64_t seed) {
    std::vector<int64_t> wanted;
    std::vector<int64_t> ready;
    std::mt19937_64 random(seed);
    {
      MutexLock lock(&mu_);
      for (size_t key = 0; key < graph_.owner.size(); ++key) {
        const auto name = static_cast<int64_t>(key);
        if (graph_.owner[key] != side_) {
          wanted.push_back(name);
          continue;
        }
        missing_[key] = graph_.needs[key].size();
        if (missing_[key] == 0) ready.push_back(name);
        for (int64_t need : graph_.needs[key]) unblocks_[static_cast<size_t>(need)].push_back(name);
      }
      open_ = wanted.size();
    }
    std::shuffle(wanted.begin(), wanted.end(), random);
    for (int64_t key : wanted) Receive(key, random() % 2 == 0);
    for (int64_t key : ready) Send(key);
    return AwaitProgress(wanted.size());
  }

 private:
  void Receive(int64_t key, bool in_place) {
    RecvArgs args;
    if (!in_place) args.executor = self_.server->executor();
    step_->RecvAsync(
        KeyBetween(peer_, peer_incarnation_, self_.server->worker(), "g",
                   static_cast<uint64_t>(key)),
        args, [this, key](Received&& received) {
          const bool right = received.status.ok() && NumberOf(received.tensor) == key &&
                             received.tensor.shape().elements() == GraphElements(key);
          std::vector<int64_t> ready;
          {
            MutexLock lock(&mu_);
            --open_;
            if (!right && wrong_.empty()) {
              wrong_ = absl::StrCat("key ", key, ": ", received.status.ToString(), ", number ",
                                    received.status.ok() ? NumberOf(received.tensor) : -1);
            }
            for (int64_t next : unblocks_[static_cast<size_t>(key)]) {
              if (--missing_[static_cast<size_t>(next)] == 0) ready.push_back(next);
            }
          }
          for (int64_t next : ready) Send(next);
          MutexLock lock(&mu_);
          ++sent_for_;
        });
  }
  void Send(int64_t key) {
    const absl::Status sent = step_->Send(self_.KeyTo(peer_, "g", static_cast<uint64_t>(key)), {},
                                          Numbered(key, GraphElements(key)), false);
    if (sent.ok()) return;
    MutexLock lock(&mu_);
    if (wrong_.empty()) wrong_ = absl::StrCat("send of key ", key, ": ", sent.ToString());
  }
  // Waits until every callback has run, or nothing has arrived for long.
  std::string AwaitProgress(size_t wanted) {
    size_t last = wanted;
    // Requesting so many keys takes time, too.
    const absl::Duration limit =
        absl::Seconds(10) + static_cast<int64_t>(wanted) * absl::Milliseconds(1);
    for (absl::Time since = absl::Now(); absl::Now() - since < limit;) {
      absl::SleepFor(absl::Milliseconds(5));
      MutexLock lock(&mu_);
      if (!wrong_.empty()) return wrong_;
      if (sent_for_ == wanted) return "";
      if (open_ != last) since = absl::Now();
      last = open_;
    }
    return absl::StrCat("nothing comes any more while ", last, " of ", wanted, " receives wait");
  }

  const Worker self_;
  const int side_;
  const std::string peer_;
  const uint64_t peer_incarnation_;
  const Graph graph_;
  const std::shared_ptr<Rendezvous> step_;
  Mutex mu_;
  std::vector<size_t> missing_ ABSL_GUARDED_BY(mu_);
  std::vector<std::vector<int64_t>> unblocks_ ABSL_GUARDED_BY(mu_);
  size_t open_ ABSL_GUARDED_BY(mu_) = 0;
  size_t sent_for_ ABSL_GUARDED_BY(mu_) = 0;
  std::string wrong_ ABSL_GUARDED_BY(mu_);
};

// Runs side 1 of the graph.
int Flow(const Worker& self, const Numbers& numbers, WireLine* line) {
  std::string word;
  uint64_t incarnation = 0;
  if (!line->Hear(&word) || !absl::SimpleAtoi(word, &incarnation)) return 3;
  Dataflow flow(self, 1, kThisEnd, incarnation, numbers);
  const absl::Cleanup stop = [&] { (void)self.server->Stop(absl::Seconds(2)); };
  const std::string wrong = flow.Run(static_cast<uint64_t>(numbers.at("seed")) + 1);
  (void)line->Say(wrong.empty() ? "all" : wrong);
  (void)line->Hear(&word, absl::Minutes(10));  // The other side may still need something.
  return 0;
}

TEST_P(Waiting, ReceivesThatWaitForEachOtherNeverStandStill) {
  SKIP_IF_KNOWN();
  const Numbers numbers = {{"keys", TestFlag("keys", 6000)}, {"seed", TestFlag("seed", 1)}};
  PromisePair pair(GetParam());
  auto other = pair.Start("flow", numbers);
  ASSERT_TRUE(other->AwaitReady());
  const absl::Time begun = absl::Now();
  ASSERT_TRUE(other->line()->Say(absl::StrCat(pair.self().server->incarnation())));
  Dataflow flow(pair.self(), 0, other->name(), other->incarnation(), numbers);
  const absl::Cleanup stop = [&] { (void)pair.self().server->Stop(absl::Seconds(2)); };
  EXPECT_EQ(flow.Run(static_cast<uint64_t>(numbers.at("seed"))), "");
  std::string word;
  EXPECT_TRUE(other->line()->Hear(&word));
  EXPECT_EQ(word, "all") << "on the other side";
  EXPECT_TRUE(pair.CameByThePath()) << pair.self().server->Explain("");
  std::printf("%s: %lld keys in %.2f s\n", GetParam().name,
              static_cast<long long>(numbers.at("keys")),
              absl::ToDoubleSeconds(absl::Now() - begun));
  (void)other->line()->Say("end");
  EXPECT_EQ(other->Wait(), 0) << other->words();
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(argc, argv, {{"send late", &tryst::SendLate}, {"flow", &tryst::Flow}});
}
