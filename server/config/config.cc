#include "server/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/read_file.h"
#include "server/config/pollers.h"

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

std::string VariableName(absl::string_view name) {
  return absl::StrCat("TRYST_", absl::AsciiStrToUpper(name));
}

const ConfigRow* FindRow(absl::string_view name) {
  for (const ConfigRow& row : ConfigRows()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// kInvalidArgument: an earlier release had this setting; `place` is where it is set. Else OK.
absl::Status CheckNotRemoved(absl::string_view name, absl::string_view place) {
  for (const RemovedSetting& removed : RemovedSettings()) {
    if (name != removed.name) continue;
    return absl::InvalidArgumentError(absl::StrCat(place, ": this release has no setting '", name,
                                                   "' any more. ", removed.instead));
  }
  return absl::OkStatus();
}

constexpr size_t kMostConfigBytes = 1 << 20;

absl::Status LoadFile(const std::string& path, ServerConfig* config) {
  const absl::StatusOr<std::string> lines = ReadFile(path, kMostConfigBytes);
  if (!lines.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file of --config cannot be read: ", lines.status().message()));
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
    const absl::Status there = CheckNotRemoved(name, absl::StrCat(path, ":", number));
    if (!there.ok()) return there;
    if (row == nullptr || !absl::StrContains(text, '=')) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": there is no setting '", name, "'"));
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
      absl::string_view positive = flag.name;
      for (absl::string_view name : {positive, (absl::ConsumePrefix(&positive, "no"), positive)}) {
        const absl::Status there = CheckNotRemoved(name, absl::StrCat("--", flag.name));
        if (!there.ok()) return there;
      }
      return absl::InvalidArgumentError(absl::StrCat("there is no flag --", flag.name));
    } else if (!flag.has_value) {
      if (row != nullptr && row->kind == K::kSwitch) {
        flag.value = "true";
      } else if (i + 1 < args.size()) {
        flag.value = args[++i];
      } else {
        return absl::InvalidArgumentError(absl::StrCat("flag --", flag.name, " needs a value"));
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
// channel/rdma has the same limit and the same rings; settings_test compares them.
constexpr int64_t kMostQueuePairs = 8;
constexpr uint64_t kRingBytes = 16 * (8192 + 256);
constexpr int64_t kMostPeers = 65536;

// Each has memory of its own for tensors to land in; a stream of gRPC counts as one.
uint64_t MostNics(const ServerConfig& config) {
  const bool none = config.protocol == "grpc" || config.nic == "grpc" || config.nic == "calls";
  const uint64_t nics = none ? 0 : config.nic == "auto" ? 2 : 1;
  return nics + (UsesStreams(config) ? 1 : 0);
}

uint64_t LandingBytesOf(const ServerConfig& config, uint64_t nics) {
  return nics == 0
             ? 0
             : config.landing_bytes + (nics - 1) * (config.landing_bytes / kLandingPartOfOthers);
}

std::vector<Sum> MemorySums(const ServerConfig& config) {
  const uint64_t nics = MostNics(config);
  return {{"max_held_bytes (sent, not received)", config.max_held_bytes},
          {"max_kept_bytes (taken, not landed, its consumer away)", config.max_kept_bytes},
          {"landing_bytes (where tensors land), and an eighth for each further kind of NIC",
           LandingBytesOf(config, nics)},
          {"shm_bytes (shared with workers of this host)", UsesShm(config) ? config.shm_bytes : 0},
          // One ring for a peer that we fetch from, and one for a peer that fetches from us.
          {"message rings, for each peer", nics > 0 ? 2 * kRingBytes : 0}};
}

const ConfigRow kRows[] = {
    {"Who and where", "cluster", K::kText, &C::cluster,
     "The name of this cluster, which all its workers set alike; a worker refuses calls from "
     "workers that set another. Give each cluster its own name where several share hosts or a "
     "token."},
    {"Who and where", "job", K::kText, &C::job,
     "The name of this worker's job in the cluster, for example ps. With task it makes the "
     "worker's name, /job:ps/replica:0/task:0. It is not needed where a resolver (slurm, mpi, "
     "kubernetes, tf_config) tells it."},
    {"Who and where", "task", K::kNumber, &C::task,
     "The number of this worker in its job, from 0. It is not needed where a resolver tells it."},
    {"Who and where", "protocol", K::kText, &C::protocol,
     "How tensors may travel. grpc+verbs: by shared memory, RDMA or the soft NIC, and by gRPC "
     "where none of them works. grpc: only by gRPC, for example where only one port is open "
     "between hosts."},
    {"Who and where", "listen", K::kText, &C::listen,
     "The host:port on which this worker takes gRPC calls; port 0 takes a free one. Empty: the "
     "port of this worker's entry in the cluster, on the loopback if insecure is set, else on "
     "every address."},
    {"Who and where", "advertise", K::kText, &C::advertise,
     "The host:port that this worker tells others to connect to. Set it when they reach this "
     "worker under another address than it listens on (listen=0.0.0.0:2222, NAT, containers). "
     "Empty: this worker's entry in the cluster, else the address it listens on."},
    {"Who else", "resolver", K::kText, &C::resolver,
     "Where this worker learns who the other workers are; name what starts your job. flags: "
     "cluster_spec. file:PATH: a JSON file in the form of TensorFlow's ClusterDef or ServerDef, "
     "read again when it changes. tf_config: the variable TF_CONFIG. slurm: the variables of "
     "Slurm. mpi: the variables of mpirun; on several hosts mpi:HOSTS, in the order of their "
     "ranks, as in mpi:node[1-4]. kubernetes:SERVICE: the DNS name of the pods' headless service. "
     "etcd:HOST:PORT,...: the servers of etcd, where each worker is a key under /tryst/CLUSTER/; "
     "whoever may write those keys can add a worker, so restrict who may. slurm, mpi and "
     "kubernetes take :PORT at the end (slurm:5000; else 2222), on which every worker listens; "
     "with slurm and mpi each further task on a host listens on the next port."},
    {"Who else", "cluster_spec", K::kText, &C::cluster_spec,
     "With resolver=flags: the address of every worker, in the order of their tasks, as in "
     "ps=host:port,host:port;worker=host:port. With slurm, mpi and kubernetes, which know the "
     "addresses: how many tasks each job has, as in ps=1,worker=3; with slurm and mpi the last job "
     "may be worker=*, which takes all tasks that are left. All workers of a closed cluster set "
     "the same."},
    {"Who else", "etcd_ca_file", K::kText, &C::etcd_ca_file,
     "Set it when etcd speaks TLS: the certificates (PEM) of the authority that signed the "
     "certificates of etcd's servers."},
    {"Who else", "etcd_certificate_file", K::kText, &C::etcd_certificate_file,
     "Set it when etcd asks its clients for certificates: this worker's certificate (PEM) for "
     "etcd."},
    {"Who else", "etcd_key_file", K::kText, &C::etcd_key_file,
     "The private key (PEM) of etcd_certificate_file."},
    {"Who else", "etcd_password_file", K::kText, &C::etcd_password_file,
     "Set it when etcd has users: a file with USER:PASSWORD, with which this worker logs in."},
    {"Who else", "open_cluster", K::kSwitch, &C::open_cluster,
     "Lets a worker join although the cluster's description does not name it. Set it where workers "
     "come and go, together with join."},
    {"Who else", "join", K::kText, &C::join,
     "Some workers to announce this one to when it starts, as in "
     "/job:ps/replica:0/task:0@host:port, separated by commas. They tell this worker of all "
     "others. Set it in an open cluster."},
    {"Security", "certificate_file", K::kText, &C::certificate_file,
     "For mutual TLS: this worker's certificate chain (PEM). The certificate names the worker by a "
     "URI: tryst://CLUSTER/job:J/replica:0/task:T for one worker, tryst://CLUSTER/job:J for any "
     "worker of a job, or tryst://CLUSTER for any worker of the cluster. Set it together with "
     "key_file and ca_file. This worker looks every ten seconds, and trystd at once on SIGHUP, "
     "whether one of the three files has changed; it then uses the new ones."},
    {"Security", "key_file", K::kText, &C::key_file,
     "For mutual TLS: the private key (PEM) of certificate_file."},
    {"Security", "ca_file", K::kText, &C::ca_file,
     "For mutual TLS: the certificates (PEM) of the authorities that may sign other workers' "
     "certificates."},
    {"Security", "token_file", K::kText, &C::token_file,
     "A file with a secret of at least 16 bytes that all workers of the cluster share, in place of "
     "certificates. It keeps out whoever does not hold it, and encrypts tensors; it does not hide "
     "names and sizes, nor prove which worker calls."},
    {"Security", "insecure", K::kSwitch, &C::insecure,
     "Uses neither certificates nor a token: whoever can connect is let in, and nothing is "
     "encrypted. This worker then listens only on the loopback. Set it to try things out on one "
     "machine."},
    {"Security", "insecure_anywhere", K::kSwitch, &C::insecure_anywhere,
     "Lets a worker with insecure listen on addresses that other hosts can reach. Set it only in a "
     "network that nobody else is in."},
    {"Security", "encrypt", K::kText, &C::encrypt,
     "Whether tensors that leave the host are encrypted. auto: yes, where certificates or a token "
     "are set. on: the same, and a worker with insecure does not start. trusted_nic: as on, but "
     "RDMA hardware and libfabric, which cannot encrypt and are otherwise left unused, carry "
     "tensors in the clear; set it only when nobody else is on their network. off: never. Set it "
     "alike on all workers; two workers that differ reach each other only by gRPC, or not at all."},
    {"Security", "allow", K::kText, &C::allow,
     "Which worker may receive which tensors, as CONSUMER=KEY_PREFIX;..., for example "
     "/job:worker=/job:ps. Empty: each worker may receive every tensor that is sent to it. If set, "
     "tensors on one host are copied instead of shared."},
    {"Security", "control", K::kText, &C::control,
     "Which callers may begin, abort and clean up steps of this worker, separated by commas, as in "
     "/job:chief,/job:cli. Empty: every worker of the cluster; in an open cluster that is "
     "everybody who is let in."},
    {"Limits", "max_tensor_bytes", K::kBytes, &C::max_tensor_bytes,
     "The largest tensor that this worker receives. If a producer announces a larger one, this "
     "worker refuses it, so a faulty producer cannot fill the memory."},
    {"Limits", "max_held_bytes", K::kBytes, &C::max_held_bytes,
     "How many bytes of tensors this worker may hold that were sent and not yet received. A Send "
     "beyond that fails, which tells the producer to wait. 0: no limit; set it where producers can "
     "run ahead of consumers."},
    {"Limits", "max_kept_bytes", K::kBytes, &C::max_kept_bytes,
     "How many bytes of tensors a producer keeps for consumers whose connection broke while they "
     "received. Beyond that it drops the oldest tensors."},
    {"Limits", "landing_bytes", K::kBytes, &C::landing_bytes,
     "How much memory the best NIC sets aside for tensors for which the receiver gave no "
     "destination; others, for peers that it does not reach, have an eighth of that. "
     "Set it to what can arrive at once and, over RDMA, is still held. A tensor that is larger "
     "comes "
     "alone, beside it."},
    {"Limits", "memory_bytes", K::kBytes, &C::memory_bytes,
     "The most that the limits above, shm_bytes and the message rings may add up to. This worker "
     "does not start when their sum is larger, and prints the sum. 0: not checked; set it to what "
     "the container allows."},
    {"Limits", "max_peers", K::kNumber, &C::max_peers,
     "How many peers may be connected over NICs in each direction. Further peers use gRPC. "
     "Completion queues have room for this many."},
    {"Limits", "patience", K::kDuration, &C::patience,
     "How long a fetch goes on trying while its producer does not answer; then it fails. Set it "
     "above the time that a worker of yours takes to restart. When a consumer vanishes, its "
     "producers keep its tensors for twice as long, and at least 2m, in case it comes back."},
    {"Limits", "stop_deadline", K::kDuration, &C::stop_deadline,
     "How long a worker that was told to stop waits for tensors under way. Let supervisors wait "
     "longer than this before they kill the worker."},
    {"Data plane", "shm", K::kText, &C::shm,
     "Whether tensors travel through shared memory between workers of one host. auto: yes, unless "
     "nic names a NIC. on: yes. no_grants: as auto, but nobody copies of regions by itself "
     "(docs/SECURITY.md). off: no, for example where workers of one user must not read each "
     "other's memory. It has no effect with protocol=grpc."},
    {"Data plane", "shm_bytes", K::kBytes, &C::shm_bytes,
     "The most shared memory that this worker takes, for tensors that are made in it and for "
     "copies of others under way; at least 16MiB. When it is used up, tensors take another way. It "
     "counts against the memory of the cgroup; /dev/shm is not needed."},
    {"Data plane", "nic", K::kText, &C::nic,
     "Which NICs carry tensors between hosts. auto: an RDMA device if there is one, and the soft "
     "NIC, which needs no hardware. soft: only the soft NIC. ibv: only an RDMA device; "
     "TensorFlow's RDMA_* variables choose and tune it. ofi:PROVIDER: libfabric with the provider "
     "tcp, shm, udp, verbs or efa; both workers must name the same. grpc: none. Peers that no NIC "
     "reaches are reached by gRPC, by one stream to each. calls: neither, but a call of gRPC for "
     "each fetch, as in 0.2.0; until the next release."},
    {"Data plane", "nic_listen", K::kText, &C::nic_listen,
     "The host:port on which the soft NIC takes connections; set it when a firewall lets only "
     "known ports pass. Several with commas between them, each on a network of its own: large "
     "tensors go over all of these, and without those that are down; name the networks in the same "
     "order on all workers. Empty: a free port of the host that gRPC listens on."},
    {"Data plane", "queue_pairs", K::kNumber, &C::queue_pairs,
     "How many connections carry large tensors from each peer, 1 to 8: raise it where one does not "
     "fill the network, as in clouds, which hold each to a part of the link: 10 Gbit/s at 5 for "
     "each takes two. Queue pairs of an RDMA device, each with its part of a tensor; TCP "
     "connections to each address of a soft NIC, of which a slow one is given less. Set it alike "
     "on all workers."},
    {"Data plane", "pollers", K::kText, &C::pollers,
     "How many threads move tensors; each serves some of the peers. auto: half of the processors "
     "that the process may use, 1 to 8. A number: that many threads, but never more than those "
     "processors, and 1 if gpus is set; fewer threads leave more processors to the program. "
     "cpus:0,2,4-7: one thread on each of these processors; choose those of the NIC's NUMA node, "
     "which tryst doctor names."},
    {"GPUs", "gpus", K::kText, &C::gpus,
     "The GPUs whose memory tensors may lie in: all, or their numbers as in 0,1. Empty: none."},
    {"GPUs", "gpu_pool_bytes", K::kBytes, &C::gpu_pool_bytes,
     "The most memory that Tryst takes of each GPU, for tensors for which the program gave no "
     "destination."},
    {"Seeing what it does", "trace_sample_every", K::kNumber, &C::trace_sample_every,
     "tryst trace records every operation that fails or takes 10 ms or longer, and one in this "
     "many of the others; 1: all. The worker keeps the newest 4,096."},
    {"Seeing what it does", "status_listen", K::kText, &C::status_listen,
     "The address:port, in numbers, of the status page and of /metrics. Set it when Prometheus "
     "needs a fixed port. Any address but 127.0.0.1 needs status_token_file, as the page shows all "
     "peers and keys. Empty: trystd takes a free port of 127.0.0.1, and a server inside another "
     "program shows no page. off: no page."},
    {"Seeing what it does", "status_token_file", K::kText, &C::status_token_file,
     "A file with a token of at least 16 bytes. Whoever wants to see the status page must send the "
     "token: browsers as the password, with any user name, Prometheus as a bearer token. With it "
     "status_listen may name an address that other hosts can reach."},
    {"Seeing what it does", "status_certificate_file", K::kText, &C::status_certificate_file,
     "The certificate chain (PEM) with which the status page speaks TLS. It has to name the host, "
     "as browsers expect. Set it with status_token_file, or the token travels in the clear. It is "
     "read only at the start."},
    {"Seeing what it does", "status_key_file", K::kText, &C::status_key_file,
     "The private key (PEM) of status_certificate_file, read only at the start."},
    {"Seeing what it does", "log_format", K::kText, &C::log_format,
     "How trystd writes its log to stderr. text: lines for people. json: one JSON object for each "
     "line, for log collectors."},
};

}  // namespace

bool UsesShm(const ServerConfig& config) {
  if (config.protocol == "grpc") return false;
  const bool is_auto = config.shm == "auto" || config.shm == "no_grants";
  return config.shm == "on" || (is_auto && config.nic == "auto");
}

bool UsesGrants(const ServerConfig& config) { return UsesShm(config) && config.shm != "no_grants"; }

bool UsesStreams(const ServerConfig& config) { return config.nic != "calls"; }

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
      config.encrypt == "trusted_nic"
          ? "; RDMA hardware and libfabric in the clear, as encrypt=trusted_nic says"
          : "; RDMA hardware and libfabric are not used, since nothing encrypts there "
            "(encrypt=trusted_nic)";
  return absl::StrCat(soft, config.protocol == "grpc" ? "" : hardware);
}

absl::Duration KeepFor(const ServerConfig& config) {
  return std::max(absl::Minutes(2), 2 * config.patience);
}

absl::Duration EtcdLease(const ServerConfig& config) {
  return std::clamp(config.patience, absl::Seconds(2), absl::Seconds(10));
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
      int64_t value = 0;
      good = absl::SimpleAtoi(text, &value) && value >= 0;
      if (good) config->*absl::get<int64_t C::*>(row.field) = value;
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
  for (const RemovedSetting& removed : RemovedSettings()) {
    const std::string variable = VariableName(removed.name);
    if (environment.find(variable) == environment.end()) continue;
    return CheckNotRemoved(removed.name, variable);
  }
  for (const ConfigRow& row : ConfigRows()) {
    const auto variable = environment.find(VariableName(row.name));
    if (variable == environment.end()) continue;
    absl::Status parsed = ParseSetting(row, variable->second, &config);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(VariableName(row.name), ": ", parsed.message()));
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

// kInvalidArgument: `value` is none of `choices`.
absl::Status CheckChoice(absl::string_view name, absl::string_view value,
                         const std::vector<absl::string_view>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is '", value, "', and should be one of: ", absl::StrJoin(choices, ", ")));
}

// kInvalidArgument: `value` is not from `least` to `most`.
absl::Status CheckRange(absl::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", and must be from ", least, " to ", most));
}

}  // namespace

