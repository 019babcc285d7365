// fault_storm: two real processes fetch from each other without pause. Every few hundred
// milliseconds a fault hits one of them: it is killed and started again at the same address,
// stopped, cut off, or its wire loses packets.
//
//   --seconds N --seed S
//   --faults kill,stop,down,loss       which faults; down and loss need the commands below
//   --nic soft | --nic-a DEV --nic-b DEV
//   --address-a HOST --address-b HOST  for the bootstrap, and for the software NIC
//   --enter-b "COMMAND"                put before b's program: nsenter ...
//   --down C --up C --loss C --clean C the commands that put a fault on and take it off
//
// Exit code 1: something hung, was lost or doubled, or arrived changed. Prints for each fault when
// the other side noticed it, and when the load was back.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/log.h"
#include "tests/process/e2e/free_port.h"
#include "tests/process/faults/storm_worker.h"
#include "tests/process/faults/worker_page.h"
#include "tests/process/history/history_file.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kHangNs = 15'000 * kMs;  // A hang: no tensor for so long while both sides are up.
constexpr int64_t kWindowNs = 100 * kMs;

struct Settings {
  std::map<std::string, std::string> words;
  std::string operator[](const std::string& name) const {
    const auto found = words.find(name);
    return found == words.end() ? "" : found->second;
  }
  int64_t number(const std::string& name, int64_t otherwise) const {
    int64_t value = otherwise;
    return absl::SimpleAtoi((*this)[name], &value) ? value : otherwise;
  }
};

void SleepMs(int64_t ms) {
  const timespec time = {ms / 1000, ms % 1000 * 1'000'000};
  nanosleep(&time, nullptr);
}

// What the faults of one kind led to, in milliseconds; -1: not within the time.
struct Times {
  std::vector<int64_t> noticed, first, back;
  // Until a killed process's queue pairs stop answering, which is when the kernel has freed them.
  std::vector<int64_t> dying;
  int not_back = 0;
};

class Storm {
 public:
  explicit Storm(Settings settings);
  int Run();

 private:
  struct Side {
    std::string name;
    std::string listen;
    pid_t pid = -1;
    WorkerPage* page = nullptr;
    int fd = -1;
  };

  void Start(Side* side);
  void WaitReady(const Side& side);
  void Command(const char* name);
  void OneFault(const std::string& kind);
  void WatchRecovery(int64_t since_ns, uint64_t before, Times* times);
  void Watch(int64_t ms);  // Watches the load.
  void Sample();
  uint64_t BytesNow() const { return sides_[0].page->bytes.load() + sides_[1].page->bytes.load(); }
  // The tensors per second of the last window.
  uint64_t Rate() const;
  bool BothHaveDelivered() const;
  void CheckHang();
  int Finish();
  bool HistoryHolds();
  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  const Settings settings_;
  const SteadyClock clock_;
  std::mt19937_64 random_;
  Side sides_[2];
  std::deque<std::pair<int64_t, uint64_t>> samples_;
  int64_t last_progress_ns_[2] = {};
  uint64_t last_delivered_[2] = {};
  int64_t calm_since_ns_ = 0;  // Since when both sides are up and the wire is good.
  int hangs_ = 0;
  int deaths_ = 0;  // Processes that died without being killed by us.
  std::map<std::string, Times> times_;
  const std::string history_ = NewHistoryFolder();
  int lives_ = 0;
};

Storm::Storm(Settings settings)
    : settings_(std::move(settings)),
      random_(static_cast<uint64_t>(settings_.number("seed", clock_.NowNs()))) {
  const int ports[2] = {FreePort(), FreePort()};
  for (int i = 0; i < 2; ++i) {
    Side& side = sides_[i];
    side.name = i == 0 ? "a" : "b";
    std::string host = settings_[absl::StrCat("address-", side.name)];
    if (host.empty()) host = "127.0.0.1";
    side.listen = absl::StrCat(host, ":", ports[i]);
    side.fd = memfd_create("storm", 0);
    TRYST_CHECK(ftruncate(side.fd, sizeof(WorkerPage)) == 0);
    void* page = mmap(nullptr, sizeof(WorkerPage), PROT_READ | PROT_WRITE, MAP_SHARED, side.fd, 0);
    TRYST_CHECK(page != MAP_FAILED);
    side.page = static_cast<WorkerPage*>(page);
  }
}

