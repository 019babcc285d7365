// Somebody on the wire between two workers reads and changes what passes. Under TLS and under a
// token he reads no tensor and no secret, and nothing that he changes is delivered.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/attack/wired_pair.h"

namespace tryst {
namespace {

class WireTest : public testing::TestWithParam<WiredPair::Way> {
 protected:
  WireTest() : pair_(GetParam(), testing::TempDir()) {}
  WiredPair pair_;
};

TEST_P(WireTest, NothingCanBeRead) {
  ASSERT_EQ(pair_.trouble(), "");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pair_.Fetch().ok());
  EXPECT_GT(pair_.bytes(), uint64_t{3} << 20) << "it does not go by the wire";
  EXPECT_EQ(pair_.wrong(), 0);
  EXPECT_EQ(pair_.markers(), 0u);
  EXPECT_EQ(pair_.hellos(), 0u);
  const char* const path = !GetParam().over_grpc     ? "over rdma/soft-tls: connected"
                           : GetParam().certificates ? "over grpc/stream: connected"
                                                     : "over grpc/sealed: connected";
  EXPECT_TRUE(absl::StrContains(pair_.Explain(), path)) << pair_.Explain();
}

TEST_P(WireTest, NothingThatWasChangedIsDelivered) {
  ASSERT_EQ(pair_.trouble(), "");
  ASSERT_TRUE(pair_.Fetch().ok());
  for (WireEdit edit :
       {WireEdit::kChange, WireEdit::kReplay, WireEdit::kReorder, WireEdit::kTruncate}) {
    EXPECT_TRUE(pair_.Edit(edit, 2)) << WireEditName(edit);
    EXPECT_EQ(pair_.wrong(), 0) << WireEditName(edit);
    EXPECT_EQ(pair_.trouble(), "");
  }
  EXPECT_EQ(pair_.markers(), 0u);
  EXPECT_TRUE(pair_.Fetch().ok()) << "it goes on once nobody changes anything";
}

// He is there from the start, and takes encryption out of what opens connections.
TEST_P(WireTest, NoDowngradeIsAgreedTo) {
  if (GetParam().over_grpc) GTEST_SKIP() << "nothing is agreed on there";
  ASSERT_EQ(pair_.trouble(), "");
  EXPECT_TRUE(pair_.Edit(WireEdit::kDowngrade, 2));
  EXPECT_EQ(pair_.wrong(), 0);
  EXPECT_EQ(pair_.markers(), 0u);
  EXPECT_TRUE(pair_.Fetch().ok());
  EXPECT_EQ(pair_.markers(), 0u);
}

std::string NameOf(const testing::TestParamInfo<WiredPair::Way>& info) {
  return absl::StrReplaceAll(info.param.name(), {{" ", ""}});
}
INSTANTIATE_TEST_SUITE_P(Ways, WireTest, testing::ValuesIn(WiredPair::All()), NameOf);

// The attacker can do all of that where nothing is encrypted: else the tests above would prove
// nothing.
TEST(WireInTheClearTest, EverythingIsReadAndChanged) {
  for (bool over_grpc : {false, true}) {
    WiredPair pair({false, over_grpc, "off"}, testing::TempDir());
    ASSERT_EQ(pair.trouble(), "");
    ASSERT_TRUE(pair.Fetch().ok());
    EXPECT_GT(pair.markers(), 65'000u) << over_grpc;
    if (!over_grpc) {
      EXPECT_GT(pair.hellos(), 0u);
    }
    for (int i = 0; i < 10 && pair.wrong() == 0; ++i) (void)pair.Edit(WireEdit::kChange, 1);
    EXPECT_GT(pair.wrong(), 0) << over_grpc;
    EXPECT_TRUE(absl::StrContains(pair.Explain(), "encrypted: OFF")) << pair.Explain();
  }
}

}  // namespace
}  // namespace tryst
