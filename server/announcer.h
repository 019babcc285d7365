#ifndef TRYST_SERVER_ANNOUNCER_H_
#define TRYST_SERVER_ANNOUNCER_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "rendezvous/alarms.h"
#include "server/membership.h"
#include "server/peer_calls.h"

namespace tryst {

// Tells the other members that we are here, and that we go. A member that does not answer
// is tried a few times more: when it comes up it announces itself to us, and learns of us
// by the answer. Thread-safe; its arguments outlive it.
class Announcer {
 public:
  Announcer(Member self, Membership* members, PeerCalls* calls, grpc::CompletionQueue* queue,
            Alarms* alarms);
  // Waits for the calls under way, which end within a few seconds at most.
  ~Announcer();

  // To everybody known, and to everybody that they know.
  void Start();
  // Says goodbye and waits for the answers, up to `timeout`. Start() has no effect afterwards.
  void Leave(absl::Duration timeout);

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_ANNOUNCER_H_
