#ifndef TRYST_CHANNEL_GRPC_GRPC_STATUS_H_
#define TRYST_CHANNEL_GRPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "channel/signing/caller.h"

namespace tryst {

// gRPC and Abseil number their codes alike. The details are the clock of a refused call's callee
// (channel/signing/caller.h).
inline absl::Status FromGrpc(const grpc::Status& status) {
  absl::Status from(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  const std::string details = status.error_details();
  if (!details.empty()) from.SetPayload(kClockPayload, absl::Cord(details));
  return from;
}

inline grpc::Status ToGrpc(const absl::Status& status) {
  const absl::optional<absl::Cord> clock = status.GetPayload(kClockPayload);
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()),
                      clock.has_value() ? std::string(*clock) : std::string());
}

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_STATUS_H_
