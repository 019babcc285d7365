#include "server/members/heartbeat.h"

#include <utility>

#include "server/members/membership.h"

namespace tryst {
namespace {

// The most of one answer; the caller asks for the rest in further calls.
constexpr size_t kMostMembers = 8192;
constexpr size_t kMostMembersBytes = 1 << 20;
constexpr size_t kMemberOverhead = 24;

}  // namespace

absl::StatusOr<Heard> AnswerHeartbeat(const Member& self, Membership* members, const Member* said,
                                      HeartbeatWord word, absl::string_view after) {
  if (said != nullptr && word == HeartbeatWord::kLeaving) {
    members->Leave(said->worker, said->incarnation);
  } else if (said != nullptr) {
    absl::Status announced = members->Announce(*said);
    if (!announced.ok()) return announced;
    if (word == HeartbeatWord::kStillHere) members->Greet(said->worker, HeartbeatWord::kHere);
  }
  Heard answer;
  answer.self = self;
  size_t bytes = 0;
  for (Member& member : members->Members(after, kMostMembers + 1)) {
    bytes += member.worker.size() + member.address.size() + kMemberOverhead;
    if (answer.members.size() == kMostMembers || bytes > kMostMembersBytes) {
      answer.rest_after = answer.members.back().worker;
      break;
    }
    answer.members.push_back(std::move(member));
  }
  return answer;
}

}  // namespace tryst
