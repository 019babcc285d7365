#include "rendezvous/derived_status.h"

#include <gtest/gtest.h>

namespace tryst {
namespace {

TEST(DerivedStatus, MarksFailuresOnly) {
  EXPECT_TRUE(MarkDerived(absl::OkStatus()).ok());
  const absl::Status derived = MarkDerived(absl::AbortedError("why"));
  EXPECT_TRUE(IsDerived(derived));
  EXPECT_EQ(derived.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(derived.message(), "why");
  EXPECT_FALSE(IsDerived(absl::AbortedError("why")));
  EXPECT_FALSE(IsDerived(absl::OkStatus()));
}

TEST(DerivedStatus, KeepsTheFirstCause) {
  absl::Status kept;
  KeepCause(&kept, absl::OkStatus());
  EXPECT_TRUE(kept.ok());
  KeepCause(&kept, MarkDerived(absl::AbortedError("consequence")));
  EXPECT_EQ(kept.message(), "consequence");
  KeepCause(&kept, absl::InternalError("cause"));
  EXPECT_EQ(kept.message(), "cause");
  KeepCause(&kept, absl::InternalError("another"));
  KeepCause(&kept, MarkDerived(absl::AbortedError("consequence")));
  EXPECT_EQ(kept.message(), "cause");
}

}  // namespace
}  // namespace tryst
