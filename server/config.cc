#include "server/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/read_file.h"
#include "server/pollers.h"

namespace tryst {
namespace {

using C = ServerConfig;
using K = ConfigRow::Kind;

struct ByteUnit {
  const char* name;
  uint64_t bytes;
};
constexpr ByteUnit kByteUnits[] = {{"TiB", uint64_t{1} << 40},
                                   {"GiB", uint64_t{1} << 30},
                                   {"MiB", uint64_t{1} << 20},
                                   {"KiB", uint64_t{1} << 10},
                                   {"B", 1}};

std::string PrintBytes(uint64_t bytes) {
  for (const ByteUnit& unit : kByteUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return absl::StrCat(bytes / unit.bytes, unit.name);
    }
  }
  return "0";
}

bool ParseBytes(absl::string_view text, uint64_t* out) {
  uint64_t unit_bytes = 1;
  for (const ByteUnit& unit : kByteUnits) {
    if (absl::ConsumeSuffix(&text, unit.name)) {
      unit_bytes = unit.bytes;
      break;
    }
  }
  uint64_t count = 0;
  if (!absl::SimpleAtoi(text, &count) || count > UINT64_MAX / unit_bytes) return false;
  *out = count * unit_bytes;
  return true;
}

const char* KindName(K kind) {
  switch (kind) {
    case K::kText:
      return "text";
    case K::kNumber:
      return "number";
    case K::kBytes:
      return "bytes (64MiB)";
    case K::kDuration:
      return "time (500ms)";
    case K::kSwitch:
      return "true or false";
  }
  return "";
}

std::string VariableName(const ConfigRow& row) {
  return absl::StrCat("TRYST_", absl::AsciiStrToUpper(row.name));
}

const ConfigRow* FindRow(absl::string_view name) {
  for (const ConfigRow& row : ConfigRows()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

constexpr size_t kMostConfigBytes = 1 << 20;

absl::Status LoadFile(const std::string& path, ServerConfig* config) {
  const absl::StatusOr<std::string> lines = ReadFile(path, kMostConfigBytes);
  if (!lines.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the config file: ", lines.status().message()));
  }
  int number = 0;
  for (absl::string_view line : absl::StrSplit(*lines, '\n')) {
    ++number;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('=', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    const ConfigRow* row = FindRow(name);
    if (row == nullptr || !absl::StrContains(text, '=')) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": no setting '", name, "'"));
    }
    absl::Status parsed = ParseSetting(*row, absl::StripAsciiWhitespace(parts.second), config);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", parsed.message()));
    }
  }
  return absl::OkStatus();
}

struct Flag {
  std::string name;
  std::string value;
  bool has_value = false;
};

