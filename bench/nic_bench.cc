// Measures latency and bandwidth of every NIC of this machine and, by turns in the same run, of
// the raw sockets on which the software NIC is built.
//
//   nic_bench [--json FILE] [--rounds N] [--quick] [--only round_trip|bandwidth]

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crew.h"
#include "base/log.h"
#include "bench/flags.h"
#include "bench/nic_transfer.h"
#include "bench/raw_sockets.h"
#include "verbs/ibv/ibv_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr size_t kMemoryBytes = 64 << 20;
constexpr size_t kLatencySizes[] = {8, 64, 1024, 4096, 65536};
constexpr size_t kBandwidthSizes[] = {4096, 65536, 1 << 20, 16 << 20};

// Runs two threads at once. Returns the seconds of the slower one.
double TimeBoth(const std::function<void()>& one, const std::function<void()>& other) {
  std::atomic<int> ready{0};
  const auto together = [&](const std::function<void()>& work) {
    ++ready;
    while (ready.load() < 2) {
    }
    work();
  };
  std::thread thread([&] { together(other); });
  std::chrono::steady_clock::time_point begin;
  together([&] {
    begin = std::chrono::steady_clock::now();
    one();
  });
  const auto end = std::chrono::steady_clock::now();
  thread.join();
  return std::chrono::duration<double>(end - begin).count();
}

class Subject {
 public:
  virtual ~Subject() = default;
  virtual double PingPong(size_t bytes, int rounds) = 0;  // In seconds.
  virtual double Stream(size_t bytes, int count) = 0;
};

int Places(size_t bytes) {
  return static_cast<int>(std::min<size_t>(kMemoryBytes / bytes, NicTransfer::kWindow));
}

class RawSubject final : public Subject {
 public:
  explicit RawSubject(RawSockets::Kind kind)
      : sockets_(kind),
        memory_{std::vector<uint8_t>(kMemoryBytes, 1), std::vector<uint8_t>(kMemoryBytes, 1)} {}
  double PingPong(size_t bytes, int rounds) override {
    return TimeBoth([&] { sockets_.PingPong(true, memory_[0].data(), bytes, rounds); },
                    [&] { sockets_.PingPong(false, memory_[1].data(), bytes, rounds); });
  }
  double Stream(size_t bytes, int count) override {
    return TimeBoth([&] { sockets_.SendAll(memory_[0].data(), bytes, Places(bytes), count); },
                    [&] { sockets_.ReceiveAll(memory_[1].data(), bytes, Places(bytes), count); });
  }

 private:
  RawSockets sockets_;
  std::vector<uint8_t> memory_[2];
};

class NicSubject final : public Subject {
 public:
  explicit NicSubject(const NicTransfer::OpenNic& open) : transfer_(open, kMemoryBytes) {}
  double PingPong(size_t bytes, int rounds) override {
    return TimeBoth([&] { transfer_.PingPong(true, bytes, rounds); },
                    [&] { transfer_.PingPong(false, bytes, rounds); });
  }
  double Stream(size_t bytes, int count) override {
    return TimeBoth([&] { transfer_.WriteAll(bytes, Places(bytes), count); },
                    [&] { transfer_.PollUntilWritten(); });
  }

 private:
  NicTransfer transfer_;
};

