#ifndef TRYST_VERBS_OFI_OFI_CALLS_H_
#define TRYST_VERBS_OFI_OFI_CALLS_H_

#include <rdma/fabric.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// The boundary to libfabric: every function that we call in the library, so that one binary also
// runs without it. Its headers inline all other calls, which go through the tables of the objects
// that these return.
//
// Thread-safe once filled.
struct OfiCalls {
  std::function<int(uint32_t version, const char* node, const char* service, uint64_t flags,
                    const fi_info* hints, fi_info** out)>
      get_info;
  std::function<void(fi_info* list)> free_info;
  std::function<fi_info*(const fi_info* from)> dup_info;  // With null it returns an empty one.
  std::function<int(fi_fabric_attr* attributes, fid_fabric** out, void* context)> open_fabric;
  std::function<const char*(int error)> error_text;
  std::function<uint32_t()> version;
};

// Loads the library and fills the table. kNotFound: it is not installed, or too old; the message
// says what to install. The library stays loaded as long as the process runs.
absl::StatusOr<OfiCalls> LoadOfiCalls(const std::string& library = "libfabric.so.1");

// The status for what a call of libfabric returned (0 or a negated error); `what` names the call.
absl::Status OfiStatus(const OfiCalls& calls, int64_t returned, absl::string_view what);

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_CALLS_H_
