// Parameter servers and workers, each a process of its own, learn to guess the next word
// of a text. Without --role this is the launcher, which starts the others, kills some of
// them, starts those again and draws how it went. docs/examples/parameter_server.md.
#include <unistd.h>

#include <algorithm>
#include <atomic>
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

namespace tryst {
namespace {

constexpr absl::Duration kSnapshotEvery = absl::Seconds(1);
constexpr absl::Duration kStopDeadline = absl::Seconds(3);

Layout LayoutOf(const Options& options, const Corpus& corpus) {
  Layout layout;
  layout.vocabulary = corpus.vocabulary;
  layout.servers = options.servers;
  return layout;
}

// Says who and where we are, for people and for the launcher.
void Introduce(const Server& server) {
  std::printf("process %d at %s, protocol %s\n%s\n", getpid(), server.address().c_str(),
              server.config().protocol.c_str(), SeedLine(Seed(server)).c_str());
}

absl::Status RunServer(const Options& options, const Corpus& corpus) {
  std::vector<std::string> rest;
  auto config = LoadConfig(options.server_flags, ProcessEnvironment(), &rest);
  if (!config.ok()) return config.status();
  const int index = static_cast<int>(config->task);
  const Layout layout = LayoutOf(options, corpus);
  Shard shard(layout, index, static_cast<float>(options.rate));
  // Before anybody can ask.
  const std::string snapshot = absl::StrCat(options.folder, "/ps-", index, ".snapshot");
  const absl::Status restored = shard.Restore(snapshot);
  if (restored.ok()) {
    std::printf("goes on from its snapshot, update %ld\n", shard.updates());
  } else if (!absl::IsNotFound(restored)) {
    return restored;
  }
  auto server = StartServer(options.server_flags, nullptr);
  if (!server.ok()) return server.status();
  ServerTask task(server->get(), layout, &shard, options.synchronous);
  Introduce(**server);
  absl::Status saved;
  for (absl::Time save = absl::Now() + kSnapshotEvery; !InputEnds(absl::Milliseconds(20));) {
    task.Watch();
    if (absl::Now() < save) continue;
    saved = task.Save(snapshot);
    if (!saved.ok()) break;
    save = absl::Now() + kSnapshotEvery;
  }
  std::printf("%ld updates\n", task.updates());
  const absl::Status stopped = (*server)->Stop(kStopDeadline);
  server->reset();
  return saved.ok() ? stopped : saved;
}

absl::Status RunWorker(const Options& options, const Corpus& corpus) {
  auto server = StartServer(options.server_flags, nullptr);
  if (!server.ok()) return server.status();
  Introduce(**server);
  const Layout layout = LayoutOf(options, corpus);
  const int index = static_cast<int>((*server)->config().task);
  std::vector<Example> own;
  const std::vector<Example> all = ExamplesOf(corpus.train, layout.context);
  for (size_t i = static_cast<size_t>(index); i < all.size(); i += options.workers) {
    own.push_back(all[i]);
  }
  std::vector<Example> held_out;
  if (index == 0) held_out = ExamplesOf(corpus.held_out, layout.context);

  std::atomic<bool> stop{false};
  std::atomic<bool> ended{false};
  std::thread listener([&stop, &ended] {
    while (!ended && !stop) stop = InputEnds(absl::Milliseconds(50));
  });
  const absl::Status worked = Work(server->get(), layout, own, held_out, &stop);
  ended = true;
  listener.join();
  const absl::Status stopped = (*server)->Stop(kStopDeadline);
  return worked.ok() ? stopped : worked;
}

absl::Status Run(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::printf("%s\n", OptionsHelp().c_str());
    return absl::OkStatus();
  }
  auto options = ParseOptions(args);
  if (!options.ok()) return options.status();
  auto corpus = ReadCorpus(options->texts);
  if (!corpus.ok()) return corpus.status();
  if (options->role == "ps") return RunServer(*options, *corpus);
  if (options->role == "worker") return RunWorker(*options, *corpus);
  return Launch(*options, *corpus);
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
