#ifndef TRYST_RENDEZVOUS_THREAD_ALARMS_H_
#define TRYST_RENDEZVOUS_THREAD_ALARMS_H_

#include <cstdint>
#include <limits>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "rendezvous/alarm_queue.h"
#include "rendezvous/alarms.h"

namespace tryst {

// Alarms in real time. One thread, which sleeps until the earliest alarm and runs the
// callbacks; with nothing set it sleeps for ever.
class ThreadAlarms final : public Alarms {
 public:
  ThreadAlarms();
  ~ThreadAlarms() override;
  Token Set(Deadline at, Callback callback) override;
  bool Cancel(Token token) override;
  const Clock& clock() const override { return clock_; }

 private:
  void Loop();

  const SteadyClock clock_;
  Mutex mu_;
  CondVar changed_;
  AlarmQueue queue_ ABSL_GUARDED_BY(mu_);
  // The thread sleeps until then, so a later alarm need not wake it.
  int64_t sleeps_until_ns_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::max();
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last, because it uses the members above.
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_THREAD_ALARMS_H_
