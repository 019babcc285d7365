#ifndef TRYST_VERBS_OFI_OFI_NIC_H_
#define TRYST_VERBS_OFI_OFI_NIC_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_calls.h"

// A NIC over libfabric's reliable endpoints without connections. Like the soft NIC it moves bytes
// inside Poll() and PostSend(), unless its provider has hardware for that.
namespace tryst {

struct OfiNicOptions {
  std::string provider = "ofi:tcp";  // A name from ofi_provider.h.
  // Our numeric address to listen on. Providers that take none ignore it.
  std::string host = "127.0.0.1";
  // The library to use; empty: LoadOfiCalls().
  absl::optional<OfiCalls> calls;
};

// kNotFound: libfabric is not installed. kInvalidArgument: there is no such provider. kUnavailable:
// the provider finds no device or address here.
absl::StatusOr<std::unique_ptr<Nic>> OpenOfiNic(const OfiNicOptions& options);

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_NIC_H_
