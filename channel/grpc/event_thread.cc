#include "channel/grpc/event_thread.h"

#include <pthread.h>

#include <algorithm>
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
    for (Poller* poller : pollers_) poller->TurnIfAsleep(HasArrival(poller));
    for (Arrival& arrival : arrivals_) arrival.then();
    arrivals_.clear();
    step_.store(++step, std::memory_order_relaxed);
  }
}

// A look costs a system call, so a poller looks for what is its own alone.
bool EventThread::HasArrival(const Poller* poller) const {
  return std::any_of(arrivals_.begin(), arrivals_.end(), [&](const Arrival& arrival) {
    return arrival.poller == poller || (arrival.poller == nullptr && pollers_.size() == 1);
  });
}

Poller* EventThread::PollerHere(Poller* last) const {
  if (last != nullptr && last->OnThread()) return last;
  const auto here = std::find_if(pollers_.begin(), pollers_.end(),
                                 [](const Poller* poller) { return poller->OnThread(); });
  return here == pollers_.end() ? nullptr : *here;
}

}  // namespace tryst
