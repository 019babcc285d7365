// trystd: one worker of a cluster, until it is told to stop.
#include <signal.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/log_record.h"
#include "base/printable.h"
#include "server/process/grpc_locks.h"
#include "server/process/grpc_log.h"
#include "server/process/lean_heap.h"
#include "server/process/stop_signals.h"
#include "server/server.h"

namespace tryst {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "trystd: %s\n", Printable(status.ToString()).c_str());
  return 1;
}

int Main(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    if (arg != "--help") continue;
    std::printf("trystd [--config=FILE] [--SETTING=VALUE ...]\n\n%s", ConfigTable().c_str());
    return 0;
  }
  BlockDaemonSignals();
  // If the reader of our stdout or stderr goes away, the daemon must not end.
  signal(SIGPIPE, SIG_IGN);
  const LeanHeap heap;
  SetGrpcLog(GrpcLog::kAsOurs);
  StopLookingForDeadlocks();
  std::vector<std::string> rest;
  absl::StatusOr<ServerConfig> config = LoadConfig(args, ProcessEnvironment(), &rest);
  if (!config.ok()) return Fail(config.status());
  if (!rest.empty())
    return Fail(absl::InvalidArgumentError(
        "'" + rest[0] + "' is not a flag, and trystd takes flags only: see trystd --help"));
  if (config->status_listen.empty()) config->status_listen = "127.0.0.1:0";
  if (config->log_format == "json") SetLogFormat(LogFormat::kJson);
  absl::StatusOr<std::unique_ptr<Server>> server = ServerBuilder().Build(*config);
  if (!server.ok()) return Fail(server.status());
  absl::Status started = (*server)->Start();
  if (!started.ok()) return Fail(started);
  std::fprintf(stderr, "memory:\n%s", PrintLimits((*server)->config()).c_str());
  std::printf("serving %s at %s incarnation %016llx\n", (*server)->worker().c_str(),
              (*server)->address().c_str(),
              static_cast<unsigned long long>((*server)->incarnation()));
  std::fflush(stdout);
  while (WaitForDaemonSignal() == DaemonSignal::kReload) {
    TRYST_LOG(Info)
        << "SIGHUP: this worker looks for new certificates and a new file of the cluster";
    (*server)->Reload();
  }
  absl::Status stopped = (*server)->Stop(config->stop_deadline);
  return stopped.ok() ? 0 : Fail(stopped);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
