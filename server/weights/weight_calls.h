#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_CALLS_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_CALLS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"
#include "server/server.h"
#include "server/weights/patience.h"
#include "weights/asks.h"

namespace tryst {

// The bytes of an answer.
inline absl::string_view TextOf(const Tensor& answer) {
  return {answer.data_as<char>(), answer.bytes()};
}

// Asks owners of a set, and members for what they hold, over whatever path leads to them.
// Thread-safe. The server outlives it.
class WeightCalls {
 public:
  WeightCalls(Server* server, std::string set);

  struct Call {
    std::string owner;  // A worker's name, not this one's.
    WeightAsk ask;
    uint64_t incarnation = 0;  // The worker's, if it is known.
    // kUnavailable after so long, where nobody can be reached who knows it.
    absl::Duration reach = absl::InfiniteDuration();
  };
  // An answer is bytes (kUint8), or EncodeReferral() (kInt8), perhaps a view of the owner's memory
  // that is only to be read. kDeadlineExceeded, kCancelled: the patience is over. kUnavailable: the
  // owner cannot be reached, or has not opened the set.
  using AnswerFn = absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&>;
  // `done` runs once, on the server's own executor or in here, perhaps after this object is gone.
  // Who the owner is may have to be found out first, which waits on this thread.
  void Start(const Call& call, const Patience& patience, AnswerFn done);
  // One answer for each call, which waits for all of them on this thread.
  std::vector<absl::StatusOr<Tensor>> Ask(absl::Span<const Call> calls, const Patience& patience);
  // Asks whoever cannot be reached, or has not opened the set, again until it answers.
  std::vector<absl::StatusOr<Tensor>> AskUntilThere(absl::Span<const Call> calls,
                                                    const Patience& patience);
  // Whether the owner had to be found for the last ask of it, and was: what is kUnavailable then is
  // the set, not the owner.
  bool WasThere(const std::string& owner) const;
  // Whether the last ask of the owner went out: who it is was known, or was found out.
  bool WasFound(const std::string& owner) const;

 private:
  class Known;
  std::vector<absl::StatusOr<Tensor>> AskOnce(absl::Span<const Call> calls,
                                              const Patience& patience);
  absl::StatusOr<TensorKey> KeyOf(const Call& call, const Patience& patience);

  Server* const server_;
  const std::string set_;
  const std::shared_ptr<Known> known_;
  std::atomic<uint64_t> asked_{0};  // Makes each key another one.
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_CALLS_H_
