#ifndef TRYST_VERBS_IBV_RDMA_SETTINGS_H_
#define TRYST_VERBS_IBV_RDMA_SETTINGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace tryst {

// The user's decisions about RDMA. We choose those that are empty.
struct RdmaSettings {
  absl::optional<std::string> device;   // "mlx5_0".
  absl::optional<uint8_t> port;         // From 1.
  absl::optional<uint32_t> gid_index;   // An index of the port's table.
  absl::optional<uint16_t> pkey_index;  // InfiniBand partition; 0 by default.
  // For the caller that sizes queue pairs; no NIC applies it itself.
  absl::optional<uint32_t> queue_depth;
  absl::optional<uint8_t> ack_timeout;  // These two override QueuePairOptions.
  absl::optional<uint8_t> retry_count;
  absl::optional<uint8_t> service_level;
  absl::optional<uint32_t> mtu_bytes;  // At most the port's active MTU.
  absl::optional<uint8_t> traffic_class;
};

// Reads TensorFlow's RDMA_* variables from `environment`, with the names in its documentation
// (RDMA_QP_TIMEOUT) and those in its code (RDMA_TIMEOUT), which differ. Adds a line to `warnings`
// for each unknown RDMA_* variable and each value that was lowered. kInvalidArgument, with the
// variable's name: a value is not a number, is out of range, or contradicts the other name.
absl::StatusOr<RdmaSettings> ParseRdmaSettings(
    const std::map<std::string, std::string>& environment, std::vector<std::string>* warnings);

// One row for each variable: its names, its range and its meaning (docs/OPERATIONS.md).
std::string RdmaVariablesTable();

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_RDMA_SETTINGS_H_
