#ifndef TRYST_SERVER_MEMBERS_ANNOUNCER_H_
#define TRYST_SERVER_MEMBERS_ANNOUNCER_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "rendezvous/alarms.h"
#include "server/members/heartbeat.h"
#include "server/members/membership.h"

namespace tryst {

// Tells the other members that this worker has started, and that it leaves. It calls a member that
// does not answer again, every second at first and then ever less often, until the member answers
// or announces itself. It must go on calling, because a member that was only cut off when we
// started does not announce itself once it is back. Thread-safe; its arguments outlive it.
//
// Of n members each calls every other once, so a worker that starts costs O(n) messages. It calls
// 256 of them at the same time; who has not answered is called again after all others.
//
// In an open cluster nobody tells a worker that restarts who is there, if the others joined by it.
// So whoever finds it in another incarnation (Membership::NoteIncarnation) tells it that he is
// still here; it asks him for the members, and calls them.
class Announcer {
 public:
  Announcer(Member self, Membership* members, HeartbeatCalls* calls, Alarms* alarms);
  // Leave(), with a short timeout, if it was not called.
  ~Announcer();

  // Calls every known member, and every member that their answers name.
  void Start();
  // Says goodbye, to as many as the time allows, and waits for the answers, up to `timeout`. Calls
  // that are under way then end with the queue that they are on. Start() has no effect afterwards.
  void Leave(absl::Duration timeout);

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_ANNOUNCER_H_
