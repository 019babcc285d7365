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

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/doctor/peer_checks.h"
#include "server/security/free_with.h"

namespace tryst {
namespace {

absl::Status WaitConnected(int fd, absl::Duration timeout) {
  pollfd waiting = {fd, POLLOUT, 0};
  const int ready = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (ready == 0) return absl::DeadlineExceededError("the host did not answer in time");
  int error = ready < 0 ? errno : 0;
  socklen_t size = sizeof(error);
  if (error == 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

int PathMtu(int fd, int family) {
  int mtu = 0;
  socklen_t size = sizeof(mtu);
  if (family == AF_INET6) {
    getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &size);
  } else {
    getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &size);
  }
  return mtu;
}

PeerProbes::Reach ConnectTo(const addrinfo& place, absl::Duration timeout) {
  const int fd = socket(place.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return {absl::UnavailableError(std::strerror(errno)), 0};
  PeerProbes::Reach reach;
  if (connect(fd, place.ai_addr, place.ai_addrlen) != 0 && errno != EINPROGRESS) {
    reach.status = absl::UnavailableError(std::strerror(errno));
  } else {
    reach.status = WaitConnected(fd, timeout);
  }
  if (reach.status.ok()) reach.path_mtu = PathMtu(fd, place.ai_family);
  close(fd);
  return reach;
}

// To the first of the host's addresses that answers, as gRPC does; else says why the first one does
// not. The addresses share `timeout`, so that a silent one leaves time for the next.
PeerProbes::Reach Connect(const std::string& address, absl::Duration timeout) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, FreeWith<freeaddrinfo>> found(list);
  if (failed != 0) return {absl::NotFoundError(gai_strerror(failed)), 0};
  int places = 0;
  for (const addrinfo* place = found.get(); place != nullptr; place = place->ai_next) ++places;
  PeerProbes::Reach first;
  for (const addrinfo* place = found.get(); place != nullptr; place = place->ai_next) {
    const PeerProbes::Reach reach = ConnectTo(*place, timeout / places);
    if (reach.status.ok()) return reach;
    if (place == found.get()) first = reach;
  }
  return first;
}

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

}  // namespace

PeerProbes RealPeerProbes(PeerCalls* calls, const std::string& peer) {
  PeerProbes probes;
  probes.connect = Connect;
  probes.least_mtu = LeastInterfaceMtu;
  probes.ping = [calls, peer](absl::Duration timeout) { return calls->Ping(peer, timeout); };
  probes.now = [] { return absl::Now(); };
  return probes;
}

}  // namespace tryst
