#include "bench/peers/harness.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "bench/peers/workload.h"

namespace tryst {
namespace {

constexpr int kAlarmSeconds = 120;

double ClockSeconds(clockid_t clock) {
  timespec now;
  if (clock_gettime(clock, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double CpuSecondsOf(pid_t pid) {
  clockid_t clock;
  return clock_getcpuclockid(pid, &clock) == 0 ? ClockSeconds(clock) : 0;
}

// From /proc/self/status, in bytes: "VmRSS", "VmHWM".
int64_t MemoryBytes(const char* what) {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  int64_t kib = 0;
  const size_t length = strlen(what);
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr) {
    if (strncmp(line, what, length) == 0) kib = atoll(line + length + 1);
  }
  if (file != nullptr) fclose(file);
  return kib * 1024;
}

void Print(const char* figure, size_t bytes, double value, const char* unit) {
  printf("%s\t%zu\t%.6g\t%s\n", figure, bytes, value, unit);
}

// Pipes through which processes tell each other their addresses.
void SendBytes(int fd, const std::string& bytes) {
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  std::string all(reinterpret_cast<const char*>(&size), sizeof(size));
  all += bytes;
  if (write(fd, all.data(), all.size()) != static_cast<ssize_t>(all.size())) Die("the other end");
}

std::string ReceiveBytes(int fd) {
  uint32_t size;
  if (recv(fd, &size, sizeof(size), MSG_WAITALL) != sizeof(size)) Die("the other end has gone");
  std::string bytes(size, 0);
  if (recv(fd, &bytes[0], size, MSG_WAITALL) != static_cast<ssize_t>(size)) Die("it has gone");
  return bytes;
}

// One process's end of a link between two: its producer and its consumer.
class Link {
 public:
  Link(const Library& library, const std::string& variant, const Workload& workload)
      : library_(library), variant_(variant), workload_(workload) {}

  std::string Produce() {
    producer_ = library_.produce(variant_, workload_.sizes);
    producer_->table().on_all_found = [this] { Wake(); };
    return producer_->Address();
  }
  void Consume(const std::string& address) {
    puller_ = std::make_unique<Puller>(workload_, library_.threads);
    ConsumerNeeds needs;
    needs.address = address;
    needs.slots = workload_.slots;
    needs.max_bytes = workload_.max_bytes();
    needs.keeps_nothing = workload_.keeps_nothing;
    needs.landed = [this](int slot, const char* data) { puller_->Landed(slot, data); };
    consumer_ = library_.consume(variant_, needs);
    puller_->SetEnd(consumer_.get());
  }

  Puller& puller() { return *puller_; }
  void Poll(bool may_wait) {
    if (producer_ != nullptr) producer_->Poll(may_wait);
    if (consumer_ != nullptr) consumer_->Poll(may_wait);
  }
  void Round(int64_t count) {
    puller_->Start(count);
    if (library_.threads) {
      puller_->WaitFinished();
    } else {
      while (!puller_->finished()) consumer_->Poll(true);
    }
  }

  // A parameter server's step: the worker pulls all variables. When it has asked for the last of
  // them, the server pulls all gradients. When the server has asked for the last gradient, the
  // worker begins the next step.
  void SetLead(bool leads) { leads_ = leads; }
  int64_t sets() const { return sets_.load(std::memory_order_relaxed); }
  void AdvanceStep() {  // For libraries that are polled.
    Poll(false);
    if (!puller_->finished()) return;
    if (under_way_) EndSet();
    if (MayBegin()) BeginSet();
  }
  void RunSteps() {  // For libraries with threads. Runs until the process ends.
    for (;;) {
      {
        MutexLock lock(&mu_);
        while (!MayBegin()) found_.Wait(&mu_);
      }
      BeginSet();
      puller_->WaitFinished();
      EndSet();
    }
  }

 private:
  bool MayBegin() const {
    const int64_t wanted = sets() + (leads_ ? 0 : 1);
    return producer_->table().found() >= wanted * static_cast<int64_t>(workload_.sizes.size());
  }
  void BeginSet() {
    under_way_ = true;
    puller_->Start(static_cast<int64_t>(workload_.sizes.size()));
  }
  void EndSet() {
    under_way_ = false;
    sets_.fetch_add(1, std::memory_order_relaxed);
  }
  void Wake() {
    if (!library_.threads) return;
    MutexLock lock(&mu_);
    found_.NotifyAll();
  }

  const Library& library_;
  const std::string variant_;
  const Workload workload_;
  std::unique_ptr<Puller> puller_;
  std::unique_ptr<ConsumerEnd> consumer_;
  std::unique_ptr<ProducerEnd> producer_;
  Mutex mu_;
  CondVar found_;
  bool leads_ = false;
  bool under_way_ = false;
  std::atomic<int64_t> sets_{0};
};

bool IsStep(const Workload& workload) { return workload.name.compare(0, 4, "step") == 0; }

struct Child {
  int fd = -1;
  pid_t pid = 0;
};

Child StartChild(char** argv) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) Die("no socket pair");
  fcntl(fds[0], F_SETFD, FD_CLOEXEC);
  const std::string fd = std::to_string(fds[1]);
  const pid_t pid = fork();
  if (pid == 0) {
    execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], argv[4], "--child", fd.c_str(),
          nullptr);
    _exit(127);
  }
  close(fds[1]);
  return {fds[0], pid};
}

