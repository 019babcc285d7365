#ifndef TRYST_SERVER_WEIGHTS_PATIENCE_H_
#define TRYST_SERVER_WEIGHTS_PATIENCE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "rendezvous/cancellation.h"

namespace tryst {

// How long a call waits, and what ends it sooner.
struct Patience {
  Patience(absl::Duration timeout,  // NOLINT(google-explicit-constructor)
           CancellationRef cancellation = nullptr);

  absl::Duration left() const;
  bool cancelled() const { return cancellation != nullptr && cancellation->cancelled(); }
  // kCancelled or kDeadlineExceeded with `what`; OK: there is time left.
  absl::Status Check(absl::string_view what) const;
  // The deadline, or an hour from now if that is sooner.
  std::chrono::steady_clock::time_point WakeAt() const;

  Deadline deadline;
  CancellationRef cancellation;
};

// While it lives, a cancel wakes whoever waits for `changed` under `mu`.
class WakesOnCancel {
 public:
  WakesOnCancel(const Patience& patience, Mutex* mu, CondVar* changed);
  ~WakesOnCancel();
  WakesOnCancel(const WakesOnCancel&) = delete;
  WakesOnCancel& operator=(const WakesOnCancel&) = delete;

 private:
  const CancellationRef cancellation_;
  Cancellation::Token token_ = Cancellation::kNoToken;
};

// Is cancelled with what it hangs on, or by itself.
class HangingCancellation {
 public:
  explicit HangingCancellation(CancellationRef on);
  ~HangingCancellation();
  HangingCancellation(const HangingCancellation&) = delete;
  HangingCancellation& operator=(const HangingCancellation&) = delete;
  Cancellation* get() { return &own_; }

 private:
  const CancellationRef on_;
  Cancellation own_;
  Cancellation::Token token_ = Cancellation::kNoToken;
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_PATIENCE_H_