void Storm::Start(Side* side) {
  side->page->ready_ns.store(0);
  const Side& other = sides_[side == &sides_[0] ? 1 : 0];
  std::string nic = settings_[absl::StrCat("nic-", side->name)];
  if (nic.empty()) nic = "soft";
  std::vector<std::string> words;
  const std::string enter = settings_[absl::StrCat("enter-", side->name)];
  if (!enter.empty()) words = absl::StrSplit(enter, ' ');
  for (std::string word :
       {std::string("/proc/self/exe"), std::string("--worker"), side->name, std::string("--nic"),
        nic, std::string("--address"), side->listen.substr(0, side->listen.find(':')),
        std::string("--listen"), side->listen, std::string("--peer"), other.listen,
        std::string("--incarnation"), absl::StrCat(random_() >> 1 | 1), std::string("--page"),
        absl::StrCat(side->fd), std::string("--history"),
        absl::StrCat(history_, "/", side->name, ".", ++lives_)}) {
    words.push_back(std::move(word));
  }
  if (!enter.empty()) {
    // /proc/self/exe of another program would be that program, so resolve it here.
    char self[4096];
    const ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
    for (std::string& word : words) {
      if (word == "/proc/self/exe") word.assign(self, static_cast<size_t>(bytes));
    }
  }
  side->pid = fork();
  if (side->pid != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

void Storm::WaitReady(const Side& side) {
  const int64_t until_ns = clock_.NowNs() + kHangNs;
  while (side.page->ready_ns.load() == 0 && clock_.NowNs() < until_ns) SleepMs(1);
}

void Storm::Sample() {
  const int64_t now_ns = clock_.NowNs();
  samples_.emplace_back(now_ns, BytesNow());
  while (samples_.size() > 2 && samples_[1].first <= now_ns - kWindowNs) samples_.pop_front();
}

uint64_t Storm::Rate() const {
  if (samples_.size() < 2) return 0;
  const auto& first = samples_.front();
  const auto& last = samples_.back();
  const int64_t took_ns = std::max<int64_t>(last.first - first.first, 1);
  return static_cast<uint64_t>(static_cast<double>(last.second - first.second) * 1e9 /
                               static_cast<double>(took_ns));
}

void Storm::CheckHang() {
  const int64_t now_ns = clock_.NowNs();
  for (int i = 0; i < 2; ++i) {
    const uint64_t delivered = sides_[i].page->delivered.load();
    if (delivered != last_delivered_[i] || calm_since_ns_ == 0) {
      last_delivered_[i] = delivered;
      last_progress_ns_[i] = now_ns;
    } else if (now_ns - std::max(last_progress_ns_[i], calm_since_ns_) > kHangNs) {
      ++hangs_;
      printf("HANG: %s has got nothing for %" PRId64 " s\n", sides_[i].name.c_str(),
             kHangNs / (1000 * kMs));
      last_progress_ns_[i] = now_ns;
    }
  }
}

void Storm::Watch(int64_t ms) {
  const int64_t until_ns = clock_.NowNs() + ms * kMs;
  while (clock_.NowNs() < until_ns) {
    SleepMs(5);
    Sample();
    CheckHang();
  }
}

void Storm::Command(const char* name) {
  const std::string command = settings_[name];
  const int code = system(command.c_str());
  if (code != 0) printf("the command for %s ended with %d: %s\n", name, code, command.c_str());
}

// Measures, from `since_ns` on, the first tensor and the return of the earlier rate.
void Storm::WatchRecovery(int64_t since_ns, uint64_t before, Times* times) {
  calm_since_ns_ = clock_.NowNs();
  const int64_t until_ns = clock_.NowNs() + 8'000 * kMs;
  bool first_seen = false;
  samples_.clear();
  while (clock_.NowNs() < until_ns) {
    SleepMs(5);
    Sample();
    CheckHang();
    const int64_t both_ns =
        std::min(sides_[0].page->last_delivery_ns.load(), sides_[1].page->last_delivery_ns.load());
    if (!first_seen && both_ns > since_ns) {
      first_seen = true;
      times->first.push_back((both_ns - since_ns) / kMs);
    }
    const bool whole = samples_.back().first - samples_.front().first >= kWindowNs;
    if (first_seen && whole && static_cast<double>(Rate()) >= 0.95 * static_cast<double>(before)) {
      // The rate has been back since the window began.
      times->back.push_back((samples_.front().first - since_ns) / kMs);
      return;
    }
  }
  ++times->not_back;
}

void Storm::OneFault(const std::string& kind) {
  Times* times = &times_[kind];
  const int which = static_cast<int>(Draw(0, 1));
  Side& hit = sides_[which];
  Side& other = sides_[1 - which];
  const uint64_t before = Rate();
  const int64_t at_ns = clock_.NowNs();
  calm_since_ns_ = 0;
  const auto note_noticed = [&] {
    const int64_t seen_ns = other.page->last_break_ns.load();
    if (seen_ns > at_ns) times->noticed.push_back((seen_ns - at_ns) / kMs);
    return seen_ns > at_ns;
  };
  if (kind == "kill") {
    kill(hit.pid, SIGKILL);
    int status = 0;
    waitpid(hit.pid, &status, 0);
    times->dying.push_back((clock_.NowNs() - at_ns) / kMs);
    const bool at_once = Draw(0, 1) == 0;
    if (!at_once) {
      // The other side must notice even if nothing answers in the dead one's place.
      const int64_t until_ns = clock_.NowNs() + 3'000 * kMs;
      while (!note_noticed() && clock_.NowNs() < until_ns) Watch(5);
    }
    const int64_t start_ns = clock_.NowNs();
    Start(&hit);
    WaitReady(hit);
    return WatchRecovery(start_ns, before, times);
  }
  if (kind == "stop") {
    kill(hit.pid, SIGSTOP);
    Watch(Draw(50, 1500));
    kill(hit.pid, SIGCONT);
  } else {
    const bool down = kind == "down";
    Command(down ? "down" : "loss");
    Watch(Draw(50, 1500));
    Command(down ? "up" : "clean");
  }
  note_noticed();
  WatchRecovery(clock_.NowNs(), before, times);
}

bool Storm::BothHaveDelivered() const {
  return sides_[0].page->delivered.load() > 0 && sides_[1].page->delivered.load() > 0;
}

int Storm::Run() {
  for (Side& side : sides_) Start(&side);
  for (Side& side : sides_) WaitReady(side);
  calm_since_ns_ = clock_.NowNs();
  // Measures the normal rate, without the time of connecting.
  while (hangs_ == 0 && !BothHaveDelivered()) Watch(50);
  samples_.clear();
  Watch(1500);
  const std::vector<std::string> kinds =
      absl::StrSplit(settings_["faults"].empty() ? "kill,stop" : settings_["faults"], ',');
  const int64_t until_ns = clock_.NowNs() + settings_.number("seconds", 10) * 1000 * kMs;
  printf("both are up: %.0f MB/s\n", static_cast<double>(Rate()) / 1e6);
  while (clock_.NowNs() < until_ns && hangs_ == 0) {
    OneFault(kinds[static_cast<size_t>(Draw(0, static_cast<int64_t>(kinds.size()) - 1))]);
    for (Side& side : sides_) {
      int status = 0;
      if (waitpid(side.pid, &status, WNOHANG) != side.pid) continue;
      printf("%s died by itself, status %d\n", side.name.c_str(), status);
      ++deaths_;
      Start(&side);
      WaitReady(side);
    }
    Watch(Draw(100, 400));
  }
  return Finish();
}

// Judges the histories of both workers, over all their lives.
bool Storm::HistoryHolds() {
  const auto judged = JudgeFolder(history_, 4);
  const std::string breaches = judged.ok() ? judged->breaches : judged.status().ToString();
  if (judged.ok()) {
    printf("history: %zu sends, %zu receives, traces of %zu operations, %zu with both ends, ",
           judged->sent, judged->made, judged->traced, judged->traced_pairs);
  }
  const bool holds = breaches.empty() && judged->made > 0 && judged->traced_pairs > 0;
  if (holds) {
    printf("every promise holds\n");
    RemoveHistoryFolder(history_);
  } else {
    printf("BROKEN, kept in %s: %s\n", history_.c_str(), breaches.c_str());
  }
  return holds;
}

int Storm::Finish() {
  int bad = hangs_ + deaths_;
  // First both stop fetching, then both stop serving.
  for (Side& side : sides_) side.page->stop.store(1);
  const int64_t until_ns = clock_.NowNs() + 40'000 * kMs;
  const auto all_at = [&](uint32_t value) {
    return sides_[0].page->stop.load() == value && sides_[1].page->stop.load() == value;
  };
  while (!all_at(2) && clock_.NowNs() < until_ns) SleepMs(5);
  if (!all_at(2)) printf("HANG: the end was not reached\n");
  bad += !all_at(2);
  for (Side& side : sides_) side.page->stop.store(3);
  for (Side& side : sides_) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(side.pid, &status, WNOHANG)) == 0 &&
           clock_.NowNs() < until_ns + 15'000 * kMs) {
      SleepMs(5);
    }
    if (ended == 0) kill(side.pid, SIGKILL);
    if (ended == 0 || status != 0) {
      ++bad;
      printf("%s ended with status %d\n", side.name.c_str(), ended == 0 ? -1 : status);
    }
    const WorkerPage& page = *side.page;
    printf("%s: %" PRIu64 " tensors, %" PRIu64 " MB, %" PRIu64 " connections lost, %" PRIu64
           " fetches aborted, %" PRIu64 " unavailable, %" PRIu64 " WRONG %s\n",
           side.name.c_str(), page.delivered.load(), page.bytes.load() / 1'000'000,
           page.breaks.load(), page.aborted.load(), page.unavailable.load(), page.wrong.load(),
           page.first_wrong);
    bad += page.wrong.load() != 0;
  }
  const auto median = [](std::vector<int64_t> values) {
    if (values.empty()) return std::string("none");
    std::sort(values.begin(), values.end());
    return absl::StrCat("median ", values[values.size() / 2], ", most ", values.back(), " (of ",
                        values.size(), ")");
  };
  for (const auto& kind : times_) {
    const Times& times = kind.second;
    printf(
        "%s, ms: noticed %s; first tensors both ways %s; 95 %% of the rate back %s; not back "
        "within 8 s: %d%s\n",
        kind.first.c_str(), median(times.noticed).c_str(), median(times.first).c_str(),
        median(times.back).c_str(), times.not_back,
        times.dying.empty() ? "" : absl::StrCat("; dying itself ", median(times.dying)).c_str());
  }
  bad += !HistoryHolds();
  printf("%d hangs, %d deaths; %s\n", hangs_, deaths_, bad == 0 ? "all is well" : "FAILED");
  return bad == 0 ? 0 : 1;
}

