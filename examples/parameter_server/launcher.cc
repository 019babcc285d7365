#include "examples/parameter_server/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "examples/child_process.h"
#include "examples/loopback.h"
#include "examples/parameter_server/plot.h"
#include "examples/parameter_server/progress.h"

namespace tryst {
namespace {

constexpr absl::Duration kStartPatience = absl::Seconds(30);
constexpr absl::Duration kReportEvery = absl::Seconds(1);
// The table of paths does not wait longer for tasks that have not reached each other.
constexpr absl::Duration kTablePatience = absl::Seconds(8);
constexpr double kGrace = 30;  // Seconds more, for one that was started again.
constexpr int kMaxStarts = 4;  // The most starts of one task, including ours.

struct Task {
  std::string job;
  int index;
  std::unique_ptr<ChildProcess> process;
  std::string seed;  // Empty: it has not started yet, or has ended.
  bool ended = false;
  bool killed = false;  // Whether we killed it.
  int starts = 0;
  // What its flags keep from it, for the table of paths; empty: nothing.
  std::string limit;
  // Since its last start: who has not reached it, or was not reached by it.
  std::set<std::string> missing;
  absl::Time started_again = absl::InfiniteFuture();

  std::string name() const { return absl::StrCat(job, " ", index); }
};

class Launcher {
 public:
  explicit Launcher(const Options& options) : options_(options) {
    for (int i = 0; i < options.servers; ++i) AddTask("ps", i);
    for (int i = 0; i < options.workers; ++i) AddTask("worker", i);
    course_.losses.resize(static_cast<size_t>(options.workers));
  }

  absl::Status Run();
  const Course& course() const { return course_; }

 private:
  void AddTask(const char* job, int index) {
    tasks_.push_back(std::make_unique<Task>());
    tasks_.back()->job = job;
    tasks_.back()->index = index;
  }
  // 0 before training.
  double Seconds() const { return training_ ? absl::ToDoubleSeconds(absl::Now() - start_) : 0; }

  absl::Status StartAll();
  absl::Status Start(Task* task);
  std::vector<std::string> ArgumentsOf(Task* task);  // Sets its `limit`, too.
  absl::Status AwaitSeed(Task* task);
  void OnLine(Task* task, const std::string& line);
  void OnPath(Task* task, const PathReport& report);
  void Say(const std::string& who, const std::string& what);
  void Note(const std::string& event);
  void PrintPathsOnce();
  void KillWhenDue(Task* task, double at);
  bool AnyMissing();
  absl::Status RestartEnded();
  void Report();
  absl::Status StopAll();

  const Options options_;
  absl::Time start_;  // When training began: once all tasks are there. Written before `training_`.
  std::atomic<bool> training_{false};
  bool paths_printed_ = false;
  std::vector<std::unique_ptr<Task>> tasks_;
  int unexpected_ = 0;
  absl::Time reported_;

