#ifndef TRYST_SERVER_WEIGHTS_PARKED_ASKS_H_
#define TRYST_SERVER_WEIGHTS_PARKED_ASKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "rendezvous/rendezvous.h"
#include "weights/asks.h"
#include "weights/chain.h"

namespace tryst {

// A peer's take, as an answerer got it.
struct AskOfPeer {
  WeightAsk ask;
  std::string peer;               // A worker's name.
  uint64_t bytes = 0;             // That the answer will have, where that is known.
  std::optional<Holder> sent_to;  // A part: whom the answer names.
  std::string text;               // What is asked for, if it is not of weights.
  RecvArgs args;
  DoneFn done;
};

// Ends the take, on its executor if it has one.
void EndAsk(AskOfPeer ask, absl::StatusOr<Tensor> answer);

// Takes of peers that wait at an answerer, in the order in which they came. One whose asker cancels
// ends at once. Thread-safe.
class ParkedAsks : public std::enable_shared_from_this<ParkedAsks> {
 public:
  ParkedAsks(size_t most, size_t most_of_one) : most_(most), most_of_one_(most_of_one) {}

  // kResourceExhausted ends it: there are `most`, or `most_of_one` of this peer.
  void Park(AskOfPeer ask);
  // Takes out those that `wanted` says; it is called with the lock held.
  std::vector<AskOfPeer> TakeIf(absl::FunctionRef<bool(const AskOfPeer&)> wanted);
  size_t size() const;

 private:
  struct Parked {
    AskOfPeer ask;
    Cancellation::Token token = Cancellation::kNoToken;
  };
  bool TakeOut(uint64_t id, AskOfPeer* ask);
  void Forget(const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t most_, most_of_one_;
  mutable Mutex mu_;
  std::map<uint64_t, Parked> parked_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> of_peer_ ABSL_GUARDED_BY(mu_);  // How many of each that has some.
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_PARKED_ASKS_H_
