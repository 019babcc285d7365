#ifndef TRYST_RENDEZVOUS_TENSOR_FETCHER_H_
#define TRYST_RENDEZVOUS_TENSOR_FETCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/waiter.h"

namespace tryst {

// What a rendezvous does with the results of a receive that ends elsewhere, right before its
// callback gets them.
class BeforeDone {
 public:
  virtual void OnResults(absl::Status* first_error, absl::Span<Received> results) = 0;

 protected:
  ~BeforeDone() = default;
};

// The caller's callback of a fetch, and perhaps what the rendezvous does before it: so that needs
// no callback of its own, nor memory for one, around its caller's. A callable, as DoneFn is, and
// made of one.
template <typename... Args>
class ResultsFn {
 public:
  ResultsFn() = default;
  ResultsFn(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  template <typename Fn,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<Fn>, ResultsFn> &&
                                        std::is_invocable_v<std::decay_t<Fn>, Args...>>>
  ResultsFn(Fn&& fn) : fn_(std::forward<Fn>(fn)) {}  // NOLINT(google-explicit-constructor)
  ResultsFn(ResultsFn&&) noexcept = default;
  ResultsFn& operator=(ResultsFn&&) noexcept = default;
  ResultsFn& operator=(std::nullptr_t) {
    fn_ = nullptr;
    before_ = nullptr;
    return *this;
  }

  // REQUIRES: there is a callback.
  void operator()(Args... args) && {
    if (before_ != nullptr) Call(std::exchange(before_, nullptr), args...);
    std::move(fn_)(std::forward<Args>(args)...);
  }
  // `before` lasts until then. REQUIRES: nothing comes before it yet.
  void RunBefore(BeforeDone* before) { before_ = before; }

  explicit operator bool() const { return static_cast<bool>(fn_); }
  friend bool operator==(const ResultsFn& fn, std::nullptr_t) { return fn.fn_ == nullptr; }
  friend bool operator!=(const ResultsFn& fn, std::nullptr_t) { return fn.fn_ != nullptr; }

 private:
  static void Call(BeforeDone* before, Received& received) {
    before->OnResults(&received.status, absl::MakeSpan(&received, 1));
  }
  static void Call(BeforeDone* before, absl::Status& first_error, absl::Span<Received> results) {
    before->OnResults(&first_error, results);
  }

  absl::AnyInvocable<void(Args...) &&> fn_;
  BeforeDone* before_ = nullptr;
};

using FetchedFn = ResultsFn<Received&&>;
using ManyFetchedFn = ResultsFn<absl::Status /*first_error*/, absl::Span<Received> /*results*/>;

// The port through which rendezvous/ gets tensors of other workers. channel/ implements it.
// Thread-safe.
class TensorFetcher {
 public:
  virtual ~TensorFetcher() = default;

  // Asks the worker of key.src() for the tensor. `done` as in rendezvous.h, never inside
  // this call. Honours args.cancellation, deadline, executor, destination, allocation and
  // device context. Owns args.destination, which a NIC may write, until `done` runs.
  // Fails with kAborted (step ended, producer restarted), kUnavailable (peer or link
  // lost), kCancelled, kDeadlineExceeded, kInvalidArgument (the tensor is not as the
  // destination says), or what the producer's step failed with.
  virtual void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                     FetchedFn&& done) = 0;
  // Like Fetch(), with one callback for all keys, which may belong to several workers. Fetches are
  // joined where possible.
  virtual void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                         ManyFetchedFn done) = 0;

  // What a thread may turn while it waits for a fetch of `key`. Null: it can only sleep.
  virtual std::shared_ptr<Turns> TurnsFor(const TensorKey& key) {
    static_cast<void>(key);
    return nullptr;
  }

  // Ends every fetch of the step that has started, with `status`. The caller may call it again, for
  // a fetch that started meanwhile. This does not refuse fetches of a step that is over; the caller
  // does.
  virtual void AbortStep(int64_t step_id, const absl::Status& status) = 0;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TENSOR_FETCHER_H_
