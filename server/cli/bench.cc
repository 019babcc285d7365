#include "server/cli/bench.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "channel/trace/json_text.h"
#include "server/cli/ask_workers.h"
#include "server/services/samples.h"
#include "server/status/insight.h"

namespace tryst {
namespace {

constexpr int kAtOnce = 8;
// The time limit of each measurement: enough to measure a slow path.
constexpr int64_t kLongestNs = 1'000'000'000;

struct Work {
  uint64_t bytes;
  int pulls;     // Receives one at a time.
  int delivers;  // Receives kAtOnce at a time.
};
constexpr Work kWork[] = {
    {8, 500, 2000},      {4096, 500, 2000},  {64 << 10, 300, 1000},
    {1 << 20, 100, 400}, {16 << 20, 16, 64},
};

struct Figures {
  uint64_t bytes = 0;
  double p50_us = 0;
  double p99_us = 0;
  double per_s = 0;  // With up to kAtOnce at a time.
  double gib_per_s() const { return per_s * static_cast<double>(bytes) / (1 << 30); }
};

// Receives the samples of one step. Receives end on whichever thread delivers the tensor.
class Receiving {
 public:
  Receiving(Rendezvous* step, TensorKeyPrefix keys, uint64_t bytes, absl::Duration timeout)
      : step_(step), keys_(std::move(keys)), bytes_(bytes), timeout_(timeout) {}

  struct Times {
    std::vector<int64_t> each_ns;
    int64_t all_ns = 0;
  };
  // Receives `count` samples, or as many as come within kLongestNs, `at_once` at a time. Returns
  // the first error. No receive is under way when it returns.
  absl::StatusOr<Times> Receive(int count, int at_once) {
    {
      MutexLock lock(&mu_);
      times_.each_ns.clear();
    }
    const int64_t began_ns = clock_.NowNs();
    for (int asked = 0; asked < count; ++asked) {
      {
        MutexLock lock(&mu_);
        while (under_way_ >= at_once) ended_.Wait(&mu_);
        if (!failure_.ok() || (asked > 0 && clock_.NowNs() - began_ns > kLongestNs)) break;
        ++under_way_;
      }
      Ask(keys_.At(0, next_++ % kSampleKeys));
    }
    MutexLock lock(&mu_);
    while (under_way_ > 0) ended_.Wait(&mu_);
    times_.all_ns = clock_.NowNs() - began_ns;
    for (const Tensor& tensor : last_) {
      if (failure_.ok() && tensor.valid() && !IsSample(tensor, bytes_)) failure_ = OtherBytes();
    }
    if (!failure_.ok()) return failure_;
    return times_;
  }

 private:
  static absl::Status OtherBytes() {
    return absl::DataLossError(
        "a sample tensor arrived with wrong bytes: run tryst doctor, and look for faulty memory or "
        "a faulty NIC");
  }

  void Ask(const TensorKey& key) {
    RecvArgs args;
    args.deadline = Deadline::After(clock_, timeout_);
    const int64_t asked_ns = clock_.NowNs();
    step_->RecvAsync(key, args, [this, asked_ns](Received&& received) {
      const int64_t took_ns = clock_.NowNs() - asked_ns;
      MutexLock lock(&mu_);
      times_.each_ns.push_back(took_ns);
      if (failure_.ok()) {
        failure_ = received.status.ok() && !LooksLikeSample(received.tensor, bytes_)
                       ? OtherBytes()
                       : received.status;
      }
      last_[times_.each_ns.size() % kAtOnce] = std::move(received.tensor);
      --under_way_;
      ended_.NotifyAll();
    });
  }

  const SteadyClock clock_;
  Rendezvous* const step_;
  const TensorKeyPrefix keys_;
  const uint64_t bytes_;
  const absl::Duration timeout_;
  uint64_t next_ = 0;  // The next sample, in the order of sending.
  Mutex mu_;
  CondVar ended_;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  Times times_ ABSL_GUARDED_BY(mu_);
  std::array<Tensor, kAtOnce> last_ ABSL_GUARDED_BY(mu_);  // Checked after the measurement.
};

double Quantile(std::vector<int64_t>* sorted_ns, double part) {
  std::sort(sorted_ns->begin(), sorted_ns->end());
  const size_t at = static_cast<size_t>(part * static_cast<double>(sorted_ns->size() - 1));
  return static_cast<double>((*sorted_ns)[at]) / 1e3;
}

class Bench {
 public:
  Bench(const CommandLine& line, Server* self)
      : line_(line), peer_(line.words[0]), self_(self), show_(isatty(STDERR_FILENO) != 0) {}

