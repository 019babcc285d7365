#ifndef TRYST_SERVER_DOCTOR_HOST_H_
#define TRYST_SERVER_DOCTOR_HOST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "server/config/config.h"

namespace tryst {

// What only a system call can answer. By default these ask this machine; tests replace them.
struct HostCalls {
  // The size of the file system that holds `path`.
  std::function<absl::StatusOr<uint64_t>(const std::string& path)> file_system_bytes;
  std::function<bool(const std::string& path)> may_read_and_write;
  // The permission bits that stat() returns.
  std::function<absl::StatusOr<uint32_t>(const std::string& path)> mode;
  // Whether the kernel reports that a time service keeps the clock.
  std::function<bool()> clock_is_synchronised;
  std::function<int()> usable_cpus;
  std::function<bool()> has_crc32c_instruction;
  // Tries every GPU with every NIC. tests/hardware/gdr_check.cc also measures them.
  struct DirectPair {
    std::string text;  // One line: how they reach each other, or why they do not.
    bool direct = false;
  };
  std::function<absl::StatusOr<std::vector<DirectPair>>()> prove_direct;
  // Makes and seals an anonymous file of shared memory.
  std::function<absl::Status()> seal_memory;
  // Has another process of this user read our memory with process_vm_readv.
  std::function<absl::Status()> be_read;
  // Binds and listens on "host:port", then closes the socket.
  std::function<absl::Status(const std::string& address)> try_listen;
  // The worker of our cluster that answers at "host:port"; empty: none does. May be null.
  std::function<std::string(const std::string& address)> who_answers;
  // This host's name, and the addresses that a name resolves to.
  std::function<std::string()> host_name;
  std::function<std::vector<std::string>(const std::string& name)> resolve;
  std::function<absl::Time()> now;
};
HostCalls RealHostCalls();

// One machine as the checks see it: files below a root, the environment, the settings of the server
// that is to run here, and the calls above. Reads on demand. Not thread-safe.
class Host {
 public:
  Host(std::string root, std::map<std::string, std::string> environment, ServerConfig config,
       HostCalls calls)
      : root_(std::move(root)),
        environment_(std::move(environment)),
        config_(std::move(config)),
        calls_(std::move(calls)) {}

  // The file's text without the white space around it; at most 64 KiB.
  absl::optional<std::string> Read(const std::string& path) const;
  // The first number in the file; nothing for "max" or for other text.
  absl::optional<int64_t> ReadNumber(const std::string& path) const;
  // The names in a folder, sorted; empty when there is no such folder.
  std::vector<std::string> List(const std::string& folder) const;
  bool Exists(const std::string& path) const;
  // Where a symbolic link points; empty when the path is not a link.
  std::string LinkOf(const std::string& path) const;
  // The value on the line that begins with `name`, in /proc/self/status, /proc/meminfo or a cgroup
  // file. White space and a colon around it are dropped.
  absl::optional<std::string> ReadField(const std::string& path, const std::string& name) const;

  std::string Variable(const std::string& name) const;  // Empty: it is not set.
  const std::map<std::string, std::string>& environment() const { return environment_; }
  const ServerConfig& config() const { return config_; }
  const HostCalls& calls() const { return calls_; }
  // A path below the root, such as "/sys", for code that reads sysfs itself.
  std::string Below(const std::string& path) const { return root_ + path; }

 private:
  const std::string root_;  // Empty: this machine.
  const std::map<std::string, std::string> environment_;
  const ServerConfig config_;
  const HostCalls calls_;
};

// The folder of our cgroup for `controller`, below /sys/fs/cgroup, in version 1 or 2; "" when none
// can be seen. Limits of its parents count as well, so callers walk up.
std::string CgroupFolder(const Host& host, const std::string& controller);
// The smallest number in `file`, in our cgroup's folder and its parents.
absl::optional<int64_t> CgroupLeast(const Host& host, const std::string& controller,
                                    const std::string& file);

// The bus ids of NVIDIA's display and compute devices: "0000:3e:00.0".
std::vector<std::string> GpuBusIds(const Host& host);

// "64 MiB" and the like.
std::string BytesText(uint64_t bytes);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_HOST_H_
