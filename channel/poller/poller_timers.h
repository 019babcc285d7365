#ifndef TRYST_CHANNEL_POLLER_POLLER_TIMERS_H_
#define TRYST_CHANNEL_POLLER_POLLER_TIMERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tryst {

// A timer that fires on the poller thread. The object that sets it owns it.
class PollerTimer {
 public:
  virtual ~PollerTimer() = default;  // REQUIRES: it is not set.
  virtual void OnTimer() = 0;
  bool is_set() const { return heap_index_ >= 0; }

 private:
  friend class PollerTimers;
  int64_t at_ns_ = 0;
  int heap_index_ = -1;
};

// The timers of a poller: a heap, earliest first. Allocates only when more are set than ever
// before. Poller thread only.
class PollerTimers {
 public:
  void Set(PollerTimer* timer, int64_t at_ns);  // Moves a timer that is already set.
  void Cancel(PollerTimer* timer);              // Does nothing if it is not set.
  void RunUntil(int64_t now_ns);
  int64_t NextNs() const;  // INT64_MAX: none is set.

 private:
  void SiftUp(size_t index);
  void SiftDown(size_t index);
  void Place(size_t index, PollerTimer* timer);

  std::vector<PollerTimer*> heap_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POLLER_POLLER_TIMERS_H_
