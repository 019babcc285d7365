#ifndef TRYST_SERVER_MEMBERS_MEMBER_H_
#define TRYST_SERVER_MEMBERS_MEMBER_H_

#include <cstdint>
#include <string>

namespace tryst {

struct Member {
  std::string worker;        // "/job:ps/replica:0/task:1"
  std::string address;       // "host:port", or another form that gRPC resolves. Empty: it has left.
  uint64_t incarnation = 0;  // 0: it has not been heard from yet.
};

// An event: a worker came, moved, left, or came back as another incarnation.
struct MemberChange {
  int64_t unix_ms = 0;
  std::string worker;
  std::string what;  // "restarted: incarnation 12ab... became 34cd..."
};

// What a worker says of itself.
enum class HeartbeatWord {
  kHere,       // It has started.
  kStillHere,  // It was here before the peer's present incarnation, which may know nobody else.
  kLeaving,
};

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_MEMBER_H_
