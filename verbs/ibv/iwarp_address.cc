#include "verbs/ibv/iwarp_address.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr absl::string_view kIwarpMagic = "TIW1";  // The last character is the version.
constexpr size_t kIwarpBytes = 4 + 4 + 8 + 2 + 16;

}  // namespace

std::string EncodeIwarpAddress(const IwarpAddress& address) {
  std::string out(kIwarpMagic);
  const auto put = [&out](uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  };
  put(address.number, 4);
  put(address.token, 8);
  put(ntohs(address.host.sin6_port), 2);
  out.append(reinterpret_cast<const char*>(address.host.sin6_addr.s6_addr), 16);
  return out;
}

absl::StatusOr<IwarpAddress> DecodeIwarpAddress(absl::string_view bytes) {
  if (bytes.size() != kIwarpBytes || bytes.substr(0, kIwarpMagic.size()) != kIwarpMagic) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer sent something that is not the address of an iWARP queue pair: ", bytes.size(),
        " bytes"));
  }
  bytes.remove_prefix(kIwarpMagic.size());
  const auto take = [&bytes](size_t count) {
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    }
    bytes.remove_prefix(count);
    return value;
  };
  IwarpAddress address;
  address.number = static_cast<uint32_t>(take(4));
  address.token = take(8);
  address.host.sin6_family = AF_INET6;
  address.host.sin6_port = htons(static_cast<uint16_t>(take(2)));
  std::memcpy(address.host.sin6_addr.s6_addr, bytes.data(), 16);
  if (address.number == 0 || address.host.sin6_port == 0) {
    return absl::InvalidArgumentError(
        "the peer sent an address of an iWARP queue pair without a number or port");
  }
  return address;
}

sockaddr_storage ToSocketAddress(const sockaddr_in6& host) {
  sockaddr_storage out = {};
  if (!IN6_IS_ADDR_V4MAPPED(&host.sin6_addr)) {
    std::memcpy(&out, &host, sizeof(host));
    return out;
  }
  sockaddr_in mapped = {};
  mapped.sin_family = AF_INET;
  mapped.sin_port = host.sin6_port;
  std::memcpy(&mapped.sin_addr, &host.sin6_addr.s6_addr[12], 4);
  std::memcpy(&out, &mapped, sizeof(mapped));
  return out;
}

bool FromSocketAddress(const sockaddr* address, sockaddr_in6* host) {
  *host = {};
  if (address == nullptr) return false;
  if (address->sa_family == AF_INET6) {
    std::memcpy(host, address, sizeof(*host));
    return true;
  }
  if (address->sa_family != AF_INET) return false;
  sockaddr_in from;
  std::memcpy(&from, address, sizeof(from));
  host->sin6_family = AF_INET6;
  host->sin6_port = from.sin_port;
  host->sin6_addr.s6_addr[10] = 0xff;
  host->sin6_addr.s6_addr[11] = 0xff;
  std::memcpy(&host->sin6_addr.s6_addr[12], &from.sin_addr, 4);
  return true;
}

}  // namespace tryst
