#include "verbs/ibv/gid_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "verbs/ibv/ibv_status.h"

namespace tryst {
namespace {

constexpr size_t kMaxGids = 1024;
constexpr uint32_t kMaxGidIndex = 255;  // A queue pair's path has no room for larger ones.

bool IsEmpty(const union ibv_gid& gid) {
  // When its network device is gone, a table slot keeps the prefix and loses the rest.
  return gid.global.interface_id == 0;
}

bool IsMappedIpv4(const union ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

struct Reach {
  int rank;  // Higher is better; 0: unusable.
  const char* name;
};

Reach ReachOf(const union ibv_gid& gid) {
  if (IsMappedIpv4(gid)) {
    const uint8_t first = gid.raw[12];
    if (first == 127) return {0, "IPv4 loopback"};
    if (first == 169 && gid.raw[13] == 254) return {2, "link-local IPv4"};
    return {5, "IPv4"};
  }
  if (gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80) return {1, "link-local IPv6"};
  if ((gid.raw[0] & 0xfe) == 0xfc) return {3, "unique local IPv6"};
  return {4, "global IPv6"};
}

const char* TypeName(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return "InfiniBand";
    case IBV_GID_TYPE_ROCE_V1:
      return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
      return "RoCE v2";
    default:
      return "unknown type";
  }
}

std::string Describe(const ibv_gid_entry& entry) {
  return absl::StrCat("index ", entry.gid_index, ", ", GidText(entry.gid), ", ",
                      TypeName(entry.gid_type));
}

ChosenGid Chosen(const ibv_gid_entry& entry, absl::string_view reason) {
  return {entry.gid_index, entry.gid, absl::StrCat(Describe(entry), ": ", reason)};
}

absl::StatusOr<ChosenGid> ChooseRoce(const std::vector<ibv_gid_entry>& gids) {
  const ibv_gid_entry* best = nullptr;
  int best_rank = 0;
  int usable = 0;
  for (const ibv_gid_entry& entry : gids) {
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || entry.gid_index > kMaxGidIndex) continue;
    const int rank = ReachOf(entry.gid).rank;
    if (rank == 0) continue;
    ++usable;
    if (rank > best_rank) {
      best = &entry;
      best_rank = rank;
    }
  }
  if (best == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "none of its ", gids.size(),
        " GIDs is RoCE v2: give the NIC's network device an IP address and bring it up"));
  }
  std::string reason = ReachOf(best->gid).name;
  if (usable > 1) absl::StrAppend(&reason, "; preferred to ", usable - 1, " other");
  return Chosen(*best, reason);
}

// /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/3 says "IB/RoCE v1" or "RoCE v2".
uint32_t TypeFromSysfs(const std::string& device_path, uint8_t port, int index) {
  std::ifstream file(absl::StrCat(device_path, "/ports/", port, "/gid_attrs/types/", index));
  std::string line;
  std::getline(file, line);
  if (line == "RoCE v2") return IBV_GID_TYPE_ROCE_V2;
  return line.find("RoCE") == std::string::npos ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V1;
}

}  // namespace

absl::StatusOr<std::vector<ibv_gid_entry>> ReadGids(const IbvCalls& calls, ibv_context* context,
                                                    uint8_t port, int table_length,
                                                    const std::string& sysfs_root) {
  std::vector<ibv_gid_entry> gids;
  if (calls.query_gid_table) {
    std::vector<ibv_gid_entry> table(kMaxGids);
    const ssize_t count = calls.query_gid_table(context, table.data(), table.size());
    if (count >= 0) {
      for (ssize_t i = 0; i < count; ++i) {
        if (table[i].port_num == port && !IsEmpty(table[i].gid)) gids.push_back(table[i]);
      }
      return gids;
    }
    // The kernel is older than the library, so ask for each entry.
  }
  const std::string device_path =
      absl::StrCat(sysfs_root, "/class/infiniband/", absl::string_view(context->device->name));
  for (int index = 0; index < std::min<int>(table_length, kMaxGids); ++index) {
    ibv_gid_entry entry = {};
    const int returned = calls.query_gid(context, port, index, &entry.gid);
    if (returned != 0 || IsEmpty(entry.gid)) continue;
    entry.gid_index = index;
    entry.port_num = port;
    entry.gid_type = TypeFromSysfs(device_path, port, index);
    gids.push_back(entry);
  }
  return gids;
}

absl::StatusOr<ChosenGid> ChooseGid(const std::vector<ibv_gid_entry>& gids, bool ethernet,
                                    absl::optional<uint32_t> index) {
  const uint32_t wanted = index.value_or(0);
  if (ethernet && !index) return ChooseRoce(gids);
  for (const ibv_gid_entry& entry : gids) {
    if (entry.gid_index == wanted) {
      return Chosen(entry, index ? "as asked for" : "the port's own");
    }
  }
  if (index) {
    std::string present;
    for (const ibv_gid_entry& entry : gids) {
      absl::StrAppend(&present, present.empty() ? "" : "; ", Describe(entry));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("GID index ", wanted, " holds no address; these do: ", present));
  }
  // Within a subnet, InfiniBand uses LIDs and needs no GID.
  return ChosenGid{0, {}, "no GID: by LID"};
}

std::string GidText(const union ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN];
  const bool ipv4 = IsMappedIpv4(gid);
  return inet_ntop(ipv4 ? AF_INET : AF_INET6, ipv4 ? gid.raw + 12 : gid.raw, text, sizeof(text));
}

}  // namespace tryst
