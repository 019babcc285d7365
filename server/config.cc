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
constexpr int64_t kMostCallbackThreads = 1024;
// channel/rdma has the same limits; settings_test compares them.
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
     "The name of this cluster. All workers of a job set the same one; a worker refuses calls from "
     "workers that set another. Give each job its own name where several share hosts or a token."},
    {"Who and where", "job", K::kText, &C::job,
     "The name of this worker's job in the cluster, for example ps. With task it makes the "
     "worker's name, /job:ps/replica:0/task:0. Not needed where a resolver (slurm, mpi, "
     "kubernetes, tf_config) tells it."},
    {"Who and where", "task", K::kNumber, &C::task,
     "The number of this worker in its job, from 0. Not needed where a resolver tells it."},
    {"Who and where", "protocol", K::kText, &C::protocol,
     "How tensors may travel. grpc+verbs: by shared memory, RDMA or the soft NIC, and by gRPC "
     "where none of them works. grpc: by gRPC alone, for example where only one port is open "
     "between hosts."},
    {"Who and where", "listen", K::kText, &C::listen,
     "The host:port on which this worker takes gRPC calls; port 0 takes a free one. Empty: the "
     "port of its entry in the cluster, on the loopback if insecure is set, else on every "
     "address."},
    {"Who and where", "advertise", K::kText, &C::advertise,
     "The host:port that this worker tells others to connect to. Set it when they reach it under "
     "another address than it listens on (listen=0.0.0.0:2222, NAT, containers). Empty: its entry "
     "in the cluster, else the address it listens on."},
    {"Who else", "resolver", K::kText, &C::resolver,
     "Where this worker learns who the other workers are: flags (cluster_spec), file "
     "(cluster_file), tf_config (the variable TF_CONFIG), slurm, mpi, kubernetes or etcd. Set what "
     "starts your job."},
    {"Who else", "cluster_spec", K::kText, &C::cluster_spec,
     "With resolver=flags: the address of every worker, in the order of their tasks, as in "
     "ps=host:port,host:port;worker=host:port. All workers of a closed cluster set the same."},
    {"Who else", "cluster_file", K::kText, &C::cluster_file,
     "With resolver=file: a JSON file of the cluster's addresses, in the form of TensorFlow's "
     "ClusterDef or ServerDef. It is read again when it changes."},
    {"Who else", "cluster_jobs", K::kText, &C::cluster_jobs,
     "With resolver=slurm, mpi or kubernetes: which jobs there are, and how many tasks each has, "
     "as in ps=1,worker=3. With slurm and mpi the last may be worker=*, which takes all tasks that "
     "are left."},
    {"Who else", "kubernetes_service", K::kText, &C::kubernetes_service,
     "With resolver=kubernetes: the DNS name of the headless service of the pods, for example "
     "tryst.default.svc.cluster.local."},
    {"Who else", "base_port", K::kNumber, &C::base_port,
     "With resolver=slurm, mpi or kubernetes: the port of every worker. With slurm and mpi each "
     "further task on a host takes the next port."},
    {"Who else", "mpi_hosts", K::kText, &C::mpi_hosts,
     "With resolver=mpi on more hosts than one: the hosts in the order of their ranks, as in "
     "node[1-4]. mpirun does not tell them."},
    {"Who else", "etcd_endpoints", K::kText, &C::etcd_endpoints,
     "With resolver=etcd: host:port of each of its servers, separated by commas. Each worker is a "
     "key there, under /tryst/CLUSTER/; whoever may write those keys can add a worker, so restrict "
     "that."},
    {"Who else", "etcd_ca_file", K::kText, &C::etcd_ca_file,
     "Set it when etcd speaks TLS: the certificates (PEM) of the authority that signed those of "
     "etcd's servers."},
    {"Who else", "etcd_certificate_file", K::kText, &C::etcd_certificate_file,
     "Set it when etcd asks its clients for certificates: this worker's certificate (PEM) for "
     "etcd."},
    {"Who else", "etcd_key_file", K::kText, &C::etcd_key_file,
     "The private key (PEM) of etcd_certificate_file."},
    {"Who else", "etcd_user", K::kText, &C::etcd_user,
     "Set it when etcd has users: the user as whom this worker logs in there."},
    {"Who else", "etcd_password_file", K::kText, &C::etcd_password_file,
     "A file with the password of etcd_user."},
    {"Who else", "etcd_lease", K::kDuration, &C::etcd_lease,
     "With resolver=etcd: how long a worker stays in the list of workers after it last reached "
     "etcd; at least 2s. A longer time rides out longer outages, a shorter one finds lost hosts "
     "sooner."},
    {"Who else", "open_cluster", K::kSwitch, &C::open_cluster,
     "Lets workers join that the cluster's description does not name. Set it where workers come "
     "and go, together with join."},
    {"Who else", "join", K::kText, &C::join,
     "Some workers to announce this one to when it starts, as in "
     "/job:ps/replica:0/task:0@host:port, separated by commas. They tell it of all others. Set it "
     "in an open cluster."},
    {"Security", "certificate_file", K::kText, &C::certificate_file,
     "For mutual TLS: this worker's certificate chain (PEM). The certificate names the worker by a "
     "URI: tryst://CLUSTER/job:J/replica:0/task:T for one worker, tryst://CLUSTER/job:J for any of "
     "a job, or tryst://CLUSTER for any of the cluster. Set it together with key_file and "
     "ca_file."},
    {"Security", "key_file", K::kText, &C::key_file,
     "For mutual TLS: the private key (PEM) of certificate_file."},
    {"Security", "ca_file", K::kText, &C::ca_file,
     "For mutual TLS: the certificates (PEM) of the authorities that may sign other workers' "
     "certificates."},
    {"Security", "reload_period", K::kDuration, &C::reload_period,
     "How often this worker looks whether certificate_file, key_file or ca_file has changed; it "
     "then uses the new ones. SIGHUP makes trystd look at once."},
    {"Security", "token_file", K::kText, &C::token_file,
     "A file with a secret of at least 16 bytes that all workers of the cluster share, in place of "
     "certificates. It keeps out whoever does not hold it, and encrypts tensors; it does not hide "
     "names and sizes, nor prove which worker calls."},
    {"Security", "insecure", K::kSwitch, &C::insecure,
     "Uses neither certificates nor a token: whoever can connect is let in, and nothing is "
     "encrypted. This worker then listens on the loopback alone. For trying things out on one "
     "machine."},
    {"Security", "insecure_anywhere", K::kSwitch, &C::insecure_anywhere,
     "Lets a worker with insecure listen on addresses that other hosts can reach. Set it only in a "
     "network that nobody else is in."},
    {"Security", "authenticate_within", K::kDuration, &C::authenticate_within,
     "A gRPC connection is closed when its caller has not proved who it is for so long after "
     "connecting; at least 100ms."},
    {"Security", "reflection", K::kSwitch, &C::reflection,
     "Lets everybody who can connect list the gRPC services of this worker, without a certificate "
     "or token. Set it while you debug with grpcurl."},
    {"Security", "encrypt", K::kText, &C::encrypt,
     "Whether tensors that leave the host are encrypted. auto: they are where certificates or a "
     "token are set. on: the same, and a worker with insecure does not start. off: never. Set it "
     "alike on all workers; two that differ reach each other by gRPC alone, or not at all."},
    {"Security", "nic_trusted_network", K::kSwitch, &C::nic_trusted_network,
     "Allows RDMA hardware and libfabric, which cannot encrypt, although this worker encrypts. Set "
     "it only when nobody else is on their network; otherwise such hardware is left unused."},
    {"Security", "allow", K::kText, &C::allow,
     "Which worker may receive which tensors, as CONSUMER=KEY_PREFIX;..., for example "
     "/job:worker=/job:ps. Empty: each worker may receive every tensor that is sent to it. If set, "
     "tensors on one host are copied instead of shared."},
    {"Security", "control", K::kText, &C::control,
     "Which callers may begin, abort and clean up steps of this worker, separated by commas, as in "
     "/job:chief,/job:cli. Empty: every worker of the cluster; in an open cluster that is "
     "everybody who is let in."},
    {"Limits", "max_tensor_bytes", K::kBytes, &C::max_tensor_bytes,
     "The largest tensor that this worker receives. One that its producer states to be larger is "
     "refused, so a faulty producer cannot fill the memory."},
    {"Limits", "max_held_bytes", K::kBytes, &C::max_held_bytes,
     "How many bytes of tensors may have been sent here and not yet received. A Send beyond it "
     "fails, which tells the producer to wait. 0: no limit; set it where producers can run ahead "
     "of consumers."},
    {"Limits", "max_held_bytes_per_step", K::kBytes, &C::max_held_bytes_per_step,
     "Like max_held_bytes, for each step by itself, so that one step cannot take all of it. 0: no "
     "limit."},
    {"Limits", "max_kept_bytes", K::kBytes, &C::max_kept_bytes,
     "How many bytes of tensors a producer keeps for consumers whose connection broke while they "
     "received. Beyond it the oldest are dropped."},
    {"Limits", "landing_bytes", K::kBytes, &C::landing_bytes,
     "How much memory each NIC sets aside for tensors that arrive without a destination of the "
     "receiver's own. Set it to what can arrive at once, and at least to the largest tensor: "
     "larger ones travel by gRPC."},
    {"Limits", "memory_bytes", K::kBytes, &C::memory_bytes,
     "The most that the limits above, shm_bytes and the message rings may add up to. This worker "
     "does not start when their sum is larger, and prints it. 0: not checked; set it to what the "
     "container allows."},
    {"Limits", "max_asked", K::kNumber, &C::max_asked,
     "How many fetches from one peer may each keep a gRPC call open while they wait for the tensor "
     "to be sent; further ones share calls. Each costs some 20 KB at both ends. Lower it for "
     "workers with thousands of peers."},
    {"Limits", "max_waiting", K::kNumber, &C::max_waiting,
     "How many fetches from one peer may wait for tensors that have not been sent, beyond those "
     "that hold slots. Further ones wait at the receiver. Lower it to bound a producer's memory, "
     "some 600 bytes for each."},
    {"Limits", "callback_threads", K::kNumber, &C::callback_threads,
     "How many threads run the callbacks of receives. 0: one more than pollers. Raise it when "
     "callbacks compute for long or block."},
    {"Limits", "patience", K::kDuration, &C::patience,
     "How long a fetch goes on trying while its producer does not answer; then it fails. Set it "
     "above the time that a worker of yours takes to restart."},
    {"Limits", "keep_for", K::kDuration, &C::keep_for,
     "How long a producer keeps tensors for a consumer that has vanished, in case it comes back. "
     "It must be longer than patience."},
    {"Limits", "stop_deadline", K::kDuration, &C::stop_deadline,
     "How long a worker that was told to stop waits for tensors under way. Give supervisors a "
     "longer time than this before they kill it."},
    {"Limits", "grpc_idle", K::kDuration, &C::grpc_idle,
     "A gRPC connection without a call for so long is closed, and opened again when needed; at "
     "least 1s. Raise it if calls come rarely and must be quick."},
    {"Data plane", "shm", K::kText, &C::shm,
     "Whether tensors travel through shared memory between workers of one host. auto: yes, unless "
     "nic names a NIC. on: yes. off: no, for example where workers of one user must not read each "
     "other's memory. Without effect with protocol=grpc."},
    {"Data plane", "shm_bytes", K::kBytes, &C::shm_bytes,
     "The most shared memory that this worker takes, for tensors that are made in it and for "
     "copies of others under way; at least 16MiB. When it is used up, tensors take another way. It "
     "counts against the memory of the cgroup; /dev/shm is not needed."},
    {"Data plane", "digests", K::kText, &C::digests,
     "Whether the receiver checks a CRC-32C of every tensor. auto: over gRPC and the soft NIC "
     "between hosts, unless they encrypt, which checks more; not over RDMA and shared memory. on: "
     "always. off: never. When one of two workers checks, both do."},
    {"Data plane", "nic", K::kText, &C::nic,
     "Which NICs carry tensors between hosts. auto: an RDMA device if there is one, and the soft "
     "NIC, which needs no hardware. soft: that alone. ibv: an RDMA device alone; TensorFlow's "
     "RDMA_* variables choose and tune it. ofi:PROVIDER: libfabric with the provider tcp, shm, "
     "udp, verbs or efa; both workers must name the same."},
    {"Data plane", "nic_listen", K::kText, &C::nic_listen,
     "The host:port on which the soft NIC takes connections; set it when a firewall lets only "
     "known ports pass. Empty: a free port of the host that gRPC listens on."},
    {"Data plane", "slots", K::kNumber, &C::slots,
     "How many fetches may be under way from one peer over a NIC at once; over shared memory twice "
     "as many. Others wait in line. Raise it for many small tensors over a slow or distant "
     "network."},
    {"Data plane", "ring_slots", K::kNumber, &C::ring_slots,
     "How many messages a peer may send to this worker before it has read the first of them; at "
     "least 2. Raise it with slots for many small tensors; each takes message_bytes of memory."},
    {"Data plane", "message_bytes", K::kBytes, &C::message_bytes,
     "The size of one message between workers, a multiple of 8. Tensors that fit travel inside the "
     "message, without a second step. Raise it if most of your tensors are somewhat larger; each "
     "peer costs 2 * ring_slots messages."},
    {"Data plane", "offered_bytes", K::kBytes, &C::offered_bytes,
     "How much memory a receiver sets aside with a request when it does not know the tensor's "
     "size. A larger tensor needs one more round trip the first time. Raise it if most of your "
     "tensors are larger."},
    {"Data plane", "queue_pairs", K::kNumber, &C::queue_pairs,
     "How many connections (queue pairs) to open to each peer in each direction. Raise it where "
     "one of them does not fill the network; large tensors are spread over all of them."},
    {"Data plane", "max_peers", K::kNumber, &C::max_peers,
     "How many peers may be connected over NICs in each direction. Further ones are refused there "
     "and use gRPC. Completion queues are sized by it."},
    {"Data plane", "stripe_bytes", K::kBytes, &C::stripe_bytes,
     "Tensors of at least this size are spread over all queue_pairs."},
    {"Data plane", "pollers", K::kNumber, &C::pollers,
     "How many threads move tensors; each serves some of the peers. 0: half of the processors that "
     "the process may use, 1 to 8. Never more than those processors, and 1 if gpus is set. Fewer "
     "leave more to the program."},
    {"Data plane", "poller_cpus", K::kText, &C::poller_cpus,
     "The processors on which to keep the pollers, one each, as in 0,2,4-7. Choose those of the "
     "NIC's NUMA node, which tryst doctor names. Empty: the system moves them."},
    {"Data plane", "helpers", K::kNumber, &C::helpers,
     "How many threads help the pollers with large tensors, over shared memory and the soft NIC; "
     "they sleep without one. -1: one less than half of the processors that the process may use, "
     "at most 7. 0: none, where the program needs all processors."},
    {"Data plane", "spin_us", K::kNumber, &C::spin_us,
     "For how many microseconds a poller goes on looking for work before it sleeps. It does so "
     "only where that has paid lately. 0: it sleeps at once, which saves processor time and costs "
     "some latency."},
    {"GPUs", "gpus", K::kText, &C::gpus,
     "The GPUs whose memory tensors may lie in: all, or their numbers as in 0,1. Empty: none."},
    {"GPUs", "gpu_ways", K::kText, &C::gpu_ways,
     "Which fast ways between GPUs may be used after a test at run time has shown that they work: "
     "cuda_ipc (GPUs of one host read each other's memory), direct (the NIC reads and writes GPU "
     "memory). Between other GPUs tensors are copied through host memory. staged: always copy "
     "through host memory."},
    {"GPUs", "gpu_chunk_bytes", K::kBytes, &C::gpu_chunk_bytes,
     "The size of the pieces in which a GPU's tensor is copied through host memory; at least "
     "64KiB. Set it alike on both workers."},
    {"GPUs", "gpu_slots", K::kNumber, &C::gpu_slots,
     "How many pieces of gpu_chunk_bytes of host memory each GPU has for sending, and as many for "
     "receiving; 1 to 4096. More of them keep a fast network busy."},
    {"GPUs", "gpu_standby_us", K::kNumber, &C::gpu_standby_us,
     "After a tensor of up to 2 MiB from another GPU, a kernel waits for the next for so many "
     "microseconds, on one multiprocessor, or on eight for larger ones; 0 to 1000. That saves the "
     "launch. 0: a kernel is launched for each."},
    {"GPUs", "gpu_pool_bytes", K::kBytes, &C::gpu_pool_bytes,
     "The most memory that Tryst takes of each GPU, for tensors that are received without a "
     "destination of the program's own."},
    {"Seeing what it does", "trace_records", K::kNumber, &C::trace_records,
     "How many past operations tryst trace can show, 384 bytes each. Those over NICs and shared "
     "memory, and those that were served over gRPC, are counted apart."},
    {"Seeing what it does", "trace_sample_every", K::kNumber, &C::trace_sample_every,
     "Of operations that succeed quickly, one in so many is recorded for tryst trace. 1: all of "
     "them."},
    {"Seeing what it does", "trace_slow", K::kDuration, &C::trace_slow,
     "Operations that take longer than this are always recorded for tryst trace, as are those that "
     "fail."},
    {"Seeing what it does", "status_listen", K::kText, &C::status_listen,
     "The address:port, in numbers, of the status page and of /metrics. Set it when Prometheus "
     "needs a fixed port. Empty: trystd takes a free port of 127.0.0.1, and a server inside "
     "another program shows none. off: none."},
    {"Seeing what it does", "status_anywhere", K::kSwitch, &C::status_anywhere,
     "Lets the status page listen on an address that other hosts can reach, for everybody without "
     "a password. It shows all peers and keys: prefer status_token_file."},
    {"Seeing what it does", "status_token_file", K::kText, &C::status_token_file,
     "A file with a token of at least 16 bytes that whoever wants to see the status page must "
     "send: browsers as the password, with any user name, Prometheus as a bearer token. It allows "
     "addresses that other hosts can reach."},
    {"Seeing what it does", "status_certificate_file", K::kText, &C::status_certificate_file,
     "The certificate chain (PEM) with which the status page speaks TLS. It has to name the host, "
     "as browsers expect. Set it with status_token_file, or the token travels in the clear. Read "
     "at the start alone."},
    {"Seeing what it does", "status_key_file", K::kText, &C::status_key_file,
     "The private key (PEM) of status_certificate_file. Read at the start alone."},
    {"Seeing what it does", "log_format", K::kText, &C::log_format,
     "How trystd writes its log to stderr. text: lines for people. json: one JSON object for each "
     "line, for log collectors."},
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
    return absl::InvalidArgumentError(
        absl::StrCat("slots (", config.slots, ") must be at most ", kMostSlots, ", ring_slots (",
                     config.ring_slots, ") at most ", kMostRingSlots, ", queue_pairs (",
                     config.queue_pairs, ") at most ", kMostQueuePairs, ", max_peers (",
                     config.max_peers, ") at most ", kMostPeers));
  }
  if (config.message_bytes < kLeastMessageBytes || config.message_bytes > kMostMessageBytes ||
      config.message_bytes % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message_bytes is ", config.message_bytes, ", and must be from ", kLeastMessageBytes,
        " (so that a key fits) to ", kMostMessageBytes, " and a multiple of 8"));
  }
  if (config.authenticate_within < absl::Milliseconds(100)) {
    return absl::InvalidArgumentError("authenticate_within must be at least 100ms");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLimits(const ServerConfig& config) {
  if (config.cluster.empty() || absl::StrContains(config.cluster, '/')) {
    return absl::InvalidArgumentError("cluster must be a name, and without '/'");
  }
  if (config.patience >= config.keep_for) {
    return absl::InvalidArgumentError(absl::StrCat(
        "patience (", absl::FormatDuration(config.patience), ") must be below keep_for (",
        absl::FormatDuration(config.keep_for),
        "): otherwise a producer drops tensors while their consumer still tries to fetch them"));
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
        "encrypt=on needs a secret, and insecure is set: set certificates or token_file instead of "
        "insecure");
  }
  if (UsesShm(config) && config.shm_bytes < kLeastShmBytes) {
    return absl::InvalidArgumentError(
        "shm_bytes must be at least 16 MiB: raise it, or set shm=off");
  }
  if (config.gpu_standby_us < 0 || config.gpu_standby_us > 1000) {
    return absl::InvalidArgumentError("gpu_standby_us must be from 0 to 1000");
  }
  if (config.gpu_chunk_bytes < 64 << 10 || config.gpu_slots < 1 || config.gpu_slots > 4096) {
    return absl::InvalidArgumentError(
        "gpu_chunk_bytes must be at least 64 KiB, and gpu_slots from 1 to 4096");
  }
  if (config.grpc_idle < absl::Seconds(1)) {
    return absl::InvalidArgumentError("grpc_idle must be at least 1s, the least that gRPC takes");
  }
  if (config.max_held_bytes != 0 && config.max_held_bytes_per_step > config.max_held_bytes) {
    return absl::InvalidArgumentError("max_held_bytes_per_step must not be above max_held_bytes");
  }
  if (config.pollers < 0 || config.pollers > kMostPollers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pollers is ", config.pollers, ", and must be from 0 (as many as fit) to ", kMostPollers));
  }
  if (config.helpers < -1 || config.helpers > kMostHelpers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "helpers is ", config.helpers, ", and must be from -1 (as many as fit) to ", kMostHelpers));
  }
  const absl::StatusOr<std::vector<int>> cpus = PollerCpus(config.poller_cpus);
  if (!cpus.ok()) return cpus.status();
  if (config.callback_threads < 0 || config.max_asked < 1 || config.max_waiting < 1 ||
      config.max_waiting > UINT32_MAX || config.slots < 1 || config.ring_slots < 2 ||
      config.queue_pairs < 1 || config.max_peers < 1) {
    return absl::InvalidArgumentError(
        "max_asked, max_waiting, slots, queue_pairs and max_peers must each be at least 1, "
        "ring_slots at least "
        "2, "
        "callback_threads 0");
  }
  const absl::Status usable = CheckUsable(config);
  if (!usable.ok()) return usable;
  if (config.spin_us < 0 || config.spin_us > 1'000'000) {
    return absl::InvalidArgumentError("spin_us must be from 0 to 1000000");
  }
  if (config.log_format != "text" && config.log_format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log_format is '", config.log_format, "', and should be text or json"));
  }
  if (config.trace_records < 1 || config.trace_records > 1 << 20 || config.trace_sample_every < 1 ||
      config.trace_sample_every > 1 << 30) {
    return absl::InvalidArgumentError(
        "trace_records must be from 1 to 1048576, and trace_sample_every at least 1");
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
