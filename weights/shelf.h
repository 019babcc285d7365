#ifndef TRYST_WEIGHTS_SHELF_H_
#define TRYST_WEIGHTS_SHELF_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "rendezvous/tensor.h"
#include "weights/chain.h"

namespace tryst {

// Parts that a member has for others, or has asked for itself: of the active version, and of the
// last other one that it began to fetch. A version that its log does not know any more is on no
// shelf. Not thread-safe.
class PartShelf {
 public:
  // It keeps at most so many bytes, of parts to come, too.
  explicit PartShelf(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // By the log: the active version, and those that are sealed and not over. All others go.
  void Allow(const WeightVersion& active, const std::vector<WeightVersion>& open);
  // This member asks for the part. False: others cannot have it of this one.
  bool Expect(const PartName& part, uint64_t bytes);
  // It came, and its digest was right. REQUIRES: it lies dense.
  void Put(const PartName& part, const Tensor& bytes);
  void GiveUp(const PartName& part);  // It does not come. Once for each Expect() without a Put().

  enum class State { kGone, kComing, kHeld };
  State Find(const PartName& part, Tensor* bytes) const;
  // What is held of that part of the version `number`; or invalid.
  Tensor BaseOf(const PartName& part, uint64_t number) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Part {
    uint64_t bytes = 0;
    size_t coming = 0;  // How many ask for it.
    Tensor held;
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
