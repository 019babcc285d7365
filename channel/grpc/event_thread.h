#ifndef TRYST_CHANNEL_GRPC_EVENT_THREAD_H_
#define TRYST_CHANNEL_GRPC_EVENT_THREAD_H_

#include <grpcpp/completion_queue.h>

#include <memory>
#include <thread>
#include <vector>

#include "channel/poller/poller.h"

namespace tryst {

// The tag of an operation on a completion queue that an EventThread turns.
class GrpcEvent {
 public:
  virtual ~GrpcEvent() = default;
  // On the queue's thread, once for each operation begun. May destroy the event.
  virtual void OnEvent(bool ok) = 0;
};

// One of an owner's: what it runs is a member of it.
template <typename Owner>
class GrpcStep final : public GrpcEvent {
 public:
  using On = void (Owner::*)(bool ok);
  GrpcStep(Owner* owner, On on) : owner_(owner), on_(on) {}
  void OnEvent(bool ok) override { (owner_->*on_)(ok); }

 private:
  Owner* const owner_;
  const On on_;
};

// One thread that waits in gRPC, reads its sockets and runs the events itself. gRPC's own callbacks
// wake another thread twice for each event. A server should have one such thread for both of its
// ends, because a thread that waits in gRPC gets the events of every queue of the process and has
// to wake the threads that they belong to.
class EventThread {
 public:
  // What an event has for one of `pollers` this thread runs itself while that sleeps
  // (Poller::TurnIfAsleep). They outlive it.
  EventThread(std::unique_ptr<grpc::CompletionQueue> queue, std::vector<Poller*> pollers);
  // Waits for what is under way. REQUIRES: nothing begins an operation any more.
  ~EventThread();
  grpc::CompletionQueue* queue() const { return queue_.get(); }

 private:
  void Run();

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  const std::vector<Poller*> pollers_;
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_EVENT_THREAD_H_
