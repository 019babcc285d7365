#include "channel/ops/peer_words.h"

#include "gtest/gtest.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

TEST(PeerWordsTest, WhichRefusalsAreFinalAndWhichAreOfThePath) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(IsFinal(status), code == 16 || code == 7 || code == 9) << status;
    EXPECT_EQ(IsPathRefusal(status), code == 12 || code == 3) << status;
  }
}

TEST(PeerWordsTest, AFailureHasTheCodeThatItsProducerSaid) {
  for (uint32_t code = 1; code <= 16; ++code) {
    for (const bool derived : {false, true}) {
      const absl::Status told = FailureTold(code, "why", derived);
      EXPECT_EQ(static_cast<uint32_t>(told.raw_code()), code);
      EXPECT_EQ(told.message(), "why");
      EXPECT_EQ(IsDerived(told), derived);
    }
  }
  // No code at all, or one of a later release, is a failure all the same.
  for (const uint32_t code : {0u, 17u, 0xffffffffu}) {
    EXPECT_EQ(FailureTold(code, "why", false), absl::UnknownError("why")) << code;
  }
}

TEST(PeerWordsTest, ATensorFitsUpToTheLimitAndIntoItsDestination) {
  EXPECT_TRUE(FitsLimit(10, 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(FitsLimit(11, 10)));
  const Tensor wanted = *Tensor::Allocate(DType::kInt32, {2});
  EXPECT_TRUE(FitsDestination(Tensor(), DType::kInt64, {3}).ok());
  EXPECT_TRUE(FitsDestination(wanted, DType::kInt32, {2}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(FitsDestination(wanted, DType::kInt64, {2})));
  EXPECT_TRUE(absl::IsInvalidArgument(FitsDestination(wanted, DType::kInt32, {3})));
}

TEST(PeerWordsTest, ARestartNamesBothLives) {
  EXPECT_EQ(Restarted("p", 0x12, 0xabc),
            absl::AbortedError("p has restarted: its incarnation was 0000000000000012 and is "
                               "0000000000000abc"));
}

}  // namespace
}  // namespace tryst
