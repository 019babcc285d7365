#include "channel/signing/caller.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
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

  int64_t now_ms_ = 1'000'000'000;
};

// A worker whose clock is `ahead_ms` ahead of the test's calls `verifier`, until it is heard or
// `most` calls were refused. Returns how many were.
int RefusalsUntilHeard(CallSigner* signer, CallVerifier* verifier, int most,
                       std::vector<std::string>* statements = nullptr) {
  for (int refused = 0;; ++refused) {
    const std::string statement = signer->Sign(kSelf, "Method", "request");
    if (statements != nullptr) statements->push_back(statement);
    const auto heard = verifier->Verify(statement, "Method", "request");
    if (heard.ok() || refused == most) return refused;
    EXPECT_TRUE(absl::IsUnavailable(signer->Heed(kSelf, statement, heard.status())))
        << heard.status();
  }
}

TEST_F(CallerTest, AWorkerWhoseClockIsFarOffIsHeardAtTheSecondCall) {
  const int64_t hour_ms = 3600 * 1000;
  int64_t callee_ahead_ms = 0;
  const auto callee = [this, &callee_ahead_ms] { return now_ms_ + callee_ahead_ms; };
  CallVerifier verifier("lab", kSelf, 7, kToken, callee);
  int64_t ahead_ms = hour_ms;
  CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken,
                    [this, &ahead_ms] { return now_ms_ + ahead_ms; });
  EXPECT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), 1);
  EXPECT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), 0);
  ahead_ms = -hour_ms;  // Its clock is set.
  EXPECT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), 1);
  callee_ahead_ms = -2 * hour_ms;  // The callee's is, to before its start.
  EXPECT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), 1);
  EXPECT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), 0);
  // The callee restarts, and does not know what it has taken before.
  CallVerifier next("lab", kSelf, 8, kToken, callee);
  EXPECT_EQ(RefusalsUntilHeard(&signer, &next, 3), 1);
  EXPECT_EQ(RefusalsUntilHeard(&signer, &next, 3), 0);
}

TEST_F(CallerTest, AClockThatNobodyProvesIsNotTaken) {
  CallVerifier verifier("lab", kSelf, 7, kToken, Now());
  CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken,
                    [this] { return now_ms_ + 100'000; });
  const std::string first = signer.Sign(kSelf, "Method", "request");
  const absl::Status refusal = verifier.Verify(first, "Method", "request").status();
  ASSERT_TRUE(absl::IsUnauthenticated(refusal)) << refusal;
  // The answer to another call: of another day, say.
  const std::string second = signer.Sign(kSelf, "Method", "request");
  EXPECT_EQ(signer.Heed(kSelf, second, refusal).code(), refusal.code());
  // Any part of it that is changed.
  const std::string clock(*refusal.GetPayload(kClockPayload));
  for (size_t i = 0; i < clock.size(); ++i) {
    std::string forged = clock;
    forged[i] = static_cast<char>(forged[i] ^ 1);
    absl::Status status = refusal;
    status.SetPayload(kClockPayload, absl::Cord(forged));
    EXPECT_TRUE(absl::IsUnauthenticated(signer.Heed(kSelf, first, status))) << i;
  }
  // A worker with another token refuses the call and does not tell its clock.
  CallVerifier stranger("lab", kSelf, 7, "fedcba9876543210", Now());
  EXPECT_EQ(stranger.Verify(first, "Method", "request").status().GetPayload(kClockPayload),
            absl::nullopt);
  EXPECT_TRUE(absl::IsUnavailable(signer.Heed(kSelf, first, refusal)));
}

// By the caller's clock and by the callee's.
TEST_F(CallerTest, AStatementIsTakenOnlyAsItWasSigned) {
  for (const int64_t ahead_ms : {int64_t{0}, int64_t{3600} * 1000}) {
    CallVerifier verifier("lab", kSelf, 7, kToken, Now());
    CallVerifier stranger("lab", kSelf, 7, "fedcba9876543210", Now());
    CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken,
                      [this, ahead_ms] { return now_ms_ + ahead_ms; });
    ASSERT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), ahead_ms == 0 ? 0 : 1);
    const std::string statement = signer.Sign(kSelf, "Method", "request");
    for (size_t i = 0; i < statement.size(); ++i) {
      std::string forged = statement;
      forged[i] = static_cast<char>(forged[i] ^ 1);
      EXPECT_FALSE(verifier.Verify(forged, "Method", "request").ok()) << i;
    }
    EXPECT_FALSE(verifier.Verify(statement, "Another", "request").ok());
    EXPECT_FALSE(verifier.Verify(statement, "Method", "requests").ok());
    EXPECT_FALSE(stranger.Verify(statement, "Method", "request").ok());
    EXPECT_TRUE(verifier.Verify(statement, "Method", "request").ok());
  }
}

