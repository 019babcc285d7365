#ifndef TRYST_WEIGHTS_HELD_H_
#define TRYST_WEIGHTS_HELD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weights/digests.h"
#include "weights/layout.h"

// When a box's owners are gone, members that have parts of it stand in for them. Parts that are a
// whole box count by its digest, which the root names. Where nobody has some of the box, each part
// counts by the digest that its owner gave it, which whoever has the part has kept.
namespace tryst {

struct HeldPart {
  uint32_t tensor = 0;  // Its place in the declaration.
  Box box;
  std::optional<Digest> digest;  // Its owner's, unless the part is all of a box.
  friend bool operator==(const HeldPart& a, const HeldPart& b) {
    return a.tensor == b.tensor && a.box == b.box && a.digest == b.digest;
  }
};
// What a member has of one owner's boxes, in the order of PartShelf; where there are kMaxHeldParts,
// it may have more.
struct HeldParts {
  std::vector<Digest> list;  // The owner's. None where the answer goes on from another one.
  std::vector<HeldPart> parts;
};
inline constexpr size_t kMaxHeldParts = size_t{1} << 16;
std::string EncodeHeld(const HeldParts& held);
// So many answers of one holder on one owner are asked for: with them there may be a part for each
// box of a set, and three times as many more.
inline constexpr size_t kMaxHeldAnswers = 16;
// kInvalidArgument: these bytes are none, or have more than kMaxHeldParts, or more digests than a
// set has boxes.
absl::StatusOr<HeldParts> DecodeHeld(absl::string_view bytes);

// Finds parts that together are a box, whoever has cut it how.
class BoxCover {
 public:
  // What is remembered of one box; more is not.
  static constexpr size_t kMaxParts = 4096;
  static constexpr size_t kMaxHoldersOfPart = 16;
  explicit BoxCover(Box box) : box_(std::move(box)) {}

  const Box& box() const { return box_; }
  // The holder of that number has the part, and its owner's digest if there is one. What it says of
  // the part again does not count, and what does not lie in the box is of no use. REQUIRES: the
  // part lies within the tensor, or has another rank.
  void Add(const Box& part, uint32_t holder, const std::optional<Digest>& digest = std::nullopt);
  void Forget(const Box& part) { parts_.erase(part); }                 // Nobody has it after all,
  void Forget(const Box& part, const std::vector<uint32_t>& holders);  // or these do not.
  struct Part {
    Box box;
    std::vector<uint32_t> holders;  // Any of these.
    std::optional<Digest> digest;   // As all of them say, where `wanted` was chosen.
  };
  // Parts that have every element of the box, some perhaps twice; unset: nobody has some element.
  // Only of holders that `may_be_asked` says.
  std::optional<std::vector<Part>> Choose(absl::FunctionRef<bool(uint32_t)> may_be_asked) const;
  // Parts with digests that have every element of `wanted`, which lies in the box, and perhaps
  // others. Where holders say different digests, those that most of them say count.
  std::optional<std::vector<Part>> Choose(const Box& wanted,
                                          absl::FunctionRef<bool(uint32_t)> may_be_asked) const;

 private:
  static std::optional<std::vector<Part>> Cover(const Box& wanted, std::vector<Part> parts);
  struct Having {
    uint32_t holder;
    std::optional<Digest> digest;
  };
  Box box_;
  std::map<Box, std::vector<Having>> parts_;
};

}  // namespace tryst

#endif  // TRYST_WEIGHTS_HELD_H_
