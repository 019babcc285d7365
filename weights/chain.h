#ifndef TRYST_WEIGHTS_CHAIN_H_
#define TRYST_WEIGHTS_CHAIN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weights/digests.h"
#include "weights/holders.h"
#include "weights/layout.h"
#include "weights/log.h"

// An owner sends each part of a version once. Who asks later is sent to a member that asked before:
// the bytes go on from there, and are checked all the same.
namespace tryst {

struct PartName {
  WeightVersion version;
  uint32_t tensor = 0;  // Its place in the declaration.
  Box box;
};

// An owner's word to who asked for a part: ask that one, and hold what comes against the digest.
struct Referral {
  Holder holder;
  std::optional<Digest> digest;  // Unset: the part is a box, whose digest is in the owner's list.
};
std::string EncodeReferral(const Referral& referral);
// kInvalidArgument: these bytes are none.
absl::StatusOr<Referral> DecodeReferral(absl::string_view bytes);

// Whom an owner has sent which of its parts. Not thread-safe.
class PartChain {
 public:
  // What is remembered, and for how much each counts: beyond it the owner sends by itself. Where no
  // member has anything for others, nothing is.
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  static constexpr size_t kLinkBytes = 16;
  static constexpr size_t kPartBytes = 300;
  static constexpr size_t kAskerBytes = 300;
  explicit PartChain(size_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  // Whom to send `asker` to; unset: the owner sends the part. Only who asks for the first time is
  // sent on, and never to one that asked later, so that no two wait for each other. Whom somebody
  // was sent to that comes back is no holder of the part any more.
  std::optional<Holder> Next(const PartName& part, const Holder& asker, bool may_be_sent_on);
  // What the owner knows of a part that is not a whole box; it has to be found out once.
  std::optional<Digest> FindDigest(const PartName& part) const;
  void KeepDigest(const PartName& part, const Digest& digest);
  // Who has asked for parts of the version to have them for others, the last ones first, and
  // kMaxHolders at most. Some may be gone.
  std::vector<Holder> HoldersOf(const WeightVersion& version) const;
  void Forget(const WeightVersion& version);
  size_t links() const { return links_; }

 private:
  static constexpr uint32_t kNobody = UINT32_MAX;
  struct Link {
    uint32_t asker;           // Among the version's.
    uint32_t sent_to;         // A place in the chain.
    uint32_t followers : 31;  // That were sent to it.
    uint32_t holds : 1;
  };
  struct Part {
    std::vector<Link> links;  // As they came.
    std::optional<Digest> digest;
  };
  struct Version {
    uint64_t birth = 0;
    size_t bytes = 0;
    std::vector<Holder> askers;
    absl::flat_hash_map<std::pair<std::string, uint64_t>, uint32_t> numbers;
    std::map<std::pair<uint32_t, Box>, Part> parts;
  };
  const Part* FindPart(const PartName& part) const;
  Version& VersionOf(const WeightVersion& version);
  void Drop(std::map<uint64_t, Version>::iterator version);

  const size_t max_bytes_;
  std::map<uint64_t, Version> versions_;  // By number.
  size_t links_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_CHAIN_H_
