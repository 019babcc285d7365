#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_CALLS_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_CALLS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "rendezvous/tensor.h"
#include "server/server.h"
#include "weights/asks.h"

namespace tryst {

// Asks owners of a set, over whatever path leads to them. Thread-safe. The server outlives it.
class WeightCalls {
 public:
  WeightCalls(Server* server, std::string set) : server_(server), set_(std::move(set)) {}

  struct Call {
    std::string owner;  // A worker's name, not this one's.
    WeightAsk ask;
  };
  // One answer for each call, which waits for all of them on this thread. An answer is bytes
  // (kUint8), perhaps a view of the owner's memory that is only to be read. kDeadlineExceeded:
  // `timeout` is over. kUnavailable: the owner cannot be reached, or has not opened the set.
  std::vector<absl::StatusOr<Tensor>> Ask(absl::Span<const Call> calls, absl::Duration timeout);

 private:
  absl::StatusOr<uint64_t> IncarnationOf(const std::string& owner, absl::Duration timeout);
  void Forget(const std::string& owner);

  Server* const server_;
  const std::string set_;
  std::atomic<uint64_t> asked_{0};  // Makes each key another one.
  Mutex mu_;
  std::map<std::string, uint64_t> incarnations_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_CALLS_H_
