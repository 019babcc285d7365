#include "server/listener/listening_sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tryst {
namespace {

constexpr int kBacklog = 1024;

struct Bound {
  sockaddr_storage address = {};
  socklen_t length = 0;
};

void SetPort(int port, Bound* bound) {
  if (bound->address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&bound->address)->sin6_port =
        htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(&bound->address)->sin_port = htons(static_cast<uint16_t>(port));
  }
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

absl::StatusOr<OwnedFd> ListenAt(const Bound& at) {
  OwnedFd fd(socket(at.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    return absl::UnavailableError(absl::StrCat("cannot open a socket: ", strerror(errno)));
  const int one = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (at.address.ss_family == AF_INET6) {
    const int alone =
        IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&at.address)->sin6_addr) ? 0
                                                                                                : 1;
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &alone, sizeof(alone));
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return absl::UnavailableError(strerror(errno));
  }
  return fd;
}

absl::StatusOr<std::vector<Bound>> Resolve(std::string host, const std::string& port) {
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found);
  if (error != 0)
    return absl::UnavailableError(absl::StrCat("cannot look up ", host, ": ", gai_strerror(error)));
  std::vector<Bound> out;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    Bound bound;
    memcpy(&bound.address, one->ai_addr, one->ai_addrlen);
    bound.length = one->ai_addrlen;
    out.push_back(bound);
  }
  freeaddrinfo(found);
  return out;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenOn(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  ListeningSockets out;
  if (host == "0.0.0.0") {
    const absl::StatusOr<std::vector<Bound>> every = Resolve("::", port);
    if (every.ok() && !every->empty()) {
      absl::StatusOr<OwnedFd> fd = ListenAt(every->front());
      if (fd.ok()) out.sockets.push_back(*std::move(fd));
    }
  }
  absl::Status failed = absl::UnavailableError("the host name leads to no address");
  if (out.sockets.empty()) {
    absl::StatusOr<std::vector<Bound>> bound = Resolve(host, port);
    if (!bound.ok()) return bound.status();
    for (Bound& one : *bound) {
      if (out.port != 0) SetPort(out.port, &one);
      absl::StatusOr<OwnedFd> fd = ListenAt(one);
      if (!fd.ok()) {
        failed = fd.status();
        continue;
      }
      out.sockets.push_back(*std::move(fd));
      sockaddr_storage own = {};
      socklen_t length = sizeof(own);
      getsockname(out.sockets.back().get(), reinterpret_cast<sockaddr*>(&own), &length);
      out.port = PortOf(own);
    }
  }
  if (out.sockets.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", failed.message()));
  }
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  getsockname(out.sockets.front().get(), reinterpret_cast<sockaddr*>(&own), &length);
  out.port = PortOf(own);
  return out;
}

std::string AddressText(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&address)->sin_addr, text,
              sizeof(text));
    return absl::StrCat(text, ":", PortOf(address));
  }
  if (address.ss_family != AF_INET6) return "";
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&ip)) {
    inet_ntop(AF_INET, ip.s6_addr + 12, text, sizeof(text));
    return absl::StrCat(text, ":", PortOf(address));
  }
  inet_ntop(AF_INET6, &ip, text, sizeof(text));
  return absl::StrCat("[", text, "]:", PortOf(address));
}

std::string AddressTextOfPeer(absl::string_view peer) {
  const size_t scheme = peer.find(':');
  if (scheme == absl::string_view::npos) return "";
  std::string text =
      absl::StrReplaceAll(peer.substr(scheme + 1), {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t zone = text.find('%');  // "[fe80::1%3]:80"
  const size_t bracket = text.find(']');
  if (bracket != std::string::npos && zone < bracket) text.erase(zone, bracket - zone);
  return text;
}

absl::string_view HostPart(absl::string_view address_text) {
  return address_text.substr(0, address_text.rfind(':'));
}

}  // namespace tryst
