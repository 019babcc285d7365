#ifndef TRYST_VERBS_OFI_OFI_ADDRESS_H_
#define TRYST_VERBS_OFI_OFI_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What LocalAddress() contains: one end of a connection, for its peer.
struct OfiAddress {
  std::string provider;  // libfabric's name for it.
  uint64_t token = 0;    // Not 0. Known only to us and to the peer.
  std::string name;      // The endpoint's name, in the provider's form.
};

std::string EncodeOfiAddress(const OfiAddress& address);
// kInvalidArgument: it is malformed.
absl::StatusOr<OfiAddress> DecodeOfiAddress(absl::string_view text);

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_ADDRESS_H_
