#ifndef TRYST_SERVER_ETCD_MEMBER_RECORD_H_
#define TRYST_SERVER_ETCD_MEMBER_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/members/member.h"

namespace tryst {

// A member's entry in etcd, which etcdctl can show: /tryst/CLUSTER/job:ps/replica:0/task:1 ->
// {"address":"host:port","incarnation":"12ab..."}

// The prefix of every member of the cluster. What follows it is the worker's name without its first
// slash.
std::string MemberKeyPrefix(absl::string_view cluster);
std::string MemberKey(absl::string_view cluster, absl::string_view worker);
std::string MemberValue(const Member& member);

// kInvalidArgument: the key does not name a worker.
absl::StatusOr<std::string> WorkerOfKey(absl::string_view prefix, absl::string_view key);
// kInvalidArgument: MemberValue() did not write this, or it is too long.
absl::StatusOr<Member> ParseMember(absl::string_view prefix, absl::string_view key,
                                   absl::string_view value);

// The first key after all keys with this prefix. REQUIRES: the prefix ends with '/'.
std::string EndOfPrefix(std::string prefix);

}  // namespace tryst

#endif  // TRYST_SERVER_ETCD_MEMBER_RECORD_H_