// Splits --name=value, --name value, --switch and --noswitch.
absl::StatusOr<std::vector<Flag>> SplitFlags(const std::vector<std::string>& args,
                                             const std::map<std::string, std::string>* own,
                                             std::vector<std::string>* rest) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view text = args[i];
    if (text == "--") {
      rest->insert(rest->end(), args.begin() + static_cast<ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (!absl::ConsumePrefix(&text, "--")) {
      rest->push_back(args[i]);
      continue;
    }
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    Flag flag{parts.first, parts.second, absl::StrContains(text, '=')};
    const ConfigRow* row = FindRow(flag.name);
    const ConfigRow* off = absl::StartsWith(flag.name, "no")
                               ? FindRow(absl::string_view(flag.name).substr(2))
                               : nullptr;
    if (row == nullptr && off != nullptr && off->kind == K::kSwitch && !flag.has_value) {
      flag = {off->name, "false", true};
    } else if (row == nullptr && flag.name != "config" &&
               (own == nullptr || own->find(flag.name) == own->end())) {
      return absl::InvalidArgumentError(absl::StrCat("no flag --", flag.name));
    } else if (!flag.has_value) {
      if (row != nullptr && row->kind == K::kSwitch) {
        flag.value = "true";
      } else if (i + 1 < args.size()) {
        flag.value = args[++i];
      } else {
        return absl::InvalidArgumentError(absl::StrCat("flag --", flag.name, " has no value"));
      }
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

// One use of memory that a configuration allows, and how large it may grow.
struct Sum {
  const char* name;
  uint64_t bytes;
};
constexpr uint64_t kLeastShmBytes = 16 << 20;
constexpr int64_t kMostCallbackThreads = 1024;
// The same limits as in channel/rdma; settings_test compares them.
constexpr int64_t kMostSlots = 4096;
constexpr int64_t kMostRingSlots = 1024;
constexpr int64_t kMostQueuePairs = 8;
constexpr int64_t kMostPeers = 65536;
constexpr int64_t kMostPollers = 64;
constexpr int64_t kMostHelpers = 64;
constexpr uint64_t kLeastMessageBytes = 32 + 16 + 4096;
constexpr uint64_t kMostMessageBytes = 1 << 20;

std::vector<Sum> MemorySums(const ServerConfig& config) {
  const bool verbs = config.protocol != "grpc";
  // One ring for a peer that we fetch from, and one for a peer that fetches from us.
  const uint64_t rings = 2 * static_cast<uint64_t>(config.ring_slots) * config.message_bytes;
  return {{"max_held_bytes (sent, not received)", config.max_held_bytes},
          {"max_kept_bytes (taken, not landed, its consumer away)", config.max_kept_bytes},
          {"landing_bytes (where tensors land)", verbs ? config.landing_bytes : 0},
          {"shm_bytes (shared with workers of this host)", UsesShm(config) ? config.shm_bytes : 0},
          {"2 * ring_slots * message_bytes, for each peer and direction", verbs ? rings : 0}};
}

const ConfigRow kRows[] = {
    {"Who and where", "cluster", K::kText, &C::cluster,
     "Name of the cluster: the job identity. Workers of another one are refused."},
    {"Who and where", "job", K::kText, &C::job, "Our job's name, for example ps."},
    {"Who and where", "task", K::kNumber, &C::task, "Our index in the job."},
    {"Who and where", "protocol", K::kText, &C::protocol, "grpc or grpc+verbs."},
    {"Who and where", "listen", K::kText, &C::listen,
     "host:port for gRPC; port 0 takes a free one. Empty: the port of our entry in the cluster, "
     "on the loopback if insecure, else on every address."},
    {"Who and where", "advertise", K::kText, &C::advertise,
     "host:port by which peers reach us. Empty: our entry in the cluster, else where we listen."},
    {"Who else", "resolver", K::kText, &C::resolver,
     "Where the cluster is described: flags, file, tf_config, slurm, mpi, kubernetes or etcd."},
    {"Who else", "cluster_spec", K::kText, &C::cluster_spec,
     "For flags: ps=host:port,host:port;worker=host:port."},
    {"Who else", "cluster_file", K::kText, &C::cluster_file,
     "For file: a ClusterDef or ServerDef as JSON. Read again when it changes."},
    {"Who else", "cluster_jobs", K::kText, &C::cluster_jobs,
     "For slurm, mpi and kubernetes: ps=1,worker=3. But for kubernetes the last may be "
     "worker=*."},
    {"Who else", "kubernetes_service", K::kText, &C::kubernetes_service,
     "For kubernetes: the headless service, for example tryst.default.svc.cluster.local."},
    {"Who else", "base_port", K::kNumber, &C::base_port,
     "For slurm and mpi (plus the task's index on its node) and kubernetes."},
    {"Who else", "mpi_hosts", K::kText, &C::mpi_hosts,
     "For mpi on more hosts than one: node[1-4], in the order of their ranks."},
    {"Who else", "etcd_endpoints", K::kText, &C::etcd_endpoints,
     "For etcd: host:port of each of its servers, comma-separated. Members are keys there, under "
     "/tryst/CLUSTER/: whoever may write those may be a member."},
    {"Who else", "etcd_ca_file", K::kText, &C::etcd_ca_file,
     "For etcd by TLS: who signs its certificates, PEM."},
    {"Who else", "etcd_certificate_file", K::kText, &C::etcd_certificate_file,
     "For etcd by TLS, where it wants to know who we are: our certificate, PEM."},
    {"Who else", "etcd_key_file", K::kText, &C::etcd_key_file,
     "The key of etcd_certificate_file, PEM."},
    {"Who else", "etcd_user", K::kText, &C::etcd_user, "For etcd with users: our name there."},
    {"Who else", "etcd_password_file", K::kText, &C::etcd_password_file,
     "The password of etcd_user."},
    {"Who else", "etcd_lease", K::kDuration, &C::etcd_lease,
     "For etcd: how long a worker that does not reach it is a member; at least 2s."},
    {"Who else", "open_cluster", K::kSwitch, &C::open_cluster,
     "Lets workers join that the cluster's description does not name."},
    {"Who else", "join", K::kText, &C::join,
     "worker@host:port, comma-separated: members to announce ourselves to."},
    {"Security", "certificate_file", K::kText, &C::certificate_file,
     "Mutual TLS: our certificate chain, PEM. It names us by the URI "
     "tryst://CLUSTER/job:J/replica:0/task:T, tryst://CLUSTER/job:J or tryst://CLUSTER."},
    {"Security", "key_file", K::kText, &C::key_file, "Mutual TLS: our private key, PEM."},
    {"Security", "ca_file", K::kText, &C::ca_file, "Mutual TLS: who signs the peers', PEM."},
    {"Security", "reload_period", K::kDuration, &C::reload_period,
     "How often the three files are looked at for changes."},
    {"Security", "token_file", K::kText, &C::token_file,
     "Shared token, at least 16 bytes: proves who is in, and keys what encrypts tensors."},
    {"Security", "insecure", K::kSwitch, &C::insecure, "No proof of anything; loopback only."},
    {"Security", "insecure_anywhere", K::kSwitch, &C::insecure_anywhere,
     "Lets insecure listen on addresses that others reach."},
    {"Security", "authenticate_within", K::kDuration, &C::authenticate_within,
     "A gRPC connection on which nobody has shown by then who he is is closed."},
    {"Security", "reflection", K::kSwitch, &C::reflection,
     "gRPC's reflection answers everybody who can connect: for grpcurl and the like."},
    {"Security", "encrypt", K::kText, &C::encrypt,
     "Whether tensors that leave the host are encrypted: on, off, or auto (on with certificates or "
     "a token). All workers of a cluster alike: between others, gRPC is what is left."},
    {"Security", "nic_trusted_network", K::kSwitch, &C::nic_trusted_network,
     "Uses RDMA hardware and libfabric, which encrypt nothing, although encrypt is on: nobody else "
     "is on their network."},
    {"Security", "allow", K::kText, &C::allow,
     "CONSUMER=KEY_PREFIX;...: which workers may take which keys, by prefix. Empty: each worker "
     "what is addressed to it."},
    {"Security", "control", K::kText, &C::control,
     "/job:chief,/job:cli: which workers may begin, abort and clean up steps here from outside. "
     "Empty: members, which in an open cluster are all that get in."},
    {"Limits", "max_tensor_bytes", K::kBytes, &C::max_tensor_bytes,
     "A tensor whose producer says that it is larger is refused."},
    {"Limits", "max_held_bytes", K::kBytes, &C::max_held_bytes,
     "Of tensors sent and not received; Send fails over it. 0: no cap."},
    {"Limits", "max_held_bytes_per_step", K::kBytes, &C::max_held_bytes_per_step,
     "The same for one step. 0: no cap."},
    {"Limits", "max_kept_bytes", K::kBytes, &C::max_kept_bytes,
     "Of tensors kept for consumers whose connection broke; the oldest go first."},
    {"Limits", "landing_bytes", K::kBytes, &C::landing_bytes,
     "Registered memory that tensors land in, for each NIC."},
    {"Limits", "memory_bytes", K::kBytes, &C::memory_bytes,
     "What the limits above may add up to; refuses to start over it. 0: not checked."},
    {"Limits", "max_asked", K::kNumber, &C::max_asked,
     "Fetches from one peer that wait in a gRPC call each; more wait without one."},
    {"Limits", "max_waiting", K::kNumber, &C::max_waiting,
     "Fetches of one peer that wait for their Send without a slot; more wait in line."},
    {"Limits", "callback_threads", K::kNumber, &C::callback_threads,
     "Threads that run receivers' callbacks. 0: one more than pollers."},
    {"Limits", "patience", K::kDuration, &C::patience,
     "How long a fetch goes on while its peer does not answer; over gRPC alone at least 8s."},
    {"Limits", "keep_for", K::kDuration, &C::keep_for,
     "How long a producer keeps what a vanished consumer asked for; above patience."},
    {"Limits", "stop_deadline", K::kDuration, &C::stop_deadline,
     "How long stopping waits for what is on its way."},
    {"Limits", "grpc_idle", K::kDuration, &C::grpc_idle,
     "A gRPC connection on which nobody calls for so long is closed, and opened when next "
     "needed; "
     "at least 1s."},
    {"Data plane", "shm", K::kText, &C::shm,
     "Shared memory with workers that are proved to be on this host, before any NIC: on, off, or "
     "auto (on unless nic names one). Not with protocol grpc."},
    {"Data plane", "shm_bytes", K::kBytes, &C::shm_bytes,
     "Of shared memory at most: tensors made in it, and copies of others on their way."},
    {"Data plane", "digests", K::kText, &C::digests,
     "CRC-32C of every payload: on, off, or auto (on where bytes cross a wire that nothing "
     "checks "
     "from end to end: soft and gRPC, but for loopback and what is encrypted; off for RDMA and "
     "shared memory). "
     "Either side's wish is enough."},
    {"Data plane", "nic", K::kText, &C::nic,
     "auto (an RDMA device where there is one, and soft), soft, ibv, or ofi:PROVIDER (libfabric: "
     "tcp, shm, udp, verbs, efa), which both ends must name. TensorFlow's RDMA_* variables "
     "choose "
     "and tune the device of ibv."},
    {"Data plane", "nic_listen", K::kText, &C::nic_listen,
     "host:port for the soft NIC. Empty: a free port on the host that gRPC listens on."},
    {"Data plane", "slots", K::kNumber, &C::slots,
     "Fetches out to one peer at once; over shared memory twice as many."},
    {"Data plane", "ring_slots", K::kNumber, &C::ring_slots,
     "Messages that a peer may have under way to us."},
    {"Data plane", "message_bytes", K::kBytes, &C::message_bytes,
     "Of one message; a tensor that fits travels inside."},
    {"Data plane", "offered_bytes", K::kBytes, &C::offered_bytes,
     "Landing memory offered for a tensor of unknown size."},
    {"Data plane", "queue_pairs", K::kNumber, &C::queue_pairs, "For each peer and direction."},
    {"Data plane", "max_peers", K::kNumber, &C::max_peers,
     "Peers that the data plane connects with, each way: sizes the completion queues, as far as "
     "the NIC allows, and bounds who may connect."},
    {"Data plane", "stripe_bytes", K::kBytes, &C::stripe_bytes,
     "Tensors from this size are spread over the queue pairs."},
    {"Data plane", "pollers", K::kNumber, &C::pollers,
     "Threads that move tensors; each has some of the peers. 0: half of the processors that the "
     "process may use, 1 to 8. Never more than it may use; with gpus one."},
    {"Data plane", "poller_cpus", K::kText, &C::poller_cpus,
     "The processor that each poller stays on, as in 0,2,4-7; those of the NIC's NUMA node are "
     "best. Empty: where the system puts it."},
    {"Data plane", "helpers", K::kNumber, &C::helpers,
     "Threads that help pollers to move large tensors, over shared memory and over the soft NIC's "
     "sockets; they start when there is one. 0: none. -1: one less than half of the processors "
     "that the process may use, at most 7."},
    {"Data plane", "spin_us", K::kNumber, &C::spin_us,
     "How long the data plane looks for work before it sleeps, where looking pays: it finds out. "
     "0: it sleeps at once."},
    {"GPUs", "gpus", K::kText, &C::gpus,
     "Whose memory device tensors lie in: all, or numbers as in 0,1. Empty: none."},
    {"GPUs", "gpu_ways", K::kText, &C::gpu_ways,
     "Which ways beside staging may be taken once they are proved: cuda_ipc (on one host), "
     "direct "
     "(NICs that reach GPUs). staged: none."},
    {"GPUs", "gpu_chunk_bytes", K::kBytes, &C::gpu_chunk_bytes,
     "In which a tensor is staged through pinned memory; the same on both ends."},
    {"GPUs", "gpu_slots", K::kNumber, &C::gpu_slots,
     "Chunks of pinned memory for each GPU, to serve from, and as many to fetch into."},
    {"GPUs", "gpu_standby_us", K::kNumber, &C::gpu_standby_us,
     "How long a kernel stands by for the next tensor of up to 2 MiB out of another GPU's memory, "
     "on one multiprocessor or eight. 0: never; each is launched."},
    {"GPUs", "gpu_pool_bytes", K::kBytes, &C::gpu_pool_bytes,
     "Of each GPU's memory at most, for receives that name no destination."},
    {"Seeing what it does", "trace_records", K::kNumber, &C::trace_records,
     "Operations whose history is kept, twice: of the data plane and of serving over gRPC; 384 "
     "bytes each, once used."},
    {"Seeing what it does", "trace_sample_every", K::kNumber, &C::trace_sample_every,
     "Of the operations that were quick and went well, one in so many is kept; 1: all."},
    {"Seeing what it does", "trace_slow", K::kDuration, &C::trace_slow,
     "An operation that took longer, or failed, is always kept."},
    {"Seeing what it does", "status_listen", K::kText, &C::status_listen,
     "host:port, by numbers, for the status page and /metrics. Empty: trystd takes a free port "
     "on 127.0.0.1, a server in another program has none. off: none."},
    {"Seeing what it does", "status_anywhere", K::kSwitch, &C::status_anywhere,
     "Allows an address that others reach: they see every key and peer, and nobody asks who "
     "they are."},
    {"Seeing what it does", "status_token_file", K::kText, &C::status_token_file,
     "A token of at least 16 bytes, without which the status page answers nobody: as the "
     "password "
     "of any user, or as Prometheus's bearer token. Allows an address that others reach."},
    {"Seeing what it does", "status_certificate_file", K::kText, &C::status_certificate_file,
     "The status page speaks TLS, with this certificate chain, PEM, for the host's name."},
    {"Seeing what it does", "status_key_file", K::kText, &C::status_key_file,
     "The key of status_certificate_file, PEM. Both are read at the start alone."},
    {"Seeing what it does", "log_format", K::kText, &C::log_format,
     "trystd's lines on stderr: text, or json, one object each."},
};

}  // namespace

bool UsesShm(const ServerConfig& config) {
  if (config.protocol == "grpc") return false;
  return config.shm == "on" || (config.shm == "auto" && config.nic == "auto");
}

bool Encrypts(const ServerConfig& config) { return config.encrypt != "off" && !config.insecure; }

bool ClearDespiteProof(const ServerConfig& config) {
  return config.encrypt == "off" && !config.insecure;
}

std::string EncryptionText(const ServerConfig& config) {
  const bool token = config.certificate_file.empty();
  if (config.insecure) return "none: insecure, so whoever is on the wire reads and changes all";
  if (!Encrypts(config)) {
    return absl::StrCat("OFF (encrypt=off): whoever is on the wire reads and changes tensors over ",
                        token ? "every path between hosts" : "every path between hosts but gRPC");
  }
  const char* const soft =
      token ? "tensors over soft and gRPC, with keys from the token; names and calls over gRPC are "
              "proved and can be read"
            : "soft and gRPC, with TLS 1.3";
  const char* const hardware =
      config.nic_trusted_network
          ? "; RDMA hardware and libfabric in the clear, as nic_trusted_network says"
          : "; RDMA hardware and libfabric are not used, since nothing encrypts there "
            "(nic_trusted_network)";
  return absl::StrCat(soft, config.protocol == "grpc" ? "" : hardware);
}

bool WantsDigests(const ServerConfig& config, bool unchecked_wire) {
  return config.digests == "on" || (config.digests == "auto" && unchecked_wire);
}

const std::vector<ConfigRow>& ConfigRows() {
  static const auto& rows = *new std::vector<ConfigRow>(std::begin(kRows), std::end(kRows));
  return rows;
}

std::string PrintSetting(const ConfigRow& row, const ServerConfig& config) {
  switch (row.kind) {
    case K::kText:
      return config.*absl::get<std::string C::*>(row.field);
    case K::kNumber:
      return absl::StrCat(config.*absl::get<int64_t C::*>(row.field));
    case K::kBytes:
      return PrintBytes(config.*absl::get<uint64_t C::*>(row.field));
    case K::kDuration:
      return absl::FormatDuration(config.*absl::get<absl::Duration C::*>(row.field));
    case K::kSwitch:
      return config.*absl::get<bool C::*>(row.field) ? "true" : "false";
  }
  return "";
}

absl::Status ParseSetting(const ConfigRow& row, absl::string_view text, ServerConfig* config) {
  bool good = true;
  switch (row.kind) {
    case K::kText:
      config->*absl::get<std::string C::*>(row.field) = std::string(text);
      break;
    case K::kNumber: {
      // Below 0 only where the default is.
      int64_t C::*const field = absl::get<int64_t C::*>(row.field);
      int64_t value = 0;
      good = absl::SimpleAtoi(text, &value) && value >= std::min<int64_t>(0, ServerConfig().*field);
      if (good) config->*field = value;
      break;
    }
    case K::kBytes:
      good = ParseBytes(text, &(config->*absl::get<uint64_t C::*>(row.field)));
      break;
    case K::kDuration: {
      absl::Duration value;
      good = absl::ParseDuration(text, &value) && value > absl::ZeroDuration();
      if (good) config->*absl::get<absl::Duration C::*>(row.field) = value;
      break;
    }
    case K::kSwitch:
      good = absl::SimpleAtob(text, &(config->*absl::get<bool C::*>(row.field)));
      break;
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(row.name, " is '", text, "', and should be ", KindName(row.kind)));
}

absl::StatusOr<ServerConfig> LoadConfig(const std::vector<std::string>& args,
                                        const std::map<std::string, std::string>& environment,
                                        std::vector<std::string>* rest,
                                        std::map<std::string, std::string>* own) {
  absl::StatusOr<std::vector<Flag>> flags = SplitFlags(args, own, rest);
  if (!flags.ok()) return flags.status();
  ServerConfig config;
  std::string file;
  if (auto it = environment.find("TRYST_CONFIG"); it != environment.end()) file = it->second;
  for (const Flag& flag : *flags) {
    if (flag.name == "config") file = flag.value;
  }
  if (!file.empty()) {
    absl::Status loaded = LoadFile(file, &config);
    if (!loaded.ok()) return loaded;
  }
  for (const ConfigRow& row : ConfigRows()) {
    const auto variable = environment.find(VariableName(row));
    if (variable == environment.end()) continue;
    absl::Status parsed = ParseSetting(row, variable->second, &config);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(VariableName(row), ": ", parsed.message()));
    }
  }
  for (const Flag& flag : *flags) {
    if (flag.name == "config") continue;
    if (FindRow(flag.name) == nullptr) {
      (*own)[flag.name] = flag.value;
      continue;
    }
    absl::Status parsed = ParseSetting(*FindRow(flag.name), flag.value, &config);
    if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("--", parsed.message()));
  }
  return config;
}

