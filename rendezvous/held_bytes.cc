#include "rendezvous/held_bytes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

HeldBytes::HeldBytes(int64_t max_bytes, std::shared_ptr<HeldBytes> process, ReleaseReserve release)
    : max_bytes_(max_bytes),
      release_(std::move(release)),
      process_(std::move(process)),
      capped_(max_bytes != 0 || (process_ != nullptr && process_->capped())),
      root_(process_ != nullptr ? process_.get() : this) {
  TRYST_CHECK(max_bytes >= 0);
  TRYST_CHECK(root_->process_ == nullptr);
  if (release_ == nullptr || !capped()) return;
  MutexLock lock(&root_->mu_);
  root_->with_reserve_.push_back(this);
}

HeldBytes::~HeldBytes() {
  MutexLock lock(&root_->mu_);
  std::vector<HeldBytes*>& nodes = root_->with_reserve_;
  nodes.erase(std::remove(nodes.begin(), nodes.end(), this), nodes.end());
  for (const Waiter& waiter : root_->waiters_) TRYST_CHECK(waiter.node != this);
}

bool HeldBytes::Fits(int64_t bytes) const {
  if (max_bytes_ != 0 && bytes > max_bytes_ - held_.load()) return false;
  return process_ == nullptr || process_->Fits(bytes);
}

std::string HeldBytes::Explain() const {
  std::string out;
  for (const HeldBytes* node = this; node != nullptr; node = node->process_.get()) {
    if (node->max_bytes_ == 0) continue;
    absl::StrAppend(&out, out.empty() ? "" : ", ", node == this ? "the step" : "the process",
                    " holds ", node->held(), " of at most ", node->max_bytes_);
  }
  return out;
}

bool HeldBytes::TryTakeHere(int64_t bytes) {
  if (max_bytes_ == 0) return true;
  int64_t held = held_.load(std::memory_order_relaxed);
  do {
    if (bytes > max_bytes_ - held) return false;
  } while (!held_.compare_exchange_weak(held, held + bytes));
  return true;
}

bool HeldBytes::TryTake(int64_t bytes) {
  if (!TryTakeHere(bytes)) return false;
  if (process_ == nullptr || process_->TryTakeHere(bytes)) return true;
  if (max_bytes_ != 0) held_.fetch_sub(bytes);
  return false;
}

void HeldBytes::OnRefused() {
  CollectReserves();
  if (anybody_waits()) root_->WakeWhoFits();
}

void HeldBytes::CollectReserves() {
  MutexLock lock(&root_->mu_);
  for (HeldBytes* node : root_->with_reserve_) node->Return(node->release_());
}

void HeldBytes::Return(int64_t bytes) {
  for (HeldBytes* node = this; node != nullptr; node = node->process_.get()) {
    if (node->max_bytes_ != 0) node->held_.fetch_sub(bytes);
  }
}

void HeldBytes::Give(int64_t bytes) {
  // Sequentially consistent on both sides: either this sees the waiter, or the waiter sees the
  // room, because it tries once more after it has queued.
  if (bytes == 0) return;
  Return(bytes);
  if (anybody_waits()) root_->WakeWhoFits();
}

void HeldBytes::WhenRoom(int64_t bytes, Ready ready) {
  for (HeldBytes* node = this; node != nullptr; node = node->process_.get()) {
    if (node->max_bytes_ != 0 && bytes > node->max_bytes_) {
      Call(std::move(ready), absl::InvalidArgumentError(absl::StrCat(
                                 bytes, " bytes never fit under max_held_bytes, which is ",
                                 node->max_bytes_, ": raise it, or send less")));
      return;
    }
  }
  {
    MutexLock lock(&root_->mu_);
    root_->waiters_.push_back({this, bytes, std::move(ready)});
    root_->anybody_waits_.store(true);
  }
  CollectReserves();
  root_->WakeWhoFits();
}

void HeldBytes::WakeWhoFits() {
  std::vector<Ready> woken;
  {
    MutexLock lock(&mu_);
    // Wakes every waiter that would fit alone. If it woke only the first, and that one sent
    // nothing, the next would sleep on.
    auto keep = waiters_.begin();
    for (Waiter& waiter : waiters_) {
      if (waiter.node->Fits(waiter.bytes)) {
        woken.push_back(std::move(waiter.ready));
      } else {
        if (&*keep != &waiter) *keep = std::move(waiter);
        ++keep;
      }
    }
    waiters_.erase(keep, waiters_.end());
    anybody_waits_.store(!waiters_.empty());
  }
  for (Ready& ready : woken) Call(std::move(ready), absl::OkStatus());
}

void HeldBytes::FailWaiting(const absl::Status& status) {
  std::vector<Ready> failed;
  {
    MutexLock lock(&root_->mu_);
    std::vector<Waiter>& waiters = root_->waiters_;
    for (Waiter& waiter : waiters) {
      if (waiter.node == this) failed.push_back(std::move(waiter.ready));
    }
    waiters.erase(std::remove_if(waiters.begin(), waiters.end(),
                                 [this](const Waiter& waiter) { return waiter.node == this; }),
                  waiters.end());
    root_->anybody_waits_.store(!waiters.empty());
  }
  for (Ready& ready : failed) Call(std::move(ready), status);
}

}  // namespace tryst
