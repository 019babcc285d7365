#ifndef TRYST_SERVER_REPEATING_H_
#define TRYST_SERVER_REPEATING_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "rendezvous/alarms.h"

namespace tryst {

// Calls `what` each `period`, on the alarms' thread, the first time after one. Its
// destruction waits for a call that runs, and none comes after it: `what` may use whatever
// outlives this, and must not destroy it. `alarms` outlives it.
class Repeating {
 public:
  Repeating(absl::Duration period, Alarms* alarms, std::function<void()> what);
  ~Repeating();

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_REPEATING_H_
