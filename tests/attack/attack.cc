// Attacks a job of this machine, over the loopback only, for a given time:
//
//   attack --load_worker=PROGRAM [--seconds=120] [--only=TEXT] [--seed=N]
//
// TEXT selects lines that it prints, such as "--nic=soft: member". Meanwhile an honest pair of
// workers exchanges tensors. Every attacker has its turn. Fails when the job gets a wrong byte;
// when it moves much less than beside threads that burn as much processor time; or when the
// attacked worker takes more memory than docs/CONFIG.md says, keeps descriptors, or floods its log.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/attack/attackers.h"
#include "tests/attack/honest_job.h"
#include "tests/attack/process_use.h"
#include "tests/attack/wired_pair.h"

namespace tryst {
namespace {

constexpr char kToken[] = "0123456789abcdef0123";
// Beside what the job itself takes; see "What peers can make a worker hold" in docs/CONFIG.md.
constexpr uint64_t kMostBytes = 384 << 20;
constexpr uint64_t kMostLogBytes = 64 << 10;
constexpr uint64_t kLeastReceived = 5;
// Connections that the job itself closes and opens again.
constexpr int kOwnDescriptors = 16;
// What must be left of the job's rate beside a burn; and what fails, however the machine's load
// changes.
constexpr double kLeast = 0.8;
constexpr double kFails = 0.5;
constexpr size_t kMostRounds = 7;  // An odd number, so that there is a median.

// Burns as much processor time as an attack could.
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
  double seconds = 0;
  uint64_t received = 0;  // Counts tensors.
  uint64_t most_bytes = 0;
  int most_descriptors = 0;

  double rate() const { return static_cast<double>(received) / std::max(seconds, 0.001); }
  Turn& operator+=(const Turn& other) {
    seconds += other.seconds;
    received += other.received;
    most_bytes = std::max(most_bytes, other.most_bytes);
    most_descriptors = std::max(most_descriptors, other.most_descriptors);
    return *this;
  }
};

// The machine's load changes from second to second. So a rate that is too low is measured again,
// beside a burn of the same moment, and the median round decides.
class Rounds {
 public:
  void Add(const Turn& attacked, const Turn& burnt) {
    attacked_ += attacked;
    burnt_ += burnt;
    ratios_.push_back(attacked.rate() / std::max(burnt.rate(), 0.001));
  }
  size_t count() const { return ratios_.size(); }
  double ratio() const {
    std::vector<double> sorted = ratios_;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2),
                     sorted.end());
    return sorted[sorted.size() / 2];
  }
  // Nearly all rounds must be slow: a busy machine may have spoilt one or two.
  bool too_slow() const {
    return std::count_if(ratios_.begin(), ratios_.end(),
                         [&](double ratio) { return ratio < kFails; }) +
               1 >=
           static_cast<ptrdiff_t>(kMostRounds);
  }
  bool decided() const { return count() == kMostRounds || (count() % 2 == 1 && ratio() >= kLeast); }
  std::string text() const {
    return absl::StrJoin(ratios_, " ", [](std::string* out, double ratio) {
      absl::StrAppendFormat(out, "%.2f", ratio);
    });
  }
  const Turn& attacked() const { return attacked_; }
  const Turn& burnt() const { return burnt_; }

 private:
  Turn attacked_;
  Turn burnt_;
  std::vector<double> ratios_;
};

// Watches the job for that time, and longer until it has moved.
Turn Watch(const HonestJob& job, absl::Duration for_) {
  const uint64_t before = job.received();
  const absl::Time start = absl::Now();
  Turn turn;
  while (absl::Now() - start < for_ ||
         (turn.received < kLeastReceived && absl::Now() - start < absl::Seconds(60))) {
    absl::SleepFor(absl::Milliseconds(50));
    turn.received = job.received() - before;
    const std::string pid = absl::StrCat(job.ps());
    turn.most_bytes = std::max(turn.most_bytes, ResidentBytes(pid));
    turn.most_descriptors = std::max(turn.most_descriptors, OpenDescriptors(pid));
  }
  turn.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return turn;
}

// The job before an attack.
struct Before {
  uint64_t bytes = 0;
  uint64_t log = 0;
  int descriptors = 0;  // The most that the job had before it was attacked.
};

