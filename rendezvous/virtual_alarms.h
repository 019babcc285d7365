#ifndef TRYST_RENDEZVOUS_VIRTUAL_ALARMS_H_
#define TRYST_RENDEZVOUS_VIRTUAL_ALARMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"
#include "rendezvous/alarm_queue.h"
#include "rendezvous/alarms.h"

namespace tryst {

// Time that moves only when told, for tests and the simulator. It is its own clock. It starts at
// one second, so that "no time" and "time zero" differ.
class VirtualAlarms final : public Alarms, public Clock {
 public:
  ~VirtualAlarms() override;
  Token Set(Deadline at, Callback callback) override;
  bool Cancel(Token token) override;
  const Clock& clock() const override { return *this; }
  int64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }

  // Moves time, and runs what becomes due on this thread, each at its own moment.
  void AdvanceTo(int64_t at_ns);
  void AdvanceBy(absl::Duration duration);
  Deadline Earliest() const;
  size_t size() const;

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
  mutable Mutex mu_;
  AlarmQueue queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_VIRTUAL_ALARMS_H_
