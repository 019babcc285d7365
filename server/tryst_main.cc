// tryst: looks at workers, and moves .npy files between them.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/doctor/doctor_command.h"
#include "server/npy.h"
#include "server/peer_client.h"
#include "server/server.h"
#include "server/stop_signals.h"

namespace tryst {
namespace {

constexpr char kUsage[] =
    R"(tryst COMMAND ... [--SETTING=VALUE ...]   (trystd --help lists the settings)

  ping WORKER                     who is there: incarnation, members
  explain WORKER [PEER]           which path leads where, and why
  waiting WORKER                  who waits for what since when
  stats WORKER                    counters
  trace WORKER TEXT               what waits whose key contains TEXT
  begin|cleanup WORKER            starts or ends --step there
  abort WORKER REASON             fails --step there
  doctor [WORKER]                 what is wrong with this machine, or with the way there
  send EDGE FILE.npy              is --job/--task; sends to --to, ends when it was taken
  recv EDGE FILE.npy              is --job/--task; receives from --from
  serve EDGE=FILE.npy ...         is --job/--task; sends to --to until it is stopped

  WORKER is /job:J/replica:0/task:T@host:port, or a name that --cluster_spec or --join knows.
  --step=1  --timeout=30s  --to=WORKER  --from=WORKER  --json (doctor)
)";

struct Command {
  ServerConfig config;
  int64_t step_id = 1;
  absl::Duration timeout = absl::Seconds(30);
  std::string to;
  std::string from;
  bool json = false;
  std::vector<std::string> words;  // The command itself first.
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "tryst: %s\n", status.ToString().c_str());
  return 1;
}

// "worker@host:port" -> worker, and its address goes to config.join.
std::string TakeAddress(const std::string& text, ServerConfig* config) {
  const size_t at = text.find('@');
  if (at == std::string::npos) return text;
  if (!config->join.empty()) config->join += ",";
  config->join += text;
  return text.substr(0, at);
}

absl::StatusOr<Command> Parse(std::vector<std::string> args) {
  Command command;
  const auto json = std::find(args.begin(), args.end(), "--json");
  if (json != args.end()) {  // The one flag of the program's own that has no value.
    command.json = true;
    args.erase(json);
  }
  std::map<std::string, std::string> own = {
      {"step", "1"}, {"timeout", "30s"}, {"to", ""}, {"from", ""}};
  absl::StatusOr<ServerConfig> config =
      LoadConfig(args, ProcessEnvironment(), &command.words, &own);
  if (!config.ok()) return config.status();
  command.config = *std::move(config);
  if (!absl::SimpleAtoi(own["step"], &command.step_id) ||
      !absl::ParseDuration(own["timeout"], &command.timeout)) {
    return absl::InvalidArgumentError("--step is a number and --timeout a time (30s)");
  }
  command.config.patience = std::min(command.config.patience, command.timeout);
  command.to = TakeAddress(own["to"], &command.config);
  command.from = TakeAddress(own["from"], &command.config);
  return command;
}

int Print(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Fail(text.status());
  std::fputs(text->c_str(), stdout);
  return 0;
}

std::string PrintMember(const Member& member) {
  return absl::StrFormat("%s at %s incarnation %016x\n", member.worker, member.address,
                         member.incarnation);
}

// The commands that ask a worker something.
int Ask(Command command) {
  const std::string name = command.words[0];
  const std::string peer = TakeAddress(command.words[1], &command.config);
  const std::string last = command.words.size() > 2 ? command.words[2] : "";
  absl::StatusOr<std::unique_ptr<PeerClient>> client = PeerClient::Make(command.config);
  if (!client.ok()) return Fail(client.status());
  PeerCalls* calls = (*client)->calls();
  const absl::Duration timeout = command.timeout;
  if (name == "explain") return Print(calls->Explain(peer, last, timeout));
  if (name == "waiting") return Print(calls->DumpWaiting(peer, 0, false, timeout));
  if (name == "trace") return Print(calls->TraceKey(peer, last, timeout));
  if (name == "stats") {
    const auto stats = calls->Stats(peer, timeout);
    if (!stats.ok()) return Fail(stats.status());
    for (const auto& [counter, value] : *stats) {
      std::printf("%s %lld\n", counter.c_str(), static_cast<long long>(value));
    }
    return 0;
  }
  if (name == "ping") {
    const auto heard = calls->Ping(peer, timeout);
    if (!heard.ok()) return Fail(heard.status());
    std::string text = PrintMember(heard->self);
    for (const Member& member : heard->members) {
      absl::StrAppend(&text, "  knows ", PrintMember(member));
    }
    return Print(text);
  }
  absl::Status done = absl::InvalidArgumentError(absl::StrCat("no command ", name));
  if (name == "begin") done = calls->BeginStep(peer, command.step_id, timeout);
  if (name == "cleanup") done = calls->CleanupStep(peer, command.step_id, timeout);
  if (name == "abort") {
    done = calls->AbortStep(peer, command.step_id, absl::AbortedError(last), timeout);
  }
  return done.ok() ? 0 : Fail(done);
}

