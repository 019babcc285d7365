#ifndef TRYST_SERVER_ANNOUNCER_H_
#define TRYST_SERVER_ANNOUNCER_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "rendezvous/alarms.h"
#include "server/heartbeat.h"
#include "server/membership.h"

namespace tryst {

// Tells the other members that we are here, and that we go. A member that does not answer is
// tried again, every second at first and then ever less often, until it answers, or announces
// itself to us and so learns of us by the answer: one that was cut off when we came does not say
// anything by itself when it is back. Thread-safe; its arguments outlive it.
//
// Of n members each calls every other once: O(n) messages for each that comes, whoever else does.
class Announcer {
 public:
  Announcer(Member self, Membership* members, HeartbeatCalls* calls, Alarms* alarms);
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
