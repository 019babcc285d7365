#ifndef TRYST_RENDEZVOUS_CANCELLATION_H_
#define TRYST_RENDEZVOUS_CANCELLATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/mutex.h"

namespace tryst {

// The shared state of a Cancellation. It is reference-counted because a caller that registered may
// deregister after the owner has destroyed the Cancellation. The methods are those of Cancellation.
class CancellationState {
 public:
  using Callback = absl::AnyInvocable<void() &&>;
  using Token = uint64_t;

  [[nodiscard]] Token Register(Callback callback);
  bool TryDeregister(Token token);
  bool Deregister(Token token);
  void StartCancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  struct Slot {
    Callback callback;
    uint32_t generation = 1;  // The callback in the slot has it, or the next one will.
    bool used = false;
    // In the order of registration; of the free ones, `next` alone.
    uint32_t next = 0;
    uint32_t prev = 0;
  };

  ~CancellationState() = default;
  Callback TakeOut(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The one before it has run. False: none is left.
  bool TakeNext(Callback* callback);

  std::atomic<int64_t> refs_{1};
  std::atomic<bool> cancelled_{false};
  Mutex mu_;
  CondVar done_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  uint32_t first_free_ ABSL_GUARDED_BY(mu_) = kNoSlot;
  uint32_t first_ ABSL_GUARDED_BY(mu_) = kNoSlot;
  uint32_t last_ ABSL_GUARDED_BY(mu_) = kNoSlot;
  Token running_ ABSL_GUARDED_BY(mu_) = 0;  // Its callback runs; 0: none does.

  static constexpr uint32_t kNoSlot = UINT32_MAX;
};

// Cancels what is registered with it, once and for good. Safe from any thread. Allocates
// only while more callbacks are registered than ever before.
// May be destroyed in any state, even in one of its own callbacks. The destructor first cancels
// what is registered, on this thread, as StartCancel does. If another thread is in StartCancel,
// that thread still runs the callbacks that it has not run yet.
class Cancellation {
 public:
  using Callback = CancellationState::Callback;
  using Token = CancellationState::Token;
  static constexpr Token kNoToken = 0;

  Cancellation() : state_(new CancellationState) {}
  ~Cancellation() {
    StartCancel();
    state_->Unref();
  }
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Keeps `callback` until it is deregistered or cancelled. kNoToken when already
  // cancelled: `callback` is destroyed and never runs.
  [[nodiscard]] Token Register(Callback callback) { return state_->Register(std::move(callback)); }
  // True: the callback will never run and is destroyed. False: it has run or runs now. Never waits.
  bool TryDeregister(Token token) { return state_->TryDeregister(token); }
  // As TryDeregister, but returns false only after the callback has run. Waits for no other
  // callback. Must not be called from the callback itself.
  bool Deregister(Token token) { return state_->Deregister(token); }
  // Runs every registered callback on this thread, in the order of registration, unless it is
  // deregistered before its turn, and returns. A second call does nothing (and does not wait for
  // the first). Where callbacks throw, the others run all the same, and the first exception leaves
  // at the end.
  void StartCancel() { state_->StartCancel(); }
  bool cancelled() const { return state_->cancelled(); }

 private:
  friend class CancellationRef;
  CancellationState* const state_;
};

// Refers to a Cancellation, or to none. One whose Cancellation is gone says that it is
// cancelled.
class CancellationRef {
 public:
  CancellationRef() = default;
  CancellationRef(std::nullptr_t) {}           // NOLINT(google-explicit-constructor)
  CancellationRef(Cancellation* cancellation)  // NOLINT(google-explicit-constructor)
      : state_(cancellation != nullptr ? cancellation->state_ : nullptr) {
    if (state_ != nullptr) state_->Ref();
  }
  CancellationRef(const CancellationRef& other) : state_(other.state_) {
    if (state_ != nullptr) state_->Ref();
  }
  CancellationRef(CancellationRef&& other) noexcept
      : state_(std::exchange(other.state_, nullptr)) {}
  CancellationRef& operator=(CancellationRef other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~CancellationRef() {
    if (state_ != nullptr) state_->Unref();
  }
  CancellationState* operator->() const { return state_; }
  friend bool operator==(const CancellationRef& a, const CancellationRef& b) {
    return a.state_ == b.state_;
  }
  friend bool operator!=(const CancellationRef& a, const CancellationRef& b) { return !(a == b); }
  friend bool operator==(const CancellationRef& a, std::nullptr_t) { return a.state_ == nullptr; }
  friend bool operator!=(const CancellationRef& a, std::nullptr_t) { return a.state_ != nullptr; }

 private:
  CancellationState* state_ = nullptr;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_CANCELLATION_H_
