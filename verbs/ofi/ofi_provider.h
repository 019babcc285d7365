#ifndef TRYST_VERBS_OFI_OFI_PROVIDER_H_
#define TRYST_VERBS_OFI_OFI_PROVIDER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tryst {

// A provider of libfabric's that we know how to use, and what it does not do.
struct OfiProvider {
  absl::string_view name;         // Ours: "tcp".
  absl::string_view full_name;    // libfabric's: "tcp;ofi_rxm".
  bool takes_host;                // It listens on an address of the host's.
  bool checked_wire;              // The wire has a checksum of its own between its ends.
  absl::string_view differences;  // For people: where it falls short of an RDMA NIC.
};

// All that we know, in the order in which people read them.
absl::Span<const OfiProvider> OfiProviders();

// "ofi:tcp", "ofi:tcp;ofi_rxm", "tcp". kInvalidArgument lists the names there are.
absl::StatusOr<OfiProvider> FindOfiProvider(absl::string_view name);
// Whether a NIC's name is of this kind: begins with "ofi:".
bool IsOfiName(absl::string_view name);

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_PROVIDER_H_
