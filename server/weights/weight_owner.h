#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_OWNER_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_OWNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/server.h"
#include "server/status/weight_views.h"
#include "server/weights/part_line.h"
#include "server/weights/patience.h"
#include "server/weights/sealed_version.h"
#include "weights/fetch_plan.h"
#include "weights/layout.h"
#include "weights/log.h"
#include "weights/questions.h"

namespace tryst {

class GpuContext;

struct WeightOwnerOptions {
  std::string set;
  std::vector<std::string> owners;  // Workers' names, by rank. The first one keeps the set's log.
  uint32_t rank = 0;                // This worker is owners[rank].
  size_t keep = 2;                  // How many sealed versions are kept, besides the active one.
  size_t min_members = 1;           // With fewer the first owner drops an activation.
  // The set's log is kept in the etcd of the server's cluster, and not in the first owner's memory.
  // Another one of the first three owners that say so leads when the one that did is gone.
  bool log_in_etcd = false;
  GroupTimes times;          // All owners and members have the same.
  PartLine::Limits answers;  // They bound the parts that this owner answers with.
};

// What becomes of a version whose memory is to be the caller's again.
enum class ReleaseHow {
  kWait,  // It stays until later versions have replaced it.
  kCopy,  // It is copied first, and stays.
  kDrop,  // This owner lets go of its boxes; who asks for them is told kAborted.
};

// An owner's end of a set: publishes boxes, seals versions together with the other owners, answers
// whoever asks for parts of them, and says which version all members are to serve. The first owner
// leads: it keeps the set's log, and nothing is decided while it is gone.
// Thread-safe. The server outlives it, and what it answered may outlive both. It has one thread of
// its own.
class WeightOwner {
 public:
  // kInvalidArgument. kFailedPrecondition: the server has not started, or uses no etcd.
  static absl::StatusOr<std::unique_ptr<WeightOwner>> Open(Server* server,
                                                           const WeightOwnerOptions& options);
  // From now on nobody is answered; who waits is told kAborted.
  ~WeightOwner();

  // All owners declare the same, once. kInvalidArgument, as CheckLayouts(); kAlreadyExists.
  absl::Status Declare(std::vector<TensorLayout> layouts);

  // Copies one of this owner's boxes out of `bytes`, where it lies as `lies` says; the caller may
  // write there at once. Where `bytes` is of another type than the tensor, it is cast (cast.h). It
  // may be a GPU's memory, which is read once the stream of `context` has reached its moment.
  // kInvalidArgument: no such box, or it was published, or the number is 0 or the highest of all,
  // above which there is none. kAlreadyExists: the number is not above all
  // that are sealed. kResourceExhausted: no memory.
  absl::Status Publish(uint64_t number, absl::string_view tensor, const Box& box,
                       const Tensor& bytes, const Strides& lies,
                       std::shared_ptr<GpuContext> context = nullptr);

  // Publishes without a copy: the box stays in the caller's memory, where nothing may be written
  // before Release() has returned. Also kInvalidArgument: it does not lie dense there, or is of
  // another type than the tensor.
  absl::Status Borrow(uint64_t number, absl::string_view tensor, const Box& box,
                      const Tensor& bytes, const Strides& lies);
  // Returns when no byte of what that version has borrowed is read any more, by nobody; at once if
  // it has borrowed nothing. kFailedPrecondition: the active version is not dropped.
  absl::Status Release(uint64_t number, ReleaseHow how, const Patience& patience);

  // Every owner calls it when it has published all of its boxes; it returns when the log says that
  // the version is sealed or dropped. Dropped it is when an owner does not come within the patience
  // or dies (kAborted names it), has declared otherwise (kInvalidArgument), or replicas differ
  // (kDataLoss). Where all owners came and only the log does not say so in time, or the caller has
  // cancelled, it may still become sealed, and another call waits on.
  absl::StatusOr<SealedVersion> Seal(uint64_t number, const std::string& label,
                                     const Patience& patience);
  // Lets go of a version that is not sealed. A Seal() of it elsewhere ends with kAborted.
  void Drop(uint64_t number);

  // Has all members stage a sealed version and then serve it; returns when all do. Members that are
  // silent until the patience is over are put out, if `min_members` are left. kAborted: it was
  // dropped, as one member could not stage it, or a later version succeeds it. kFailedPrecondition:
  // another Activate() of this owner is under way, or nothing is declared. kCancelled: it may still
  // come about.
  absl::Status Activate(uint64_t number, ActivateMode mode, const Patience& patience);
  // How many members the set has, as far as this owner has heard.
  size_t members() const;
  // Who owns what is sealed and active; at the first owner, what an activation waits for.
  std::string Explain() const;

 private:
  class State;
  WeightOwner(Server* server, std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
  std::unique_ptr<WeightViews::Shown> shown_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_OWNER_H_
