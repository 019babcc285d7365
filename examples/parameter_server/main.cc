// Parameter servers and workers, each a process, learn to guess the next word of a text. Without
// --role this is the launcher: it starts the others, kills some, starts those again, and plots how
// it went. See docs/examples/parameter_server.md.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/child_process.h"
#include "examples/loopback.h"
#include "examples/parameter_server/corpus.h"
#include "examples/parameter_server/launcher.h"
#include "examples/parameter_server/model.h"
#include "examples/parameter_server/options.h"
#include "examples/parameter_server/progress.h"
#include "examples/parameter_server/server_task.h"
#include "examples/parameter_server/shard.h"
#include "examples/parameter_server/worker_task.h"
#include "server/process/stop_signals.h"

namespace tryst {
namespace {

constexpr absl::Duration kSnapshotEvery = absl::Seconds(1);
constexpr absl::Duration kStopDeadline = absl::Seconds(3);
// Where nothing tells a server to end, it ends when its workers have been gone for so long.
constexpr absl::Duration kLonely = absl::Seconds(3);

Layout LayoutOf(const Options& options, const Corpus& corpus) {
  Layout layout;
  layout.vocabulary = corpus.vocabulary;
  layout.servers = options.servers;
  return layout;
}

// Prints who and where this task is, for people and for the launcher.
void Introduce(const Options& options, const Server& server) {
  if (options.detailed()) {
    std::printf("process %d at %s, protocol %s\n", getpid(), server.address().c_str(),
                server.config().protocol.c_str());
  }
  std::printf("%s\n", SeedLine(Seed(server)).c_str());
}

// Whether the task must end. The launcher closes its standard input. A scheduler's tasks may have
// no standard input, so they get a signal.
bool ToldToEnd(const Options& options, absl::Duration within) {
  return options.scheduled() ? StopSignalWithin(within) : InputEnds(within);
}

absl::Status RunServer(const Options& options, const Corpus& corpus, int index, Server* server) {
  const Layout layout = LayoutOf(options, corpus);
  Shard shard(layout, index, static_cast<float>(options.rate));
  // Restore before any worker can ask.
  const std::string snapshot = absl::StrCat(options.folder, "/ps-", index, ".snapshot");
  const absl::Status restored = shard.Restore(snapshot);
  if (restored.ok()) {
    std::printf("goes on from its snapshot, update %ld\n", shard.updates());
  } else if (!absl::IsNotFound(restored)) {
    return restored;
  }
  absl::Status started = server->Start();
  if (!started.ok()) return started;
  ServerTask task(server, layout, &shard, options.synchronous, options.detailed());
  Introduce(options, *server);
  absl::Status saved;
  absl::Time save = absl::Now() + kSnapshotEvery;
  absl::Time served = absl::InfiniteFuture();  // Somebody, for the last time.
  while (!ToldToEnd(options, absl::Milliseconds(20))) {
    task.Watch();
    if (task.has_served() && (task.sessions() > 0 || served == absl::InfiniteFuture())) {
      served = absl::Now();
    }
    if (options.scheduled() && absl::Now() - served > kLonely) break;
    if (absl::Now() < save) continue;
    saved = task.Save(snapshot);
    if (!saved.ok()) break;
    save = absl::Now() + kSnapshotEvery;
  }
  if (options.detailed()) std::printf("%ld updates\n", task.updates());
  // Save before it stops, so that a job that is requeued right after its start loses nothing
  // either.
  if (saved.ok()) saved = task.Save(snapshot);
  const absl::Status stopped = server->Stop(kStopDeadline);
  return saved.ok() ? stopped : saved;
}

absl::Status RunWorker(const Options& options, const Corpus& corpus, int index, Server* server) {
  absl::Status started = server->Start();
  if (!started.ok()) return started;
  Introduce(options, *server);
  const Layout layout = LayoutOf(options, corpus);
  std::vector<Example> own;
  const std::vector<Example> all = ExamplesOf(corpus.train, layout.context);
  for (size_t i = static_cast<size_t>(index); i < all.size(); i += options.workers) {
    own.push_back(all[i]);
  }
  std::vector<Example> held_out;
  if (index == 0) held_out = ExamplesOf(corpus.held_out, layout.context);

  std::atomic<bool> stop{false};
  std::atomic<bool> ended{false};
  const absl::Time end =
      options.scheduled() ? absl::Now() + absl::Seconds(options.seconds) : absl::InfiniteFuture();
  std::thread listener([&options, end, &stop, &ended] {
    while (!ended && !stop) {
      stop = ToldToEnd(options, absl::Milliseconds(50)) || absl::Now() > end;
    }
  });
  const absl::Status worked = Work(server, layout, own, held_out, options.detailed(), &stop);
  ended = true;
  listener.join();
  const absl::Status stopped = server->Stop(kStopDeadline);
  return worked.ok() ? stopped : worked;
}

absl::Status RunTask(const Options& options, const Corpus& corpus) {
  std::vector<std::string> rest;
  auto config = LoadConfig(options.server_flags, ProcessEnvironment(), &rest);
  if (!config.ok()) return config.status();
  if (options.scheduled() && options.folder.empty()) {
    return absl::InvalidArgumentError("--role=task needs --folder for the servers' snapshots");
  }
  auto server = ServerBuilder().Build(*config);
  if (!server.ok()) return server.status();
  const std::string role = options.scheduled() ? (*server)->config().job : options.role;
  const int index = static_cast<int>((*server)->config().task);
  return role == "ps" ? RunServer(options, corpus, index, server->get())
                      : RunWorker(options, corpus, index, server->get());
}

absl::Status Run(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::printf("%s\n", OptionsHelp().c_str());
    return absl::OkStatus();
  }
  auto options = ParseOptions(args);
  if (!options.ok()) return options.status();
  if (options->scheduled()) BlockStopSignals();  // Before another thread starts.
  auto corpus = ReadCorpus(options->texts);
  if (!corpus.ok()) return corpus.status();
  // If gnuplot is missing, writing to it fails. That must give a message and not end the launcher.
  if (options->role.empty()) std::signal(SIGPIPE, SIG_IGN);
  return options->role.empty() ? Launch(*options, *corpus) : RunTask(*options, *corpus);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tryst::LogErrorsOnly();
  const absl::Status status = tryst::Run({argv + 1, argv + argc});
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
