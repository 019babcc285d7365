#ifndef TRYST_SERVER_LISTENER_LISTENING_SOCKETS_H_
#define TRYST_SERVER_LISTENER_LISTENING_SOCKETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "channel/arena/shared_memory.h"

struct sockaddr_storage;

namespace tryst {

struct ListeningSockets {
  std::vector<OwnedFd> sockets;  // Nonblocking.
  int port = 0;                  // All sockets have it.
};
// Opens a socket for every address that "host:port" stands for; port 0: any free one. 0.0.0.0
// stands for every address, of both families where the machine has IPv6. kUnavailable: the port is
// taken, or there is no such host.
absl::StatusOr<ListeningSockets> ListenOn(const std::string& address);

// "127.0.0.1:4711", "[::1]:4711": the same text for an address, whatever family the socket has.
// Empty: an unknown family.
std::string AddressText(const sockaddr_storage& address);
// Like AddressText(), from grpc::ServerContext::peer() ("ipv4:...", "ipv6:%5B...%5D:...").
std::string AddressTextOfPeer(absl::string_view peer);
// The text without the port.
absl::string_view HostPart(absl::string_view address_text);

}  // namespace tryst

#endif  // TRYST_SERVER_LISTENER_LISTENING_SOCKETS_H_
