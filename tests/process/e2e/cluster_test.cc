// Four workers and two parameter servers, each a process, on each transport. All are under load,
// and are restarted one after another. load_worker checks the bytes.
#include <signal.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/process/e2e/free_port.h"
#include "tests/process/e2e/process.h"
#include "tests/process/e2e/tested_paths.h"
#include "tests/process/history/history_file.h"

namespace tryst {
namespace {

constexpr int kWorkers = 4;
constexpr int kServers = 2;
constexpr size_t kParts = 4;  // In which the history is judged.
// TRYST_E2E_SLOW is for an emulated machine: small tensors, longer pauses, more patience, fewer
// restarts.
bool IsSlow() { return std::getenv("TRYST_E2E_SLOW") != nullptr; }
// A stream that has made this many rounds counts as alive: it has moved every size once, or twice.
uint64_t Enough() { return IsSlow() ? 7 : 15; }
absl::Duration Patience() { return IsSlow() ? absl::Seconds(100) : absl::Seconds(30); }

class Cluster {
 public:
  explicit Cluster(const TestedPath& path) : path_(path) {
    std::vector<std::string> servers;
    std::vector<std::string> workers;
    for (int i = 0; i < kServers; ++i) Place("ps", i, &servers);
    for (int i = 0; i < kWorkers; ++i) Place("worker", i, &workers);
    spec_ =
        absl::StrCat("ps=", absl::StrJoin(servers, ","), ";worker=", absl::StrJoin(workers, ","));
  }

  static std::string Name(const std::string& job, int task) {
    return absl::StrCat("/job:", job, "/replica:0/task:", task);
  }
  static std::vector<std::string> Names(const std::string& job) {
    std::vector<std::string> names;
    for (int i = 0; i < (job == "ps" ? kServers : kWorkers); ++i) names.push_back(Name(job, i));
    return names;
  }

  void Start(const std::string& job, int task) {
    const std::string peers = absl::StrJoin(Names(job == "ps" ? "worker" : "ps"), ",");
    processes_[Name(job, task)] = std::make_unique<Process>(
        "tests/process/e2e/load_worker",
        With({"--insecure", absl::StrCat("--job=", job), absl::StrCat("--task=", task),
              absl::StrCat("--cluster_spec=", spec_), absl::StrCat("--peers=", peers),
              absl::StrCat("--history=", history_, "/", ++lives_), "--trace_sample_every=1"},
             With(IsSlow() ? std::vector<std::string>{"--patience=60s", "--largest=80000",
                                                      "--pause=400ms", "--longest=100s"}
                           // Longer than a busy machine takes to start a process again.
                           : std::vector<std::string>{"--patience=20s"},
                  path_.flags)));
  }
  Process* at(const std::string& name) { return processes_.at(name).get(); }

  // The incarnation in "serving WORKER at ADDRESS incarnation I".
  std::string Incarnation(const std::string& name) {
    at(name)->Address();
    const std::vector<std::string> lines = absl::StrSplit(at(name)->out(), '\n');
    return lines[0].substr(lines[0].rfind(' ') + 1);
  }

  // Waits until `consumer` has received enough from the present incarnation of `producer`.
  testing::AssertionResult AwaitFlow(const std::string& producer, const std::string& consumer) {
    const std::string begins = absl::StrCat("got ", producer, " ", Incarnation(producer), " ");
    for (const absl::Time until = absl::Now() + Patience(); absl::Now() < until;) {
      const std::string out = at(consumer)->out();
      if (absl::StrContains(out, "wrong: ")) break;
      const size_t found = out.rfind(begins);
      uint64_t count = 0;
      if (found != std::string::npos) {
        const size_t from = found + begins.size();
        (void)absl::SimpleAtoi(out.substr(from, out.find('\n', from) - from), &count);
      }
      if (count >= Enough()) return testing::AssertionSuccess();
      absl::SleepFor(absl::Milliseconds(20));
    }
    return testing::AssertionFailure()
           << consumer << " does not hear enough from " << producer << ":\n"
           << at(consumer)->out() << at(consumer)->err() << at(producer)->out()
           << at(producer)->err();
  }
  testing::AssertionResult AwaitAllFlows() {
    for (const auto& [a, first] : processes_) {
      for (const auto& [b, second] : processes_) {
        if (absl::StartsWith(a, "/job:ps") == absl::StartsWith(b, "/job:ps")) continue;
        testing::AssertionResult flows = AwaitFlow(a, b);
        if (!flows) return flows;
      }
    }
    return testing::AssertionSuccess();
  }

