#ifndef TRYST_TESTS_SIM_SIM_WEIGHTS_H_
#define TRYST_TESTS_SIM_SIM_WEIGHTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What a seed of the simulated cluster may bring into its run.
enum class Trouble : uint8_t {
  kBreak,
  kFail,
  kDelay,
  kLose,
  kLoseForEver,
  kDuplicate,
  kFlip,
  kRegistration,
  kPort,
  kAddress,
  kSilence,
  kSlowLink,
  kLossyLink,
  kOverrun,
  kJump,
  kKills,
  kPaths,
  kAborts,
  kAim,     // Cancels and refusals at moments that chance hardly hits.
  kRenew,   // Workers make their links anew, as when their certificates change.
  kForget,  // A consumer keeps what it has given up for less long than its producers do.
  kStray,   // Consumers cancel what is over, which none of ours does.
};
inline constexpr size_t kTroubleCount = static_cast<size_t>(Trouble::kStray) + 1;
const char* TroubleName(Trouble trouble);

// In how many of a hundred seeds each trouble is. A seed and its weights make a run, to the last
// event; without other weights a seed is the run that it has always been.
class SimWeights {
 public:
  static constexpr std::array<uint32_t, kTroubleCount> kUsual = {
      50, 40, 50, 20, 10, 20, 30, 10, 15, 15, 20, 20, 20, 5, 10, 50, 33, 25, 33, 20, 15, 5};

  uint32_t of(Trouble trouble) const { return percent_[static_cast<size_t>(trouble)]; }
  void Set(Trouble trouble, uint32_t percent);
  // What the seed has drawn with the usual weight; with another one, a draw of its own.
  bool Weigh(Trouble trouble, uint64_t seed, bool drawn) const;

  // A line for each trouble: its name and the percentage.
  std::string ToText() const;
  static absl::StatusOr<SimWeights> Parse(absl::string_view text);

 private:
  std::array<uint32_t, kTroubleCount> percent_ = kUsual;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_SIM_WEIGHTS_H_
