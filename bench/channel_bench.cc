// Measures tensors through a channel and, by turns in the same run, the raw sockets under it.
//
//   channel_bench [--json FILE] [--rounds N] [--quick] [--only FIGURE]
//
// pull      the time to fetch 8 bytes that were sent before; both sides poll
// delivery  bytes a second into the caller's memory, with eight fetches outstanding
// eager     processor time of a pull, both ends together, with the bytes inside the message and
// with
//           a write of their own. It shows from which size a write is cheaper. Processor time,
//           because a busy machine falsifies wall time.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/mutex.h"
#include "bench/flags.h"
#include "bench/raw_sockets.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/ibv/ibv_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

using OpenNic = std::function<std::unique_ptr<Nic>()>;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ProcessorTime() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::unique_ptr<Nic> OpenSoft() {
  auto nic = OpenSoftNic(SoftNicOptions());
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

std::unique_ptr<Nic> OpenIbv() {
  auto nic = OpenIbvNic(IbvNicOptions());
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

// Fetches tensors of one size, a fixed number at a time, and times them. Which fetch comes
// next is decided where the last one ended: on the consumer's poller thread.
class Load {
 public:
  Load(WorkerPair* pair, uint64_t bytes, int in_flight, bool into_place)
      : pair_(pair), key_(WorkerPair::Key(absl::StrCat("edge", bytes))), in_flight_(in_flight) {
    const TensorShape shape = *TensorShape::Make({static_cast<int64_t>(bytes)});
    for (int i = 0; i < in_flight; ++i) {
      sources_.push_back(*Tensor::Allocate(DType::kUint8, shape));
      std::fill_n(static_cast<uint8_t*>(sources_.back().mutable_data()), bytes, 1);
      places_.push_back(RecvArgs());
      if (!into_place) continue;
      places_.back().destination = *Tensor::Allocate(DType::kUint8, shape);
      std::fill_n(static_cast<uint8_t*>(places_.back().destination.mutable_data()), bytes, 2);
    }
  }

  // Seconds for `count` tensors.
  double Run(int count) {
    Send(count);
    const double begin = Now();
    StartSome();
    MutexLock lock(&mu_);
    while (to_end_ > 0) ended_.Wait(&mu_);
    return Now() - begin;
  }

  // Returns seconds of processor time; this thread turns both ends.
  double RunHere(int count) {
    Send(count);
    const double begin = ProcessorTime();
    StartSome();
    while (left() > 0) pair_->Turn();
    return ProcessorTime() - begin;
  }

 private:
  void Send(int count) {
    for (int i = 0; i < count; ++i) {
      const absl::Status sent = pair_->step()->Send(
          key_, SendArgs(), sources_[static_cast<size_t>(i % in_flight_)], false);
      TRYST_CHECK(sent.ok()) << sent;
    }
    MutexLock lock(&mu_);
    to_end_ = count;
    to_start_ = std::max(0, count - in_flight_);
  }
  void StartSome() {
    for (int i = 0, count = std::min(in_flight_, left()); i < count; ++i) {
      Start(static_cast<size_t>(i));
    }
  }
  int left() {
    MutexLock lock(&mu_);
    return to_end_;
  }
  void Start(size_t place) {
    pair_->consumer()->Fetch(1, key_, places_[place], [this, place](Received&& received) {
      OnDone(place, received.status);
    });
  }
  void OnDone(size_t place, const absl::Status& status) {
    TRYST_CHECK(status.ok()) << status;
    bool more = false;
    {
      MutexLock lock(&mu_);
      if (--to_end_ == 0) ended_.NotifyOne();
      more = to_start_ > 0;
      if (more) --to_start_;
    }
    if (more) Start(place);
  }

  WorkerPair* const pair_;
  const TensorKey key_;
  const int in_flight_;
  std::vector<Tensor> sources_;
  std::vector<RecvArgs> places_;
  Mutex mu_;
  CondVar ended_;
  int to_start_ ABSL_GUARDED_BY(mu_) = 0;
  int to_end_ ABSL_GUARDED_BY(mu_) = 0;
};

WorkerPairOptions PairOver(const OpenNic& open, std::function<void(TransportsOptions*)> adjust) {
  WorkerPairOptions options;
  options.open_nic = open;
  options.adjust = std::move(adjust);
  options.spin_us = 300;  // The pair that is not measured now sleeps.
  options.traced = false;
  return options;
}

// Raw sockets instead of channels, with a spinning thread for each end.
class Raw {
 public:
  explicit Raw(uint64_t bytes) : bytes_(bytes), sockets_(RawSockets::Kind::kTcp) {
    for (auto& memory : memory_) memory.assign(bytes * kPlaces, 1);
  }
  double Pull(int count) {
    return Both([&] { sockets_.PingPong(true, memory_[0].data(), bytes_, count); },
                [&] { sockets_.PingPong(false, memory_[1].data(), bytes_, count); });
  }
  double Stream(int count) {
    return Both([&] { sockets_.SendAll(memory_[0].data(), bytes_, kPlaces, count); },
                [&] { sockets_.ReceiveAll(memory_[1].data(), bytes_, kPlaces, count); });
  }

 private:
  static constexpr int kPlaces = 8;
  static double Both(const std::function<void()>& one, const std::function<void()>& other) {
    const double begin = Now();
    std::thread thread(other);
    one();
    thread.join();
    return Now() - begin;
  }
  const uint64_t bytes_;
  RawSockets sockets_;
  std::vector<uint8_t> memory_[2];
};

class Report {
 public:
  void Add(const std::string& figure, const std::string& system, uint64_t bytes,
           const std::vector<double>& values, const std::string& unit) {
    absl::StrAppend(&lines_, "{\"figure\":\"", figure, "\",\"system\":\"", system,
                    "\",\"size_bytes\":", bytes, ",\"value\":", Median(values), ",\"unit\":\"",
                    unit, "\",\"min\":", *std::min_element(values.begin(), values.end()),
                    ",\"max\":", *std::max_element(values.begin(), values.end()),
                    ",\"runs\":", values.size(), "}\n");
    absl::PrintF("%-10s %9d B  %-24s %10.3f %s\n", figure, bytes, system, Median(values), unit);
    fflush(stdout);
  }
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

struct Subject {
  std::string name;
  std::function<double()> run;  // Returns the value of one round.
};

// Measures all subjects by turns, so that a slow spell of the machine hits all of them. Also
// compares each later subject with the first, always between measurements that follow each other.
void Measure(const std::string& figure, uint64_t bytes, const std::string& unit, int rounds,
             const std::vector<Subject>& subjects, Report* report) {
  std::vector<std::vector<double>> values(subjects.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      const double value = subjects[i].run();
      if (round >= 0) values[i].push_back(value);  // The first round only warms up.
    }
  }
  for (size_t i = 0; i < subjects.size(); ++i) {
    report->Add(figure, subjects[i].name, bytes, values[i], unit);
    if (i == 0) continue;
    std::vector<double> ratios;
    for (size_t r = 0; r < values[i].size(); ++r) ratios.push_back(values[i][r] / values[0][r]);
    report->Add(absl::StrCat(figure, "_to_", subjects[0].name), subjects[i].name, bytes, ratios,
                "ratio");
  }
}

void MeasurePull(int rounds, bool quick, Report* report) {
  const int count = quick ? 1000 : 10'000;
  WorkerPair pair(PairOver(OpenSoft, nullptr));
  Load load(&pair, 8, 1, /*into_place=*/false);
  Raw raw(8);
  Measure("pull", 8, "us", rounds,
          {{"raw_tcp", [&] { return raw.Pull(count) / count * 1e6; }},
           {"channel_soft", [&] { return load.Run(count) / count * 1e6; }}},
          report);
}

void MeasureDelivery(int rounds, bool quick, Report* report) {
  for (uint64_t bytes : {uint64_t{1} << 20, uint64_t{16} << 20}) {
    const uint64_t total = quick ? uint64_t{256} << 20 : uint64_t{1} << 30;
    const int count = static_cast<int>(total / bytes);
    const auto rate = [&](double seconds) { return static_cast<double>(total) / seconds / 1e6; };
    Raw raw(bytes);
    WorkerPair with(PairOver(OpenSoft, nullptr));
    WorkerPair without(
        PairOver(OpenSoft, [](TransportsOptions* pool) { pool->link.digests = false; }));
    Load with_load(&with, bytes, 8, /*into_place=*/true);
    Load without_load(&without, bytes, 8, /*into_place=*/true);
    Load landing_load(&without, bytes, 8, /*into_place=*/false);
    Measure("delivery", bytes, "MB/s", rounds,
            {{"raw_tcp", [&] { return rate(raw.Stream(count)); }},
             {"channel_soft", [&] { return rate(with_load.Run(count)); }},
             {"channel_soft_no_digests", [&] { return rate(without_load.Run(count)); }},
             {"channel_soft_landing", [&] { return rate(landing_load.Run(count)); }}},
            report);
  }
}

void MeasureEager(const std::string& nic, const OpenNic& open, int rounds, bool quick,
                  Report* report) {
  const auto pair_with = [&](uint64_t eager_bytes) {
    WorkerPairOptions options = PairOver(open, [eager_bytes](TransportsOptions* pool) {
      pool->link.message_bytes = 128 << 10;
      pool->eager_bytes = eager_bytes;
      pool->heartbeat_ms = 10'000;
      pool->silence_ms = 60'000;
    });
    options.threads = false;
    return std::make_unique<WorkerPair>(options);
  };
  const auto eager = pair_with(1 << 20);
  const auto direct = pair_with(0);
  const int pulls = quick ? 500 : 4000;
  for (uint64_t bytes = 256; bytes <= 64 << 10; bytes *= 2) {
    for (int in_flight : {1, 16}) {
      Load eager_load(eager.get(), bytes, in_flight, /*into_place=*/true);
      Load direct_load(direct.get(), bytes, in_flight, /*into_place=*/true);
      const auto each = [&](Load* load) { return load->RunHere(pulls) / pulls * 1e6; };
      Measure(absl::StrCat("eager_", in_flight), bytes, "us", rounds,
              {{absl::StrCat("direct_", nic), [&] { return each(&direct_load); }},
               {absl::StrCat("eager_", nic), [&] { return each(&eager_load); }}},
              report);
    }
  }
}

int Run(const BenchFlags& flags) {
  const int rounds = flags.rounds;
  const bool quick = flags.quick;
  Report report;
  if (flags.Wants("pull")) MeasurePull(rounds, quick, &report);
  if (flags.Wants("delivery")) MeasureDelivery(rounds, quick, &report);
  if (flags.Wants("eager")) {
    MeasureEager("soft", OpenSoft, rounds, quick, &report);
    const auto device = OpenIbvNic(IbvNicOptions());
    if (device.ok()) {
      MeasureEager("ibv", OpenIbv, rounds, quick, &report);
    } else {
      printf("no RDMA device: %s\n", std::string(device.status().message()).c_str());
    }
  }
  return WriteLines(flags.json_file, report.lines()) ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::BenchFlags flags;
  if (!tryst::ParseBenchFlags(argc, argv, &flags)) return 2;
  return tryst::Run(flags);
}