// Whoever has recorded all that passed plays it again, at every moment of the next two hours.
TEST_F(CallerTest, NothingThatWasSignedByAnotherClockIsTakenTwice) {
  const int64_t hour_ms = 3600 * 1000;
  for (const int64_t ahead_ms : {-hour_ms, hour_ms}) {
    CallVerifier verifier("lab", kSelf, 7, kToken, Now());
    CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken,
                      [this, ahead_ms] { return now_ms_ + ahead_ms; });
    std::vector<std::string> recorded;
    ASSERT_EQ(RefusalsUntilHeard(&signer, &verifier, 3, &recorded), 1);
    for (int minute = 0; minute < 130; ++minute) {
      for (const std::string& statement : recorded) {
        EXPECT_FALSE(verifier.Verify(statement, "Method", "request").ok()) << minute;
      }
      now_ms_ += 60'000;
    }
  }
}

TEST_F(CallerTest, WhatWasSignedByAClockThatWasAheadIsNotTakenByTheNextLife) {
  const int64_t hour_ms = 3600 * 1000;
  int64_t ahead_ms = hour_ms;  // The callee's.
  const auto callee = [this, &ahead_ms] { return now_ms_ + ahead_ms; };
  CallVerifier verifier("lab", kSelf, 7, kToken, callee);
  CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken, Now());
  std::vector<std::string> recorded;
  ASSERT_EQ(RefusalsUntilHeard(&signer, &verifier, 3, &recorded), 1);
  ahead_ms = 0;  // It is set right, and restarts.
  now_ms_ += 1000;
  CallVerifier next("lab", kSelf, 8, kToken, callee);
  for (int minute = 0; minute < 70; ++minute) {
    for (const std::string& statement : recorded) {
      EXPECT_FALSE(next.Verify(statement, "Method", "request").ok()) << minute;
    }
    now_ms_ += 60'000;
  }
}

TEST_F(CallerTest, AWorkerOfAnEarlierReleaseIsCalledByOurOwnClockAgain) {
  CallVerifier verifier("lab", kSelf, 7, kToken, Now());
  int64_t ahead_ms = 100'000;
  CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken,
                    [this, &ahead_ms] { return now_ms_ + ahead_ms; });
  ASSERT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), 1);
  ahead_ms = 0;
  const absl::Status wrong = absl::UnauthenticatedError("does not hold this cluster's token");
  const std::string statement = signer.Sign(kSelf, "Method", "request");
  EXPECT_TRUE(absl::IsUnavailable(signer.Heed(kSelf, statement, wrong)));
  EXPECT_TRUE(absl::IsUnauthenticated(signer.Heed(kSelf, statement, wrong)));
  EXPECT_EQ(RefusalsUntilHeard(&signer, &verifier, 3), 0);
}

TEST_F(CallerTest, WhatWasSaidBeforeTheStartIsNotTaken) {
  const std::string before = Statement("/job:w/replica:0/task:0");
  now_ms_ += 10;
  CallVerifier verifier("lab", kSelf, 1, kToken, Now());
  const auto replayed = verifier.Verify(before, "Method", "request");
  EXPECT_TRUE(absl::IsUnavailable(replayed.status())) << replayed.status();
  EXPECT_TRUE(verifier.Verify(Statement("/job:w/replica:0/task:0"), "Method", "request").ok());
}

