#ifndef TRYST_SERVER_WEIGHTS_WEIGHT_MEMBER_H_
#define TRYST_SERVER_WEIGHTS_WEIGHT_MEMBER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "server/server.h"
#include "server/weights/sealed_version.h"
#include "server/weights/weight_calls.h"
#include "weights/fetch_plan.h"
#include "weights/layout.h"
#include "weights/layout_wire.h"

namespace tryst {

// A consumer's end of a set: learns of sealed versions and fetches boxes of them into its own
// memory. Its calls wait on the caller's thread, and not on one that delivers for others.
// Thread-safe. The server outlives it.
class WeightMember {
 public:
  // `owners`: workers' names, by rank. kInvalidArgument.
  static absl::StatusOr<std::unique_ptr<WeightMember>> Open(Server* server, const std::string& set,
                                                            std::vector<std::string> owners);

  // The newest sealed version above `number`, as soon as there is one. kDeadlineExceeded,
  // kUnavailable: the first owner cannot be reached, or has not opened the set.
  absl::StatusOr<SealedVersion> Newer(uint64_t number, absl::Duration timeout);
  // What is declared, by whose digest the version names it.
  absl::StatusOr<std::shared_ptr<const DeclaredLayouts>> Layouts(const SealedVersion& version,
                                                                 absl::Duration timeout);

  struct Item {
    std::string tensor;
    Box box;
    Tensor into;     // Host memory of the tensor's type, of any shape.
    Strides places;  // Where the box's elements go in it.
  };
  // Fetches all items, each of the owners that have it; where one cannot be reached, of another
  // that has the same box. Every whole box is checked against the version's root, every part of one
  // against a digest that its owner sends along. On an error some of `into` may have been written,
  // with bytes of this version alone. kInvalidArgument: no such tensor, box or view. kNotFound: the
  // version is over. kDataLoss: bytes are not those that were sealed.
  absl::Status Fetch(const SealedVersion& version, absl::Span<const Item> items,
                     absl::Duration timeout);

 private:
  struct Part;
  struct OwnersList {
    std::vector<size_t> offsets;  // ListOffsets().
    std::vector<Digest> digests;
  };
  WeightMember(Server* server, const std::string& set, std::vector<std::string> owners)
      : owners_(std::move(owners)), calls_(server, set) {}
  absl::StatusOr<std::shared_ptr<const OwnersList>> ListOf(const SealedVersion& version,
                                                           const DeclaredLayouts& layouts,
                                                           uint32_t owner, absl::Duration timeout);
  absl::StatusOr<std::vector<Part>> Plan(const DeclaredLayouts& layouts,
                                         absl::Span<const Item> items) const;
  absl::Status Land(const SealedVersion& version, const DeclaredLayouts& layouts, const Part& part,
                    uint32_t owner, const Tensor& answer, absl::Duration timeout);

  const std::vector<std::string> owners_;
  WeightCalls calls_;
  Mutex mu_;
  // The latest ones.
  Digest layouts_digest_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const DeclaredLayouts> layouts_ ABSL_GUARDED_BY(mu_);
  Digest lists_of_ ABSL_GUARDED_BY(mu_);  // The root of the version that the lists are of.
  absl::flat_hash_map<uint32_t, std::shared_ptr<const OwnersList>> lists_
      ABSL_GUARDED_BY(mu_);  // By owner.
};

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_WEIGHT_MEMBER_H_
