#include "base/error_scope.h"

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(ErrorScopeTest, TravelsWithTheStatus) {
  for (const ErrorScope scope :
       {ErrorScope::kOperation, ErrorScope::kChannel, ErrorScope::kNic, ErrorScope::kProcess}) {
    const absl::Status status = WithScope(absl::UnavailableError("gone"), scope);
    EXPECT_EQ(ScopeOf(status), scope);
    EXPECT_EQ(status.message(), "gone");
    const absl::Status wider = WithScope(status, ErrorScope::kProcess);
    EXPECT_EQ(ScopeOf(wider), ErrorScope::kProcess);
  }
}

TEST(ErrorScopeTest, UnsaidAndUnknownAreTheOperationAlone) {
  EXPECT_EQ(ScopeOf(absl::UnavailableError("")), ErrorScope::kOperation);
  EXPECT_EQ(WithScope(absl::OkStatus(), ErrorScope::kNic), absl::OkStatus());
  absl::Status newer = absl::UnavailableError("");
  newer.SetPayload("tryst.scope", absl::Cord("continent"));
  EXPECT_EQ(ScopeOf(newer), ErrorScope::kOperation);
}

}  // namespace
}  // namespace tryst
