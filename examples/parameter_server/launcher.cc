#include "examples/parameter_server/launcher.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
constexpr absl::Duration kReportEvery = absl::Milliseconds(500);
constexpr int kMaxStarts = 4;  // The most starts of one task, including ours.

struct Task {
  std::string job;
  int index;
  std::unique_ptr<ChildProcess> process;
  std::string seed;  // Empty: it has not started yet, or has ended.
  bool ended = false;
  bool killed = false;  // Whether we killed it.
  int starts = 0;

  std::string name() const { return absl::StrCat(job, " ", index); }
};

class Launcher {
 public:
  explicit Launcher(const Options& options) : options_(options), start_(absl::Now()) {
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
  double Seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

  absl::Status StartAll();
  absl::Status Start(Task* task);
  std::vector<std::string> ArgumentsOf(const Task& task);
  absl::Status AwaitSeed(Task* task);
  void OnLine(Task* task, const std::string& line);
  void Say(const std::string& who, const std::string& what);
  void Note(const std::string& event);
  void KillWhenDue(Task* task, double at);
  absl::Status RestartEnded();
  void Report();
  absl::Status StopAll();

  const Options options_;
  absl::Time start_;  // When training began: once all tasks are there.
  std::vector<std::unique_ptr<Task>> tasks_;
  int unexpected_ = 0;
  absl::Time reported_;

  Mutex mu_;  // Also guards Task::seed and Task::ended, which the readers' threads write.
  CondVar changed_;
  Course course_;
  Progress since_report_ ABSL_GUARDED_BY(mu_);
};

void Launcher::Say(const std::string& who, const std::string& what) {
  std::printf("%6.2f s  %-9s %s\n", Seconds(), who.c_str(), what.c_str());
}

void Launcher::Note(const std::string& event) {
  Say("*", event);
  MutexLock lock(&mu_);
  course_.events.emplace_back(Seconds(), event);
}

std::vector<std::string> Launcher::ArgumentsOf(const Task& task) {
  std::vector<std::string> seeds;
  {
    MutexLock lock(&mu_);
    for (const auto& other : tasks_) {
      if (other.get() != &task && !other->seed.empty()) seeds.push_back(other->seed);
    }
  }
  std::vector<std::string> args = LoopbackFlags(task.job, task.index);
  args.push_back(absl::StrCat("--join=", absl::StrJoin(seeds, ",")));
  // A fetch from a worker that does not come back must fail soon, because others wait for it.
  args.push_back("--patience=5s");
  // Shows every path: the last worker speaks gRPC, the one before it uses the software NIC, and the
  // others share memory with the servers.
  const bool mixed = options_.mixed && options_.workers > 1;
  const int from_last = task.job == "worker" ? options_.workers - 1 - task.index : -1;
  const bool by_soft = options_.workers > (mixed ? 2 : 1) && from_last == (mixed ? 1 : 0);
  args.push_back(by_soft ? "--shm=off" : "--shm=on");
  const std::vector<std::string> given = OptionFlags(options_);
  args.insert(args.end(), given.begin(), given.end());
  args.push_back(absl::StrCat("--role=", task.job));
  if (mixed && from_last == 0) args.push_back("--protocol=grpc");
  return args;
}

absl::Status Launcher::Start(Task* task) {
  if (++task->starts > kMaxStarts) {
    return absl::UnavailableError(absl::StrCat(task->name(), " does not stay up"));
  }
  task->killed = false;
  const std::vector<std::string> args = ArgumentsOf(*task);
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
  } else if (!line.empty()) {
    Say(task->name(), line);
  }
}

void Launcher::KillWhenDue(Task* task, double at) {
  if (at <= 0 || Seconds() < at || task->starts > 1) return;
  if (task->killed) return;
  task->killed = true;
  Note(absl::StrCat("kill -9 ", task->name()));
  task->process->Kill();
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
      Say("*", absl::StrCat(task->name(), " ended by itself, code ", code));
    }
    absl::Status started = Start(task.get());
    if (!started.ok()) return started;
    Note(absl::StrCat("restart ", task->name()));
  }
  return absl::OkStatus();
}

void Launcher::Report() {
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
  std::printf("%6.2f s  loss %5.3f, held out %5.3f  %6.0f examples/s  %6.1f MiB/s\n", Seconds(),
              progress.loss, course_.held_out.empty() ? -1 : course_.held_out.back().second,
              examples, mib);
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
  Task* const worker = tasks_[static_cast<size_t>(options_.servers + options_.workers / 2)].get();
  Task* const server = tasks_[static_cast<size_t>(options_.servers - 1)].get();
  while (Seconds() < options_.seconds) {
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
  std::printf("held-out loss %.3f -> %.3f nats a word; %.0f examples/s, %.1f MiB/s on average\n",
              first, last, Mean(course.examples_rate), Mean(course.mib_rate));
  return last < first ? absl::OkStatus() : absl::InternalError("nothing was learnt");
}

}  // namespace

absl::Status Launch(const Options& options, const Corpus& corpus) {
  Options all = options;
  std::string made;
  if (all.folder.empty()) {
    made = (std::filesystem::temp_directory_path() / "tryst-ps-XXXXXX").string();
    if (mkdtemp(&made[0]) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
    all.folder = made;
  }
  std::printf("%d parameter servers, %d workers, %s; %d words of vocabulary, %zu blocks of text\n",
              all.servers, all.workers, all.synchronous ? "synchronous" : "asynchronous",
              corpus.vocabulary, corpus.train.size());
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
      std::printf("plot: %s\n", std::filesystem::absolute(all.plot).c_str());
    } else {
      std::printf("no plot: %s\n", plotted.ToString().c_str());
    }
  }
  std::error_code ignored;
  if (!made.empty()) std::filesystem::remove_all(made, ignored);
  return status;
}

}  // namespace tryst
