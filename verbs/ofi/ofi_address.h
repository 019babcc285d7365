#ifndef TRYST_VERBS_OFI_OFI_ADDRESS_H_
#define TRYST_VERBS_OFI_OFI_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What LocalAddress() says: one end of a connection, as its peer needs it.
struct OfiAddress {
  std::string provider;  // libfabric's name of it.
  uint64_t token = 0;    // Not 0. Known to us and to whom we were told of.
  std::string name;      // Of the endpoint, as the provider has it.
};

std::string EncodeOfiAddress(const OfiAddress& address);
// kInvalidArgument.
absl::StatusOr<OfiAddress> DecodeOfiAddress(absl::string_view text);

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_ADDRESS_H_
