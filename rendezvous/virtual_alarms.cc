#include "rendezvous/virtual_alarms.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "rendezvous/delivering.h"

namespace tryst {

VirtualAlarms::~VirtualAlarms() { TRYST_CHECK(size() == 0) << size() << " alarms are still set"; }

Alarms::Token VirtualAlarms::Set(Deadline at, Callback callback) {
  if (at.is_never()) return kNoToken;
  MutexLock lock(&mu_);
  return queue_.Push(at, std::move(callback));
}

bool VirtualAlarms::Cancel(Token token) {
  Callback dead;  // Destroyed after the lock is released.
  MutexLock lock(&mu_);
  return queue_.Remove(token, &dead);
}

void VirtualAlarms::AdvanceTo(int64_t at_ns) {
  const DeliveringScope delivering;
  for (;;) {
    Callback callback;
    {
      MutexLock lock(&mu_);
      const Deadline earliest = queue_.Earliest();
      if (!earliest.Passed(at_ns)) break;
      now_ns_.store(std::max(NowNs(), earliest.at_ns()));
      queue_.PopPassed(NowNs(), &callback);
    }
    std::move(callback)();
  }
  now_ns_.store(std::max(NowNs(), at_ns));
}

void VirtualAlarms::AdvanceBy(absl::Duration duration) {
  AdvanceTo(Deadline::After(*this, duration).at_ns());
}

Deadline VirtualAlarms::Earliest() const {
  MutexLock lock(&mu_);
  return queue_.Earliest();
}

size_t VirtualAlarms::size() const {
  MutexLock lock(&mu_);
  return queue_.size();
}

}  // namespace tryst
