#ifndef TRYST_CHANNEL_BOOTSTRAP_H_
#define TRYST_CHANNEL_BOOTSTRAP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace tryst {

// The versions of docs/WIRE.md that this build speaks.
inline constexpr uint32_t kProtocolOldest = 1;
inline constexpr uint32_t kProtocolNewest = 3;

// What two workers tell each other before a path opens: the consumer offers, the
// producer answers with the same form. Everything in it comes from a peer: the
// receiver validates before it believes.
struct Hello {
  uint32_t protocol_oldest = kProtocolOldest;
  uint32_t protocol_newest = kProtocolNewest;
  std::string worker;                    // Who speaks: "/job:ps/replica:0/task:1".
  uint64_t incarnation = 0;              // Random per process life; never 0.
  uint64_t epoch = 0;                    // Of this connection, counted by the consumer from 1.
  std::string path;                      // "rdma/soft", "rdma/mlx5_0", "shm": what is being opened.
  std::vector<std::string> queue_pairs;  // QueuePair::LocalAddress() of each; secret.
  std::string parameters;                // The back end's own block; its wire.h encodes it.
};

using HelloDone = absl::AnyInvocable<void(absl::StatusOr<Hello>) &&>;

// Carries hellos to peers (over gRPC; in the simulator over virtual wires).
// Thread-safe.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // `done` runs exactly once, on any thread, never inside this call. kUnavailable: the peer
  // does not answer (yet): try again later. kFailedPrecondition, kUnauthenticated,
  // kPermissionDenied: it answered no, and says why.
  virtual void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                        HelloDone done) = 0;
};

// Answers the hellos that reach this worker. Thread-safe. The carrier has authenticated
// `hello.worker` before it calls.
class HelloHandler {
 public:
  virtual ~HelloHandler() = default;
  // `done` runs exactly once, on any thread.
  virtual void OnHello(const Hello& hello, HelloDone done) = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_BOOTSTRAP_H_
