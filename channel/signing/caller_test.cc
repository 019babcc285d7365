#include "channel/signing/caller.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr char kSelf[] = "/job:ps/replica:0/task:0";
constexpr char kToken[] = "0123456789abcdef";

class CallerTest : public testing::Test {
 protected:
  WallClockMs Now() {
    return [this] { return now_ms_; };
  }
  std::string Statement(const std::string& worker, uint64_t incarnation = 1) {
    CallSigner signer({"lab", worker, incarnation}, kToken, Now());
    return signer.Sign(kSelf, "Method", "request");
  }

  int64_t now_ms_ = 1'000'000;
};

TEST_F(CallerTest, WhatWasSaidBeforeTheStartIsNotTaken) {
  const std::string before = Statement("/job:w/replica:0/task:0");
  now_ms_ += 10;
  CallVerifier verifier("lab", kSelf, kToken, Now());
  const auto replayed = verifier.Verify(before, "Method", "request");
  EXPECT_TRUE(absl::IsUnavailable(replayed.status())) << replayed.status();
  EXPECT_TRUE(verifier.Verify(Statement("/job:w/replica:0/task:0"), "Method", "request").ok());
}

TEST_F(CallerTest, SoManyCallersAreRememberedAndNoMore) {
  CallVerifier verifier("lab", kSelf, kToken, Now());
  int known = 0;
  absl::Status full;
  for (; known < 20'000 && full.ok(); ++known) {
    const std::string worker = absl::StrCat("/job:", std::string(200, 'w'), "/replica:0/task:0");
    full = verifier.Verify(Statement(worker, 1 + static_cast<uint64_t>(known)), "Method", "request")
               .status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(known, 16'385);
  // Their statements are too old to be replayed, so they make room.
  now_ms_ += 121'000;
  EXPECT_TRUE(verifier.Verify(Statement("/job:w/replica:0/task:0"), "Method", "request").ok());
}

// Otherwise what is said for the future could be replayed to our next incarnation, which knows no
// numbers.
TEST_F(CallerTest, ClocksMayBeAMinuteApartAndNoMore) {
  constexpr int64_t kMinute = 60'000;
  CallVerifier verifier("lab", kSelf, kToken, Now());
  const auto said_at = [&](int64_t apart_ms, uint64_t incarnation) {
    const int64_t now_ms = now_ms_;
    now_ms_ += apart_ms;
    const std::string statement = Statement("/job:w/replica:0/task:0", incarnation);
    now_ms_ = now_ms;
    return verifier.Verify(statement, "Method", "request").status();
  };
  now_ms_ += 10 * kMinute;  // So that no call was made before the start.
  EXPECT_TRUE(said_at(kMinute, 1).ok());
  EXPECT_TRUE(said_at(-kMinute, 2).ok());
  for (const int64_t apart_ms : {kMinute + 1, -kMinute - 1}) {
    const absl::Status refused = said_at(apart_ms, 3);
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "clocks more than a minute apart")) << refused;
  }
}

}  // namespace
}  // namespace tryst
