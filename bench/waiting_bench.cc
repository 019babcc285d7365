// What it costs to wait: a tensor of a worker in another process, asked for one after the other, by
// a callback in place and by calls that block. All in turns in one run, because their ratios are
// what counts on a machine that others use.
//
//   waiting_bench [--path shm|soft|grpc] [--bytes N] [--rounds N] [--pulls N] [--only NAME]
//   [--pause US]
//
// in_place  RecvAsync, whose callback runs in place and asks for the next tensor
// recv      Rendezvous::Recv
// c_recv    tryst_recv
// c_start   tryst_recv_start, tryst_op_wait, tryst_op_result, tryst_op_free
//
// Microseconds a pull: the median of the rounds, the least and the most. Beside them, of all
// threads of the consumer: the processor time of a pull, and how often a thread slept. --pause: so
// long does the consumer do nothing between two pulls.

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/c/handles.h"
#include "server/c/tryst_v1.h"
#include "server/members/membership.h"
#include "server/server.h"

namespace tryst {
namespace {

constexpr int64_t kStep = 7;
constexpr int kSentAhead = 64;
constexpr char kConsumer[] = "/job:consumer/replica:0/task:0";

std::unique_ptr<Server> StartServer(const std::string& job, const std::string& path) {
  SetLogSink([](LogSeverity severity, const char*, int, absl::string_view text) {
    if (severity < LogSeverity::kError) return;
    fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  });
  ServerConfig config;
  config.job = job;
  config.protocol = path == "grpc" ? "grpc" : "grpc+verbs";
  config.nic = "soft";
  config.shm = path == "shm" ? "on" : "off";
  config.listen = "127.0.0.1:0";
  config.insecure = true;
  config.open_cluster = true;
  auto server = ServerBuilder().Build(config);
  TRYST_CHECK(server.ok()) << server.status().ToString();
  const absl::Status started = (*server)->Start();
  TRYST_CHECK(started.ok()) << started.ToString();
  return *std::move(server);
}

TensorKey KeyFrom(const std::string& producer, uint64_t incarnation) {
  return TensorKeyPrefix::Make(absl::StrCat(producer, "/device:CPU:0"), incarnation,
                               absl::StrCat(kConsumer, "/device:CPU:0"), "x")
      ->At(0, 0);
}

// Sends the same tensor again whenever one of its sends has ended.
struct Sender {
  std::shared_ptr<Rendezvous> step;
  TensorKey key;
  std::vector<char> bytes;
  void Again() {
    Tensor tensor = *Tensor::Adopt(bytes.data(), DType::kUint8,
                                   TensorShape({static_cast<int64_t>(bytes.size())}), MemorySpace(),
                                   [this] { Again(); });
    (void)step->Send(key, SendArgs(), std::move(tensor),
                     false);  // Refused once the step has ended.
  }
};

[[noreturn]] void Produce(const std::string& path, size_t bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto server = StartServer("producer", path);
  Sender sender;
  sender.step = *server->steps()->StartStep(kStep);
  sender.key = KeyFrom(server->worker(), server->incarnation());
  sender.bytes.assign(bytes, 1);
  for (int i = 0; i < kSentAhead; ++i) sender.Again();
  printf("%s %llu %s\n", server->worker().c_str(),
         static_cast<unsigned long long>(server->incarnation()), server->address().c_str());
  fflush(stdout);
  for (;;) pause();
}

class Consumer {
 public:
  Consumer(const std::string& path, const std::string& producer, uint64_t incarnation,
           const std::string& address, int64_t pause_ns)
      : pause_ns_(pause_ns) {
    handle_.server = StartServer("consumer", path);
    handle_.server->members()->Set(producer, address);
    step_ = *handle_.server->steps()->StartStep(kStep);
    key_ = KeyFrom(producer, incarnation);
    text_ = std::string(key_.text());
  }

