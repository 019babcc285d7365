#include "verbs/completion_policy.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_ends.h"

namespace tryst {
namespace {

// Produces every row of the table on a NIC.
TEST(CompletionPolicyTest, EveryStatusIsReachedAndExplained) {
  std::set<std::string> lines;
  for (int s = 0; s < kCompletionStatusCount; ++s) {
    const auto status = static_cast<CompletionStatus>(s);
    SCOPED_TRACE(CompletionStatusName(status));
    SimWorld world(1);
    SimEnd a(&world, 0, 4096);
    SimEnd b(&world, 1, 4096);
    QueuePair* const pair = a.AddQueuePair();
    Join(pair, b.AddQueuePair());
    if (status != CompletionStatus::kOk) {
      WorkFault fault;
      fault.action = FaultAction::kFail;
      fault.status = status;
      world.Inject(*pair, 0, fault);
    }
    ASSERT_TRUE(a.Post(pair, a.WriteTo(b, 1, 0), 0, 4096).ok());
    world.RunFor(1'000'000'000);
    const std::vector<Completion> done = a.Poll();
    ASSERT_EQ(done.size(), 1u);
    ASSERT_EQ(done[0].status, status);

    const CompletionPolicy& policy = PolicyOf(status);
    EXPECT_EQ(policy.status, status);
    const absl::Status error = CompletionError(done[0], "write of 4096 B");
    EXPECT_EQ(error.code(), policy.code);
    EXPECT_EQ(ScopeOf(error), error.ok() ? ErrorScope::kOperation : policy.scope);
    EXPECT_EQ(error.ok(), status == CompletionStatus::kOk);
    if (!error.ok()) {
      EXPECT_TRUE(absl::StrContains(error.message(), "write of 4096 B"));
      EXPECT_TRUE(absl::StrContains(error.message(), CompletionStatusName(status)));
      EXPECT_TRUE(absl::StrContains(error.message(), "queue pair 1"));
      EXPECT_FALSE(absl::StrContains(error.message(), "vendor error 0x"));
      // A failed completion always breaks at least its queue pair.
      EXPECT_GE(policy.scope, ErrorScope::kChannel);
      EXPECT_NE(pair->state(), QueuePairState::kReady);
    }
    EXPECT_TRUE(absl::StrContains(CompletionPolicyTable(),
                                  std::string("| ") + CompletionStatusName(status) + " |"));
  }
}

TEST(CompletionPolicyTest, VendorErrorIsNamed) {
  Completion completion;
  completion.status = CompletionStatus::kGeneral;
  completion.vendor_error = 0x81;
  EXPECT_TRUE(absl::StrContains(CompletionError(completion, "").message(), "vendor error 0x81"));
}

TEST(CompletionPolicyTest, StatusOfNoNicIsAGeneralError) {
  EXPECT_EQ(PolicyOf(static_cast<CompletionStatus>(200)).status, CompletionStatus::kGeneral);
}

}  // namespace
}  // namespace tryst