// What is wrong after an attack; empty: nothing.
std::string Judge(const HonestJob& job, const Rounds& rounds, const Before& before) {
  const Turn& attacked = rounds.attacked();
  const std::string trouble = job.Trouble();
  if (!trouble.empty()) return trouble;
  if (attacked.received < kLeastReceived) return "the job stands still";
  if (TcpMemoryIsScarce()) return "the kernel's memory for TCP is scarce (/proc/net/sockstat)";
  if (rounds.too_slow()) return absl::StrCat("less than ", kFails, " of its rate");
  if (attacked.most_bytes > before.bytes + kMostBytes) {
    return absl::StrCat("its memory grew by ", (attacked.most_bytes - before.bytes) >> 20, " MiB");
  }
  if (job.log_bytes() > before.log + kMostLogBytes) {
    return absl::StrCat("it wrote ", job.log_bytes() - before.log, " bytes of lines");
  }
  const std::string pid = absl::StrCat(job.ps());
  // The job's own connections come and go (gRPC closes one ten seconds after its last call). What
  // attackers leave behind adds up from turn to turn.
  const int most = before.descriptors + kOwnDescriptors;
  for (int i = 0; i < 600 && OpenDescriptors(pid) > most; ++i) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  if (OpenDescriptors(pid) > most) {
    return absl::StrCat("it keeps ", OpenDescriptors(pid) - before.descriptors, " descriptors");
  }
  return "";
}

struct Tally {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
};

std::string LineOf(const std::vector<std::string>& path, const Attacker& attacker) {
  return absl::StrCat(path.front(), ": ", attacker.who, ": ", attacker.what);
}

// Runs the job on one path, and each attacker in turn.
void AttackPath(const std::string& load_worker, const std::string& folder,
                const std::vector<std::string>& path, const std::vector<Attacker>& attackers,
                absl::Time until, absl::Duration turn, Tally* tally) {
  const std::string token_file = folder + "/token";
  std::ofstream(token_file) << kToken << "\n";
  chmod(token_file.c_str(), 0600);
  std::vector<std::string> flags = path;
  flags.push_back("--token_file=" + token_file);
  HonestJob job(load_worker, folder, flags);
  if (!job.Begins()) {
    std::printf("FAILED  the honest job does not begin: %s\n", job.Trouble().c_str());
    ++tally->failed;
    return;
  }
  Before before;
  for (const Attacker& attacker : attackers) {
    if (absl::Now() > until || !job.Trouble().empty()) {
      ++tally->skipped;
      continue;
    }
    before.bytes = ResidentBytes(absl::StrCat(job.ps()));
    before.log = job.log_bytes();
    Rounds rounds;
    while (rounds.count() == 0 || !rounds.decided()) {
      Turn burnt;
      Turn attacked;
      const auto burn = [&] {
        const Burn burning(attacker.threads);
        burnt = Watch(job, turn);
        if (before.descriptors == 0) before.descriptors = burnt.most_descriptors;
      };
      const auto attack = [&] {
        const std::unique_ptr<Attack> attacking = attacker.start(job);
        attacked = Watch(job, turn);
      };
      // Alternates which of the two comes first, so that a machine that becomes slower favours
      // neither.
      if (rounds.count() % 2 == 0) {
        burn();
        attack();
      } else {
        attack();
        burn();
      }
      rounds.Add(attacked, burnt);
    }
    const std::string wrong = Judge(job, rounds, before);
    const bool unsure = rounds.ratio() < kLeast;  // The rounds differ too much to decide.
    std::printf("%-7s %-66s %6.0f/s, beside a burn %6.0f/s: %s, %+lld MiB%s%s\n",
                !wrong.empty() ? "FAILED"
                : unsure       ? "unsure"
                               : "ok",
                LineOf(path, attacker).c_str(), rounds.attacked().rate(), rounds.burnt().rate(),
                rounds.text().c_str(),
                (static_cast<long long>(rounds.attacked().most_bytes) -
                 static_cast<long long>(before.bytes)) /
                    (1 << 20),
                wrong.empty() ? "" : ": ", wrong.c_str());
    std::fflush(stdout);
    ++(!wrong.empty() ? tally->failed : unsure ? tally->skipped : tally->passed);
  }
}

