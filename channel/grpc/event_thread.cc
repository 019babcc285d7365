#include "channel/grpc/event_thread.h"

#include <pthread.h>

#include <utility>

#include "base/thread_owner.h"

namespace tryst {

EventThread::EventThread(std::unique_ptr<grpc::CompletionQueue> queue, std::vector<Poller*> pollers)
    : queue_(std::move(queue)), pollers_(std::move(pollers)), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "tryst-grpc");
}

EventThread::~EventThread() {
  queue_->Shutdown();
  thread_.join();
}

void EventThread::Run() {
  SetThreadOwner(this);
  void* tag = nullptr;
  bool ok = false;
  uint64_t step = 0;
  while (queue_->Next(&tag, &ok)) {
    step_.store(++step, std::memory_order_relaxed);
    static_cast<GrpcEvent*>(tag)->OnEvent(ok);
    // With several pollers nobody here knows whose source it is, and a look costs a system call.
    const bool arrived = !arrivals_.empty() && pollers_.size() == 1;
    for (Poller* poller : pollers_) poller->TurnIfAsleep(arrived);
    for (auto& then : arrivals_) then();
    arrivals_.clear();
    step_.store(++step, std::memory_order_relaxed);
  }
}

}  // namespace tryst
