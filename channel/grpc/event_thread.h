#ifndef TRYST_CHANNEL_GRPC_EVENT_THREAD_H_
#define TRYST_CHANNEL_GRPC_EVENT_THREAD_H_

#include <thread>

namespace grpc {
class CompletionQueue;
}  // namespace grpc

namespace tryst {

// The tag of an operation on a completion queue that an EventThread turns.
class GrpcEvent {
 public:
  virtual ~GrpcEvent() = default;
  // On the queue's thread, once for each operation begun. May destroy the event.
  virtual void OnEvent(bool ok) = 0;
};

// One thread that waits in gRPC, reads its sockets and runs what has ended there: nobody is
// woken in between, as gRPC's own callbacks do twice for each event.
class EventThread {
 public:
  // `queue` outlives it.
  explicit EventThread(grpc::CompletionQueue* queue);
  // Shuts the queue down. REQUIRES: nothing begins an operation on it any more.
  ~EventThread();

 private:
  void Run();

  grpc::CompletionQueue* const queue_;
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_EVENT_THREAD_H_