  absl::Status Run() {
    for (const Work& work : kWork) {
      if (show_) std::fprintf(stderr, "\r\033[K%d bytes", static_cast<int>(work.bytes));
      absl::Status done = Measure(work);
      if (show_) std::fputs("\r\033[K", stderr);
      if (!done.ok()) return done;
    }
    return absl::OkStatus();
  }

  std::string Json() const {
    std::string sizes;
    for (const Figures& row : rows_) {
      absl::StrAppendFormat(&sizes,
                            "%s{\"bytes\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f,\"per_s\":%.1f,"
                            "\"gib_per_s\":%.4g}",
                            sizes.empty() ? "" : ",", row.bytes, row.p50_us, row.p99_us, row.per_s,
                            row.gib_per_s());
    }
    return absl::StrCat("{\"peer\":", JsonText(peer_),
                        ",\"first_ms\":", absl::StrFormat("%.1f", first_ms_), ",\"sizes\":[", sizes,
                        "],\"explain\":", self_->insight()->PathsJson(peer_), "}\n");
  }

  std::string Text() const {
    std::string text =
        absl::StrFormat("first tensor after %.1f ms, connecting and all\n\n", first_ms_);
    absl::StrAppendFormat(&text, "%12s%12s%12s%12s%12s\n", "bytes", "p50 us", "p99 us", "a second",
                          "GiB/s");
    for (const Figures& row : rows_) {
      absl::StrAppendFormat(&text, "%12d%12.1f%12.1f%12.0f%12.3g\n", row.bytes, row.p50_us,
                            row.p99_us, row.per_s, row.gib_per_s());
    }
    return absl::StrCat(text, "\n", self_->Explain(peer_));
  }

 private:
  absl::Status Measure(const Work& work) {
    const int64_t step_id =
        absl::Uniform(absl::IntervalClosed, random_, kFirstSampleStep, kLastSampleStep);
    const int count = 1 + work.pulls + work.delivers;
    const auto incarnation = self_->calls()->SendSamples(
        peer_, step_id, work.bytes, static_cast<uint32_t>(count), line_.timeout);
    if (!incarnation.ok()) return incarnation.status();
    const auto keys = SampleKeys(peer_, *incarnation, self_->worker());
    if (!keys.ok()) return keys.status();
    const auto step = self_->steps()->StartStep(step_id);
    if (!step.ok()) return step.status();
    absl::Status done = MeasureStep(work, step->get(), *keys);
    self_->steps()->CleanupStep(step_id);
    return done;
  }

  absl::Status MeasureStep(const Work& work, Rendezvous* step, const TensorKeyPrefix& keys) {
    Receiving receiving(step, keys, work.bytes, line_.timeout);
    auto first = receiving.Receive(1, 1);
    if (!first.ok()) return first.status();
    if (rows_.empty()) first_ms_ = static_cast<double>(first->all_ns) / 1e6;
    auto pulls = receiving.Receive(work.pulls, 1);
    if (!pulls.ok()) return pulls.status();
    const auto delivered = receiving.Receive(work.delivers, kAtOnce);
    if (!delivered.ok()) return delivered.status();
    Figures row;
    row.bytes = work.bytes;
    row.p50_us = Quantile(&pulls->each_ns, 0.5);
    row.p99_us = Quantile(&pulls->each_ns, 0.99);
    row.per_s = 1e9 * static_cast<double>(delivered->each_ns.size()) /
                static_cast<double>(delivered->all_ns);
    rows_.push_back(row);
    return absl::OkStatus();
  }

  const CommandLine& line_;
  const std::string peer_;
  Server* const self_;
  const bool show_;
  absl::BitGen random_;
  double first_ms_ = 0;
  std::vector<Figures> rows_;
};

}  // namespace

int RunBench(const CommandLine& line, Server* self) {
  int exit = kExitDone;
  {
    Bench bench(line, self);
    const absl::Status done = bench.Run();
    exit = done.ok() ? Print(line.json ? bench.Json() : bench.Text(), line.json) : Fail(done);
  }
  const absl::Status stopped = self->Stop(line.config.stop_deadline);
  return stopped.ok() ? exit : Fail(stopped);
}

}  // namespace tryst
