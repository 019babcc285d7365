#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/descriptor_table.h"
#include "base/log.h"
#include "base/read_file.h"
#include "server/data_plane/open_nics.h"
#include "server/members/cluster_file.h"
#include "server/security/loopback.h"
#include "server/server.h"
#include "server/server_parts.h"

namespace tryst {
namespace {

constexpr size_t kMostEtcdEndpoints = 64;
// A thousand peers take about this many descriptors. The kernel's table of them takes 32 KiB.
constexpr int kDescriptors = 4096;

constexpr size_t kMostFileBytes = 1 << 20;

absl::StatusOr<ClusterSpec> Resolve(const Resolver& resolver, const std::string& spec,
                                    const Environment& environment) {
  const std::string& where = resolver.where;
  const int port = resolver.port;
  if (resolver.name == "flags") return ClusterFromText(spec);
  if (resolver.name == "file") {
    absl::StatusOr<std::string> text = ReadFile(where, kMostClusterFileBytes);
    return text.ok() ? ClusterFromJson(*text) : absl::StatusOr<ClusterSpec>(text.status());
  }
  if (resolver.name == "tf_config") return ClusterFromTfConfig(environment);
  if (resolver.name == "slurm") return ClusterFromSlurm(environment, spec, port);
  if (resolver.name == "mpi") return ClusterFromMpi(environment, spec, where, port);
  if (resolver.name == "kubernetes") {
    return ClusterFromKubernetes(environment, spec, where, port);
  }
  return ClusterSpec();  // etcd will name the members once it is connected.
}

// Decides which worker this process is. The config has precedence over the cluster's description.
absl::Status NameSelf(const ServerConfig& config, ServerParts* parts) {
  const std::string job = config.job.empty() ? parts->cluster.job : config.job;
  const int task = config.job.empty() ? parts->cluster.task : static_cast<int>(config.task);
  parts->worker = WorkerName(job, task);
  parts->config.job = job;
  parts->config.task = task;
  DeviceName name;
  const std::string cpu = absl::StrCat(parts->worker, "/device:CPU:0");
  if (!ParseDeviceName(cpu, &name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job '", job,
        "' cannot be a job's name: set job to a name of letters, digits, '_', '-' and '.'"));
  }
  return absl::OkStatus();
}

// Decides where the server listens and under which address peers reach it.
absl::Status PlaceSelf(const ServerConfig& config, ServerParts* parts) {
  const auto workers = parts->cluster.Workers();
  const auto own = workers.find(parts->worker);
  std::string entry = own == workers.end() ? "" : own->second;
  entry.erase(0, entry.find_last_of('/') + 1);  // It may be dns:///host:port.
  if (own == workers.end() && !config.open_cluster && parts->resolver.name != "etcd") {
    return absl::InvalidArgumentError(
        absl::StrCat(parts->worker,
                     " is not named in the cluster's description, and the cluster is closed: "
                     "correct job and task or the description, or set open_cluster"));
  }
  parts->listen = config.listen;
  if (parts->listen.empty()) {
    const std::string port = entry.empty() ? "0" : entry.substr(entry.rfind(':') + 1);
    const bool loopback = config.insecure && !config.insecure_anywhere;
    parts->listen = absl::StrCat(loopback ? "127.0.0.1:" : "0.0.0.0:", port);
  }
  parts->advertise = config.advertise;
  if (parts->advertise.empty()) parts->advertise = entry.empty() ? parts->listen : entry;
  int port = 0;
  if (!absl::SimpleAtoi(parts->listen.substr(parts->listen.rfind(':') + 1), &port) || port < 0 ||
      port > 65535 || !absl::StrContains(parts->listen, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen is '", parts->listen, "', and should be host:port"));
  }
  if (HostOf(parts->advertise) == "0.0.0.0") {
    return absl::InvalidArgumentError(
        "other workers cannot connect to 0.0.0.0: set advertise to the host:port at which they "
        "reach this worker");
  }
  return absl::OkStatus();
}

// Warns when others can read a file that holds a secret: a token, a password or a private key.
void WarnIfOpen(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0 || (file.st_mode & (S_IRGRP | S_IROTH)) == 0) return;
  TRYST_LOG(Warning) << path << " can be read by other users, who can then act as this worker: "
                     << "chmod 600 it";
}

absl::Status ReadSecurity(const ServerConfig& config, ServerParts* parts) {
  parts->security.certificate_file = config.certificate_file;
  parts->security.key_file = config.key_file;
  parts->security.ca_file = config.ca_file;
  parts->security.insecure = config.insecure;
  parts->security.patience = config.patience;
  parts->security.insecure_anywhere = config.insecure_anywhere;
  if (!config.key_file.empty()) WarnIfOpen(config.key_file);
  if (!config.token_file.empty()) {
    absl::StatusOr<std::string> token = ReadFile(config.token_file, kMostFileBytes);
    if (!token.ok()) return token.status();
    WarnIfOpen(config.token_file);
    parts->security.token = std::string(absl::StripAsciiWhitespace(*token));
    if (parts->security.token.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.token_file, " is empty, and should hold the token"));
    }
  }
  return Security::Check(parts->security, parts->listen);
}

