#include "tests/process/promises/promise_pair.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "channel/ops/verify_traces.h"
#include "channel/trace/trace_dump.h"
#include "gtest/gtest.h"
#include "server/cli/trace_file.h"
#include "server/server_parts.h"
#include "server/status/insight.h"
#include "tests/process/e2e/free_port.h"
#include "tests/process/promises/known.h"

namespace tryst {
namespace {

// The name of kFewSlotsFlag.
constexpr char kFew[] = "few_slots";
constexpr uint32_t kFewSlots = 32;

Numbers& Flags() {
  static Numbers flags;
  return flags;
}

std::unique_ptr<Server> StartServer(const std::vector<std::string>& flags, std::string* value,
                                    std::string* trace_file) {
  std::vector<std::string> rest;
  std::map<std::string, std::string> own = {
      {"role", ""}, {"numbers", ""}, {"trace_file", ""}, {kFew, ""}};
  auto config = LoadConfig(flags, ProcessEnvironment(), &rest, &own);
  TRYST_CHECK(config.ok()) << config.status();
  *value = own["numbers"];
  *trace_file = own["trace_file"];
  absl::StatusOr<ServerParts> parts = ServerBuilder().Prepare(*config);
  TRYST_CHECK(parts.ok()) << parts.status();
  if (!own[kFew].empty()) {
    parts->inner.transports.link.slots = kFewSlots;
    parts->inner.transports.shm.sizes.slots = 2 * kFewSlots;
    parts->inner.grpc.max_asked = kFewSlots;
    parts->inner.poller.spin_us = 0;
  }
  std::unique_ptr<Server> server = MakeServer(*std::move(parts));
  const absl::Status started = server->Start();
  TRYST_CHECK(started.ok()) << started;
  return server;
}

TraceDump DumpOf(const Server& server) {
  TraceFilter all;
  all.most = std::numeric_limits<size_t>::max();
  return server.insight()->Dump(all);
}

Numbers ParseNumbers(const std::string& text) {
  Numbers numbers;
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> sides = absl::StrSplit(word, ':');
    TRYST_CHECK(sides.size() == 2 && absl::SimpleAtoi(sides[1], &numbers[std::string(sides[0])]))
        << text;
  }
  return numbers;
}

int Play(const std::vector<std::string>& args, const std::map<std::string, Role>& roles) {
  std::string role;
  for (const std::string& arg : args) {
    if (absl::StartsWith(arg, "--role=")) role = arg.substr(7);
  }
  const auto found = roles.find(role);
  TRYST_CHECK(found != roles.end()) << "no role " << role;
  WireLine line(3);
  std::string numbers;
  std::string trace_file;
  std::unique_ptr<Server> server = StartServer(args, &numbers, &trace_file);
  if (!line.Say(absl::StrCat("ready ", server->incarnation()))) return 1;
  const int code = found->second(Worker{server.get()}, ParseNumbers(numbers), &line);
  // Under another name until it is whole: the test may look meanwhile.
  const std::string part = absl::StrCat(trace_file, ".part");
  std::ofstream(part) << ChromeTrace({DumpOf(*server)});
  if (rename(part.c_str(), trace_file.c_str()) != 0) return 1;
  (void)server->Stop(absl::Seconds(1));
  return code;
}

}  // namespace

std::shared_ptr<Rendezvous> Worker::Step(int64_t step) const {
  auto started = server->steps()->StartStep(step);
  TRYST_CHECK(started.ok()) << started.status();
  return *std::move(started);
}

TensorKey Worker::KeyTo(const std::string& to, const std::string& edge, uint64_t iter) const {
  return KeyBetween(server->worker(), server->incarnation(), to, edge, iter);
}

TensorKey KeyBetween(const std::string& from, uint64_t incarnation, const std::string& to,
                     const std::string& edge, uint64_t iter) {
  auto prefix = TensorKeyPrefix::Make(absl::StrCat(from, "/device:CPU:0"), incarnation,
                                      absl::StrCat(to, "/device:CPU:0"), edge);
  TRYST_CHECK(prefix.ok()) << prefix.status();
  return prefix->At(0, iter);
}

std::string OtherName(int task) { return absl::StrCat("/job:ps/replica:0/task:", task); }

OtherEnd::OtherEnd(int task, const std::string& role, std::vector<std::string> settings,
                   const Numbers& numbers, const std::string& trace_file)
    : name_(OtherName(task)) {
  int ends[2];
  TRYST_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  line_ = std::make_unique<WireLine>(ends[0]);
  settings.push_back(absl::StrCat("--role=", role));
  settings.push_back(absl::StrCat("--trace_file=", trace_file));
  settings.push_back(
      absl::StrCat("--numbers=", absl::StrJoin(numbers, ",", absl::PairFormatter(":"))));
  process_ = std::make_unique<Process>("/proc/self/exe", std::move(settings), ends[1]);
  close(ends[1]);
}

