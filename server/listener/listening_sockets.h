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
  int port = 0;                  // The same one for all.
};
// For every address that "host:port" means; port 0: a free one. 0.0.0.0 is every address of both
// families where the machine has IPv6. kUnavailable: taken, or no such host.
absl::StatusOr<ListeningSockets> ListenOn(const std::string& address);

// "127.0.0.1:4711", "[::1]:4711": one spelling for each, whatever family the socket has. Empty:
// of no family that we know.
std::string AddressText(const sockaddr_storage& address);
// The same spelling of what grpc::ServerContext::peer() says ("ipv4:...", "ipv6:%5B...%5D:...").
std::string AddressTextOfPeer(absl::string_view peer);
// Without the port.
absl::string_view HostPart(absl::string_view address_text);

}  // namespace tryst

#endif  // TRYST_SERVER_LISTENER_LISTENING_SOCKETS_H_
