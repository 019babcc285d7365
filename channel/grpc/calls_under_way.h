#ifndef TRYST_CHANNEL_GRPC_CALLS_UNDER_WAY_H_
#define TRYST_CHANNEL_GRPC_CALLS_UNDER_WAY_H_

#include <grpcpp/client_context.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace tryst {

// Owns calls that end on an EventThread. A call is a struct with a grpc::ClientContext in a
// unique_ptr `context`, and something else that holds its gRPC channel. The context is destroyed
// when the call ends, so that its connection counts as idle. The rest is destroyed in a later Add()
// or in the destructor, never in the call's own callback: it may hold the last reference to the
// gRPC channel, and gRPC 1.51 deadlocks if a thread of its own drops that (the thread joins
// itself). Thread-safe.
template <typename Call>
class CallsUnderWay {
 public:
  // Cancels the calls under way and waits for them. Do not call it on a gRPC thread.
  ~CallsUnderWay() {
    std::vector<std::unique_ptr<Call>> over;
    MutexLock lock(&mu_);
    for (auto& [call, owned] : live_) {
      if (call->context != nullptr) call->context->TryCancel();
    }
    while (!live_.empty()) none_.Wait(&mu_);
    over.swap(over_);
  }

  void CancelAll() {
    MutexLock lock(&mu_);
    for (auto& [call, owned] : live_) {
      if (call->context != nullptr) call->context->TryCancel();
    }
  }

  Call* Add(std::unique_ptr<Call> call) {
    std::vector<std::unique_ptr<Call>> over;  // Destroyed without the lock.
    Call* const added = call.get();
    MutexLock lock(&mu_);
    over.swap(over_);
    live_.emplace(added, std::move(call));
    return added;
  }

  // A call's callback calls it last.
  void Over(Call* call) {
    std::unique_ptr<grpc::ClientContext> context;
    {
      MutexLock lock(&mu_);
      context = std::move(call->context);
    }
    context.reset();
    MutexLock lock(&mu_);
    auto it = live_.find(call);
    over_.push_back(std::move(it->second));
    live_.erase(it);
    if (live_.empty()) none_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar none_;
  std::unordered_map<Call*, std::unique_ptr<Call>> live_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Call>> over_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_CALLS_UNDER_WAY_H_