// Somebody on the wire: reads, then makes every kind of edit, by turns until the time is over.
void AttackWire(const WiredPair::Way& way, const std::string& folder, absl::Time until,
                Tally* tally) {
  WiredPair pair(way, folder);
  int edits = 0;
  absl::Status fetched = pair.trouble().empty() ? pair.Fetch() : absl::OkStatus();
  do {
    for (WireEdit edit : {WireEdit::kChange, WireEdit::kReplay, WireEdit::kReorder,
                          WireEdit::kTruncate, WireEdit::kDowngrade}) {
      if (!pair.trouble().empty() || !fetched.ok()) break;
      if (pair.Edit(edit, 3)) edits += 3;
    }
    if (pair.trouble().empty() && fetched.ok()) fetched = pair.Fetch();
  } while (absl::Now() < until && fetched.ok() && pair.trouble().empty() && pair.wrong() == 0);
  const bool good = pair.trouble().empty() && fetched.ok() && pair.markers() == 0 &&
                    pair.hellos() == 0 && pair.wrong() == 0 && edits > 0;
  std::printf(
      "%-7s on the wire: %s: %llu markers and %llu hellos read in %llu MiB, %d edits, %d wrong "
      "tensors%s%s\n",
      good ? "ok" : "FAILED", way.name().c_str(), static_cast<unsigned long long>(pair.markers()),
      static_cast<unsigned long long>(pair.hellos()),
      static_cast<unsigned long long>(pair.bytes() >> 20), edits, pair.wrong(),
      pair.trouble().empty() && fetched.ok() ? "" : ": ",
      fetched.ok() ? pair.trouble().c_str() : std::string(fetched.message()).c_str());
  std::fflush(stdout);
  ++(good ? tally->passed : tally->failed);
}

int Main(const std::vector<std::string>& args) {
  std::string load_worker;
  std::string only;
  int seconds = 120;
  uint32_t seed = 0;
  for (absl::string_view arg : args) {
    if (absl::ConsumePrefix(&arg, "--load_worker=")) {
      load_worker = std::string(arg);
    } else if (absl::ConsumePrefix(&arg, "--only=")) {
      only = std::string(arg);
    } else if (absl::ConsumePrefix(&arg, "--seed=") && absl::SimpleAtoi(arg, &seed)) {
    } else if (!absl::ConsumePrefix(&arg, "--seconds=") || !absl::SimpleAtoi(arg, &seconds)) {
      load_worker.clear();
      break;
    }
  }
  if (load_worker.empty()) {
    std::fprintf(stderr, "attack --load_worker=PROGRAM [--seconds=120] [--only=TEXT] [--seed=N]\n");
    return 2;
  }
  std::string folder = "/tmp/tryst-attack-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 2;
  const std::vector<std::vector<std::string>> paths = {
      {"--protocol=grpc"}, {"--nic=soft"}, {"--shm=on", "--nic=soft"}};
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  std::vector<std::vector<Attacker>> attackers(paths.size());
  size_t all = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    for (Attacker& one : AllAttackers(kToken)) {
      if (absl::StrContains(LineOf(paths[i], one), only)) attackers[i].push_back(std::move(one));
    }
    // If the time is too short for all attackers, each path leaves out others, and so does each
    // seed.
    const size_t count = attackers[i].size();
    if (count > 0) {
      const size_t first = (i * count / paths.size() + seed) % count;
      std::rotate(attackers[i].begin(), attackers[i].begin() + static_cast<ptrdiff_t>(first),
                  attackers[i].end());
    }
    all += count;
  }
  // Each attacker has two turns on each path, with time to begin, to calm down and to measure
  // again.
  const double turns = 3.6 * static_cast<double>(std::max<size_t>(1, all));
  const absl::Duration turn =
      std::clamp(absl::Seconds(seconds) / turns, absl::Milliseconds(500), absl::Minutes(2));
  Tally tally;
  for (const WiredPair::Way& way : WiredPair::All()) {
    if (!absl::StrContains("on the wire: " + way.name(), only)) continue;
    AttackWire(way, folder, absl::Now() + absl::Seconds(seconds) / 40, &tally);
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    const absl::Time now = absl::Now();
    const absl::Time until = now + (end - now) / static_cast<double>(paths.size() - i);
    if (attackers[i].empty()) continue;
    AttackPath(load_worker, folder, paths[i], attackers[i], until, turn, &tally);
  }
  if (tally.failed == 0) {
    std::filesystem::remove_all(folder);
  } else {
    std::printf("what the job wrote is in %s\n", folder.c_str());
  }
  std::printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
  return tally.failed == 0 && tally.passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
