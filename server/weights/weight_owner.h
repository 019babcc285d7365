#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_OWNER_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_OWNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/server.h"
#include "server/weights/sealed_version.h"
#include "weights/fetch_plan.h"
#include "weights/layout.h"

namespace tryst {

struct WeightOwnerOptions {
  std::string set;
  std::vector<std::string> owners;  // Workers' names, by rank. The first one seals.
  uint32_t rank = 0;                // This worker is owners[rank].
  size_t keep = 2;                  // How many sealed versions are kept.
};

// An owner's end of a set: publishes boxes, seals versions together with the other owners, and
// answers whoever asks for parts of them. Thread-safe. The server outlives it, and what it answered
// may outlive both.
class WeightOwner {
 public:
  // kInvalidArgument. kFailedPrecondition: the server has not started.
  static absl::StatusOr<std::unique_ptr<WeightOwner>> Open(Server* server,
                                                           const WeightOwnerOptions& options);
  // From now on nobody is answered; who waits is told kAborted.
  ~WeightOwner();

  // All owners declare the same, once. kInvalidArgument, as CheckLayouts(); kAlreadyExists.
  absl::Status Declare(std::vector<TensorLayout> layouts);

  // Copies one of this owner's boxes out of `bytes`, where it lies as `lies` says; the caller may
  // write there at once. Where `bytes` is of another type than the tensor, it is cast (cast.h).
  // kInvalidArgument: no such box, or it was published. kAlreadyExists: the number is not above all
  // that are sealed. kResourceExhausted: no memory.
  absl::Status Publish(uint64_t number, absl::string_view tensor, const Box& box,
                       const Tensor& bytes, const Strides& lies);

  // Every owner calls it when it has published all of its boxes; it returns when the version is
  // sealed or dropped. Dropped it is when an owner does not come within `timeout` (kAborted names
  // it), has declared otherwise (kInvalidArgument), or replicas differ (kDataLoss).
  absl::StatusOr<SealedVersion> Seal(uint64_t number, const std::string& label,
                                     absl::Duration timeout);
  // Lets go of a version that is not sealed. A Seal() of it elsewhere ends with kAborted.
  void Drop(uint64_t number);

 private:
  class State;
  explicit WeightOwner(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State> state_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_OWNER_H_
