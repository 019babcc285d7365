#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/doctor/checks.h"
#include "tests/doubles/server/seeded_host.h"
#include "tests/doubles/server/test_certificates.h"

namespace tryst {
namespace {

constexpr char kPort[] = "/sys/class/infiniband/mlx5_0/ports/1";
constexpr char kGpu[] = "/sys/bus/pci/devices/0000:3e:00.0";

struct Seed {
  const char* check;
  Weight weight;
  const char* seen;  // A part of the finding's text.
  std::function<void(SeededHost*)> put_wrong;
};

void WithRdma(SeededHost* host) { host->AddRdmaDevice(); }

std::function<void(SeededHost*)> RdmaPortHas(const std::string& file, const std::string& text) {
  return [file, text](SeededHost* host) {
    host->AddRdmaDevice();
    host->Write(absl::StrCat(kPort, "/", file), text);
  };
}

std::function<void(SeededHost*)> Writes(const std::string& path, const std::string& text) {
  return [path, text](SeededHost* host) { host->Write(path, text); };
}

std::function<void(SeededHost*)> GpuAndNic(std::function<void(SeededHost*)> then) {
  return [then](SeededHost* host) {
    host->AddRdmaDevice();
    host->AddGpu();
    then(host);
  };
}

// A NIC on the first of two NUMA nodes of eight processors each.
std::function<void(SeededHost*)> TwoNodes(const std::string& pollers) {
  return [=](SeededHost* host) {
    host->AddRdmaDevice();
    host->Write("/sys/devices/system/node/node0/cpulist", "0-7");
    host->Write("/sys/devices/system/node/node1/cpulist", "8-15");
    host->config.pollers = pollers;
  };
}

void AddTls(SeededHost* host) { host->AddCertificates("tryst://tryst/job:worker"); }

std::function<void(SeededHost*)> TlsAt(absl::Duration from_now) {
  return [from_now](SeededHost* host) {
    AddTls(host);
    host->calls.now = [from_now] { return absl::Now() + from_now; };
  };
}

std::vector<Seed> RdmaSeeds() {
  using W = Weight;
  return {
      {"rdma-device", W::kFault, "no RDMA device", [](SeededHost* h) { h->config.nic = "ibv"; }},
      {"rdma-device", W::kNote, "no RDMA device", [](SeededHost*) {}},
      {"rdma-library", W::kWarning, "libibverbs.so.1 is not",
       [](SeededHost* h) {
         WithRdma(h);
         h->Remove("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
       }},
      {"rdma-library", W::kFault, "libibverbs.so.1 is not",
       [](SeededHost* h) {
         WithRdma(h);
         h->config.nic = "ibv";
         h->Remove("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
       }},
      {"rdma-library-twice", W::kWarning, "/opt/ofed/libibverbs.so.1, /usr/lib",
       [](SeededHost* h) {
         WithRdma(h);
         h->environment["LD_LIBRARY_PATH"] = "/opt/ofed";
         h->Write("/opt/ofed/libibverbs.so.1", "");
       }},
      {"rdma-libfabric", W::kFault, "libfabric.so.1 is not here",
       [](SeededHost* h) { h->config.nic = "ofi:tcp"; }},
      {"rdma-libfabric", W::kFault, "ofi:efa", [](SeededHost* h) { h->config.nic = "ofi:pigeon"; }},
      {"rdma-libfabric", W::kNote, "tcp;ofi_rxm",
       [](SeededHost* h) {
         h->config.nic = "ofi:tcp";
         h->Write("/usr/lib/x86_64-linux-gnu/libfabric.so.1", "");
       }},
      {"rdma-provider", W::kWarning, "mlx5.driver",
       [](SeededHost* h) {
         WithRdma(h);
         h->Remove("/etc/libibverbs.d/mlx5.driver");
         h->Write("/etc/libibverbs.d/rxe.driver", "driver rxe");
       }},
      {"rdma-uverbs", W::kWarning, "no /dev/infiniband/uverbs",
       [](SeededHost* h) {
         WithRdma(h);
         h->Remove("/dev/infiniband");
       }},
      {"rdma-permission", W::kWarning, "/dev/infiniband/uverbs0 may not",
       [](SeededHost* h) {
         WithRdma(h);
         h->calls.may_read_and_write = [](const std::string&) { return false; };
       }},
      {"rdma-port-down", W::kWarning, "mlx5_0:1 is DOWN", RdmaPortHas("state", "1: DOWN")},
      {"rdma-cable", W::kWarning, "Polling", RdmaPortHas("phys_state", "2: Polling")},
      {"rdma-subnet-manager", W::kWarning, "INIT",
       [](SeededHost* h) {
         RdmaPortHas("state", "2: INIT")(h);
         h->Write(absl::StrCat(kPort, "/link_layer"), "InfiniBand");
       }},
      {"rdma-gid-missing", W::kWarning, "GID table is empty",
       [](SeededHost* h) {
         WithRdma(h);
         h->Remove(absl::StrCat(kPort, "/gids"));
       }},
      {"rdma-roce-version", W::kWarning, "RoCE v1 only",
       [](SeededHost* h) {
         RdmaPortHas("gid_attrs/types/0", "IB/RoCE v1")(h);
         h->Write(absl::StrCat(kPort, "/gid_attrs/types/1"), "IB/RoCE v1");
       }},
      {"rdma-gid-link-local", W::kWarning, "link-local",
       [](SeededHost* h) {
         WithRdma(h);
         h->Remove(absl::StrCat(kPort, "/gids/1"));
       }},
      {"rdma-gid-index", W::kWarning, "RDMA_GID_INDEX=2",
       [](SeededHost* h) {
         WithRdma(h);
         h->environment["RDMA_GID_INDEX"] = "2";
       }},
      {"rdma-device-name", W::kFault, "RDMA_DEVICE=mlx5_9",
       [](SeededHost* h) {
         WithRdma(h);
         h->environment["RDMA_DEVICE"] = "mlx5_9";
       }},
      {"rdma-settings", W::kFault, "RDMA_",
       [](SeededHost* h) { h->environment["RDMA_GID_INDEX"] = "three"; }},
      {"rdma-mtu", W::kWarning, "MTU is 576",
       [](SeededHost* h) {
         WithRdma(h);
         h->Write("/sys/class/net/eth0/mtu", "576");
       }},
      {"rdma-mtu", W::kNote, "MTU is 1500",
       [](SeededHost* h) {
         WithRdma(h);
         h->Write("/sys/class/net/eth0/mtu", "1500");
       }},
      {"rdma-speed", W::kWarning, "25 Gb/sec (1X EDR)",
       [](SeededHost* h) {
         RdmaPortHas("rate", "25 Gb/sec (1X EDR)")(h);
         h->Write(absl::StrCat(kPort, "/link_layer"), "InfiniBand");
       }},
      {"rdma-errors", W::kWarning, "packet_seq_err=4711",
       RdmaPortHas("hw_counters/packet_seq_err", "4711")},
      {"rdma-network-namespace", W::kWarning, "network namespace",
       Writes("/sys/module/ib_core/parameters/netns_mode", "N")},
      {"rdma-cgroup", W::kWarning, "mlx5_0 hca_handle=2",
       Writes("/sys/fs/cgroup/app/rdma.max", "mlx5_0 hca_handle=2 hca_object=2000")},
  };
}

std::vector<Seed> GpuSeeds() {
  using W = Weight;
  return {
      {"gpu-module", W::kWarning, "not loaded",
       GpuAndNic([](SeededHost* h) { h->Remove("/proc/driver/nvidia"); })},
      {"gpu-library", W::kWarning, "no libcuda.so.1",
       GpuAndNic([](SeededHost* h) { h->Remove("/usr/lib/x86_64-linux-gnu/libcuda.so.1"); })},
      {"gpu-versions", W::kFault, "570.1.1", GpuAndNic([](SeededHost* h) {
         h->Write("/usr/lib/x86_64-linux-gnu/libcuda.so.570.1.1", "");
         h->Link("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.570.1.1");
       })},
      {"gpu-stub", W::kFault, "/cuda/lib64/stubs", GpuAndNic([](SeededHost* h) {
         h->environment["LD_LIBRARY_PATH"] = "/cuda/lib64/stubs";
         h->Write("/cuda/lib64/stubs/libcuda.so.1", "");
       })},
      {"gpu-permission", W::kWarning, "/dev/nvidiactl", GpuAndNic([](SeededHost* h) {
         h->calls.may_read_and_write = [](const std::string& path) {
           return !absl::EndsWith(path, "nvidiactl");
         };
       })},
      {"gpu-hidden", W::kNote, "CUDA_VISIBLE_DEVICES",
       GpuAndNic([](SeededHost* h) { h->environment["CUDA_VISIBLE_DEVICES"] = ""; })},
      {"gpu-dma-buf", W::kNote, "closed one", GpuAndNic([](SeededHost* h) {
         h->Write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  580.65.06");
         h->Write("/sys/module/nvidia_peermem/refcnt", "1");
       })},
      {"gpu-peer-memory", W::kWarning, "neither dma-buf nor",
       GpuAndNic([](SeededHost* h) { h->Write("/proc/sys/kernel/osrelease", "5.4.0"); })},
      {"gpu-bar1", W::kWarning, "256 MiB", GpuAndNic([](SeededHost* h) {
         h->Write(absl::StrCat(kGpu, "/resource"),
                  "0x0 0x0 0x0\n0x0000000090000000 0x000000009fffffff 0x000000000014220c");
       })},
      {"gpu-iommu", W::kWarning, "IOMMU translates",
       GpuAndNic([](SeededHost* h) { h->Write("/sys/class/iommu/dmar0/x", ""); })},
      {"gpu-nic-distance", W::kWarning, "0000:3e:00.0 has no near NIC",
       GpuAndNic([](SeededHost* h) {
         const std::string far = "/sys/devices/pci0000:80/0000:80:00.0/0000:81:00.0";
         h->Write(far + "/numa_node", "1");
         h->Link("/sys/class/infiniband/mlx5_0/device", h->root() + far);
       })},
      {"gpu-direct", W::kWarning, "staging; dma-buf: refused", GpuAndNic([](SeededHost* h) {
         h->calls.prove_direct = [] {
           return std::vector<HostCalls::DirectPair>{
               {"GPU 0 and mlx5_0: staging; dma-buf: refused", false}};
         };
       })},
  };
}

std::vector<Seed> MachineSeeds() {
  using W = Weight;
  return {
      {"locked-memory", W::kWarning, "64 KiB",
       [](SeededHost* h) {
         WithRdma(h);
         h->Write("/proc/self/limits", "Max locked memory         65536   65536   bytes");
       }},
      {"cgroup-memory", W::kWarning, "256 MiB",
       Writes("/sys/fs/cgroup/app/memory.max", "268435456")},
      {"cgroup-memory", W::kWarning, "128 MiB",  // The limit is set for the parent of our folder.
       Writes("/sys/fs/cgroup/memory.max", "134217728")},
      {"free-memory", W::kWarning, "100 MiB", Writes("/proc/meminfo", "MemAvailable: 102400 kB")},
      {"shared-memory-missing", W::kWarning, "/dev/shm is not there",
       [](SeededHost* h) { h->Remove("/dev/shm"); }},
      {"shared-memory-size", W::kNote, "64 MiB",
       [](SeededHost* h) {
         h->calls.file_system_bytes = [](const std::string&) { return uint64_t{64} << 20; };
       }},
      {"huge-pages", W::kNote, "no huge pages",
       Writes("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]")},
      {"overcommit", W::kWarning, "is 2", Writes("/proc/sys/vm/overcommit_memory", "2")},
      {"map-count", W::kWarning, "1024", Writes("/proc/sys/vm/max_map_count", "1024")},
      {"numa-balancing", W::kNote, "is on",
       [](SeededHost* h) {
         h->Write("/sys/devices/system/node/node1/cpulist", "8-15");
         h->Write("/proc/sys/kernel/numa_balancing", "1");
       }},
      {"open-files", W::kWarning, "256",
       Writes("/proc/self/limits", "Max open files            256     4096    files")},
      {"tasks", W::kWarning, "allows 32", Writes("/sys/fs/cgroup/app/pids.max", "32")},
      {"cpu-quota", W::kWarning, "0.50 of a CPU",
       Writes("/sys/fs/cgroup/app/cpu.max", "50000 100000")},
      {"cpu-throttled", W::kWarning, "300 of 1000",
       Writes("/sys/fs/cgroup/app/cpu.stat", "usage_usec 9\nnr_periods 1000\nnr_throttled 300")},
      {"cpu-count", W::kNote, "one CPU",
       [](SeededHost* h) { h->calls.usable_cpus = [] { return 1; }; }},
      {"pollers", W::kWarning, "pollers asks for 20, and 16 will run",
       [](SeededHost* h) { h->config.pollers = "20"; }},
      {"pollers", W::kWarning, "pollers asks for 2, and 1 will run",
       [](SeededHost* h) {
         h->config.gpus = "all";
         h->config.pollers = "2";
       }},
      {"pollers", W::kNote, "pollers is 1, and 16 processors",
       [](SeededHost* h) { h->config.pollers = "1"; }},
      {"poller-numa", W::kNote, "pollers are not bound", TwoNodes("auto")},
      {"poller-numa", W::kWarning, "pollers names 8,9, on another", TwoNodes("cpus:6-9")},
      {"seccomp", W::kNote, "seccomp", Writes("/proc/self/status", "Seccomp:\t2")},
      {"clock-source", W::kWarning, "hpet",
       Writes("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")},
      {"clock-set", W::kNote, "no time service",
       [](SeededHost* h) { h->calls.clock_is_synchronised = [] { return false; }; }},
      {"cpu-governor", W::kWarning, "powersave",
       Writes("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")},
      {"crc32c", W::kWarning, "CRC32C",
       [](SeededHost* h) { h->calls.has_crc32c_instruction = [] { return false; }; }},
      {"ptrace-scope", W::kNote, "is 2", Writes("/proc/sys/kernel/yama/ptrace_scope", "2")},
      {"pid-namespace", W::kNote, "pid namespace",
       [](SeededHost* h) { h->Link("/proc/self/ns/pid", "pid:[4026532999]"); }},
      {"user-namespace", W::kNote, "user namespace",
       [](SeededHost* h) { h->Link("/proc/self/ns/user", "user:[4026532998]"); }},
      {"boot-id", W::kWarning, "boot_id",
       [](SeededHost* h) { h->Remove("/proc/sys/kernel/random/boot_id"); }},
      {"sealed-memory", W::kWarning, "EPERM of the test",
       [](SeededHost* h) {
         h->calls.seal_memory = [] { return absl::UnavailableError("EPERM of the test"); };
       }},
      {"region-grants", W::kNote, "EPERM of the test",
       [](SeededHost* h) {
         h->calls.be_read = [] { return absl::UnavailableError("EPERM of the test"); };
       }},
  };
}

std::vector<Seed> NetworkSeeds() {
  using W = Weight;
  return {
      {"listen-taken", W::kFault, "127.0.0.1:2222: taken",
       [](SeededHost* h) {
         h->calls.try_listen = [](const std::string&) { return absl::UnavailableError("taken"); };
       }},
      {"listen-taken", W::kNote, "/job:ps/replica:0/task:3 runs here already",
       [](SeededHost* h) {
         h->config.job = "ps";
         h->config.task = 3;
         h->calls.try_listen = [](const std::string&) { return absl::UnavailableError("taken"); };
         h->calls.who_answers = [](const std::string&) { return "/job:ps/replica:0/task:3"; };
       }},
      {"ephemeral-port", W::kNote, "port 40000",
       [](SeededHost* h) { h->config.listen = "127.0.0.1:40000"; }},
      {"tcp-buffers", W::kWarning, "tcp_rmem allows 212992",
       Writes("/proc/sys/net/ipv4/tcp_rmem", "4096 87380 212992")},
      {"backlog", W::kWarning, "is 16", Writes("/proc/sys/net/core/somaxconn", "16")},
      {"proxy-variables", W::kWarning, "http_proxy=http://proxy:3128",
       [](SeededHost* h) { h->environment["http_proxy"] = "http://proxy:3128"; }},
      {"loopback", W::kFault, "loopback interface is down",
       Writes("/sys/class/net/lo/flags", "0x8")},
      {"host-name", W::kWarning, "node7, leads to 127.0.1.1",
       [](SeededHost* h) {
         h->config.listen = "0.0.0.0:2222";
         h->calls.resolve = [](const std::string&) {
           return std::vector<std::string>{"127.0.1.1"};
         };
       }},
      {"advertise", W::kWarning, "localhost:2222",
       [](SeededHost* h) {
         h->config.listen = "0.0.0.0:2222";
         h->config.advertise = "localhost:2222";
       }},
      {"conntrack", W::kWarning, "64000 of at most 65536",
       [](SeededHost* h) {
         h->Write("/proc/sys/net/netfilter/nf_conntrack_max", "65536");
         h->Write("/proc/sys/net/netfilter/nf_conntrack_count", "64000");
       }},
      {"duplex", W::kWarning, "eth0 runs in half duplex",
       [](SeededHost* h) {
         h->Write("/sys/class/net/eth0/duplex", "half");
         h->Write("/sys/class/net/eth0/operstate", "up");
       }},
  };
}

std::vector<Seed> SecuritySeeds() {
  using W = Weight;
  return {
      {"security-mode", W::kFault, "0 ways", [](SeededHost* h) { h->config.insecure = false; }},
      {"certificate-unreadable", W::kFault, "/etc/tryst/cert.pem is no certificate",
       [](SeededHost* h) {
         AddTls(h);
         h->Remove("/etc/tryst/cert.pem");
         h->Write("/etc/tryst/cert.pem", "not PEM");
       }},
      {"certificate-unreadable", W::kFault, "/etc/tryst/key.pem is not there",
       [](SeededHost* h) {
         AddTls(h);
         h->Remove("/etc/tryst/key.pem");
       }},
      {"certificate-time", W::kFault, "expired on", TlsAt(absl::Hours(24 * 30))},
      {"certificate-time", W::kFault, "is not valid before", TlsAt(-absl::Hours(48))},
      {"certificate-time", W::kWarning, "expires on", TlsAt(absl::ZeroDuration())},
      {"certificate-key", W::kFault, "is not the key of",
       [](SeededHost* h) {
         const std::string key = h->root() + "/etc/tryst/key.pem";
         AddTls(h);
         std::filesystem::rename(key, key + ".first");
         const std::string cert = h->root() + "/etc/tryst/cert.pem";
         std::filesystem::rename(cert, cert + ".first");
         AddTls(h);  // It makes a second pair, whose key does not belong to the first certificate.
         std::filesystem::rename(cert + ".first", cert);
       }},
      {"certificate-signer", W::kWarning, "was not signed by",
       [](SeededHost* h) {
         AddTls(h);
         std::filesystem::create_directories(h->root() + "/other");
         TestAuthority().Write(h->root() + "/other", "tryst://tryst");
         h->config.ca_file = "/other/ca.pem";
       }},
      {"certificate-name", W::kFault, "names tryst://tryst/job:ps, not /job:worker",
       [](SeededHost* h) { h->AddCertificates("tryst://tryst/job:ps"); }},
      {"secret-permissions", W::kWarning, "(mode 0644)",
       [](SeededHost* h) {
         h->config.insecure = false;
         h->config.token_file = "/etc/token";
         h->Write("/etc/token", "0123456789abcdef0123");
         std::filesystem::permissions(h->root() + "/etc/token", std::filesystem::perms{0644});
       }},
      {"token", W::kFault, "holds 5 bytes",
       [](SeededHost* h) {
         h->config.insecure = false;
         h->config.token_file = "/etc/token";
         h->Write("/etc/token", "short");
       }},
      {"insecure-anywhere", W::kWarning, "insecure_anywhere",
       [](SeededHost* h) { h->config.insecure_anywhere = true; }},
      {"encrypt-off", W::kWarning, "encrypt=off",
       [](SeededHost* h) {
         h->AddCertificates("tryst://tryst/job:worker");
         h->config.encrypt = "off";
       }},
      {"nic-in-the-clear", W::kFault, "nic=ibv encrypts nothing",
       [](SeededHost* h) {
         h->AddCertificates("tryst://tryst/job:worker");
         h->config.nic = "ibv";
       }},
      {"limits", W::kFault, "add up to more",
       [](SeededHost* h) { h->config.memory_bytes = 1 << 20; }},
  };
}

std::vector<Seed> AllSeeds() {
  std::vector<Seed> all;
  for (const auto& seeds :
       {RdmaSeeds(), GpuSeeds(), MachineSeeds(), NetworkSeeds(), SecuritySeeds()}) {
    all.insert(all.end(), seeds.begin(), seeds.end());
  }
  return all;
}

TEST(DoctorTest, FindsEachThingThatIsPutWrong) {
  for (const Seed& seed : AllSeeds()) {
    SCOPED_TRACE(absl::StrCat(seed.check, ": ", seed.seen));
    SeededHost host;
    seed.put_wrong(&host);
    const Report report = Examine(host.Make());
    bool found = false;
    for (const Finding& finding : report.findings()) {
      found = found || (finding.check == seed.check && finding.weight == seed.weight &&
                        absl::StrContains(finding.seen, seed.seen) && !finding.means.empty() &&
                        !finding.action.empty());
    }
    EXPECT_TRUE(found) << report.ToText(false);
  }
}

TEST(DoctorTest, EveryCheckIsReached) {
  std::set<std::string> reached;
  for (const Seed& seed : AllSeeds()) reached.insert(seed.check);
  for (const Check& check : AllChecks()) {
    EXPECT_EQ(reached.count(check.name), 1U) << check.name << " has no seed";
  }
  EXPECT_GE(AllChecks().size(), 40U);
}

// A seeded fault must be the only finding, except where one fault implies another.
TEST(DoctorTest, AHealthyMachineGivesNoAlarm) {
  const std::vector<std::function<void(SeededHost*)>> healthy = {
      [](SeededHost*) {}, WithRdma, GpuAndNic([](SeededHost*) {}),
      [](SeededHost* h) { h->AddGpu(); },
      [](SeededHost* h) {
        h->config.listen = "0.0.0.0:2222";
        h->environment["http_proxy"] = "http://proxy:3128";
        h->environment["no_proxy"] = ".cluster";
      }};
  for (size_t i = 0; i < healthy.size(); ++i) {
    SeededHost host;
    healthy[i](&host);
    const Report report = Examine(host.Make());
    EXPECT_FALSE(report.Has(Weight::kFault) || report.Has(Weight::kWarning))
        << "machine " << i << "\n"
        << report.ToText(false);
  }
}

TEST(DoctorTest, AnEmptyRootHoldsNoSurprise) {
  SeededHost host;
  for (const char* folder : {"/proc", "/sys", "/dev"}) host.Remove(folder);
  const Report report = Examine(host.Make());
  EXPECT_FALSE(report.Has(Weight::kFault)) << report.ToText(false);
}

TEST(DoctorTest, ThisMachineIsExaminedWithinThreeSeconds) {
  const absl::Time before = absl::Now();
  ServerConfig config;
  config.insecure = true;
  const Report report = Examine(Host("", ProcessEnvironment(), config, RealHostCalls()));
  EXPECT_LT(absl::Now() - before, absl::Seconds(3));
  EXPECT_EQ(report.checks(), static_cast<int>(AllChecks().size()));
  EXPECT_FALSE(report.Has(Weight::kFault)) << report.ToText(false);
}

TEST(DoctorTest, JsonQuotesWhatItSaw) {
  Report report;
  report.Begin("a-check");
  report.Warn("a \"quoted\"\nline", "back\\slash", "type");
  EXPECT_EQ(report.ToJson(),
            "{\"checks\": 1, \"findings\": [\n {\"check\": \"a-check\", \"weight\": \"warning\", "
            "\"seen\": \"a \\\"quoted\\\"\\u000aline\", \"means\": \"back\\\\slash\", "
            "\"action\": \"type\"}\n]}\n");
}

}  // namespace
}  // namespace tryst
