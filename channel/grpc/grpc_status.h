#ifndef TRYST_CHANNEL_GRPC_GRPC_STATUS_H_
#define TRYST_CHANNEL_GRPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tryst {

// gRPC and Abseil number their codes alike.
inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_STATUS_H_
