#include "verbs/ofi/ofi_address.h"

#include <cstring>

#include "absl/status/status.h"

namespace tryst {
namespace {

// 0 magic  4 token  12 length of the provider's name  13 length of the endpoint's (2)
constexpr char kAddressMagic[4] = {'O', 'F', 'A', 1};
constexpr size_t kHeadBytes = 15;

}  // namespace

std::string EncodeOfiAddress(const OfiAddress& address) {
  std::string out(kHeadBytes, '\0');
  memcpy(&out[0], kAddressMagic, sizeof(kAddressMagic));
  memcpy(&out[4], &address.token, sizeof(address.token));
  out[12] = static_cast<char>(address.provider.size());
  out[13] = static_cast<char>(address.name.size() & 0xff);
  out[14] = static_cast<char>(address.name.size() >> 8);
  return out + address.provider + address.name;
}

absl::StatusOr<OfiAddress> DecodeOfiAddress(absl::string_view text) {
  if (text.size() < kHeadBytes || memcmp(text.data(), kAddressMagic, sizeof(kAddressMagic)) != 0) {
    return absl::InvalidArgumentError(
        "the peer sent something that is not the address of a libfabric NIC: set nic alike on both "
        "workers");
  }
  OfiAddress address;
  memcpy(&address.token, &text[4], sizeof(address.token));
  const size_t provider_bytes = static_cast<uint8_t>(text[12]);
  const size_t name_bytes =
      static_cast<uint8_t>(text[13]) + (size_t{static_cast<uint8_t>(text[14])} << 8);
  if (text.size() != kHeadBytes + provider_bytes + name_bytes || name_bytes == 0 ||
      address.token == 0) {
    return absl::InvalidArgumentError("the peer sent a malformed address of a libfabric NIC");
  }
  address.provider = std::string(text.substr(kHeadBytes, provider_bytes));
  address.name = std::string(text.substr(kHeadBytes + provider_bytes));
  return address;
}

}  // namespace tryst