absl::Status ReadStatus(const ServerConfig& config, ServerParts* parts) {
  if (config.status_listen.empty() || config.status_listen == "off") return absl::OkStatus();
  absl::StatusOr<StatusPageOptions> options = ReadStatusPageOptions(config);
  if (!options.ok()) return options.status();
  parts->status = *std::move(options);
  return StatusPage::Check(parts->status);
}

absl::Status ReadEtcd(const ServerConfig& config, ServerParts* parts) {
  if (parts->resolver.name != "etcd") return absl::OkStatus();
  EtcdAccess* access = &parts->etcd;
  access->endpoints = absl::StrSplit(parts->resolver.where, ',', absl::SkipWhitespace());
  if (access->endpoints.empty() || access->endpoints.size() > kMostEtcdEndpoints) {
    return absl::InvalidArgumentError(absl::StrCat("resolver is '", config.resolver,
                                                   "', and should be etcd:HOST:PORT,..., with ",
                                                   kMostEtcdEndpoints, " servers at most"));
  }
  if (config.etcd_certificate_file.empty() != config.etcd_key_file.empty() ||
      (!config.etcd_certificate_file.empty() && config.etcd_ca_file.empty())) {
    return absl::InvalidArgumentError(
        "etcd_certificate_file needs etcd_key_file and etcd_ca_file beside it");
  }
  for (const auto& [file, into] :
       {std::make_pair(config.etcd_ca_file, &access->ca),
        std::make_pair(config.etcd_certificate_file, &access->certificate),
        std::make_pair(config.etcd_key_file, &access->key),
        std::make_pair(config.etcd_password_file, &access->password)}) {
    if (file.empty()) continue;
    absl::StatusOr<std::string> text = ReadFile(file, kMostFileBytes);
    if (!text.ok()) return text.status();
    *into = *std::move(text);
    if (into == &access->key || into == &access->password) WarnIfOpen(file);
  }
  if (config.etcd_password_file.empty()) return absl::OkStatus();
  const std::pair<absl::string_view, absl::string_view> user =
      absl::StrSplit(absl::StripAsciiWhitespace(access->password), absl::MaxSplits(':', 1));
  if (user.first.empty() || user.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.etcd_password_file, " should hold USER:PASSWORD, and does not"));
  }
  access->user = std::string(user.first);
  access->password = std::string(user.second);
  return absl::OkStatus();
}

