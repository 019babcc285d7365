#include "tests/sim/sim_weights.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/doubles/sim_nic/sim_random.h"

namespace tryst {

const char* TroubleName(Trouble trouble) {
  constexpr const char* kNames[] = {
      "break",      "fail",    "delay",  "lose",    "lose_for_ever", "duplicate",
      "flip",       "refuse",  "port",   "address", "silence",       "slow_link",
      "lossy_link", "overrun", "jump",   "kills",   "two_paths",     "aborts",
      "aim",        "renew",   "forget", "stray",
  };
  static_assert(std::size(kNames) == kTroubleCount, "one is missing");
  return kNames[static_cast<size_t>(trouble)];
}

void SimWeights::Set(Trouble trouble, uint32_t percent) {
  percent_[static_cast<size_t>(trouble)] = std::min(percent, uint32_t{100});
}

bool SimWeights::Weigh(Trouble trouble, uint64_t seed, bool drawn) const {
  const auto index = static_cast<size_t>(trouble);
  if (percent_[index] == kUsual[index]) return drawn;
  SimRandom random(seed * 0x9e3779b97f4a7c15u + 1009 * (index + 1));
  return random.Below(100) < percent_[index];
}

std::string SimWeights::ToText() const {
  std::string text;
  for (size_t i = 0; i < kTroubleCount; ++i) {
    absl::StrAppend(&text, TroubleName(static_cast<Trouble>(i)), " ", percent_[i], "\n");
  }
  return text;
}

absl::StatusOr<SimWeights> SimWeights::Parse(absl::string_view text) {
  SimWeights weights;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    size_t index = 0;
    while (index < kTroubleCount && words[0] != TroubleName(static_cast<Trouble>(index))) ++index;
    uint32_t percent = 0;
    if (index == kTroubleCount || words.size() != 2 || !absl::SimpleAtoi(words[1], &percent) ||
        percent > 100) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", line, "\" is no trouble of the simulator and 0 to 100 percent"));
    }
    weights.percent_[index] = percent;
  }
  return weights;
}

}  // namespace tryst
