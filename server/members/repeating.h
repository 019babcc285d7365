#ifndef TRYST_SERVER_MEMBERS_REPEATING_H_
#define TRYST_SERVER_MEMBERS_REPEATING_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "rendezvous/alarms.h"

namespace tryst {

// Calls `what` on the alarms' thread, every `period`, for the first time after one period. The
// destructor waits for a call that runs, and none follows. So `what` may use anything that outlives
// this object, but must not destroy it. `alarms` outlives it.
class Repeating {
 public:
  Repeating(absl::Duration period, Alarms* alarms, std::function<void()> what);
  ~Repeating();
  // The next call comes now, and the one after it one period later.
  void Soon();

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_REPEATING_H_