absl::Status AddSeeds(const ServerConfig& config, ServerParts* parts) {
  for (absl::string_view seed : absl::StrSplit(config.join, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(seed, absl::MaxSplits('@', 1));
    DeviceName name;
    const std::string cpu = absl::StrCat(halves.first, "/device:CPU:0");
    if (!ParseDeviceName(cpu, &name) || name.replica != 0 || halves.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "join should look like /job:J/replica:0/task:T@host:port, and has '", seed, "'"));
    }
    parts->cluster.jobs[std::string(name.job)][name.task] = halves.second;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StatusPageOptions> ReadStatusPageOptions(const ServerConfig& config) {
  StatusPageOptions options;
  options.listen = config.status_listen;
  for (const auto& [file, into] :
       {std::make_pair(config.status_token_file, &options.token),
        std::make_pair(config.status_certificate_file, &options.certificate),
        std::make_pair(config.status_key_file, &options.key)}) {
    if (file.empty()) continue;
    absl::StatusOr<std::string> text = ReadFile(file, kMostFileBytes);
    if (!text.ok()) return text.status();
    *into = std::string(absl::StripAsciiWhitespace(*text)) + (into == &options.token ? "" : "\n");
    if (into->size() < 2) return absl::InvalidArgumentError(absl::StrCat(file, " is empty"));
    if (into != &options.certificate) WarnIfOpen(file);
  }
  return options;
}

ServerBuilder::ServerBuilder() {
  AddProtocol("grpc", OverNics([](const ServerConfig&, const NicPlace&) {
                return absl::StatusOr<std::vector<NicPath>>(std::vector<NicPath>());
              }));
  AddProtocol("grpc+verbs", OverNics([](const ServerConfig& config, const NicPlace& place) {
                return OpenNics(config, place);
              }));
}

ServerBuilder::~ServerBuilder() = default;

ServerBuilder& ServerBuilder::AddProtocol(const std::string& name,
                                          std::shared_ptr<const Protocol> protocol) {
  protocols_[name] = std::move(protocol);
  return *this;
}

ServerBuilder& ServerBuilder::AddTransport(TransportFactory transport) {
  transports_.push_back(std::move(transport));
  return *this;
}

ServerBuilder& ServerBuilder::SetExecutor(Executor* executor) {
  executor_ = executor;
  return *this;
}

ServerBuilder& ServerBuilder::AddService(grpc::Service* service, absl::Duration longest_stream) {
  services_.push_back(service);
  longest_stream_ = std::max(longest_stream_, longest_stream);
  return *this;
}

ServerBuilder& ServerBuilder::AddDevice(const std::string& type_and_index, uint64_t incarnation) {
  devices_[type_and_index] = incarnation;
  return *this;
}

ServerBuilder& ServerBuilder::UseGpu(const Gpu* gpu) {
  gpus_.push_back(gpu);
  return *this;
}

ServerBuilder& ServerBuilder::SetCluster(ClusterSpec cluster) {
  cluster_ = std::make_unique<ClusterSpec>(std::move(cluster));
  return *this;
}

ServerBuilder& ServerBuilder::SetEnvironment(Environment environment) {
  environment_ = std::make_unique<Environment>(std::move(environment));
  return *this;
}

absl::StatusOr<ServerParts> MakeServerParts(const ServerConfig& config,
                                            const Environment& environment,
                                            const ClusterSpec* cluster) {
  ServerParts parts;
  parts.config = config;
  parts.environment = environment;
  absl::StatusOr<Resolver> resolver = Resolver::Parse(config.resolver);
  if (!resolver.ok()) return resolver.status();
  parts.resolver = *std::move(resolver);
  absl::StatusOr<ClusterSpec> resolved =
      cluster != nullptr ? *cluster : Resolve(parts.resolver, config.cluster_spec, environment);
  if (!resolved.ok()) return resolved.status();
  parts.cluster = *std::move(resolved);
  if (!parts.cluster.protocol.empty()) parts.config.protocol = parts.cluster.protocol;
  using Step = absl::Status (*)(const ServerConfig&, ServerParts*);
  for (Step step : {NameSelf, AddSeeds, PlaceSelf, ReadSecurity, ReadStatus, ReadEtcd}) {
    absl::Status status = step(config, &parts);
    if (!status.ok()) return status;
  }
  absl::Status limits = CheckLimits(parts.config);
  if (!limits.ok()) return limits;
  absl::StatusOr<AllowList> allow = AllowList::Parse(config.allow);
  if (!allow.ok()) return allow.status();
  parts.allow = *std::move(allow);
  absl::StatusOr<ControlList> control = ControlList::Parse(config.control);
  if (!control.ok()) return control.status();
  parts.control = *std::move(control);
  return parts;
}

absl::StatusOr<std::unique_ptr<Server>> ServerBuilder::Build(const ServerConfig& config) const {
  absl::StatusOr<ServerParts> parts = Prepare(config);
  if (!parts.ok()) return parts.status();
  return MakeServer(*std::move(parts));
}

absl::StatusOr<ServerParts> ServerBuilder::Prepare(const ServerConfig& config) const {
  // Eight pollers open more than 64, and none of them is to wait for that when a peer comes.
  EnlargeDescriptorTable(kDescriptors);
  absl::StatusOr<ServerParts> parts = MakeServerParts(
      config, environment_ != nullptr ? *environment_ : ProcessEnvironment(), cluster_.get());
  if (!parts.ok()) return parts.status();
  const auto protocol = protocols_.find(parts->config.protocol);
  if (protocol == protocols_.end()) {
    std::string known;
    for (const auto& [name, known_one] : protocols_) absl::StrAppend(&known, " ", name);
    return absl::NotFoundError(
        absl::StrCat("protocol is '", parts->config.protocol, "', and should be one of:", known));
  }
  parts->protocol = protocol->second;
  parts->transports = transports_;
  parts->executor = executor_;
  parts->services = services_;
  parts->longest_stream = longest_stream_;
  parts->gpus = gpus_;
  parts->devices[absl::StrCat(parts->worker, "/device:CPU:0")] = 0;
  for (const auto& [device, incarnation] : devices_) {
    const std::string full = absl::StrCat(parts->worker, "/device:", device);
    DeviceName name;
    if (!ParseDeviceName(full, &name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", device, "' is not a device's name, which looks like GPU:0"));
    }
    parts->devices[full] = incarnation;
  }
  return parts;
}

}  // namespace tryst
