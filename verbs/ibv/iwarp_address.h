#ifndef TRYST_VERBS_IBV_IWARP_ADDRESS_H_
#define TRYST_VERBS_IBV_IWARP_ADDRESS_H_

#include <netinet/in.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What a peer must know of an iWARP queue pair to connect to it: where its connector listens, and
// the token that names it there. It is the content of QueuePair::LocalAddress().
struct IwarpAddress {
  uint32_t number = 0;
  uint64_t token = 0;      // Secret.
  sockaddr_in6 host = {};  // An IPv4 address is mapped (::ffff:a.b.c.d).
};

std::string EncodeIwarpAddress(const IwarpAddress& address);

// kInvalidArgument: no EncodeIwarpAddress() has made these bytes.
absl::StatusOr<IwarpAddress> DecodeIwarpAddress(absl::string_view bytes);

// In the form that rdma_cm takes: a mapped address becomes an IPv4 one.
sockaddr_storage ToSocketAddress(const sockaddr_in6& host);
// The reverse. False: the family is neither IPv4 nor IPv6.
bool FromSocketAddress(const sockaddr* address, sockaddr_in6* host);

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IWARP_ADDRESS_H_
