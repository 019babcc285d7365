#include "channel/grpc/grpc_status.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(GrpcStatusTest, CodeAndMessageAreAlikeBothWays) {
  const absl::Status from =
      FromGrpc(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room for it"));
  EXPECT_EQ(from, absl::ResourceExhaustedError("no room for it"));
  const grpc::Status to = ToGrpc(from);
  EXPECT_EQ(to.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(to.error_message(), "no room for it");
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

TEST(GrpcStatusTest, TheClockOfARefusedCallGoesAlong) {
  absl::Status refused = absl::UnauthenticatedError("signed long ago");
  refused.SetPayload(kClockPayload, absl::Cord("12 s"));
  const grpc::Status on_its_way = ToGrpc(refused);
  EXPECT_EQ(on_its_way.error_details(), "12 s");
  EXPECT_EQ(FromGrpc(on_its_way), refused);
}

// Else every failure would be shown with the name of a clock that nobody told of.
TEST(GrpcStatusTest, WhereThereIsNoClockThereIsNoPayload) {
  const absl::Status from = FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  EXPECT_FALSE(from.GetPayload(kClockPayload).has_value());
  EXPECT_EQ(from.ToString(), "UNAVAILABLE: gone");
}

}  // namespace
}  // namespace tryst
