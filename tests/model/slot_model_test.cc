#include "tests/model/slot_model.h"

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

SlotModelOptions Options(int slots, int fetches, int breaks, int restarts, int cancels) {
  SlotModelOptions options;
  options.slots = slots;
  options.fetches = fetches;
  options.breaks = breaks;
  options.restarts = restarts;
  options.cancels = cancels;
  return options;
}

void ExpectHolds(const SlotModelOptions& options, uint64_t at_least_states) {
  const SlotModelReport report = ExploreSlotModel(options);
  EXPECT_EQ(report.violation, "") << absl::StrJoin(report.trace, "\n");
  EXPECT_TRUE(report.complete);
  EXPECT_GT(report.states, at_least_states);
  EXPECT_GT(report.ends, 0u);
}

TEST(SlotModelTest, OneSlotTwoBreaks) { ExpectHolds(Options(1, 3, 2, 0, 2), 1000); }
TEST(SlotModelTest, OneSlotAndARestart) { ExpectHolds(Options(1, 2, 1, 1, 1), 1000); }
TEST(SlotModelTest, TwoSlotsOneBreak) { ExpectHolds(Options(2, 2, 1, 0, 2), 10'000); }
TEST(SlotModelTest, TwoSlotsAndARestart) { ExpectHolds(Options(2, 2, 0, 1, 1), 2000); }

std::string ViolationWithout(const std::vector<Rule>& rules) {
  for (SlotModelOptions options : {Options(1, 2, 1, 0, 1), Options(1, 3, 2, 0, 2),
                                   Options(1, 2, 1, 1, 1), Options(2, 3, 1, 0, 1)}) {
    options.without = rules;
    const SlotModelReport report = ExploreSlotModel(options);
    if (!report.violation.empty()) return report.violation;
  }
  return "";
}

// Without any one of the rules the model must find a violation. Otherwise the rule is not needed,
// or the model is blind.
class WithoutARuleTest : public ::testing::TestWithParam<int> {};

TEST_P(WithoutARuleTest, SomethingBreaks) {
  const Rule rule = static_cast<Rule>(GetParam());
  if (rule == Rule::kCheckGeneration) {
    // With one queue pair a slot held until GONE gets no message for an earlier fetch, so either of
    // these rules suffices.
    EXPECT_EQ(ViolationWithout({rule}), "");
    EXPECT_NE(ViolationWithout({Rule::kHoldSlotUntilGone, Rule::kCheckGeneration}), "");
    return;
  }
  if (rule == Rule::kFreeSlotAtOnce) {
    // An acceptance is in the ack page and waits behind no message, so a request behind a dropped
    // take is only slower without the rule.
    EXPECT_EQ(ViolationWithout({rule}), "");
    return;
  }
  const std::string violation = ViolationWithout({rule});
  EXPECT_NE(violation, "") << "nothing needs: " << RuleName(rule);
  RecordProperty("violation", violation);
}

INSTANTIATE_TEST_SUITE_P(Rules, WithoutARuleTest, ::testing::Range(0, kRuleCount));

}  // namespace
}  // namespace tryst