absl::StatusOr<std::unique_ptr<Server>> StartSelf(const ServerConfig& config) {
  absl::StatusOr<std::unique_ptr<Server>> server = ServerBuilder().Build(config);
  if (!server.ok()) return server;
  BlockStopSignals();
  absl::Status started = (*server)->Start();
  if (!started.ok()) return started;
  std::printf("serving %s at %s incarnation %016llx\n", (*server)->worker().c_str(),
              (*server)->address().c_str(),
              static_cast<unsigned long long>((*server)->incarnation()));
  std::fflush(stdout);
  return server;
}

absl::StatusOr<TensorKey> Key(const std::string& from, uint64_t incarnation, const std::string& to,
                              const std::string& edge) {
  return TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0", from, incarnation, to, edge));
}

// Sends each file; waits until all are taken, or for the signal to stop.
int Send(const Command& command, const std::vector<std::pair<std::string, std::string>>& files,
         bool until_stopped) {
  absl::StatusOr<std::unique_ptr<Server>> server = StartSelf(command.config);
  if (!server.ok()) return Fail(server.status());
  auto step = (*server)->steps()->StartStep(command.step_id);
  if (!step.ok()) return Fail(step.status());
  for (const auto& [edge, file] : files) {
    const auto key = Key((*server)->worker(), (*server)->incarnation(), command.to, edge);
    if (!key.ok()) return Fail(key.status());
    absl::StatusOr<Tensor> tensor = ReadNpy(file);
    if (!tensor.ok()) return Fail(tensor.status());
    absl::Status sent = (*step)->Send(*key, {}, *std::move(tensor), false);
    if (!sent.ok()) return Fail(sent);
  }
  if (until_stopped) {
    WaitForStopSignal();
  } else {
    const absl::Time until = absl::Now() + command.timeout;
    while ((*server)->steps()->counters().waiting_sends > 0) {
      if (absl::Now() > until) return Fail(absl::DeadlineExceededError("nobody took it"));
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
  // What is on its way lands before this returns.
  absl::Status stopped = (*server)->Stop(command.config.stop_deadline);
  return stopped.ok() ? 0 : Fail(stopped);
}

int Receive(const Command& command) {
  absl::StatusOr<std::unique_ptr<Server>> server = StartSelf(command.config);
  if (!server.ok()) return Fail(server.status());
  const auto heard = (*server)->calls()->Ping(command.from, command.timeout);
  if (!heard.ok()) return Fail(heard.status());
  const auto key =
      Key(command.from, heard->self.incarnation, (*server)->worker(), command.words[1]);
  if (!key.ok()) return Fail(key.status());
  auto step = (*server)->steps()->StartStep(command.step_id);
  if (!step.ok()) return Fail(step.status());
  absl::StatusOr<Received> received = (*step)->Recv(*key, {}, command.timeout);
  if (!received.ok()) return Fail(received.status());
  if (received->is_dead) return Fail(absl::NotFoundError("it is a dead tensor"));
  absl::Status written = WriteNpy(command.words[2], received->tensor);
  if (!written.ok()) return Fail(written);
  std::printf("%s %s%s by\n%s", command.words[2].c_str(),
              std::string(DTypeName(received->tensor.dtype())).c_str(),
              received->tensor.shape().ToString().c_str(),
              (*server)->Explain(command.from).c_str());
  absl::Status stopped = (*server)->Stop(command.config.stop_deadline);
  return stopped.ok() ? 0 : Fail(stopped);
}

int Main(const std::vector<std::string>& args) {
  absl::StatusOr<Command> command = Parse(args);
  if (!command.ok()) return Fail(command.status());
  const std::vector<std::string>& words = command->words;
  if (!words.empty() && words[0] == "doctor" && words.size() <= 2) {
    const std::string peer = words.size() == 2 ? TakeAddress(words[1], &command->config) : "";
    return RunDoctor(command->config, peer, command->timeout, command->json);
  }
  if (words.size() < 2) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (words[0] == "send" && words.size() == 3) {
    return Send(*command, {{words[1], words[2]}}, false);
  }
  if (words[0] == "recv" && words.size() == 3) return Receive(*command);
  if (words[0] == "serve") {
    std::vector<std::pair<std::string, std::string>> files;
    for (size_t i = 1; i < words.size(); ++i) {
      files.emplace_back(absl::StrSplit(words[i], absl::MaxSplits('=', 1)));
    }
    return Send(*command, files, true);
  }
  return Ask(*std::move(command));
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