int Worker(const Settings& settings) {
  StormWorkerOptions options;
  options.name = settings["worker"];
  options.nic = settings["nic"];
  options.address = settings["address"];
  options.listen = settings["listen"];
  options.peer = settings["peer"];
  options.history = settings["history"];
  TRYST_CHECK(absl::SimpleAtoi(settings["incarnation"], &options.incarnation));
  void* page = mmap(nullptr, sizeof(WorkerPage), PROT_READ | PROT_WRITE, MAP_SHARED,
                    static_cast<int>(settings.number("page", -1)), 0);
  TRYST_CHECK(page != MAP_FAILED);
  options.page = static_cast<WorkerPage*>(page);
  return RunStormWorker(options);
}

void Quiet(LogSeverity severity, const char*, int, absl::string_view text) {
  if (severity < LogSeverity::kError) return;
  fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string word = argv[i];
    if (i + 1 == argc || word.rfind("--", 0) != 0) {
      fprintf(stderr, "fault_storm: %s wants a value\n", word.c_str());
      return 2;
    }
    settings.words[word.substr(2)] = argv[i + 1];
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  tryst::SetLogSink(&tryst::Quiet);
  if (!settings["worker"].empty()) return tryst::Worker(settings);
  return tryst::Storm(std::move(settings)).Run();
}
