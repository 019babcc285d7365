#ifndef TRYST_BASE_ERROR_SCOPE_H_
#define TRYST_BASE_ERROR_SCOPE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace tryst {

// The largest thing that an error has broken. A status's code says what the caller may
// do; this, carried in its payload, says what has to be rebuilt.
enum class ErrorScope : uint8_t {
  kOperation,  // Nothing but the operation itself.
  kChannel,    // The connection, and everything that was under way on it.
  kNic,        // Every connection of one NIC.
  kProcess,    // It does not start, or must not go on.
};

// An OK status stays as it is.
absl::Status WithScope(absl::Status status, ErrorScope scope);
// kOperation for a status without a scope.
ErrorScope ScopeOf(const absl::Status& status);
const char* ErrorScopeName(ErrorScope scope);

}  // namespace tryst

#endif  // TRYST_BASE_ERROR_SCOPE_H_