  // Also guards what the readers' threads write of a task: seed, ended, missing.
  Mutex mu_;
  CondVar changed_;
  Course course_;
  Progress since_report_ ABSL_GUARDED_BY(mu_);
  // By who fetches and from whom; the last report of each.
  std::map<std::pair<std::string, std::string>, PathReport> paths_ ABSL_GUARDED_BY(mu_);
};

// A path's name for those who see it for the first time.
std::string PlainName(const std::string& path) {
  if (path == "shm") return "shared memory";
  if (path == "rdma/soft") return "RDMA, software NIC";
  if (path == "grpc/stream" || path == "grpc/sealed" || path == "grpc") return "gRPC";
  return path;
}

void Launcher::Say(const std::string& who, const std::string& what) {
  std::printf("%6.2f  %s: %s\n", Seconds(), who.c_str(), what.c_str());
}

void Launcher::Note(const std::string& event) {
  std::printf("%6.2f  * %s\n", Seconds(), event.c_str());
  MutexLock lock(&mu_);
  course_.events.emplace_back(Seconds(), event);
}

void Launcher::OnPath(Task* task, const PathReport& report) {
  std::vector<std::string> events;
  {
    MutexLock lock(&mu_);
    PathReport& last = paths_[{task->name(), report.peer}];
    if (paths_printed_ && !last.path.empty() && last.path != report.path) {
      events.push_back(absl::StrCat(task->name(), " reaches ", report.peer, " by ",
                                    PlainName(report.path), " now: ", report.why));
    }
    last = report;
    // Only workers' reports say that both ends work: a worker asks and is answered.
    if (task->job != "worker") return;
    for (const auto& other : tasks_) {
      if (other->missing.empty()) continue;
      if (other.get() == task) {
        other->missing.erase(report.peer);
      } else if (other->name() == report.peer) {
        other->missing.erase(task->name());
      }
      if (!other->missing.empty()) continue;
      events.push_back(absl::StrFormat(
          "%s is back at work with all its peers, %.2f s after its start", other->name(),
          absl::ToDoubleSeconds(absl::Now() - other->started_again)));
    }
  }
  for (const std::string& event : events) Note(event);
}

// Who reaches whom, by which path and why: a row for those with the same answer.
void Launcher::PrintPathsOnce() {
  if (paths_printed_) return;
  struct Row {
    std::string who, by, why;
    std::vector<std::string> whom;
  };
  std::vector<Row> rows;
  bool answers_alike = true;
  {
    MutexLock lock(&mu_);
    const size_t pairs = static_cast<size_t>(options_.servers) * options_.workers;
    if (paths_.size() < 2 * pairs && absl::Now() < start_ + kTablePatience) return;
    paths_printed_ = true;
    const auto add = [&rows](const std::string& who, const std::string& whom, std::string by,
                             std::string why) {
      if (rows.empty() || rows.back().who != who || rows.back().by != by ||
          rows.back().why != why) {
        rows.push_back({who, std::move(by), std::move(why), {}});
      }
      rows.back().whom.push_back(whom);
    };
    for (const auto& task : tasks_) {
      for (const auto& peer : tasks_) {
        if (task->job == peer->job) continue;
        const auto there = paths_.find({task->name(), peer->name()});
        const auto back = paths_.find({peer->name(), task->name()});
        if (there == paths_.end()) {
          add(task->name(), peer->name(), "nothing yet", "");
          continue;
        }
        const PathReport& report = there->second;
        if (task->job == "worker") {
          const char* const both = task->limit.empty() || report.why.empty() ? "" : "; ";
          const std::string why = absl::StrCat(task->limit, both, report.why);
          add(task->name(), peer->name(), PlainName(report.path), why);
        } else if (back == paths_.end() || back->second.path != report.path) {
          answers_alike = false;
          add(task->name(), peer->name(), PlainName(report.path), report.why);
        }
      }
    }
  }
  size_t widest = 7;
  for (const Row& row : rows) widest = std::max(widest, absl::StrJoin(row.whom, ", ").size());
  const auto print = [widest](const std::string& who, const std::string& whom,
                              const std::string& by, const std::string& why) {
    std::string line =
        absl::StrFormat("%-10s %-*s  %-19s %s", who, static_cast<int>(widest), whom, by, why);
    std::printf("%s\n", std::string(absl::StripTrailingAsciiWhitespace(line)).c_str());
  };
  std::printf("\n");
  print("who", "reaches", "by", "why");
  for (const Row& row : rows) print(row.who, absl::StrJoin(row.whom, ", "), row.by, row.why);
  if (answers_alike) {
    std::printf("(ps: a parameter server. Each fetches from a worker by the path of that row.)\n");
  }
  std::printf("\n     s   loss  loss on unseen text  examples/s  MiB/s moved\n");
}

std::vector<std::string> Launcher::ArgumentsOf(Task* task) {
  std::vector<std::string> seeds;
  {
    MutexLock lock(&mu_);
    for (const auto& other : tasks_) {
      if (other.get() != task && !other->seed.empty()) seeds.push_back(other->seed);
    }
  }
  std::vector<std::string> args = LoopbackFlags(task->job, task->index);
  args.push_back(absl::StrCat("--join=", absl::StrJoin(seeds, ",")));
  // A fetch from a worker that does not come back must fail soon, because others wait for it.
  args.push_back("--patience=5s");
  // Shows every path: the last worker speaks gRPC, the one before it uses the software NIC, and the
  // others share memory with the servers.
  const bool mixed = options_.mixed && options_.workers > 1;
  const int from_last = task->job == "worker" ? options_.workers - 1 - task->index : -1;
  const bool by_soft = options_.workers > (mixed ? 2 : 1) && from_last == (mixed ? 1 : 0);
  args.push_back(by_soft ? "--shm=off" : "--shm=on");
  const std::vector<std::string> given = OptionFlags(options_);
  args.insert(args.end(), given.begin(), given.end());
  args.push_back(absl::StrCat("--role=", task->job));
  task->limit = by_soft ? "started without shared memory, to show this path" : "";
  if (mixed && from_last == 0) {
    args.push_back("--protocol=grpc");
    task->limit = "started with gRPC alone, to show this path";
  }
  return args;
}

absl::Status Launcher::Start(Task* task) {
  if (++task->starts > kMaxStarts) {
    return absl::UnavailableError(absl::StrCat(task->name(), " does not stay up"));
  }
  task->killed = false;
  const std::vector<std::string> args = ArgumentsOf(task);
  auto process = ChildProcess::Start(
      args, [this, task](const std::string& line) { OnLine(task, line); },
      [this, task] {
        MutexLock lock(&mu_);
        task->ended = true;
        task->seed.clear();
        changed_.NotifyAll();
      });
  if (!process.ok()) return process.status();
  task->process = *std::move(process);
  return absl::OkStatus();
}

absl::Status Launcher::AwaitSeed(Task* task) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(kStartPatience);
  MutexLock lock(&mu_);
  while (task->seed.empty() && !task->ended) {
    if (changed_.WaitUntil(&mu_, until)) break;
  }
  return task->seed.empty() ? absl::UnavailableError(absl::StrCat(task->name(), " does not start"))
                            : absl::OkStatus();
}

void Launcher::OnLine(Task* task, const std::string& line) {
  std::string seed;
  Progress progress;
  PathReport path;
  if (ParseSeed(line, &seed)) {
    MutexLock lock(&mu_);
    task->seed = seed;
    changed_.NotifyAll();
  } else if (ParseProgress(line, &progress)) {
    MutexLock lock(&mu_);
    since_report_.examples += progress.examples;
    since_report_.bytes += progress.bytes;
    if (progress.loss >= 0) {
      course_.losses[static_cast<size_t>(task->index)].emplace_back(Seconds(), progress.loss);
      since_report_.loss = progress.loss;
    }
    if (progress.held_out >= 0) course_.held_out.emplace_back(Seconds(), progress.held_out);
  } else if (ParsePath(line, &path)) {
    OnPath(task, path);
  } else if (!line.empty()) {
    Say(task->name(), line);
  }
}

void Launcher::KillWhenDue(Task* task, double at) {
  if (at <= 0 || Seconds() < at || task->starts > 1) return;
  // All have met, and whoever was killed before is back: a busy machine takes its time.
  if (task->killed || !paths_printed_ || AnyMissing()) return;
  task->killed = true;
  Note(absl::StrCat("we kill ", task->name(), " (kill -9)"));
  task->process->Kill();
}

// Whether one that was started again has not yet met all its peers.
bool Launcher::AnyMissing() {
  MutexLock lock(&mu_);
  return std::any_of(tasks_.begin(), tasks_.end(), [](const auto& task) {
    return task->killed || task->ended || !task->missing.empty();
  });
}

absl::Status Launcher::RestartEnded() {
  for (const auto& task : tasks_) {
    {
      MutexLock lock(&mu_);
      if (!task->ended) continue;
      task->ended = false;
    }
    const int code = task->process->Wait();
    if (!task->killed) {
      ++unexpected_;
      Note(absl::StrCat(task->name(), " ended by itself, code ", code));
    }
    {
      MutexLock lock(&mu_);
      task->started_again = absl::Now();
      for (const auto& other : tasks_) {
        if (other->job != task->job) task->missing.insert(other->name());
      }
    }
    absl::Status started = Start(task.get());
    if (!started.ok()) return started;
    Note(absl::StrCat("we start ", task->name(), " again"));
  }
  return absl::OkStatus();
}

void Launcher::Report() {
  PrintPathsOnce();
  if (!paths_printed_) return;
  const absl::Duration passed = absl::Now() - reported_;
  if (passed < kReportEvery) return;
  reported_ = absl::Now();
  const double seconds = absl::ToDoubleSeconds(passed);
  MutexLock lock(&mu_);
  const Progress progress = std::exchange(since_report_, {});
  const double examples = static_cast<double>(progress.examples) / seconds;
  const double mib = static_cast<double>(progress.bytes) / seconds / (1 << 20);
  course_.examples_rate.emplace_back(Seconds(), examples);
  course_.mib_rate.emplace_back(Seconds(), mib);
  std::printf("%6.2f  %5.3f  %19.3f  %10.0f  %11.1f\n", Seconds(), progress.loss,
              course_.held_out.empty() ? -1 : course_.held_out.back().second, examples, mib);
}

absl::Status Launcher::StartAll() {
  for (const auto& task : tasks_) {
    absl::Status started = Start(task.get());
    // The first task must be up before the others, which join it.
    if (started.ok() && task == tasks_.front()) started = AwaitSeed(task.get());
    if (!started.ok()) return started;
  }
  for (const auto& task : tasks_) {
    absl::Status there = AwaitSeed(task.get());
    if (!there.ok()) return there;
  }
  return absl::OkStatus();
}

absl::Status Launcher::Run() {
  absl::Status status = StartAll();
  if (!status.ok()) return status;
  start_ = reported_ = absl::Now();
  training_ = true;
  Task* const worker = tasks_[static_cast<size_t>(options_.servers + options_.workers / 2)].get();
  Task* const server = tasks_[static_cast<size_t>(options_.servers - 1)].get();
  // All that is to be killed is, and is back before the end.
  const auto is_owed = [this](const Task* task, double at) {
    return at > 0 && at < options_.seconds && task->starts == 1;
  };
  const auto goes_on = [&] {
    return AnyMissing() || is_owed(worker, options_.kill_worker) ||
           is_owed(server, options_.kill_ps);
  };
  while (Seconds() < options_.seconds || (goes_on() && Seconds() < options_.seconds + kGrace)) {
    KillWhenDue(worker, options_.kill_worker);
    KillWhenDue(server, options_.kill_ps);
    status = RestartEnded();
    if (!status.ok()) return status;
    Report();
    absl::SleepFor(absl::Milliseconds(50));
  }
  return StopAll();
}

// Workers stop first, while their servers still answer.
absl::Status Launcher::StopAll() {
  std::vector<std::string> bad;
  for (const char* job : {"worker", "ps"}) {
    for (const auto& task : tasks_) {
      if (task->job == job) task->process->CloseInput();
    }
    for (const auto& task : tasks_) {
      if (task->job != job) continue;
      const int code = task->process->Wait();
      if (code != 0) bad.push_back(absl::StrCat(task->name(), " ended with code ", code));
    }
  }
  if (unexpected_ > 0) bad.push_back(absl::StrCat(unexpected_, " ended by themselves"));
  if (bad.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrJoin(bad, "; "));
}

double Mean(const Course::Curve& curve) {
  double sum = 0;
  for (const auto& point : curve) sum += point.second;
  return curve.empty() ? 0 : sum / static_cast<double>(curve.size());
}

absl::Status Judge(const Course& course) {
  if (course.held_out.size() < 2) return absl::InternalError("too short to see any learning");
  const double first = course.held_out.front().second;
  const double last = course.held_out.back().second;
  std::printf(
      "\n%s: the loss on text that no worker learns from went from %.2f to %.2f nats a word.\n"
      "On average %.0f examples/s were learnt from and %.0f MiB/s moved.\n",
      last < first ? "It learnt" : "It learnt nothing", first, last, Mean(course.examples_rate),
      Mean(course.mib_rate));
  return last < first ? absl::OkStatus() : absl::InternalError("nothing was learnt");
}

constexpr char kNext[] =
    "Next:\n"
    "  ./run demo --sync         rounds in which the servers wait for every worker\n"
    "  ./run demo --workers=6    more processes; --help has the other flags\n"
    "  ./run demo --verbose      every connection of every process, and why\n"
    "  docs/examples/parameter_server.md says what travels, and what happens when a process dies\n";

}  // namespace