absl::Status CheckLimits(const ServerConfig& config) {
  if (config.cluster.empty() || absl::StrContains(config.cluster, '/')) {
    return absl::InvalidArgumentError("cluster must be a name without '/', and not empty");
  }
  for (const absl::Status& checked :
       {CheckChoice("shm", config.shm, {"auto", "on", "no_grants", "off"}),
        CheckChoice("encrypt", config.encrypt, {"auto", "on", "trusted_nic", "off"}),
        CheckChoice("log_format", config.log_format, {"text", "json"}),
        CheckRange("task", config.task, 0, INT32_MAX),
        CheckRange("queue_pairs", config.queue_pairs, 1, kMostQueuePairs),
        CheckRange("max_peers", config.max_peers, 1, kMostPeers),
        CheckRange("trace_sample_every", config.trace_sample_every, 1, 1 << 30),
        PollerPlan::Parse(config.pollers).status()}) {
    if (!checked.ok()) return checked;
  }
  if ((config.encrypt == "on" || config.encrypt == "trusted_nic") && config.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat("encrypt=", config.encrypt,
                     " needs a secret, and insecure is set: set certificates or token_file instead "
                     "of insecure"));
  }
  if (UsesShm(config) && config.shm_bytes < kLeastShmBytes) {
    return absl::InvalidArgumentError(
        "shm_bytes must be at least 16 MiB: raise it, or set shm=off");
  }
  uint64_t total = 0;
  for (const Sum& sum : MemorySums(config)) total += sum.bytes;
  if (config.memory_bytes != 0 && total > config.memory_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the limits add up to more than memory_bytes:\n", PrintLimits(config)));
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
  out += "\n**Settings of earlier releases**, which are refused:\n\n";
  for (const RemovedSetting& removed : RemovedSettings()) {
    absl::StrAppend(&out, "- `", removed.name, "`: ", removed.instead, "\n");
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