bool OtherEnd::AwaitReady() {
  std::string line;
  if (line_->Hear(&line) && absl::StartsWith(line, "ready ") &&
      absl::SimpleAtoi(line.substr(6), &incarnation_))
    return true;
  ADD_FAILURE() << name_ << " does not serve: " << words();
  return false;
}

void OtherEnd::Kill() {
  process_->Signal(SIGKILL);
  (void)process_->Wait();
}

void OtherEnd::Stop() { process_->Signal(SIGSTOP); }
void OtherEnd::GoOn() { process_->Signal(SIGCONT); }

PromisePair::PromisePair(const TestedPath& path, std::vector<std::string> settings, int others)
    : path_(path), settings_(std::move(settings)) {
  std::set<int> ports;
  std::vector<std::string> addresses;
  while (static_cast<int>(ports.size()) < others + 1) {
    const int port = FreePort();
    if (ports.insert(port).second) addresses.push_back(absl::StrCat("127.0.0.1:", port));
  }
  const std::string own = addresses.back();
  addresses.pop_back();
  spec_ = absl::StrCat("ps=", absl::StrJoin(addresses, ","), ";worker=", own);
  std::string unused;
  server_ = StartServer(FlagsOf("worker", 0), &unused, &unused);
  self_.server = server_.get();
}

PromisePair::~PromisePair() {
  VerifyTraces();
  (void)server_->Stop(absl::Seconds(2));
}

// A file's times count from its earliest event, so that each has a clock of its own.
void PromisePair::VerifyTraces() const {
  std::vector<TraceDump> dumps = {DumpOf(*server_)};
  for (const std::string& name : trace_files_) {
    std::ifstream file(name);
    if (!file) continue;  // It was killed, or still runs.
    absl::StatusOr<std::vector<TraceDump>> read = ReadTraceFile(&file);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) continue;
    for (TraceDump& dump : *read) {
      dump.clock = static_cast<int>(dumps.size());
      dumps.push_back(std::move(dump));
    }
    (void)remove(name.c_str());
  }
  const TraceVerdict verdict = tryst::VerifyTraces(dumps);
  for (size_t i = 0; i < verdict.breaches.size() && i < 5; ++i) {
    ADD_FAILURE() << "by the traces: " << verdict.breaches[i].what;
  }
}

std::vector<std::string> PromisePair::FlagsOf(const std::string& job, int task) const {
  return With(With({"--insecure", absl::StrCat("--job=", job), absl::StrCat("--task=", task),
                    absl::StrCat("--cluster_spec=", spec_), "--trace_sample_every=1"},
                   path_.flags),
              settings_);
}

std::unique_ptr<OtherEnd> PromisePair::Start(const std::string& role, const Numbers& numbers,
                                             int task) const {
  trace_files_.push_back(
      absl::StrCat(testing::TempDir(), "/trace.", server_->address(), ".", trace_files_.size()));
  return std::make_unique<OtherEnd>(task, role, FlagsOf("ps", task), numbers, trace_files_.back());
}

bool PromisePair::CameByThePath() const {
  const std::string paths = server_->Explain("");
  return absl::StrContains(paths, path_.path) &&
         !absl::StrContains(paths, absl::StrCat("not ", path_.path));
}

int64_t TestFlag(const std::string& name, int64_t otherwise) {
  const auto found = Flags().find(name);
  return found == Flags().end() ? otherwise : found->second;
}

int RunPromises(int argc, char** argv, const std::map<std::string, Role>& roles) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  for (const std::string& arg : args) {
    if (absl::StartsWith(arg, "--role=")) return Play(args, roles);
  }
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> sides = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    int64_t value = 0;
    if (sides.size() != 2 || !absl::StartsWith(sides[0], "--") ||
        !absl::SimpleAtoi(sides[1], &value)) {
      fprintf(stderr, "%s: a flag is --name=NUMBER\n", argv[i]);
      return 1;
    }
    Flags()[sides[0].substr(2)] = value;
  }
  const std::string stale = std::getenv("TRYST_E2E_PATH") == nullptr ? StaleKnown() : "";
  if (!stale.empty()) {
    fprintf(stderr, "known.inc names tests that there are not:\n%s", stale.c_str());
    return 1;
  }
  return RUN_ALL_TESTS();
}

Tensor Numbered(int64_t number, int64_t elements) {
  Tensor tensor = *Tensor::Allocate(DType::kInt64, TensorShape({elements}));
  auto* at = static_cast<int64_t*>(tensor.mutable_data());
  for (int64_t i = 0; i < elements; ++i) at[i] = number;
  return tensor;
}

int64_t NumberOf(const Tensor& tensor) {
  if (tensor.dtype() != DType::kInt64 || tensor.shape().elements() == 0) return -1;
  const int64_t* at = tensor.data_as<int64_t>();
  const int64_t elements = tensor.shape().elements();
  for (int64_t i = 1; i < elements; ++i) {
    if (at[i] != at[0]) return -1;
  }
  return at[0];
}

}  // namespace tryst
