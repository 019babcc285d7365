#ifndef TRYST_PLUGINS_NCCL_SETTINGS_H_
#define TRYST_PLUGINS_NCCL_SETTINGS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace tryst::nccl {

// What the user decides through the environment; docs/NCCL.md has the list.
struct Settings {
  std::string nic = "auto";  // "auto", "ibv", "soft", or "ofi:" and a provider.
  // Threads beside NCCL's own that move bytes for the software NIC.
  int threads = 0;
  int lanes = 0;                         // Queue pairs of one connection; 0: choose.
  uint64_t piece_bytes = 128 << 10;      // The smallest size of a message's pieces,
  uint64_t max_piece_bytes = 512 << 10;  // and the largest with the software NIC.
  uint32_t eager_bytes = 4096;
  int64_t spin_us = 0;         // How long a thread spins before it sleeps.
  int peer_timeout_ms = 1000;  // How long a peer's machine may show no sign of life.
  // What the software NIC makes keys of: with it, all that it carries is encrypted. Empty: nothing.
  std::string token;
  // Variables of NCCL itself that this plugin obeys, too.
  std::string interfaces;  // NCCL_SOCKET_IFNAME
  std::string family;      // NCCL_SOCKET_FAMILY
  std::string hca;         // NCCL_IB_HCA
  int gid_index = -1;      // NCCL_IB_GID_INDEX
  int traffic_class = -1;  // NCCL_IB_TC
};

// kInvalidArgument: a value is invalid; names the variable.
absl::StatusOr<Settings> ParseSettings(const std::map<std::string, std::string>& environment,
                                       int processors);
std::map<std::string, std::string> Environment();

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_SETTINGS_H_
