#include "server/data_plane/open_nics.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "server/security/loopback.h"
#include "verbs/ibv/ibv_nic.h"
#include "verbs/ofi/ofi_nic.h"
#include "verbs/ofi/ofi_provider.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

// Works in flight on a queue pair: the least holds a message, an ack and some writes; the most is
// what every NIC supports.
constexpr uint32_t kLeastDepth = 16;
constexpr uint32_t kMostDepth = 8192;

// Resolves a host's name, because the soft NIC takes only numeric addresses.
absl::StatusOr<std::string> NumericHost(std::string host) {
  if (absl::StartsWith(host, "[")) return host;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "peers reach the soft NIC by the name of this host, which does not resolve: ", host, ": ",
        gai_strerror(error)));
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  char text[NI_MAXHOST];
  if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the soft NIC finds no address for the host ", host));
  }
  return found->ai_family == AF_INET6 ? absl::StrCat("[", text, "]") : std::string(text);
}

absl::StatusOr<NicPath> OpenSoft(const ServerConfig& config, const NicPlace& place) {
  SoftNicOptions options;
  if (place.crew != nullptr) options.UseCrew(place.crew);
  options.listen_address = config.nic_listen;
  if (options.listen_address.empty()) {
    absl::StatusOr<std::string> host = NumericHost(place.listen_host);
    if (!host.ok()) return host.status();
    options.listen_address = absl::StrCat(*host, ":0");
  }
  if (!absl::StrContains(options.listen_address, ',')) {
    absl::StatusOr<std::string> reach = NumericHost(place.reach_host);
    if (!reach.ok()) return reach.status();
    options.advertised_host = *reach;
  }
  options.flows = static_cast<int>(config.queue_pairs);
  options.tls = Encrypts(config);
  if (options.tls) options.secret = place.secret;
  // TCP's checksums are too weak for what leaves the host, and TLS has better ones.
  const bool digests = !options.tls && !IsLoopback(options.listen_address);
  const char* const path = options.tls ? "rdma/soft-tls" : "rdma/soft";
  absl::StatusOr<std::unique_ptr<SoftNic>> nic = OpenSoftNic(std::move(options));
  if (!nic.ok()) return nic.status();
  NicPath opened{path, std::shared_ptr<Nic>(*std::move(nic)), digests};
  opened.one_queue_pair = true;
  return opened;
}

absl::StatusOr<NicPath> OpenIbv(const Environment& environment) {
  std::vector<std::string> warnings;
  absl::StatusOr<RdmaSettings> settings = ParseRdmaSettings(environment, &warnings);
  if (!settings.ok()) return settings.status();
  for (const std::string& warning : warnings) TRYST_LOG(Warning) << warning;
  IbvNicOptions options;
  options.choice.settings = *std::move(settings);
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenIbvNic(options);
  if (!nic.ok()) return nic.status();
  return NicPath{"rdma/ibv", std::shared_ptr<Nic>(*std::move(nic)), /*digests=*/false};
}

absl::StatusOr<NicPath> OpenOfi(const ServerConfig& config, const std::string& reach_host) {
  const absl::StatusOr<OfiProvider> provider = FindOfiProvider(config.nic);
  if (!provider.ok()) return provider.status();
  OfiNicOptions options;
  options.provider = config.nic;
  if (provider->takes_host) {
    absl::StatusOr<std::string> host = NumericHost(reach_host);
    if (!host.ok()) return host.status();
    options.host = std::string(absl::StripSuffix(absl::StripPrefix(*host, "["), "]"));
  }
  absl::StatusOr<std::unique_ptr<Nic>> nic = OpenOfiNic(options);
  if (!nic.ok()) return nic.status();
  const bool digests = !provider->checked_wire && !IsLoopback(absl::StrCat(options.host, ":0"));
  return NicPath{absl::StrCat("rdma/ofi-", provider->name), std::shared_ptr<Nic>(*std::move(nic)),
                 digests};
}

// Whether a NIC that encrypts nothing may carry tensors.
bool MayBeClear(const ServerConfig& config) {
  return !Encrypts(config) || config.encrypt == "trusted_nic";
}

absl::Status NotInTheClear(const ServerConfig& config) {
  return absl::FailedPreconditionError(
      absl::StrCat("nic=", config.nic,
                   " encrypts nothing, and this server encrypts: set encrypt=trusted_nic if nobody "
                   "else is on the NIC's network, or encrypt=off, or nic=soft"));
}

}  // namespace

absl::StatusOr<LinkOptions> LinkFrom(LinkOptions link, const ServerConfig& config,
                                     const Environment& environment) {
  std::vector<std::string> warnings;  // OpenIbv() logs them itself.
  absl::StatusOr<RdmaSettings> settings = ParseRdmaSettings(environment, &warnings);
  if (!settings.ok()) return settings.status();
  link.queue_pairs = static_cast<uint32_t>(config.queue_pairs);
  if (settings->queue_depth) {
    link.send_depth = std::min(std::max(*settings->queue_depth, kLeastDepth), kMostDepth);
    if (link.send_depth != *settings->queue_depth) {
      TRYST_LOG(Warning) << "RDMA_QP_QUEUE_DEPTH is " << *settings->queue_depth
                         << ", and must be from " << kLeastDepth << " to " << kMostDepth
                         << ": this worker uses " << link.send_depth;
    }
  }
  return link;
}

absl::StatusOr<std::vector<NicPath>> OpenNics(const ServerConfig& config, const NicPlace& place) {
  std::vector<NicPath> paths;
  if (IsOfiName(config.nic)) {
    if (!MayBeClear(config)) return NotInTheClear(config);
    absl::StatusOr<NicPath> path = OpenOfi(config, place.reach_host);
    if (!path.ok()) return path.status();
    paths.push_back(*std::move(path));
    return paths;
  }
  if (config.nic == "grpc" || config.nic == "calls") return paths;
  if (config.nic != "auto" && config.nic != "soft" && config.nic != "ibv") {
    return absl::InvalidArgumentError(absl::StrCat(
        "nic is '", config.nic, "', and should be auto, soft, ibv, grpc, calls or ofi:PROVIDER"));
  }
  if (config.nic == "ibv" && !MayBeClear(config)) return NotInTheClear(config);
  if (config.nic != "soft") {
    absl::StatusOr<NicPath> path = OpenIbv(place.environment);
    if (path.ok() && !MayBeClear(config)) {
      TRYST_LOG(Warning) << "the RDMA device " << path->nic->name()
                         << " is not used, as it cannot encrypt and this server encrypts: set "
                            "encrypt=trusted_nic if nobody else is on its network";
    } else if (path.ok()) {
      paths.push_back(*std::move(path));
    } else if (config.nic == "ibv" || absl::IsInvalidArgument(path.status())) {
      return path.status();
    } else {
      TRYST_LOG(Info) << "no RDMA device is used, only the soft NIC: " << path.status().message();
    }
  }
  if (config.nic != "ibv") {
    absl::StatusOr<NicPath> path = OpenSoft(config, place);
    if (!path.ok()) return path.status();
    paths.push_back(*std::move(path));
  }
  return paths;
}

}  // namespace tryst
