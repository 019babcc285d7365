#include "tests/doubles/server/seeded_host.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "tests/doubles/server/test_certificates.h"

namespace tryst {
namespace {

constexpr char kSwitch[] = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:0";

}  // namespace

SeededHost::SeededHost()
    : root_((std::filesystem::temp_directory_path() / "doctorXXXXXX").string()) {
  TRYST_CHECK(mkdtemp(&root_[0]) != nullptr);
  std::filesystem::create_directories(root_ + "/dev/shm");
  Write("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max locked memory         unlimited            unlimited            bytes\n"
        "Max open files            65536                65536                files\n");
  Write("/proc/self/cgroup", "0::/app\n");
  Write("/proc/self/status", "Name:\ttryst\nSeccomp:\t0\n");
  Write("/proc/meminfo", "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n");
  Write("/proc/cmdline", "quiet");
  Write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64");
  Write("/proc/sys/kernel/random/boot_id", "9e3f");
  Write("/proc/sys/kernel/yama/ptrace_scope", "0");
  Write("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999");
  Write("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456");
  Write("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304");
  Write("/proc/sys/net/core/somaxconn", "4096");
  Write("/proc/sys/vm/max_map_count", "65530");
  Write("/sys/class/net/lo/flags", "0x9");
  Write("/sys/class/net/eth0/mtu", "9000");
  Write("/sys/fs/cgroup/app/memory.max", "max");
  Link("/proc/self/ns/pid", "pid:[4026531836]");
  Link("/proc/self/ns/user", "user:[4026531837]");
  config.job = "worker";
  config.insecure = true;
  config.listen = "127.0.0.1:2222";
  calls = RealHostCalls();
  calls.file_system_bytes = [](const std::string&) { return uint64_t{8} << 30; };
  calls.may_read_and_write = [](const std::string&) { return true; };
  calls.prove_direct = [] {
    return std::vector<HostCalls::DirectPair>{{"GPU 0 and mlx5_0: dma-buf", true}};
  };
  calls.clock_is_synchronised = [] { return true; };
  calls.usable_cpus = [] { return 16; };
  calls.has_crc32c_instruction = [] { return true; };
  calls.seal_memory = [] { return absl::OkStatus(); };
  calls.be_read = [] { return absl::OkStatus(); };
  calls.try_listen = [](const std::string&) { return absl::OkStatus(); };
  calls.host_name = [] { return "node7"; };
  calls.resolve = [](const std::string&) { return std::vector<std::string>{"10.0.0.7"}; };
}

SeededHost::~SeededHost() {
  std::error_code error;
  std::filesystem::remove_all(root_, error);
}

void SeededHost::Write(const std::string& path, const std::string& text) {
  const std::filesystem::path full = root_ + path;
  std::filesystem::create_directories(full.parent_path());
  std::ofstream(full) << text << "\n";
}

void SeededHost::Link(const std::string& path, const std::string& target) {
  const std::filesystem::path full = root_ + path;
  std::filesystem::create_directories(full.parent_path());
  std::filesystem::remove(full);
  std::filesystem::create_symlink(target, full);
}

void SeededHost::Remove(const std::string& path) { std::filesystem::remove_all(root_ + path); }

void SeededHost::AddRdmaDevice() {
  const std::string nic = std::string(kSwitch) + "0.0/0000:3d:00.0";
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
  Write(nic + "/numa_node", "0");
  Link("/sys/bus/pci/devices/0000:3d:00.0", root_ + nic);
  std::filesystem::create_directories(root_ + "/sys/class/infiniband/mlx5_0");
  Link("/sys/class/infiniband/mlx5_0/device", root_ + nic);
  Link(nic + "/driver", "../../../bus/pci/drivers/mlx5_core");
  Write(port + "/state", "4: ACTIVE");
  Write(port + "/phys_state", "5: LinkUp");
  Write(port + "/rate", "100 Gb/sec (4X EDR)");
  Write(port + "/link_layer", "Ethernet");
  Write(port + "/gids/0", "fe80:0000:0000:0000:0a00:27ff:fe00:0001");
  Write(port + "/gid_attrs/types/0", "RoCE v2");
  Write(port + "/gid_attrs/ndevs/0", "eth0");
  Write(port + "/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0007");
  Write(port + "/gid_attrs/types/1", "RoCE v2");
  Write(port + "/gid_attrs/ndevs/1", "eth0");
  Write(port + "/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
  Write("/etc/libibverbs.d/mlx5.driver", "driver mlx5");
  Write("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
  Write("/dev/infiniband/uverbs0", "");
}

void SeededHost::AddGpu() {
  const std::string gpu = std::string(kSwitch) + "1.0/0000:3e:00.0";
  Write(gpu + "/numa_node", "0");
  Write(gpu + "/vendor", "0x10de");
  Write(gpu + "/class", "0x030200");
  Write(gpu + "/resource",
        "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
        "0x0000380000000000 0x0000381fffffffff 0x000000000014220c");
  Link("/sys/bus/pci/devices/0000:3e:00.0", root_ + gpu);
  Write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06");
  Write("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06", "");
  Link("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.580.65.06");
  Write("/dev/nvidiactl", "");
}

void SeededHost::AddCertificates(const std::string& uri) {
  std::filesystem::create_directories(root_ + "/etc/tryst");
  TestAuthority().Write(root_ + "/etc/tryst", uri);
  for (const char* name : {"cert.pem", "key.pem", "ca.pem"}) {
    std::filesystem::permissions(root_ + "/etc/tryst/" + name, std::filesystem::perms::owner_read);
  }
  config.insecure = false;
  config.certificate_file = "/etc/tryst/cert.pem";
  config.key_file = "/etc/tryst/key.pem";
  config.ca_file = "/etc/tryst/ca.pem";
}

}  // namespace tryst
