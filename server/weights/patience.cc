#include "server/weights/patience.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {

Patience::Patience(absl::Duration timeout, CancellationRef cancellation)
    : deadline(Deadline::After(SteadyClock(), timeout)), cancellation(std::move(cancellation)) {}

absl::Duration Patience::left() const {
  if (deadline.is_never()) return absl::InfiniteDuration();
  return absl::Nanoseconds(std::max<int64_t>(deadline.at_ns() - SteadyClock().NowNs(), 0));
}

absl::Status Patience::Check(absl::string_view what) const {
  if (cancelled()) return absl::CancelledError(absl::StrCat(what, ": cancelled"));
  if (!deadline.Passed(SteadyClock().NowNs())) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(what, ": the time is over"));
}

std::chrono::steady_clock::time_point Patience::WakeAt() const {
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::min(left(), absl::Hours(1)));
}

WakesOnCancel::WakesOnCancel(const Patience& patience, Mutex* mu, CondVar* changed)
    : cancellation_(patience.cancellation) {
  if (cancellation_ == nullptr) return;
  token_ = cancellation_->Register([mu, changed] {
    { MutexLock lock(mu); }  // Whoever has looked and does not wait yet.
    changed->NotifyAll();
  });
}

WakesOnCancel::~WakesOnCancel() {
  if (token_ != Cancellation::kNoToken) cancellation_->Deregister(token_);
}

HangingCancellation::HangingCancellation(CancellationRef on) : on_(std::move(on)) {
  if (on_ == nullptr) return;
  token_ = on_->Register([this] { own_.StartCancel(); });
  if (token_ == Cancellation::kNoToken) own_.StartCancel();
}

HangingCancellation::~HangingCancellation() {
  if (token_ != Cancellation::kNoToken) on_->Deregister(token_);
}

}  // namespace tryst
