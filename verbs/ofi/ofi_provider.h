#ifndef TRYST_VERBS_OFI_OFI_PROVIDER_H_
#define TRYST_VERBS_OFI_OFI_PROVIDER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tryst {

// A provider of libfabric that we can use, and what it cannot do.
struct OfiProvider {
  absl::string_view name;         // Our name: "tcp".
  absl::string_view full_name;    // libfabric's name: "tcp;ofi_rxm".
  bool takes_host;                // It listens on an address of the host.
  bool checked_wire;              // The wire has an end-to-end checksum of its own.
  absl::string_view differences;  // For people: where it differs from an RDMA NIC.
};

// All providers that we can use, in the order in which they are listed for people.
absl::Span<const OfiProvider> OfiProviders();

// "ofi:tcp", "ofi:tcp;ofi_rxm", "tcp". kInvalidArgument lists the names there are.
absl::StatusOr<OfiProvider> FindOfiProvider(absl::string_view name);
// Whether a NIC's name is of this kind: it begins with "ofi:".
bool IsOfiName(absl::string_view name);

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_PROVIDER_H_
