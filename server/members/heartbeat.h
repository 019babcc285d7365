#ifndef TRYST_SERVER_MEMBERS_HEARTBEAT_H_
#define TRYST_SERVER_MEMBERS_HEARTBEAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/members/member.h"

namespace tryst {

class Membership;

// A worker's answer to a heartbeat.
struct Heard {
  Member self;                  // The peer itself.
  std::vector<Member> members;  // The members that it knows.
  int64_t steady_ns = 0;        // The peer's CLOCK_MONOTONIC; 0: it did not say.
  std::string rest_after{};     // Not empty: it knows more members. Ask for those after this name.
};
using HeardFn = absl::AnyInvocable<void(absl::StatusOr<Heard>) &&>;

// Sorts after every worker's name, so asking for the members after it returns none.
inline constexpr char kBehindAll[] = "~";

// Carries heartbeats to peers: over gRPC; in the simulator on virtual time.
class HeartbeatCalls {
 public:
  virtual ~HeartbeatCalls() = default;
  // Tells `peer` our word. `done` runs once, on any thread, perhaps inside the call. `after` asks
  // for the members after that name.
  virtual void StartHeartbeat(const std::string& peer, const Member& self, HeartbeatWord word,
                              absl::Duration timeout, const std::string& after, HeardFn done) = 0;
};

// Answers a heartbeat. Stores in `members` what the caller `said` of itself (null: it only asks),
// and returns the members that sort after `after`. kPermissionDenied: the caller is not a member of
// this closed cluster.
absl::StatusOr<Heard> AnswerHeartbeat(const Member& self, Membership* members, const Member* said,
                                      HeartbeatWord word, absl::string_view after);

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_HEARTBEAT_H_
