// log_appender ENDPOINTS CLUSTER SECONDS: takes the lease of a log in etcd as often as it can, and
// appends to the log. Now and then it stands still until its lease is over, and appends once more
// under that one. Prints what it learned, a line each:
//   leads LIFE LEASE
//   appended LIFE INDEX VALUE
//   read LIFE INDEX VALUE
// tests/frameworks/engines/etcd.py judges the lines of several of them.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/weights/etcd_decider.h"

namespace tryst {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class Appender {
 public:
  Appender(const std::string& endpoints, const std::string& cluster, int64_t seconds)
      : end_ns_(clock_.NowNs() + seconds * kSecond) {
    EtcdDecider::Options options;
    options.access.endpoints = absl::StrSplit(endpoints, ',');
    options.cluster = cluster;
    options.set = "log";
    options.lease_ns = 2 * kSecond;
    decider_ = std::make_unique<EtcdDecider>(options, [this](const DeciderAnswer& answer) {
      MutexLock lock(&mu_);
      answer_ = answer;
      changed_.NotifyAll();
    });
  }

  void Run() {
    while (clock_.NowNs() < end_ns_) {
      DeciderAnswer taken;
      const bool answered = Ask([&](uint64_t call) { decider_->TakeLease(call); }, &taken);
      if (!answered || taken.outcome != DeciderOutcome::kDone) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        continue;
      }
      printf("leads %" PRIx64 " %" PRIx64 "\n", taken.log, taken.lease);
      Reign(taken.lease);
    }
  }

 private:
  // False: no answer came.
  bool Ask(const std::function<void(uint64_t)>& ask, DeciderAnswer* answer) {
    ask(++call_);
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(EtcdDecider::kRetryNs);
    MutexLock lock(&mu_);
    while (answer_.call != call_ && !changed_.WaitUntil(&mu_, until)) {
    }
    if (answer_.call != call_) return false;
    *answer = answer_;
    return true;
  }

  // Reads the log from `*length` on.
  bool Read(uint64_t* length) {
    DeciderAnswer answer;
    while (clock_.NowNs() < end_ns_) {
      if (!Ask([&](uint64_t call) { decider_->ReadFrom(call, *length); }, &answer)) continue;
      if (answer.outcome != DeciderOutcome::kDone) return false;
      for (size_t i = 0; i < answer.slice.entries.size(); ++i) {
        Say("read", answer.log, answer.slice.first + i, answer.slice.entries[i]);
      }
      *length = answer.length;
      return true;
    }
    return false;
  }

  void Reign(uint64_t lease) {
    uint64_t length = 0;
    if (!Read(&length)) return;
    int64_t kept_ns = clock_.NowNs();
    while (clock_.NowNs() < end_ns_) {
      DeciderAnswer answer;
      if (clock_.NowNs() > kept_ns + kSecond / 2) {
        kept_ns = clock_.NowNs();
        const bool kept = Ask([&](uint64_t call) { decider_->KeepLease(call, lease); }, &answer);
        if (kept && answer.outcome != DeciderOutcome::kDone) return;
      }
      if (absl::Bernoulli(random_, 0.002)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(4000));
      }
      LogEntry entry;
      entry.kind = EntryKind::kMembers;
      entry.incarnations = {absl::Uniform<uint64_t>(random_, 1, UINT64_MAX)};
      // This repeats the same words, as a leader does, until it knows that the log has grown there.
      for (;;) {
        if (clock_.NowNs() >= end_ns_) return;
        if (Ask([&](uint64_t call) { decider_->Append(call, length, lease, entry); }, &answer))
          break;
      }
      if (answer.outcome == DeciderOutcome::kNoLease) return;
      if (answer.outcome == DeciderOutcome::kDone) {
        Say("appended", answer.log, length++, entry);
      } else if (!Read(&length)) {
        return;
      }
    }
  }

  static void Say(const char* what, uint64_t life, uint64_t index, const LogEntry& entry) {
    printf("%s %" PRIx64 " %" PRIu64 " %" PRIx64 "\n", what, life, index, entry.incarnations[0]);
  }

  const SteadyClock clock_;
  const int64_t end_ns_;
  absl::BitGen random_;
  Mutex mu_;
  CondVar changed_;
  DeciderAnswer answer_ ABSL_GUARDED_BY(mu_);
  uint64_t call_ = 0;
  std::unique_ptr<EtcdDecider> decider_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "log_appender ENDPOINTS CLUSTER SECONDS\n");
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);  // It may be killed at any moment.
  tryst::Appender(argv[1], argv[2], atoi(argv[3])).Run();
}
