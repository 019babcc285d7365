#include "base/error_scope.h"

#include "absl/strings/cord.h"
#include "absl/types/optional.h"

namespace tryst {
namespace {

constexpr char kScopeUrl[] = "tryst.scope";

constexpr ErrorScope kAll[] = {ErrorScope::kOperation, ErrorScope::kChannel, ErrorScope::kNic,
                               ErrorScope::kProcess};

}  // namespace

absl::Status WithScope(absl::Status status, ErrorScope scope) {
  if (!status.ok()) status.SetPayload(kScopeUrl, absl::Cord(ErrorScopeName(scope)));
  return status;
}

ErrorScope ScopeOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kScopeUrl);
  if (!payload.has_value()) return ErrorScope::kOperation;
  for (const ErrorScope scope : kAll) {
    if (*payload == ErrorScopeName(scope)) return scope;
  }
  // A newer peer may send a scope that we do not know. On our side only the operation has failed.
  return ErrorScope::kOperation;
}

const char* ErrorScopeName(ErrorScope scope) {
  switch (scope) {
    case ErrorScope::kOperation:
      return "operation";
    case ErrorScope::kChannel:
      return "channel";
    case ErrorScope::kNic:
      return "NIC";
    case ErrorScope::kProcess:
      return "process";
  }
  return "unknown";
}

}  // namespace tryst
