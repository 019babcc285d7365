#ifndef TRYST_WEIGHTS_SHELF_H_
#define TRYST_WEIGHTS_SHELF_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rendezvous/tensor.h"
#include "weights/chain.h"
#include "weights/held.h"

namespace tryst {

// Parts that a member has for others, or has asked for itself: of the active version, and of the
// last other one that it began to fetch. What is active stays where another log begins, in which
// nothing is active yet: who serves it may need it, and nobody else may have it. It goes where that
// log, which may not have heard of its number, has another version of that. Any other version that
// the log does not know any more is on no shelf. Not thread-safe.
class PartShelf {
 public:
  // It keeps at most so many bytes, of parts to come, too.
  explicit PartShelf(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // By the log: the active version, or none, as in a new log, and those that are sealed and not
  // over. All others go.
  void Allow(const WeightVersion& active, const std::vector<WeightVersion>& open);
  void Clear();  // Nothing is allowed any more.
  bool Allows(const WeightVersion& version) const;
  // This member asks for the part. False: others cannot have it of this one.
  bool Expect(const PartName& part, uint64_t bytes);
  // It came, and its digest was right, which is that of its owner unless the part is all of a box.
  // REQUIRES: it lies dense.
  void Put(const PartName& part, const Tensor& bytes,
           const std::optional<Digest>& digest = std::nullopt);
  void GiveUp(const PartName& part);  // It does not come. Once for each Expect() without a Put().

  enum class State { kGone, kComing, kHeld };
  State Find(const PartName& part, Tensor* bytes) const;
  std::vector<WeightVersion> Held() const;  // Versions of which something is.
  // Which parts of the version are held, of those that `wanted` says, at most `most`: the first
  // ones, or the first after `after`.
  std::vector<HeldPart> PartsOf(const WeightVersion& version, size_t most,
                                absl::FunctionRef<bool(uint32_t, const Box&)> wanted,
                                const std::pair<uint32_t, Box>* after = nullptr) const;
  // What is held of that part of the version `number`, if that is as large as `held` and of its
  // type; or invalid.
  Tensor BaseOf(const PartName& part, const Tensor& held, uint64_t number) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Part {
    uint64_t bytes = 0;
    size_t coming = 0;  // How many ask for it.
    Tensor held;
    std::optional<Digest> digest;
  };
  struct Version {
    uint64_t birth = 0;
    std::map<std::pair<uint32_t, Box>, Part> parts;
  };
  Part* FindPart(const PartName& part);
  template <typename Goes>
  void DropIf(const Goes& goes);

  const uint64_t max_bytes_;
  WeightVersion active_;
  std::vector<WeightVersion> open_;
  std::map<uint64_t, Version> versions_;  // By number.
  uint64_t bytes_ = 0;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_SHELF_H_