namespace {

// Refuses a setting that one path could not work with: that path would fall back to the next
// without a word.
absl::Status CheckUsable(const ServerConfig& config) {
  if (config.task > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("task is ", config.task, ", and at most ", INT32_MAX));
  }
  if (config.callback_threads > kMostCallbackThreads) {
    return absl::InvalidArgumentError(absl::StrCat("callback_threads is ", config.callback_threads,
                                                   ", and at most ", kMostCallbackThreads));
  }
  if (config.slots > kMostSlots || config.ring_slots > kMostRingSlots ||
      config.queue_pairs > kMostQueuePairs || config.max_peers > kMostPeers) {
    return absl::InvalidArgumentError(absl::StrCat("slots is at most ", kMostSlots, ", ring_slots ",
                                                   kMostRingSlots, ", queue_pairs ",
                                                   kMostQueuePairs, ", max_peers ", kMostPeers));
  }
  if (config.message_bytes < kLeastMessageBytes || config.message_bytes > kMostMessageBytes ||
      config.message_bytes % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("message_bytes is ", config.message_bytes, ", and from ", kLeastMessageBytes,
                     " (a key must fit) to ", kMostMessageBytes, ", by eights"));
  }
  if (config.authenticate_within < absl::Milliseconds(100)) {
    return absl::InvalidArgumentError("authenticate_within is less than 100ms");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLimits(const ServerConfig& config) {
  if (config.cluster.empty() || absl::StrContains(config.cluster, '/')) {
    return absl::InvalidArgumentError("cluster must be a name without '/'");
  }
  if (config.patience >= config.keep_for) {
    return absl::InvalidArgumentError(
        absl::StrCat("patience (", absl::FormatDuration(config.patience),
                     ") must be below keep_for (", absl::FormatDuration(config.keep_for),
                     "): a consumer that still tries must find what was kept for it"));
  }
  if (config.shm != "auto" && config.shm != "on" && config.shm != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("shm is '", config.shm, "', and should be on, off or auto"));
  }
  if (config.digests != "auto" && config.digests != "on" && config.digests != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("digests is '", config.digests, "', and should be on, off or auto"));
  }
  if (config.encrypt != "auto" && config.encrypt != "on" && config.encrypt != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("encrypt is '", config.encrypt, "', and should be on, off or auto"));
  }
  if (config.encrypt == "on" && config.insecure) {
    return absl::InvalidArgumentError(
        "encrypt is on, and insecure has no secret to make keys of: set certificates or "
        "token_file");
  }
  if (UsesShm(config) && config.shm_bytes < kLeastShmBytes) {
    return absl::InvalidArgumentError("shm_bytes is less than 16 MiB: raise it, or set shm=off");
  }
  if (config.gpu_standby_us < 0 || config.gpu_standby_us > 1000) {
    return absl::InvalidArgumentError("gpu_standby_us is not from 0 to 1000");
  }
  if (config.gpu_chunk_bytes < 64 << 10 || config.gpu_slots < 1 || config.gpu_slots > 4096) {
    return absl::InvalidArgumentError(
        "gpu_chunk_bytes is less than 64 KiB, or gpu_slots not from 1 to 4096");
  }
  if (config.grpc_idle < absl::Seconds(1)) {
    return absl::InvalidArgumentError("grpc_idle is less than 1s, the least that gRPC takes");
  }
  if (config.max_held_bytes != 0 && config.max_held_bytes_per_step > config.max_held_bytes) {
    return absl::InvalidArgumentError("max_held_bytes_per_step is above max_held_bytes");
  }
  if (config.pollers < 0 || config.pollers > kMostPollers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pollers is ", config.pollers, ", and from 0 (as many as fit) to ", kMostPollers));
  }
  if (config.helpers < -1 || config.helpers > kMostHelpers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "helpers is ", config.helpers, ", and from -1 (as many as fit) to ", kMostHelpers));
  }
  const absl::StatusOr<std::vector<int>> cpus = PollerCpus(config.poller_cpus);
  if (!cpus.ok()) return cpus.status();
  if (config.callback_threads < 0 || config.max_asked < 1 || config.max_waiting < 1 ||
      config.max_waiting > UINT32_MAX || config.slots < 1 || config.ring_slots < 2 ||
      config.queue_pairs < 1 || config.max_peers < 1) {
    return absl::InvalidArgumentError(
        "max_asked, max_waiting, slots, queue_pairs and max_peers must be at least 1, ring_slots "
        "2, "
        "callback_threads 0");
  }
  const absl::Status usable = CheckUsable(config);
  if (!usable.ok()) return usable;
  if (config.spin_us < 0 || config.spin_us > 1'000'000) {
    return absl::InvalidArgumentError("spin_us is from 0 to 1000000");
  }
  if (config.log_format != "text" && config.log_format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log_format is '", config.log_format, "', and should be text or json"));
  }
  if (config.trace_records < 1 || config.trace_records > 1 << 20 || config.trace_sample_every < 1 ||
      config.trace_sample_every > 1 << 30) {
    return absl::InvalidArgumentError(
        "trace_records is from 1 to 1048576, trace_sample_every at least 1");
  }
  uint64_t total = 0;
  for (const Sum& sum : MemorySums(config)) total += sum.bytes;
  if (config.memory_bytes != 0 && total > config.memory_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the limits do not add up:\n", PrintLimits(config)));
  }
  return absl::OkStatus();
}

