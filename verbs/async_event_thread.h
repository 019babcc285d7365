#ifndef TRYST_VERBS_ASYNC_EVENT_THREAD_H_
#define TRYST_VERBS_ASYNC_EVENT_THREAD_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "verbs/nic.h"

namespace tryst {

// Watches one NIC for asynchronous events and hands each, in order, to a subscriber,
// on a thread of its own that sleeps in between.
class AsyncEventThread {
 public:
  using Subscriber = std::function<void(const NicEvent& event)>;

  // `nic` outlives it. `subscriber` runs on the thread, with no lock held, and should be
  // brief: it posts the event to whom it concerns.
  // kFailedPrecondition for a NIC whose time is virtual: its events are polled.
  static absl::StatusOr<std::unique_ptr<AsyncEventThread>> Start(Nic* nic, Subscriber subscriber);

  // Joins: when it has returned the subscriber runs no more.
  // REQUIRES: not on the thread itself.
  ~AsyncEventThread();
  AsyncEventThread(const AsyncEventThread&) = delete;
  AsyncEventThread& operator=(const AsyncEventThread&) = delete;

 private:
  AsyncEventThread(Nic* nic, Subscriber subscriber, int stop_fd);
  void Run();
  bool HandEventsOn();

  Nic* const nic_;
  const Subscriber subscriber_;
  const int stop_fd_;
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_ASYNC_EVENT_THREAD_H_
