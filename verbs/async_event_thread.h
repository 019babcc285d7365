#ifndef TRYST_VERBS_ASYNC_EVENT_THREAD_H_
#define TRYST_VERBS_ASYNC_EVENT_THREAD_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "verbs/nic.h"

namespace tryst {

// Waits for asynchronous events of one NIC, and hands each, in order, to a subscriber. It has a
// thread, which sleeps in between.
class AsyncEventThread {
 public:
  using Subscriber = std::function<void(const NicEvent& event)>;

  // `nic` outlives it. `subscriber` runs on the thread with no lock held and should be brief: it
  // should only post the event. kFailedPrecondition: the NIC's time is virtual, so its events must
  // be polled. kResourceExhausted: no thread can be started.
  static absl::StatusOr<std::unique_ptr<AsyncEventThread>> Start(Nic* nic, Subscriber subscriber);

  // Joins the thread; afterwards the subscriber does not run any more. REQUIRES: the caller is not
  // that thread.
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
