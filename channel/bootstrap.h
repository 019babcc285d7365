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
inline constexpr uint32_t kProtocolOldest = 4;
inline constexpr uint32_t kProtocolNewest = 4;
// The last release's. Each end turns down the other's paths, and they go on by calls of gRPC.
inline constexpr uint32_t kProtocolOfCalls = 3;

// What two workers tell each other before a path opens: the consumer offers, and the producer
// answers in the same form. It comes from a peer, so the receiver validates every field.
struct Hello {
  uint32_t protocol_oldest = kProtocolOfCalls;
  uint32_t protocol_newest = kProtocolNewest;
  std::string worker;        // The sender: "/job:ps/replica:0/task:1".
  uint64_t incarnation = 0;  // Random for each process; never 0.
  // When that process began, by its own clock: the bootstrap sets it. 0: it does not say.
  int64_t started_us = 0;
  // The number of this connection, counted by the consumer from 1.
  uint64_t epoch = 0;
  std::string path;  // "rdma/soft", "rdma/mlx5_0", "shm": the path to open.
  // It is only to see whether the path works: what the consumer has asked for goes on elsewhere.
  bool probes = false;
  std::vector<std::string> queue_pairs;  // QueuePair::LocalAddress() of each; secret.
  std::string parameters;                // The back end's own data, encoded by its wire.h.
};

// kUnimplemented: its worker speaks the last release's protocol alone. kFailedPrecondition: none
// that `self` knows.
absl::Status CheckProtocol(const Hello& hello, const std::string& self);

using HelloDone = absl::AnyInvocable<void(absl::StatusOr<Hello>) &&>;

// Carries hellos to peers: over gRPC, or in the simulator over virtual wires. Thread-safe.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // `done` runs exactly once, on any thread, never inside this call. kUnavailable: the peer does
  // not answer (yet); try again later. kFailedPrecondition, kUnauthenticated, kPermissionDenied: it
  // refused, and says why.
  virtual void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                        HelloDone done) = 0;
};

// Answers the hellos that reach this worker. Thread-safe. The bootstrap has authenticated
// `hello.worker` before it calls.
class HelloHandler {
 public:
  virtual ~HelloHandler() = default;
  // `done` runs exactly once, on any thread.
  virtual void OnHello(const Hello& hello, HelloDone done) = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_BOOTSTRAP_H_