std::string PrintLimits(const ServerConfig& config) {
  std::string out;
  uint64_t total = 0;
  for (const Sum& sum : MemorySums(config)) {
    total += sum.bytes;
    absl::StrAppend(&out, "  ", total == sum.bytes ? "  " : "+ ", PrintBytes(sum.bytes), "  ",
                    sum.name, "\n");
  }
  absl::StrAppend(&out, "  = ", PrintBytes(total), ", of memory_bytes ",
                  config.memory_bytes == 0 ? "unlimited" : PrintBytes(config.memory_bytes), "\n");
  if (config.max_held_bytes == 0) absl::StrAppend(&out, "  (max_held_bytes has no cap)\n");
  return out;
}

std::string ConfigTable() {
  std::string out;
  const ServerConfig defaults;
  const char* section = "";
  for (const ConfigRow& row : ConfigRows()) {
    if (absl::string_view(section) != row.section) {
      absl::StrAppend(&out, *section == '\0' ? "" : "\n", "**", row.section,
                      "**\n\n| Setting | Kind | Default | |\n| --- | --- | --- | --- |\n");
      section = row.section;
    }
    const std::string value = PrintSetting(row, defaults);
    absl::StrAppend(&out, "| `", row.name, "` | ", KindName(row.kind), " | ",
                    value.empty() ? "" : absl::StrCat("`", value, "`"), " | ", row.help, " |\n");
  }
  return out;
}

std::map<std::string, std::string> ProcessEnvironment() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    out.insert(parts);
  }
  return out;
}

}  // namespace tryst
