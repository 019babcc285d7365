#include "examples/loopback.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/log.h"

namespace tryst {

std::vector<std::string> LoopbackFlags(absl::string_view job, int task) {
  return {absl::StrCat("--job=", job), absl::StrCat("--task=", task), "--listen=127.0.0.1:0",
          "--insecure=true",           "--open_cluster=true",         "--nic=soft"};
}

void LogErrorsOnly() {
  SetLogSink([](LogSeverity severity, const char* file, int line, absl::string_view text) {
    if (severity < LogSeverity::kError) return;
    std::fprintf(stderr, "%d %s:%d] %.*s\n", getpid(), file, line, static_cast<int>(text.size()),
                 text.data());
  });
}

absl::StatusOr<std::unique_ptr<Server>> StartServer(const std::vector<std::string>& args,
                                                    std::vector<std::string>* rest) {
  std::vector<std::string> words;
  absl::StatusOr<ServerConfig> config = LoadConfig(args, ProcessEnvironment(), &words);
  if (!config.ok()) return config.status();
  if (rest != nullptr) {
    *rest = std::move(words);
  } else if (!words.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(words[0], " is not a flag"));
  }
  absl::StatusOr<std::unique_ptr<Server>> server = ServerBuilder().Build(*config);
  if (!server.ok()) return server;
  absl::Status started = (*server)->Start();
  if (!started.ok()) return started;
  return server;
}

std::string Seed(const Server& server) {
  return absl::StrCat(server.worker(), "@", server.address());
}

TensorKey LoopbackKey(absl::string_view producer, uint64_t incarnation, absl::string_view consumer,
                      absl::string_view edge, uint64_t iter) {
  return TensorKeyPrefix::Make(absl::StrCat(producer, "/device:CPU:0"), incarnation,
                               absl::StrCat(consumer, "/device:CPU:0"), edge)
      ->At(0, iter);
}

std::string ExplainPath(Server* server, const std::string& peer) {
  std::vector<std::string> lines = absl::StrSplit(server->Explain(peer), '\n', absl::SkipEmpty());
  lines.erase(lines.begin());
  return absl::StrJoin(lines, "\n");
}

}  // namespace tryst
