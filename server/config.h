#ifndef TRYST_SERVER_CONFIG_H_
#define TRYST_SERVER_CONFIG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/variant.h"

namespace tryst {

// The settings by the sections of docs/CONFIG.md.
struct IdentitySettings {
  std::string cluster = "tryst";
  std::string job;
  int64_t task = 0;
  std::string protocol = "grpc+verbs";
  std::string listen;
  std::string advertise;
};

struct ClusterSettings {
  std::string resolver = "flags";
  std::string cluster_spec;
  std::string cluster_file;
  std::string cluster_jobs;
  std::string kubernetes_service;
  std::string mpi_hosts;
  std::string etcd_endpoints;
  std::string etcd_ca_file;
  std::string etcd_certificate_file;
  std::string etcd_key_file;
  std::string etcd_user;
  std::string etcd_password_file;
  absl::Duration etcd_lease = absl::Seconds(10);
  int64_t base_port = 2222;
  bool open_cluster = false;
  std::string join;
};

struct SecuritySettings {
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;
  absl::Duration reload_period = absl::Seconds(10);
  std::string token_file;
  bool insecure = false;
  bool insecure_anywhere = false;
  absl::Duration authenticate_within = absl::Seconds(10);
  bool reflection = false;
  std::string encrypt = "auto";
  bool nic_trusted_network = false;
  std::string allow;
  std::string control;
};

struct LimitSettings {
  uint64_t max_tensor_bytes = uint64_t{64} << 30;
  uint64_t max_held_bytes = 0;
  uint64_t max_held_bytes_per_step = 0;
  uint64_t max_kept_bytes = uint64_t{1} << 30;
  uint64_t landing_bytes = uint64_t{1} << 30;
  uint64_t memory_bytes = 0;
  int64_t max_asked = 1024;
  int64_t max_waiting = 1'000'000;
  int64_t callback_threads = 0;
  absl::Duration patience = absl::Minutes(1);
  absl::Duration keep_for = absl::Minutes(2);
  absl::Duration stop_deadline = absl::Seconds(10);
  absl::Duration grpc_idle = absl::Seconds(10);
};

struct DataPlaneSettings {
  std::string shm = "auto";
  uint64_t shm_bytes = uint64_t{1} << 30;
  std::string digests = "auto";
  std::string nic = "auto";
  std::string nic_listen;
  int64_t slots = 128;
  int64_t ring_slots = 16;
  uint64_t message_bytes = 8192 + 256;
  uint64_t offered_bytes = 256 << 10;
  int64_t queue_pairs = 1;
  int64_t pollers = 0;
  std::string poller_cpus;
  int64_t helpers = -1;
  int64_t spin_us = 50;
};

struct GpuSettings {
  std::string gpus;
  std::string gpu_ways = "cuda_ipc,direct";
  uint64_t gpu_chunk_bytes = 2 << 20;
  int64_t gpu_slots = 16;
  int64_t gpu_standby_us = 100;
  uint64_t gpu_pool_bytes = uint64_t{8} << 30;
};

struct InsightSettings {
  int64_t trace_records = 4096;
  int64_t trace_sample_every = 16;
  absl::Duration trace_slow = absl::Milliseconds(10);
  std::string status_listen;
  bool status_anywhere = false;
  std::string status_token_file;
  std::string status_certificate_file;
  std::string status_key_file;
  std::string log_format = "text";
  int64_t max_peers = 512;
  uint64_t stripe_bytes = 1 << 20;
};

// Every setting of a server. One set of rows reads flags, the file and the environment, and prints
// docs/CONFIG.md.
struct ServerConfig : IdentitySettings,
                      ClusterSettings,
                      SecuritySettings,
                      LimitSettings,
                      DataPlaneSettings,
                      GpuSettings,
                      InsightSettings {};

// One setting: the flag --name, the line "name = ..." of the file, and the variable TRYST_NAME.
struct ConfigRow {
  enum class Kind { kText, kNumber, kBytes, kDuration, kSwitch };
  const char* section;
  const char* name;
  Kind kind;
  absl::variant<std::string ServerConfig::*, int64_t ServerConfig::*, uint64_t ServerConfig::*,
                absl::Duration ServerConfig::*, bool ServerConfig::*>
      field;
  const char* help;
};
const std::vector<ConfigRow>& ConfigRows();

// Reads the settings: the defaults, then the file that --config or TRYST_CONFIG names, then the
// environment, then the flags. Arguments that are not flags go to `rest`. `own` maps flags of the
// calling program to their values. kInvalidArgument names the setting, where it was set, and what
// it may be.
absl::StatusOr<ServerConfig> LoadConfig(const std::vector<std::string>& args,
                                        const std::map<std::string, std::string>& environment,
                                        std::vector<std::string>* rest,
                                        std::map<std::string, std::string>* own = nullptr);

// The row's setting in `config` as text: "64MiB", "5s", "true".
std::string PrintSetting(const ConfigRow& row, const ServerConfig& config);
absl::Status ParseSetting(const ConfigRow& row, absl::string_view text, ServerConfig* config);

// Whether the server tries shared memory with workers of its host.
bool UsesShm(const ServerConfig& config);
// Whether the data plane encrypts what leaves the host: the soft NIC's sockets, and in token mode
// gRPC's fetches too. Certificates encrypt gRPC by themselves.
bool Encrypts(const ServerConfig& config);
// What of the above holds, for people: one line for the log and explain.
std::string EncryptionText(const ServerConfig& config);
// Whether bytes leave the host in the clear although the server proves who its peers are.
bool ClearDespiteProof(const ServerConfig& config);
// Whether payloads carry a digest. `unchecked_wire`: their path crosses a wire that nothing checks
// from end to end.
bool WantsDigests(const ServerConfig& config, bool unchecked_wire);
// kInvalidArgument: a limit is out of bounds, or the limits do not add up; it prints the sum.
absl::Status CheckLimits(const ServerConfig& config);
// The sums as text, one a line.
std::string PrintLimits(const ServerConfig& config);

// The table of settings in docs/CONFIG.md.
std::string ConfigTable();

// The environment of this process.
std::map<std::string, std::string> ProcessEnvironment();

}  // namespace tryst

#endif  // TRYST_SERVER_CONFIG_H_