std::unique_ptr<Nic> OpenSoft(const SoftNicOptions& options) {
  auto nic = OpenSoftNic(options);
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

struct System {
  std::string name;
  std::string roofline;  // The name of the system to compare with; may be empty.
  std::unique_ptr<Subject> subject;
};

std::vector<System> OpenSystems() {
  const auto soft = [](const SoftNicOptions& options) {
    return std::make_unique<NicSubject>([options] { return OpenSoft(options); });
  };
  SoftNicOptions two_sockets;
  two_sockets.sockets_per_queue_pair = 2;
  SoftNicOptions tls;
  tls.tls = true;
  // A server has these options where there are processors for helpers.
  SoftNicOptions helped;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int helpers = std::clamp(cores / 2 - 1, 0, 6);
  if (helpers > 0) helped.UseCrew(std::make_shared<Crew>(helpers));
  SoftNicOptions helped_tls = helped;
  helped_tls.tls = true;
  SoftNicOptions unix_sockets;
  unix_sockets.listen_address = "unix:";
  std::vector<System> systems;
  systems.push_back({"raw_tcp", "", std::make_unique<RawSubject>(RawSockets::Kind::kTcp)});
  systems.push_back({"soft_tcp", "raw_tcp", soft(SoftNicOptions())});
  systems.push_back({"soft_tcp_2_sockets", "raw_tcp", soft(two_sockets)});
  systems.push_back({"soft_tls", "soft_tcp", soft(tls)});
  if (helpers > 0) {
    systems.push_back({"soft_helped", "soft_tcp", soft(helped)});
    systems.push_back({"soft_helped_tls", "soft_helped", soft(helped_tls)});
  }
  systems.push_back({"raw_unix", "", std::make_unique<RawSubject>(RawSockets::Kind::kUnix)});
  systems.push_back({"soft_unix", "raw_unix", soft(unix_sockets)});
  const auto device = OpenIbvNic(IbvNicOptions());
  if (device.ok()) {
    systems.push_back({"ibv", "", std::make_unique<NicSubject>([] {
                         auto nic = OpenIbvNic(IbvNicOptions());
                         TRYST_CHECK(nic.ok()) << nic.status();
                         return *std::move(nic);
                       })});
  } else {
    printf("no RDMA device: %s\n", std::string(device.status().message()).c_str());
  }
  return systems;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Figure {
  const char* name;
  const char* unit;
  std::function<double(Subject*, size_t bytes)> measure;
};

class Report {
 public:
  // Measures all systems by turns, so that a slow spell of the machine hits all of them.
  void Measure(const Figure& figure, size_t bytes, const std::vector<System>& systems, int rounds) {
    std::map<std::string, std::vector<double>> values;
    for (int round = -1; round < rounds; ++round) {
      for (const System& system : systems) {
        const double value = figure.measure(system.subject.get(), bytes);
        if (round >= 0) values[system.name].push_back(value);  // The first round only warms up.
      }
    }
    for (const System& system : systems) {
      const std::vector<double>& mine = values[system.name];
      Add(figure.name, system.name, bytes, mine, figure.unit);
      absl::PrintF("%-12s %9d B  %-20s %10.2f %s", figure.name, bytes, system.name, Median(mine),
                   figure.unit);
      if (!system.roofline.empty()) {
        // Compares measurements that follow each other, and not the medians.
        std::vector<double> ratios;
        const std::vector<double>& roofline = values[system.roofline];
        for (size_t i = 0; i < mine.size(); ++i) ratios.push_back(mine[i] / roofline[i]);
        Add(absl::StrCat(figure.name, "_to_", system.roofline), system.name, bytes, ratios,
            "ratio");
        absl::PrintF("   %.3f of %s", Median(ratios), system.roofline);
      }
      absl::PrintF("\n");
    }
    fflush(stdout);
  }

  const std::string& json_lines() const { return json_lines_; }

 private:
  void Add(const std::string& figure, const std::string& system, size_t bytes,
           const std::vector<double>& values, const std::string& unit) {
    absl::StrAppend(&json_lines_, "{\"figure\":\"", figure, "\",\"system\":\"", system,
                    "\",\"size_bytes\":", bytes, ",\"value\":", Median(values), ",\"unit\":\"",
                    unit, "\",\"min\":", *std::min_element(values.begin(), values.end()),
                    ",\"max\":", *std::max_element(values.begin(), values.end()),
                    ",\"runs\":", values.size(), "}\n");
  }

  std::string json_lines_;
};

int Run(const BenchFlags& flags) {
  const bool quick = flags.quick;
  const std::vector<System> systems = OpenSystems();
  Report report;
  const Figure latency = {"round_trip", "us", [quick](Subject* subject, size_t bytes) {
                            const int trips = quick ? 500 : 4000;
                            return subject->PingPong(bytes, trips) / trips * 1e6;
                          }};
  const Figure bandwidth = {
      "bandwidth", "MB/s", [quick](Subject* subject, size_t bytes) {
        const size_t total = quick ? 64 << 20 : 256 << 20;
        const int count = static_cast<int>(std::min<size_t>(total / bytes, 20000));
        return static_cast<double>(bytes) * count / subject->Stream(bytes, count) / 1e6;
      }};
  if (flags.Wants("round_trip")) {
    for (size_t bytes : kLatencySizes) report.Measure(latency, bytes, systems, flags.rounds);
  }
  if (flags.Wants("bandwidth")) {
    for (size_t bytes : kBandwidthSizes) report.Measure(bandwidth, bytes, systems, flags.rounds);
  }
  return WriteLines(flags.json_file, report.json_lines()) ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::BenchFlags flags;
  flags.rounds = 9;
  if (!tryst::ParseBenchFlags(argc, argv, &flags)) return 2;
  return tryst::Run(flags);
}
