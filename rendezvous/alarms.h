#ifndef TRYST_RENDEZVOUS_ALARMS_H_
#define TRYST_RENDEZVOUS_ALARMS_H_

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "base/clock.h"

namespace tryst {

// Calls back when a deadline passes. Safe from any thread.
class Alarms {
 public:
  using Callback = absl::AnyInvocable<void() &&>;
  using Token = uint64_t;
  static constexpr Token kNoToken = 0;

  // REQUIRES: nothing is set any more.
  virtual ~Alarms() = default;
  // Runs `callback` once, soon after `at`, never inside this call and never with a lock
  // held. It must be brief. kNoToken for Deadline::Never(), which never comes.
  [[nodiscard]] virtual Token Set(Deadline at, Callback callback) = 0;
  // True: it will not run and is destroyed. False: it has run, runs now or is about to.
  // Never waits.
  virtual bool Cancel(Token token) = 0;
  // The clock that the deadlines are read on.
  virtual const Clock& clock() const = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_ALARMS_H_