[[noreturn]] void ServeForEver(const Library& library, Link* link) {
  for (;;) {
    if (library.threads) {
      pause();
    } else {
      link->Poll(true);
    }
  }
}

[[noreturn]] void RunChild(int fd, const Library& library, Link* link, bool steps) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SendBytes(fd, link->Produce());
  if (!steps) ServeForEver(library, link);
  link->SetLead(true);
  link->Consume(ReceiveBytes(fd));
  if (library.threads) link->RunSteps();
  for (;;) link->AdvanceStep();
}

struct Measured {
  std::vector<Child> children;
  double CpuSeconds() const {
    double sum = ClockSeconds(CLOCK_PROCESS_CPUTIME_ID);
    for (const Child& child : children) sum += CpuSecondsOf(child.pid);
    return sum;
  }
};

void ReportPull(Puller* puller, size_t bytes, double cpu_seconds) {
  const std::vector<uint32_t>& taken = puller->SortedNs();
  const auto quantile = [&taken](double q) {
    return taken[static_cast<size_t>(q * static_cast<double>(taken.size() - 1))] * 1e-3;
  };
  Print("pull_p50", bytes, quantile(0.5), "us");
  Print("pull_p99", bytes, quantile(0.99), "us");
  Print("pull_p999", bytes, quantile(0.999), "us");
  Print("pull_cpu", bytes, cpu_seconds / static_cast<double>(puller->landed()) * 1e6, "us");
}

void ReportMany(const Workload& workload, Puller* puller, double cpu_seconds) {
  const double seconds = static_cast<double>(puller->ended_ns() - puller->began_ns()) * 1e-9;
  const double gib = static_cast<double>(puller->bytes_landed()) / (1 << 30);
  const double tensors = static_cast<double>(puller->landed());
  if (workload.name == "delivery") {
    Print("delivery", workload.max_bytes(), gib / seconds, "GiB/s");
    Print("cpu_per_gib", workload.max_bytes(), cpu_seconds / gib, "s");
  } else {
    Print("tensors_per_s", workload.max_bytes(), tensors / seconds, "1/s");
    Print("cpu_per_million", workload.max_bytes(), cpu_seconds / tensors * 1e6, "s");
  }
}

void MeasureOne(const Workload& workload, const Measured& processes, Link* link) {
  const size_t bytes = workload.max_bytes();
  if (workload.name == "first") {
    link->Round(1);
    const char* began = getenv("TRYST_BENCH_BEGAN_NS");
    if (began == nullptr) Die("TRYST_BENCH_BEGAN_NS says when the processes began");
    Print("first_tensor_ms", bytes,
          static_cast<double>(link->puller().ended_ns() - atoll(began)) * 1e-6, "ms");
    return;
  }
  link->Round(workload.warm_up);
  const double before = processes.CpuSeconds();
  if (workload.name == "idle") {
    usleep(1'000'000);
    Print("idle_cpu", bytes, (processes.CpuSeconds() - before) * 1e3, "ms/s");
    return;
  }
  link->Round(0);
  const double cpu_seconds = processes.CpuSeconds() - before;
  link->puller().CheckAll();
  if (workload.name == "pull") {
    ReportPull(&link->puller(), bytes, cpu_seconds);
  } else {
    ReportMany(workload, &link->puller(), cpu_seconds);
  }
}

void MeasureSteps(const Library& library, const Workload& workload,
                  std::vector<std::unique_ptr<Link>>* links) {
  auto* threads = new std::vector<std::thread>;  // They end with the process.
  if (library.threads) {
    for (auto& link : *links) threads->emplace_back([&link] { link->RunSteps(); });
  }
  const auto sets = [links] {
    int64_t sum = 0;
    for (auto& link : *links) sum += link->sets();
    return sum;
  };
  const auto run_until = [&](int64_t least, int64_t until_ns) {
    while (sets() < least || MonotonicNs() < until_ns) {
      if (library.threads) {
        usleep(1000);
      } else {
        for (auto& link : *links) link->AdvanceStep();
      }
    }
  };
  run_until(workload.producers, 0);  // The first round is not timed.
  const int64_t before = sets(), began_ns = MonotonicNs();
  run_until(before + 3, began_ns + static_cast<int64_t>(workload.seconds * 1e9));
  const double seconds = static_cast<double>(MonotonicNs() - began_ns) * 1e-9;
  size_t bytes = 0;
  for (size_t one : workload.sizes) bytes += one;
  Print(workload.producers == 1 ? "ps_steps_per_s" : "ps_steps_per_s_3_workers", bytes,
        static_cast<double>(sets() - before) / seconds, "1/s");
}

