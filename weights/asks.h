#ifndef TRYST_WEIGHTS_ASKS_H_
#define TRYST_WEIGHTS_ASKS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weights/digests.h"
#include "weights/layout.h"

// What members and owners ask an owner, as the edge of a key: "|weights|SET|" and one of
//   ready|NUMBER                has this owner published all of the version? Its digests
//   sealed|NUMBER               the version, when the first owner has put it together: other owners
//                               ask for that
//   version|NUMBER              the version, when the log has sealed it
//   newer|NUMBER                the newest sealed version, when it is above the number
//   layouts|DIGEST              what was declared
//   list|NUMBER.BIRTH           the owner's list of digests
//   part|NUMBER.BIRTH|TENSOR|BEGIN+EXTENT,...|BASE|MAY_BE_SENT_ON|HOLDER   bytes of one of its
//                               boxes, and their digest unless it is all of the box; or of the
//                               bytes what makes them of those of version BASE, where that is
//                               shorter; or whom to ask for them (weights/chain.h). HOLDER is the
//                               asker's incarnation, if it will have them for others, or 0.
//                               Holders are asked the same, and answer without a digest.
// and the first of them, which keeps the log:
//   holders|NUMBER.BIRTH|INCARNATION   EncodeHolders(): members that have parts of the version for
//                               others; INCARNATION is the asker's. 0: any owner, and any holder,
//                               says of whom it has heard
//   question|QUESTION           EncodeAnswer() to an EncodeQuestion(), at once
//   news|INCARNATION            EncodeAnswer() when there is something to tell without a question;
//                               nothing: there was, and it is to ask
// and holders, whom they ask for version and layouts, too:
//   held|NUMBER.BIRTH|OWNER|TENSOR|BEGIN+EXTENT,...   EncodeHeld(): what it has of that owner's
//                               boxes; where a tensor is named, of what comes after that part
// Numbers are decimal, births, digests, incarnations and questions hexadecimal; a tensor is its
// place in the declaration.
namespace tryst {

struct WeightAsk {
  enum class Kind {
    kReady,
    kSealed,
    kVersion,
    kNewer,
    kLayouts,
    kList,
    kPart,
    kQuestion,
    kNews,
    kHolders,
    kHeld,
  };
  Kind kind = Kind::kNewer;
  uint64_t number = 0;
  uint64_t birth = 0;           // kList, kPart, kHolders, kHeld.
  std::string digest;           // kLayouts, as Digest::ToString().
  uint32_t tensor = 0;          // kPart; kHeld if it goes on.
  Box box;                      // As `tensor`; whether it is within one is not known yet.
  uint64_t base = 0;            // kPart; 0: none.
  bool may_be_sent_on = false;  // kPart.
  uint64_t holder = 0;          // kPart.
  std::string question;         // kQuestion, as EncodeQuestion() has it.
  uint64_t incarnation = 0;     // kNews, kHolders.
  uint32_t owner = 0;           // kHeld; its rank.
  bool goes_on = false;         // kHeld: after the part `box` of `tensor`.
};

// Letters, digits, '_', '-', '.' and '/', up to 128 of them. kInvalidArgument.
absl::Status CheckSetName(absl::string_view set);
// "|weights|SET|". REQUIRES: CheckSetName() accepts it.
std::string WeightsPrefix(absl::string_view set);
std::string EdgeOf(absl::string_view set, const WeightAsk& ask);
// Reads an edge that begins with WeightsPrefix(set). kInvalidArgument: it is none of these.
absl::StatusOr<WeightAsk> ParseEdge(absl::string_view set, absl::string_view edge);

// The most that one answer brings; a member asks for parts of what is larger.
inline constexpr uint64_t kMaxPartBytes = uint64_t{256} << 20;

}  // namespace tryst

#endif  // TRYST_WEIGHTS_ASKS_H_
