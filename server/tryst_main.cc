// tryst: shows the state of workers, and moves .npy files between them.
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/printable.h"
#include "channel/trace/json_text.h"
#include "server/cli/ask_workers.h"
#include "server/cli/bench.h"
#include "server/cli/command_line.h"
#include "server/cli/npy.h"
#include "server/cli/verify.h"
#include "server/cli/watch.h"
#include "server/doctor/doctor_command.h"
#include "server/page/job_page.h"
#include "server/peer_client.h"
#include "server/process/grpc_locks.h"
#include "server/process/grpc_log.h"
#include "server/process/lean_heap.h"
#include "server/process/stop_signals.h"
#include "server/server.h"

namespace tryst {
namespace {

std::string PrintMember(const Member& member) {
  return absl::StrFormat("%s at %s incarnation %016x\n", Printable(member.worker),
                         Printable(member.address), member.incarnation);
}

int Ping(PeerCalls* calls, const CommandLine& line) {
  const auto heard = calls->Ping(line.words[0], line.timeout);
  if (!heard.ok()) return Fail(heard.status());
  std::string text = PrintMember(heard->self);
  for (const Member& member : heard->members) {
    absl::StrAppend(&text, "  knows ", PrintMember(member));
  }
  return Print(text);
}

int Stats(PeerCalls* calls, const CommandLine& line) {
  const auto stats = calls->Stats(line.words[0], line.timeout);
  if (!stats.ok()) return Fail(stats.status());
  std::string text;
  for (const auto& [counter, value] : *stats) {
    if (line.json) {
      absl::StrAppend(&text, text.empty() ? "{" : ",", JsonText(counter), ":", value);
    } else {
      absl::StrAppend(&text, Printable(counter), " ", value, "\n");
    }
  }
  return Print(line.json ? absl::StrCat(text, "}\n") : text, line.json);
}

// Runs the commands that call one worker.
int Ask(const CommandLine& line) {
  absl::StatusOr<std::unique_ptr<PeerClient>> client = PeerClient::Make(line.config);
  if (!client.ok()) return FailUsage(client.status());
  absl::Status placed = CheckPlace((*client)->members(), line.words[0]);
  if (!placed.ok()) return FailUsage(placed);
  PeerCalls* calls = (*client)->calls();
  const std::string name = line.row->name;
  const std::string& peer = line.words[0];
  const int64_t step = line.step.value_or(1);
  if (name == "ping") return Ping(calls, line);
  if (name == "stats") return Stats(calls, line);
  absl::Status done;
  if (name == "begin") done = calls->BeginStep(peer, step, line.timeout);
  if (name == "cleanup") done = calls->CleanupStep(peer, step, line.timeout);
  if (name == "abort") {
    done = calls->AbortStep(peer, step, absl::AbortedError(line.words[1]), line.timeout);
  }
  return done.ok() ? kExitDone : Fail(done);
}

// Null: the process ends with `exit`.
std::unique_ptr<Server> StartSelf(const CommandLine& line, int* exit) {
  absl::StatusOr<std::unique_ptr<Server>> server = ServerBuilder().Build(line.config);
  if (!server.ok()) {
    *exit = FailUsage(server.status());
    return nullptr;
  }
  absl::Status started = (*server)->Start();
  if (!started.ok()) {
    *exit = Fail(started);
    return nullptr;
  }
  if (line.json) return *std::move(server);
  std::printf("serving %s at %s incarnation %016llx\n", (*server)->worker().c_str(),
              (*server)->address().c_str(),
              static_cast<unsigned long long>((*server)->incarnation()));
  std::fflush(stdout);
  return *std::move(server);
}

absl::StatusOr<TensorKey> Key(const std::string& from, uint64_t incarnation, const std::string& to,
                              const std::string& edge) {
  return TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0", from, incarnation, to, edge));
}

// The tensor in memory that counts in `held` as long as anybody refers to it: our server does so
// until its consumer has accepted it.
absl::StatusOr<Tensor> CountHeld(Tensor tensor, const std::shared_ptr<std::atomic<int>>& held) {
  void* const data = tensor.mutable_data();
  const DType dtype = tensor.dtype();
  const TensorShape shape = tensor.shape();
  held->fetch_add(1);
  return Tensor::Adopt(data, dtype, shape, {},
                       [tensor = std::move(tensor), held] { held->fetch_sub(1); });
}

// Sends each file. Waits until all are accepted, or until a stop signal.
int Send(const CommandLine& command, const std::vector<std::pair<std::string, std::string>>& files,
         bool until_stopped) {
  int exit = kExitDone;
  const std::unique_ptr<Server> server = StartSelf(command, &exit);
  if (server == nullptr) return exit;
  auto step = server->steps()->StartStep(command.step.value_or(1));
  if (!step.ok()) return Fail(step.status());
  const auto held = std::make_shared<std::atomic<int>>(0);
  for (const auto& [edge, file] : files) {
    const auto key = Key(server->worker(), server->incarnation(), command.to, edge);
    if (!key.ok()) return Fail(key.status());
    absl::StatusOr<Tensor> tensor = ReadNpy(file);
    if (tensor.ok()) tensor = CountHeld(*std::move(tensor), held);
    if (!tensor.ok()) return Fail(tensor.status());
    absl::Status sent = (*step)->Send(*key, {}, *std::move(tensor), false);
    if (!sent.ok()) return Fail(sent);
  }
  if (until_stopped) {
    WaitForStopSignal();
  } else {
    const SteadyClock clock;
    const Deadline until = Deadline::After(clock, command.timeout);
    // A tensor that was asked for is still ours until its consumer has it: ours would be the end
    // of it.
    while (*held > 0) {
      const bool asked = server->steps()->counters().waiting_sends == 0;
      if (until.Passed(clock.NowNs())) {
        return Fail(absl::DeadlineExceededError(absl::StrCat(
            command.to,
            asked ? " asked for the tensor, but did not accept it" : " did not ask for the tensor",
            " within --timeout")));
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
  absl::Status stopped = server->Stop(command.config.stop_deadline);
  return stopped.ok() ? 0 : Fail(stopped);
}

int Receive(const CommandLine& command) {
  int exit = kExitDone;
  const std::unique_ptr<Server> server = StartSelf(command, &exit);
  if (server == nullptr) return exit;
  const auto heard = server->calls()->Ping(command.from, command.timeout);
  if (!heard.ok()) return Fail(heard.status());
  const auto key = Key(command.from, heard->self.incarnation, server->worker(), command.words[0]);
  if (!key.ok()) return Fail(key.status());
  auto step = server->steps()->StartStep(command.step.value_or(1));
  if (!step.ok()) return Fail(step.status());
  absl::StatusOr<Received> received = (*step)->Recv(*key, {}, command.timeout);
  if (!received.ok()) return Fail(received.status());
  if (received->is_dead)
    return Fail(
        absl::NotFoundError("the producer sent a dead tensor (a marker without a value), so there "
                            "is nothing to write"));
  absl::Status written = WriteNpy(command.words[1], received->tensor);
  if (!written.ok()) return Fail(written);
  Show(absl::StrCat(command.words[1], " ", DTypeName(received->tensor.dtype()),
                    received->tensor.shape().ToString(), " by\n", server->Explain(command.from)),
       false);
  absl::Status stopped = server->Stop(command.config.stop_deadline);
  return stopped.ok() ? 0 : Fail(stopped);
}

int Serve(const CommandLine& line) {
  BlockStopSignals();
  const LeanHeap heap;
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& word : line.words) {
    files.emplace_back(absl::StrSplit(word, absl::MaxSplits('=', 1)));
  }
  return Send(line, files, true);
}

int Bench(const CommandLine& line) {
  int exit = kExitDone;
  const std::unique_ptr<Server> server = StartSelf(line, &exit);
  return server == nullptr ? exit : RunBench(line, server.get());
}

int Main(const std::vector<std::string>& args) {
  SetGrpcLog(GrpcLog::kNowhere);
  StopLookingForDeadlocks();
  const absl::StatusOr<CommandLine> line = ParseCommandLine(args);
  if (!line.ok()) {
    (void)Fail(line.status());
    return kExitUsage;
  }
  if (line->help) return Print(line->row == nullptr ? ProgramHelp() : CommandHelp(*line->row));
  const std::string name = line->row->name;
  const std::vector<std::string>& words = line->words;
  if (name == "doctor") {
    return RunDoctor(line->config, words.empty() ? "" : words[0], line->timeout, line->json);
  }
  if (name == "send") return Send(*line, {{words[0], words[1]}}, false);
  if (name == "recv") return Receive(*line);
  if (name == "serve") return Serve(*line);
  if (name == "bench") return Bench(*line);
  if (name == "explain") return RunExplain(*line);
  if (name == "waiting") return RunWaiting(*line);
  if (name == "trace") return RunTrace(*line);
  if (name == "weights") return RunWeights(*line);
  if (name == "verify") return RunVerify(*line);
  if (name == "top") return RunTop(*line);
  if (name == "page") return RunPage(*line);
  if (name == "completion") return Print(CompletionScript(words[0]));
  return Ask(*line);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
