#ifndef TRYST_RENDEZVOUS_DELIVERING_H_
#define TRYST_RENDEZVOUS_DELIVERING_H_

namespace tryst {

// Says, as long as it lives, that the calling thread delivers for others: it turns a poller
// or runs the alarms. A callback that runs in place there and waits for another delivery
// waits for its own thread, and no timeout ends the wait, as that is delivered there, too.
// Rendezvous::Recv refuses to wait on such a thread. A thread of an executor delivers for
// nobody else, so a callback may block there; while it turns a poller, it has this scope.
//
// Costs two calls and an addition; nests.
class DeliveringScope {
 public:
  DeliveringScope();
  ~DeliveringScope();
  DeliveringScope(const DeliveringScope&) = delete;
  DeliveringScope& operator=(const DeliveringScope&) = delete;
};

// Whether the calling thread is in a DeliveringScope.
bool DeliversForOthers();

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_DELIVERING_H_
