#include "channel/grpc/event_thread.h"

#include <grpcpp/completion_queue.h>
#include <pthread.h>

namespace tryst {

EventThread::EventThread(grpc::CompletionQueue* queue) : queue_(queue), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "tryst-grpc");
}

EventThread::~EventThread() {
  queue_->Shutdown();
  thread_.join();
}

void EventThread::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<GrpcEvent*>(tag)->OnEvent(ok);
}

}  // namespace tryst
