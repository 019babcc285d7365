#ifndef TRYST_SERVER_ETCD_MEMBER_RECORD_H_
#define TRYST_SERVER_ETCD_MEMBER_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/member.h"

namespace tryst {

// A member as etcd keeps it, readable by etcdctl:
// /tryst/CLUSTER/job:ps/replica:0/task:1 -> {"address":"host:port","incarnation":"12ab..."}

// Of every member of the cluster; what follows is the worker's name without its first slash.
std::string MemberKeyPrefix(absl::string_view cluster);
std::string MemberKey(absl::string_view cluster, absl::string_view worker);
std::string MemberValue(const Member& member);

// kInvalidArgument: not a worker's name.
absl::StatusOr<std::string> WorkerOfKey(absl::string_view prefix, absl::string_view key);
// kInvalidArgument: not what MemberValue() writes, or too long.
absl::StatusOr<Member> ParseMember(absl::string_view prefix, absl::string_view key,
                                   absl::string_view value);

// The first key behind all those with this prefix. REQUIRES: it ends with '/'.
std::string EndOfPrefix(std::string prefix);

}  // namespace tryst

#endif  // TRYST_SERVER_ETCD_MEMBER_RECORD_H_
