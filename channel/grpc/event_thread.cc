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
    for (Poller* poller : pollers_) poller->TurnIfAsleep();
    step_.store(++step, std::memory_order_relaxed);
  }
}

}  // namespace tryst