TEST_F(CallerTest, CallsOvertakeEachOtherSoFarAndNoneIsTakenTwice) {
  constexpr size_t kWindow = 4096;
  constexpr size_t kNewest = 5000;
  CallVerifier verifier("lab", kSelf, 7, kToken, Now());
  CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken, Now());
  std::vector<std::string> calls = {""};  // By number, the first of which is 1.
  for (size_t i = 0; i < kNewest + kWindow + 10; ++i) {
    calls.push_back(signer.Sign(kSelf, "Method", "request"));
  }
  const auto is_taken = [&](size_t number) {
    return verifier.Verify(calls[number], "Method", "request").ok();
  };
  EXPECT_TRUE(is_taken(1));
  EXPECT_TRUE(is_taken(kNewest));
  EXPECT_FALSE(is_taken(1)) << "somebody plays back what he has recorded";
  EXPECT_TRUE(is_taken(kNewest - kWindow + 1)) << "it was overtaken";
  EXPECT_FALSE(is_taken(kNewest - kWindow + 1));
  EXPECT_FALSE(is_taken(kNewest - kWindow)) << "nobody knows whether it came";
  for (size_t number = kNewest + 1; number < calls.size(); ++number) {
    ASSERT_TRUE(is_taken(number)) << number;
  }
  EXPECT_FALSE(is_taken(kNewest));
}

TEST_F(CallerTest, CallsToOthersMakeNoCallTooOld) {
  CallVerifier verifier("lab", kSelf, 7, kToken, Now());
  CallSigner signer({"lab", "/job:w/replica:0/task:0", 1}, kToken, Now());
  std::vector<std::string> calls;
  // The signer forgets the number of some callees meanwhile, and gives none twice.
  for (const int others : {0, 5'000, 20'000}) {
    for (int other = 0; other < others; ++other) {
      (void)signer.Sign(absl::StrCat("/job:ps/replica:0/task:", 1 + other), "Method", "request");
    }
    calls.push_back(signer.Sign(kSelf, "Method", "request"));
  }
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    EXPECT_TRUE(verifier.Verify(*call, "Method", "request").ok());
  }
}

TEST_F(CallerTest, SoManyCallersAreRememberedAndNoMore) {
  CallVerifier verifier("lab", kSelf, 1, kToken, Now());
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

TEST_F(CallerTest, CallersOfTheFutureLeaveRoomForOthers) {
  CallVerifier verifier("lab", kSelf, 1, kToken, Now());
  const int64_t now_ms = now_ms_;
  for (uint64_t incarnation = 1; incarnation <= 16'384; ++incarnation) {
    now_ms_ = now_ms + 20 * 3600 * 1000;
    const std::string ahead = Statement("/job:future/replica:0/task:0", incarnation);
    now_ms_ = now_ms;
    EXPECT_FALSE(verifier.Verify(ahead, "Method", "request").ok());
  }
  now_ms_ += 121'000;
  EXPECT_TRUE(verifier.Verify(Statement("/job:w/replica:0/task:0"), "Method", "request").ok());
}

// Otherwise what is said for the future could be replayed to our next incarnation, which knows no
// numbers.
TEST_F(CallerTest, ClocksMayBeAMinuteApartAndNoMore) {
  constexpr int64_t kMinute = 60'000;
  CallVerifier verifier("lab", kSelf, 1, kToken, Now());
  const auto said_at = [&](int64_t apart_ms, uint64_t incarnation) {
    const int64_t now_ms = now_ms_;
    now_ms_ += apart_ms;
    const std::string statement = Statement("/job:w/replica:0/task:0", incarnation);
    now_ms_ = now_ms;
    return verifier.Verify(statement, "Method", "request").status();
  };
  now_ms_ += 10 * kMinute;  // So that no call was made before the start.
  EXPECT_TRUE(absl::IsUnauthenticated(said_at(INT64_MAX - now_ms_, 4)));
  EXPECT_TRUE(absl::IsUnauthenticated(said_at(INT64_MIN, 5)));
  EXPECT_TRUE(said_at(kMinute, 1).ok());
  EXPECT_TRUE(said_at(-kMinute, 2).ok());
  for (const int64_t apart_ms : {kMinute + 1, -kMinute - 1}) {
    const absl::Status refused = said_at(apart_ms, 3);
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "clocks are more than a minute apart"))
        << refused;
  }
}

}  // namespace
}  // namespace tryst