  void InPlace(int64_t count) {
    std::atomic<bool> over{false};
    int64_t left = count;
    std::function<void()> ask = [&] {
      step_->RecvAsync(key_, RecvArgs(), [&](Received&& received) {
        TRYST_CHECK(received.status.ok()) << received.status.ToString();
        Pause();
        if (--left > 0) return ask();
        over.store(true);
      });
    };
    ask();
    while (!over.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void Recv(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto got = step_->Recv(key_, RecvArgs(), absl::Seconds(60));
      TRYST_CHECK(got.ok()) << got.status().ToString();
      Pause();
    }
  }
  void CRecv(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      tryst_tensor* tensor;
      Check(tryst_recv(&handle_, kStep, text_.c_str(), nullptr, 60'000, &tensor));
      tryst_tensor_free(tensor);
      Pause();
    }
  }
  void COperation(int64_t count) {
    const tryst_recv_item item = {text_.c_str(), nullptr};
    for (int64_t i = 0; i < count; ++i) {
      tryst_op* op;
      Check(tryst_recv_start(&handle_, kStep, &item, 1, nullptr, 60'000, nullptr, nullptr, &op));
      TRYST_CHECK(tryst_op_wait(op, -1) == 1);
      tryst_tensor* tensor;
      int is_dead;
      Check(tryst_op_result(op, 0, &tensor, &is_dead));
      tryst_op_free(op);
      tryst_tensor_free(tensor);
      Pause();
    }
  }

 private:
  static void Check(tryst_status* status) {
    TRYST_CHECK(status == nullptr) << tryst_status_message(status);
  }
  void Pause() const {
    if (pause_ns_ == 0) return;
    const int64_t until_ns = clock_.NowNs() + pause_ns_;
    while (clock_.NowNs() < until_ns) {
    }
  }

  const int64_t pause_ns_;
  const SteadyClock clock_;
  tryst_server handle_;
  std::shared_ptr<Rendezvous> step_;
  TensorKey key_;
  std::string text_;
};

struct Figure {
  const char* name;
  std::function<void(int64_t)> pull;
  std::vector<double> us;
  double processor_us = 0;
  double sleeps = 0;
};

double ProcessorUs(const rusage& used) {
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

void Measure(Figure* figure, int64_t pulls) {
  const SteadyClock clock;
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  const int64_t began_ns = clock.NowNs();
  figure->pull(pulls);
  const double count = static_cast<double>(pulls);
  figure->us.push_back(static_cast<double>(clock.NowNs() - began_ns) / 1e3 / count);
  getrusage(RUSAGE_SELF, &after);
  figure->processor_us += (ProcessorUs(after) - ProcessorUs(before)) / count;
  figure->sleeps += static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) / count;
}

int Run(const std::string& path, size_t bytes, int rounds, int64_t pulls, const std::string& only,
        int64_t pause_us) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  TRYST_CHECK(length > 0);
  self[length] = 0;
  FILE* const child =
      popen(absl::StrCat("exec ", self, " --produce ", path, " --bytes ", bytes).c_str(), "r");
  char line[512];
  TRYST_CHECK(child != nullptr && fgets(line, sizeof(line), child) != nullptr);
  const std::vector<std::string> words = absl::StrSplit(absl::StripAsciiWhitespace(line), ' ');
  Consumer consumer(path, words[0], strtoull(words[1].c_str(), nullptr, 10), words[2],
                    pause_us * 1000);
  Figure figures[] = {{"in_place", [&](int64_t count) { consumer.InPlace(count); }, {}},
                      {"recv", [&](int64_t count) { consumer.Recv(count); }, {}},
                      {"c_recv", [&](int64_t count) { consumer.CRecv(count); }, {}},
                      {"c_start", [&](int64_t count) { consumer.COperation(count); }, {}}};
  for (int round = 0; round <= rounds; ++round) {
    for (Figure& figure : figures) {
      if (!only.empty() && only != figure.name) continue;
      if (round == 0) {
        figure.pull(std::min<int64_t>(pulls, 1000));  // Until all tables have grown.
      } else {
        Measure(&figure, pulls);
      }
    }
  }
  for (Figure& figure : figures) {
    if (figure.us.empty()) continue;
    std::sort(figure.us.begin(), figure.us.end());
    printf("%-9s %5s %6zu B %8.2f us (%.2f to %.2f)  processor %.2f us, sleeps %.3f\n", figure.name,
           path.c_str(), bytes, figure.us[figure.us.size() / 2], figure.us.front(),
           figure.us.back(), figure.processor_us / rounds, figure.sleeps / rounds);
  }
  fflush(stdout);
  _exit(0);  // The producer ends with its parent.
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  std::string path = "shm", only;
  bool produces = false;
  size_t bytes = 8;
  int rounds = 7;
  int64_t pulls = 20'000;
  int64_t pause_us = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string arg = argv[i];
    const char* const value = argv[i + 1];
    if (arg == "--path" || arg == "--produce") path = value;
    if (arg == "--produce") produces = true;
    if (arg == "--bytes") bytes = strtoull(value, nullptr, 10);
    if (arg == "--rounds") rounds = std::max(1, atoi(value));
    if (arg == "--pulls") pulls = std::max(1, atoi(value));
    if (arg == "--only") only = value;
    if (arg == "--pause") pause_us = std::max(0, atoi(value));
  }
  if (produces) tryst::Produce(path, bytes);
  return tryst::Run(path, bytes, rounds, pulls, only, pause_us);
}