  const std::map<std::string, std::unique_ptr<Process>>& processes() const { return processes_; }

  // Holds what all lives sent, received and traced against the promises and the tables of states.
  void Judge() {
    const auto judged = JudgeFolder(history_, kParts);
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_EQ(judged->breaches, "") << "kept in " << history_;
    EXPECT_GT(judged->made, 0u);
    EXPECT_GT(judged->traced_pairs, 0u);
    if (judged->breaches.empty()) RemoveHistoryFolder(history_);
  }

 private:
  void Place(const std::string& job, int task, std::vector<std::string>* addresses) {
    // FreePort() may return the same port several times, so each is remembered.
    int port = 0;
    do {
      port = FreePort();
    } while (!ports_.emplace(port, Name(job, task)).second);
    addresses->push_back(absl::StrCat("127.0.0.1:", port));
  }

  const TestedPath path_;
  std::string spec_;
  const std::string history_ = NewHistoryFolder();
  int lives_ = 0;
  std::map<int, std::string> ports_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

class FourByTwo : public testing::TestWithParam<TestedPath> {};
INSTANTIATE_TEST_SUITE_P(, FourByTwo, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FourByTwo, ARollingRestartUnderLoadLosesNothingAndHangsNobody) {
  Cluster cluster(GetParam());
  // These workers request before the servers are up. The last worker starts even later.
  for (int i = 0; i + 1 < kWorkers; ++i) cluster.Start("worker", i);
  for (int i = 0; i + 1 < kWorkers; ++i) cluster.at(Cluster::Name("worker", i))->Address();
  for (int i = 0; i < kServers; ++i) cluster.Start("ps", i);
  ASSERT_TRUE(cluster.AwaitAllFlows());
  cluster.Start("worker", kWorkers - 1);
  ASSERT_TRUE(cluster.AwaitAllFlows());

  // Restarts each in turn, half of them without a goodbye.
  int count = 0;
  for (const char* job : {"ps", "worker"}) {
    for (const std::string& name : Cluster::Names(job)) {
      if (IsSlow() && name.back() != '0') continue;
      const std::string old = cluster.Incarnation(name);
      cluster.at(name)->Signal(++count % 2 == 0 ? SIGTERM : SIGKILL);
      const int code = cluster.at(name)->Wait(Patience());
      if (count % 2 == 0) {
        EXPECT_EQ(code, 0) << cluster.at(name)->out() << cluster.at(name)->err();
      }
      cluster.Start(job, name.back() - '0');
      ASSERT_NE(cluster.Incarnation(name), old);
      ASSERT_TRUE(cluster.AwaitAllFlows());
    }
  }

  for (const auto& [name, process] : cluster.processes()) process->Signal(SIGTERM);
  int ended = 0;
  for (const auto& [name, process] : cluster.processes()) {
    EXPECT_EQ(process->Wait(Patience()), 0) << name << process->out() << process->err();
    const std::string out = process->out();
    EXPECT_TRUE(absl::StrContains(out, "\nwrong 0\n")) << name << out << process->err();
    // Tensors came by the path that was asked for, and by no other.
    EXPECT_TRUE(absl::StrContains(out, GetParam().path)) << name << out;
    EXPECT_FALSE(absl::StrContains(out, absl::StrCat("not ", GetParam().path))) << name << out;
    // A receive that a restart ended names the restarted worker.
    for (absl::string_view line : absl::StrSplit(out, '\n')) {
      if (!absl::StartsWith(line, "ended ")) continue;
      ++ended;
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
      EXPECT_TRUE(absl::StrContains(line.substr(7 + words[1].size()), words[1])) << line;
    }
  }
  EXPECT_GT(ended, 0);  // At least one receive was under way at a restart.
  cluster.Judge();
}

}  // namespace
}  // namespace tryst
