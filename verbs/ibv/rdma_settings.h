#ifndef TRYST_VERBS_IBV_RDMA_SETTINGS_H_
#define TRYST_VERBS_IBV_RDMA_SETTINGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace tryst {

// What somebody has decided about RDMA in place of us; each empty one is chosen.
struct RdmaSettings {
  absl::optional<std::string> device;    // "mlx5_0".
  absl::optional<uint8_t> port;          // From 1.
  absl::optional<uint32_t> gid_index;    // Of the port's table.
  absl::optional<uint16_t> pkey_index;   // InfiniBand partition; 0 by default.
  absl::optional<uint32_t> queue_depth;  // For whoever sizes queue pairs; no NIC applies it itself.
  absl::optional<uint8_t> ack_timeout;   // These two win over QueuePairOptions.
  absl::optional<uint8_t> retry_count;
  absl::optional<uint8_t> service_level;
  absl::optional<uint32_t> mtu_bytes;  // At most the port's active one.
  absl::optional<uint8_t> traffic_class;
};

// Reads TensorFlow's RDMA_* variables out of `environment`, in the spelling of its
// documentation (RDMA_QP_TIMEOUT) and in that of its code (RDMA_TIMEOUT): they never
// agreed. Adds a line to `warnings` for each RDMA_* that means nothing and each value
// that was lowered. kInvalidArgument, naming the variable, for a value that is not a
// number, is out of range, or contradicts the other spelling.
absl::StatusOr<RdmaSettings> ParseRdmaSettings(
    const std::map<std::string, std::string>& environment, std::vector<std::string>* warnings);

// One row per variable: its spellings, its range and its meaning (docs/OPERATIONS.md).
std::string RdmaVariablesTable();

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_RDMA_SETTINGS_H_
