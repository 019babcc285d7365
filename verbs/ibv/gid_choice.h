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

// The port's addresses that are not empty. Without ibv_query_gid_table, from sysfs.
absl::StatusOr<std::vector<ibv_gid_entry>> ReadGids(const IbvCalls& calls, ibv_context* context,
                                                    uint8_t port, int table_length,
                                                    const std::string& sysfs_root);

// Takes, on Ethernet, a RoCE v2 address: IPv4 first, then global, then site-local IPv6,
// then the link-local ones, which reach no further than the cable; of equals, the one
// with the least index. On InfiniBand, index 0. `index` overrides all that.
// kInvalidArgument for an index that is empty, kUnavailable where nothing will do.
absl::StatusOr<ChosenGid> ChooseGid(const std::vector<ibv_gid_entry>& gids, bool ethernet,
                                    absl::optional<uint32_t> index);

// "10.0.0.1" for an IPv4-mapped one, else as IPv6.
std::string GidText(const union ibv_gid& gid);

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_GID_CHOICE_H_
