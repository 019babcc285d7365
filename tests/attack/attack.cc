// Attacks a job of this machine, over the loopback alone, for so many seconds:
//
//   attack --load_worker=PROGRAM [--seconds=120]
//
// An honest pair of workers exchanges tensors meanwhile. Every attacker has its turn. Fails when
// the job stands still or gets a wrong byte, when the attacked worker takes more memory than
// docs/CONFIG.md says, keeps descriptors, or writes a flood of lines. Rates are told and judged by
// nobody here: how fast a job is on a loaded machine is that machine's affair.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/attack/attackers.h"
#include "tests/attack/honest_job.h"
#include "tests/attack/process_use.h"

namespace tryst {
namespace {

constexpr char kToken[] = "0123456789abcdef0123";
// Beside what the job itself takes: docs/CONFIG.md, "What peers can make a worker hold".
constexpr uint64_t kMostBytes = 640 << 20;
constexpr uint64_t kMostLogBytes = 64 << 10;
constexpr uint64_t kLeastReceived = 5;

// Takes as much of the processor as an attack could.
class Burn {
 public:
  explicit Burn(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        uint64_t x = 1;
        while (!stop_.load(std::memory_order_relaxed)) x = x * 6364136223846793005u + 1;
        sink_.fetch_add(x);
      });
    }
  }
  ~Burn() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> sink_{0};
  std::vector<std::thread> threads_;
};

struct Turn {
  double rate = 0;  // Tensors a second.
  uint64_t received = 0;
  uint64_t most_bytes = 0;
};

// Watches the job for so long, and on until it has moved.
Turn Watch(const HonestJob& job, absl::Duration for_) {
  const uint64_t before = job.received();
  const absl::Time start = absl::Now();
  Turn turn;
  while (absl::Now() - start < for_ ||
         (turn.received < kLeastReceived && absl::Now() - start < absl::Seconds(60))) {
    absl::SleepFor(absl::Milliseconds(50));
    turn.received = job.received() - before;
    turn.most_bytes = std::max(turn.most_bytes, ResidentBytes(absl::StrCat(job.ps())));
  }
  turn.rate = static_cast<double>(turn.received) / absl::ToDoubleSeconds(absl::Now() - start);
  return turn;
}

// What is wrong after an attack; empty: nothing.
std::string Judge(const HonestJob& job, const Turn& attacked, uint64_t bytes_before,
                  int descriptors_before, uint64_t log_before) {
  const std::string trouble = job.Trouble();
  if (!trouble.empty()) return trouble;
  if (attacked.received < kLeastReceived) return "the job stands still";
  if (attacked.most_bytes > bytes_before + kMostBytes) {
    return absl::StrCat("its memory grew by ", (attacked.most_bytes - bytes_before) >> 20, " MiB");
  }
  if (job.log_bytes() > log_before + kMostLogBytes) {
    return absl::StrCat("it wrote ", job.log_bytes() - log_before, " bytes of lines");
  }
  const std::string pid = absl::StrCat(job.ps());
  // The job's own connections come and go: gRPC's end ten seconds after the last call.
  for (int i = 0; i < 600 && OpenDescriptors(pid) > descriptors_before + 4; ++i) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  if (OpenDescriptors(pid) > descriptors_before + 4) {
    return absl::StrCat("it keeps ", OpenDescriptors(pid) - descriptors_before, " descriptors");
  }
  return "";
}

// The job on one path, attacked by everybody in turn.
int AttackPath(const std::string& load_worker, const std::string& folder,
               const std::vector<std::string>& path, absl::Time until, absl::Duration turn,
               int* passed) {
  const std::string token_file = folder + "/token";
  std::ofstream(token_file) << kToken << "\n";
  chmod(token_file.c_str(), 0600);
  std::vector<std::string> flags = path;
  flags.push_back("--token_file=" + token_file);
  HonestJob job(load_worker, folder, flags);
  if (!job.Begins()) {
    std::printf("FAILED  the honest job does not begin: %s\n", job.Trouble().c_str());
    return 1;
  }
  int failed = 0;
  for (const Attacker& attacker : AllAttackers(kToken)) {
    if (absl::Now() > until) break;
    const std::string pid = absl::StrCat(job.ps());
    const uint64_t bytes = ResidentBytes(pid);
    const int descriptors = OpenDescriptors(pid);
    const uint64_t log = job.log_bytes();
    Turn beside_burn;
    {
      const Burn burn(attacker.threads);
      beside_burn = Watch(job, turn);
    }
    Turn attacked;
    {
      const std::unique_ptr<Attack> attack = attacker.start(job);
      attacked = Watch(job, turn);
    }
    const std::string wrong = Judge(job, attacked, bytes, descriptors, log);
    std::printf(
        "%-7s %s: %-10s %-42s %6.0f/s, beside a burn %6.0f/s (%.2f), %+lld MiB%s%s\n",
        wrong.empty() ? "ok" : "FAILED", path.front().c_str(), attacker.who.c_str(),
        attacker.what.c_str(), attacked.rate, beside_burn.rate,
        attacked.rate / std::max(beside_burn.rate, 0.001),
        (static_cast<long long>(attacked.most_bytes) - static_cast<long long>(bytes)) / (1 << 20),
        wrong.empty() ? "" : ": ", wrong.c_str());
    std::fflush(stdout);
    ++(wrong.empty() ? *passed : failed);
    if (!job.Trouble().empty()) break;
  }
  return failed;
}

int Main(const std::vector<std::string>& args) {
  std::string load_worker;
  int seconds = 120;
  for (absl::string_view arg : args) {
    if (absl::ConsumePrefix(&arg, "--load_worker=")) {
      load_worker = std::string(arg);
    } else if (!absl::ConsumePrefix(&arg, "--seconds=") || !absl::SimpleAtoi(arg, &seconds)) {
      load_worker.clear();
      break;
    }
  }
  if (load_worker.empty()) {
    std::fprintf(stderr, "attack --load_worker=PROGRAM [--seconds=120]\n");
    return 2;
  }
  std::string folder = "/tmp/tryst-attack-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 2;
  const std::vector<std::vector<std::string>> paths = {
      {"--protocol=grpc"}, {"--nic=soft"}, {"--shm=on", "--nic=soft"}};
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  // Each attacker twice a turn, with what it takes to begin and to calm down.
  const double turns = 2.2 * static_cast<double>(AllAttackers(kToken).size() * paths.size());
  const absl::Duration turn =
      std::clamp(absl::Seconds(seconds) / turns, absl::Milliseconds(500), absl::Minutes(2));
  int passed = 0;
  int failed = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    const absl::Time now = absl::Now();
    const absl::Time until = now + (end - now) / static_cast<double>(paths.size() - i);
    failed += AttackPath(load_worker, folder, paths[i], until, turn, &passed);
  }
  for (const char* file : {"token", "ps.out", "ps.err", "worker.out", "worker.err"}) {
    if (failed == 0) unlink(absl::StrCat(folder, "/", file).c_str());
  }
  if (failed == 0) {
    rmdir(folder.c_str());
  } else {
    std::printf("what the job wrote is in %s\n", folder.c_str());
  }
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
