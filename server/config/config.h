#ifndef TRYST_SERVER_CONFIG_CONFIG_H_
#define TRYST_SERVER_CONFIG_CONFIG_H_

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
  std::string etcd_ca_file;
  std::string etcd_certificate_file;
  std::string etcd_key_file;
  std::string etcd_password_file;
  bool open_cluster = false;
  std::string join;
};

struct SecuritySettings {
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;
  std::string token_file;
  bool insecure = false;
  bool insecure_anywhere = false;
  std::string encrypt = "auto";
  std::string allow;
  std::string control;
};

struct LimitSettings {
  uint64_t max_tensor_bytes = uint64_t{64} << 30;
  uint64_t max_held_bytes = 0;
  uint64_t max_kept_bytes = uint64_t{1} << 30;
  uint64_t landing_bytes = uint64_t{1} << 30;
  uint64_t memory_bytes = 0;
  int64_t max_peers = 512;
  absl::Duration patience = absl::Minutes(1);
  absl::Duration stop_deadline = absl::Seconds(10);
};

struct DataPlaneSettings {
  std::string shm = "auto";
  uint64_t shm_bytes = uint64_t{1} << 30;
  std::string nic = "auto";
  std::string nic_listen;
  int64_t queue_pairs = 1;
  std::string pollers = "auto";
};

struct GpuSettings {
  std::string gpus;
  uint64_t gpu_pool_bytes = uint64_t{8} << 30;
};

struct InsightSettings {
  int64_t trace_sample_every = 16;
  std::string status_listen;
  std::string status_token_file;
  std::string status_certificate_file;
  std::string status_key_file;
  std::string log_format = "text";
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
// Whether it copies of regions of its host by itself, and lets others do so unless `allow` is set.
bool UsesGrants(const ServerConfig& config);
// A NIC that is not the best one, for peers that nothing better reaches, has an eighth of
// landing_bytes.
inline constexpr uint64_t kLandingPartOfOthers = 8;
// Whether a stream of gRPC carries the tensors of peers that nothing else reaches. Else calls do.
bool UsesStreams(const ServerConfig& config);
// Whether the data plane encrypts what leaves the host: the soft NIC's sockets, and in token mode
// gRPC's fetches too. Certificates encrypt gRPC by themselves.
bool Encrypts(const ServerConfig& config);
// What of the above holds, for people: one line for the log and explain.
std::string EncryptionText(const ServerConfig& config);
// Whether bytes leave the host in the clear although the server proves who its peers are.
bool ClearDespiteProof(const ServerConfig& config);
// How long a producer keeps tensors for a consumer that has vanished. At least twice the patience,
// so that no tensor is dropped while its consumer still tries to fetch it, and two minutes, for one
// that was stopped (SIGSTOP, a virtual machine); max_kept_bytes bounds what that takes.
absl::Duration KeepFor(const ServerConfig& config);
// How long a worker stays in etcd's list after it last reached etcd. A longer time rides out longer
// outages of etcd, a shorter one finds lost hosts sooner, which is what less patience asks for.
absl::Duration EtcdLease(const ServerConfig& config);
// kInvalidArgument: a limit is out of bounds, or the limits do not add up; it prints the sum.
absl::Status CheckLimits(const ServerConfig& config);
// The sums as text, one a line.
std::string PrintLimits(const ServerConfig& config);

// The tables of settings in docs/CONFIG.md.
std::string ConfigTable();

// A setting of an earlier release. It is refused wherever it is set, with what to do instead.
struct RemovedSetting {
  const char* name;
  const char* instead;
};
const std::vector<RemovedSetting>& RemovedSettings();
// Rows stand for two releases, this one and the next: until this one is made, which loses them.
inline constexpr char kRemovedUntil[] = "0.5.0";

// The environment of this process.
std::map<std::string, std::string> ProcessEnvironment();

}  // namespace tryst

#endif  // TRYST_SERVER_CONFIG_CONFIG_H_
