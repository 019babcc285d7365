#ifndef TRYST_CHANNEL_GRPC_EVENT_THREAD_H_
#define TRYST_CHANNEL_GRPC_EVENT_THREAD_H_

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "channel/poller/poller.h"

namespace tryst {

// The tag of an operation on a completion queue that an EventThread turns.
class GrpcEvent {
 public:
  virtual ~GrpcEvent() = default;
  // Runs on the queue's thread, once for each operation that was begun. May destroy the event.
  virtual void OnEvent(bool ok) = 0;
};

// An event that calls one member function of its owner.
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

// A thread that waits in gRPC, reads its sockets and runs the events itself. With gRPC's own
// callbacks each event wakes another thread twice. A server should have one such thread for both of
// its ends: a thread that waits in gRPC gets the events of every queue of the process, and has to
// wake the threads to which they belong.
class EventThread {
 public:
  // Where an event has work for one of `pollers`, and that poller sleeps, this thread runs it
  // itself (Poller::TurnIfAsleep). The pollers outlive it.
  EventThread(std::unique_ptr<grpc::CompletionQueue> queue, std::vector<Poller*> pollers);
  // Waits for the operations under way. REQUIRES: no operation is begun any more.
  ~EventThread();
  grpc::CompletionQueue* queue() const { return queue_.get(); }
  // For an event that has brought a source of `poller` something; null: of one that is not known.
  // `then` runs after that poller had the chance to look, and tells it in the source's own way if
  // that is still needed. The queue's thread only, while it runs an event.
  void NoteArrival(Poller* poller, absl::AnyInvocable<void()> then) {
    arrivals_.push_back({poller, std::move(then)});
  }
  // Which of the pollers the calling thread turns; null: none. `last` is the likely one, or null.
  Poller* PollerHere(Poller* last) const;
  // Goes up when an event begins, to an odd number, and when it ends. Nothing that arrives is read
  // while one runs. Any thread.
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }

 private:
  struct Arrival {
    Poller* poller;
    absl::AnyInvocable<void()> then;
  };
  void Run();
  bool HasArrival(const Poller* poller) const;

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  const std::vector<Poller*> pollers_;
  std::atomic<uint64_t> step_{0};
  std::vector<Arrival> arrivals_;  // The thread's own.
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_EVENT_THREAD_H_