absl::Status Launch(const Options& options, const Corpus& corpus) {
  Options all = options;
  std::string made;
  if (all.folder.empty()) {
    made = (std::filesystem::temp_directory_path() / "tryst-ps-XXXXXX").string();
    if (mkdtemp(&made[0]) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
    all.folder = made;
  }
  std::printf(
      "%d parameter servers (ps) and %d workers start, each a process, and learn for %.0f s, %s.\n",
      all.servers, all.workers, all.seconds,
      all.synchronous ? "in rounds that wait for every worker (synchronous)"
                      : "each worker at its own pace (asynchronous)");
  if (all.verbose) {
    std::printf("%d words of vocabulary, %zu blocks of text\n", corpus.vocabulary,
                corpus.train.size());
  }
  absl::Status status;
  {
    Launcher launcher(all);
    status = launcher.Run();
    if (status.ok()) status = Judge(launcher.course());
    const absl::Status plotted =
        Plot(launcher.course(),
             absl::StrCat(all.synchronous ? "Synchronous" : "Asynchronous", " SGD, ", all.servers,
                          " parameter servers, ", all.workers, " workers"),
             all.plot);
    if (plotted.ok()) {
      std::printf("Plot: %s\n", std::filesystem::absolute(all.plot).c_str());
    } else {
      std::printf("No plot: %s\n", std::string(plotted.message()).c_str());
    }
    std::printf("%s", kNext);
  }
  std::error_code ignored;
  if (!made.empty()) std::filesystem::remove_all(made, ignored);
  return status;
}

}  // namespace tryst
