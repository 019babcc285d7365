#include "server/doctor/peer_checks.h"

#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/peer_client.h"

namespace tryst {
namespace {

struct Reach {
  absl::Status status;
  int path_mtu = 0;  // 0: not known.
};

struct AddressesDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

absl::Status WaitConnected(int fd, absl::Duration timeout) {
  pollfd waiting = {fd, POLLOUT, 0};
  const int ready = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (ready == 0) return absl::DeadlineExceededError("no answer");
  int error = ready < 0 ? errno : 0;
  socklen_t size = sizeof(error);
  if (error == 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

Reach TryConnect(const addrinfo& to, absl::Duration timeout) {
  Reach reach;
  const int fd = socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    reach.status = absl::UnavailableError(std::strerror(errno));
    return reach;
  }
  if (connect(fd, to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) {
    reach.status = absl::UnavailableError(std::strerror(errno));
  } else {
    reach.status = WaitConnected(fd, timeout);
  }
  if (reach.status.ok()) {
    socklen_t size = sizeof(reach.path_mtu);
    const bool v6 = to.ai_family == AF_INET6;
    getsockopt(fd, v6 ? static_cast<int>(IPPROTO_IPV6) : static_cast<int>(IPPROTO_IP),
               v6 ? IPV6_MTU : IP_MTU, &reach.path_mtu, &size);
  }
  close(fd);
  return reach;
}

// Of the interfaces that are up here; 0: none to be seen.
int LeastInterfaceMtu() {
  int least = 0;
  struct if_nameindex* all = if_nameindex();
  for (const struct if_nameindex* at = all; at != nullptr && at->if_name != nullptr; ++at) {
    if (std::strcmp(at->if_name, "lo") == 0) continue;
    int mtu = 0;
    std::ifstream(absl::StrCat("/sys/class/net/", at->if_name, "/mtu")) >> mtu;
    if (mtu > 0 && (least == 0 || mtu < least)) least = mtu;
  }
  if_freenameindex(all);
  return least;
}

bool CheckReach(const std::string& address, absl::Duration timeout, Report* report) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  report->Begin("peer-name");
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, AddressesDeleter> found(list);
  if (failed != 0) {
    report->Fault(absl::StrCat(host, ": ", gai_strerror(failed)), "the peer cannot be found",
                  absl::StrCat("getent hosts ", host, "; correct the cluster or the DNS"));
    return false;
  }
  report->Begin("peer-port");
  const Reach reach = TryConnect(*found, timeout);
  if (!reach.status.ok()) {
    report->Fault(
        absl::StrCat(address, ": ", reach.status.message()),
        absl::IsDeadlineExceeded(reach.status) ? "a firewall swallows it, or the machine is off"
                                               : "the machine is up, and nobody listens there",
        absl::StrCat("there: ss -ltn 'sport = :", port, "'; between: nc -vz ", host, " ", port));
    return false;
  }
  report->Begin("peer-mtu");
  const int here = LeastInterfaceMtu();
  if (reach.path_mtu > 0 && here > 0 && reach.path_mtu < here) {
    report->Warn(absl::StrCat("the way to ", address, " carries packets of ", reach.path_mtu,
                              " bytes, our interfaces ", here),
                 "something between has a smaller MTU: a tunnel, or the peer itself",
                 "set one MTU on the whole way: ip link set DEV mtu N");
  }
  return true;
}

void CheckPing(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
               Report* report) {
  report->Begin("peer-answer");
  const absl::StatusOr<std::unique_ptr<PeerClient>> client = PeerClient::Make(config);
  if (!client.ok()) {
    report->Fault(std::string(client.status().message()), "we cannot call anybody",
                  "correct the security settings");
    return;
  }
  const auto first = (*client)->calls()->Ping(peer, timeout);
  if (!first.ok()) {
    const bool refused = absl::IsUnauthenticated(first.status()) ||
                         absl::IsPermissionDenied(first.status()) ||
                         absl::IsFailedPrecondition(first.status());
    report->Fault(first.status().ToString(),
                  refused ? "the peer is there and does not let us in"
                          : "something listens there that does not answer as a Tryst server",
                  refused ? "use the same cluster name, token and certificate authority"
                          : "if it speaks TLS and we do not (or the other way round), set alike");
    return;
  }
  report->Begin("peer-identity");
  if (first->self.worker != peer) {
    report->Fault(absl::StrCat("that address belongs to ", first->self.worker, ", not to ", peer),
                  "fetches would be refused", "correct the address in the cluster");
  }
  report->Begin("peer-latency");
  const absl::Time before = absl::Now();
  const auto second = (*client)->calls()->Ping(peer, timeout);
  const absl::Duration took = absl::Now() - before;
  if (second.ok() && took > absl::Milliseconds(20)) {
    report->Note(absl::StrCat("a call takes ", absl::FormatDuration(took)),
                 "it is far away, or busy", "ping it; look at its CPU");
  }
}

}  // namespace

void ExaminePeer(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
                 Report* report) {
  report->Begin("peer-address");
  const absl::StatusOr<std::unique_ptr<PeerClient>> client = PeerClient::Make(config);
  std::string address;
  if (client.ok()) {
    for (const Member& member : (*client)->members()->Members()) {
      if (member.worker == peer) address = member.address;
    }
  }
  if (address.empty()) {
    report->Fault(absl::StrCat("nobody says where ", peer, " is"), "it cannot be called",
                  absl::StrCat("name it as ", peer, "@host:port, or give --cluster_spec"));
    return;
  }
  if (CheckReach(address, timeout, report)) CheckPing(config, peer, timeout, report);
}

}  // namespace tryst
