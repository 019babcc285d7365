#ifndef TRYST_SERVER_HEARTBEAT_H_
#define TRYST_SERVER_HEARTBEAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/member.h"

namespace tryst {

class Membership;

// What a worker answers when another tells it of itself.
struct Heard {
  Member self;                  // The peer.
  std::vector<Member> members;  // Whom it knows.
  int64_t steady_ns = 0;        // Its clock; 0: it does not say.
  std::string rest_after{};     // Not empty: it knows more, to be asked for behind this name.
};
using HeardFn = absl::AnyInvocable<void(absl::StatusOr<Heard>) &&>;

// Sorts after every worker's name, so asking for the members after it returns none.
inline constexpr char kBehindAll[] = "~";

// Carries heartbeats to peers: over gRPC; in the simulator on virtual time.
class HeartbeatCalls {
 public:
  virtual ~HeartbeatCalls() = default;
  // Says who we are, or that we go. `done` runs once, on any thread, perhaps in the call. `after`
  // asks for the members behind that name.
  virtual void StartHeartbeat(const std::string& peer, const Member& self, bool leaving,
                              absl::Duration timeout, const std::string& after, HeardFn done) = 0;
};

// Answers a heartbeat: stores in `members` what the caller `said` of itself (null: it only asks),
// and returns the members of `self` that sort after `after`. kPermissionDenied: not one of this
// closed cluster.
absl::StatusOr<Heard> AnswerHeartbeat(const Member& self, Membership* members, const Member* said,
                                      bool leaving, absl::string_view after);

}  // namespace tryst

#endif  // TRYST_SERVER_HEARTBEAT_H_
