#include "channel/grpc/event_thread.h"

#include <pthread.h>

#include <utility>

#include "base/thread_owner.h"

namespace tryst {

EventThread::EventThread(std::unique_ptr<grpc::CompletionQueue> queue, Poller* poller)
    : queue_(std::move(queue)), poller_(poller), thread_([this] { Run(); }) {
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
  while (queue_->Next(&tag, &ok)) {
    static_cast<GrpcEvent*>(tag)->OnEvent(ok);
    if (poller_ != nullptr) poller_->TurnIfAsleep();
  }
}

}  // namespace tryst