// Runs one round on all links at once. Returns how many seconds it took.
double RoundOfAll(const Library& library, std::vector<std::unique_ptr<Link>>* links,
                  int64_t count) {
  const int64_t began_ns = MonotonicNs();
  for (auto& link : *links) link->puller().Start(count);
  for (auto& link : *links) {
    if (library.threads) link->puller().WaitFinished();
    while (!link->puller().finished()) {
      for (auto& each : *links) each->Poll(false);
    }
  }
  return static_cast<double>(MonotonicNs() - began_ns) * 1e-9;
}

void MeasureProducers(const Library& library, const Workload& workload,
                      std::vector<std::unique_ptr<Link>>* links, int64_t bytes_before) {
  if (workload.warm_up > 0) RoundOfAll(library, links, workload.warm_up);
  const double seconds = RoundOfAll(library, links, 0);
  double gib = 0;
  double landed = 0;
  for (auto& link : *links) {
    link->puller().CheckAll();
    gib += static_cast<double>(link->puller().bytes_landed()) / (1 << 30);
    landed += static_cast<double>(link->puller().landed());
  }
  if (workload.name == "rate4") {
    return Print("tensors_per_s_4_producers", workload.max_bytes(), landed / seconds, "1/s");
  }
  if (workload.name == "delivery8") {
    return Print("delivery_8_producers", workload.max_bytes(), gib / seconds, "GiB/s");
  }
  Print("incast", workload.max_bytes(), gib / seconds, "GiB/s");
  Print("incast_bytes_max", workload.max_bytes(),
        static_cast<double>(MemoryBytes("VmHWM") - bytes_before), "bytes");
}

Workload WorkloadOf(int argc, char** argv) {
  if (argc < 5) Die("%s VARIANT WORKLOAD BYTES SECONDS", argv[0]);
  return MakeWorkload(argv[2], strtoull(argv[3], nullptr, 10), atof(argv[4]));
}

}  // namespace

std::string SecretFile(const std::string& name) {
  const char* folder = getenv("TRYST_BENCH_SECRETS");
  if (folder == nullptr) {
    fprintf(stderr,
            "set TRYST_BENCH_SECRETS to a folder with token, ca.crt, worker.crt, worker.key\n");
    exit(2);
  }
  return std::string(folder) + "/" + name;
}

int RunLibrary(int argc, char** argv, const Library& library) {
  alarm(kAlarmSeconds);
  signal(SIGPIPE, SIG_IGN);
  const Workload workload = WorkloadOf(argc, argv);
  const std::string variant = argv[1];
  if (argc == 7 && strcmp(argv[5], "--child") == 0) {
    auto* link = new Link(library, variant, workload);  // Never deleted.
    RunChild(atoi(argv[6]), library, link, IsStep(workload));
  }
  Measured processes;
  for (int i = 0; i < workload.producers; ++i) processes.children.push_back(StartChild(argv));
  std::vector<std::string> addresses;
  for (const Child& child : processes.children) addresses.push_back(ReceiveBytes(child.fd));
  const int64_t bytes_before = MemoryBytes("VmRSS");
  auto* links = new std::vector<std::unique_ptr<Link>>;  // Never deleted: threads use them until
                                                         // the process ends.
  for (int i = 0; i < workload.producers; ++i) {
    links->push_back(std::make_unique<Link>(library, variant, workload));
    if (IsStep(workload)) SendBytes(processes.children[i].fd, links->back()->Produce());
    links->back()->Consume(addresses[i]);
  }
  if (IsStep(workload)) {
    MeasureSteps(library, workload, links);
  } else if (workload.producers > 1) {
    MeasureProducers(library, workload, links, bytes_before);
  } else {
    MeasureOne(workload, processes, links->front().get());
  }
  fflush(stdout);
  for (const Child& child : processes.children) {
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
  _exit(0);  // A library whose peer is gone may take seconds to stop.
}

int RunLibraryRank(int rank, int producer_pid, int argc, char** argv, const Library& library) {
  alarm(kAlarmSeconds);
  const Workload workload = WorkloadOf(argc, argv);
  Link link(library, argv[1], workload);
  if (rank == 0) {
    link.Produce();
    ServeForEver(library, &link);
  }
  link.Consume("");
  Measured processes;
  processes.children.push_back({-1, producer_pid});
  MeasureOne(workload, processes, &link);
  fflush(stdout);
  kill(producer_pid, SIGKILL);
  _exit(0);
}

}  // namespace tryst
