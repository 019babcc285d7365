#ifndef TRYST_VERBS_IBV_GID_CHOICE_H_
#define TRYST_VERBS_IBV_GID_CHOICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "verbs/ibv/ibv_calls.h"

namespace tryst {

// A port's address as its packets will carry it.
struct ChosenGid {
  uint32_t index = 0;
  union ibv_gid gid = {};
  std::string why;  // "index 3, 10.0.0.1, RoCE v2: IPv4; passed over 2 others".
};

// The port's addresses that are not empty. Without ibv_query_gid_table they are read from sysfs.
absl::StatusOr<std::vector<ibv_gid_entry>> ReadGids(const IbvCalls& calls, ibv_context* context,
                                                    uint8_t port, int table_length,
                                                    const std::string& sysfs_root);

// Chooses, on Ethernet, a RoCE v2 address: IPv4 first, then global IPv6, then site-local, then
// link-local, which reaches no further than the cable; among equals, the lowest index. On
// InfiniBand, index 0. `index` overrides all that. kInvalidArgument: the entry at `index` is empty.
// kUnavailable: no address is usable.
absl::StatusOr<ChosenGid> ChooseGid(const std::vector<ibv_gid_entry>& gids, bool ethernet,
                                    absl::optional<uint32_t> index);

// "10.0.0.1" for an IPv4-mapped address; otherwise as IPv6.
std::string GidText(const union ibv_gid& gid);

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_GID_CHOICE_H_
