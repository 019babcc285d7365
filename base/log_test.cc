#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log_record.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;

struct Line {
  LogSeverity severity;
  std::string file;
  int line;
  std::string text;
};

// A sink is a plain function, so what it caught can only be global.
Mutex caught_mu;
std::vector<Line> caught ABSL_GUARDED_BY(caught_mu);

void Catch(LogSeverity severity, const char* file, int line, absl::string_view text) {
  MutexLock lock(&caught_mu);
  caught.push_back({severity, file, line, std::string(text)});
}

std::vector<Line> TakeCaught() {
  MutexLock lock(&caught_mu);
  return std::move(caught);
}

class LogSinkTest : public testing::Test {
 protected:
  LogSinkTest() { SetLogSink(&Catch); }
  ~LogSinkTest() override {
    SetLogSink(nullptr);
    TakeCaught();
  }
};

TEST_F(LogSinkTest, GetsTheFinishedLineAndItsPlace) {
  const int line = __LINE__ + 1;
  TRYST_LOG(Warning) << "slot " << 7 << " is quarantined";
  const std::vector<Line> lines = TakeCaught();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].severity, LogSeverity::kWarning);
  EXPECT_THAT(lines[0].file, EndsWith("base/log_test.cc"));
  EXPECT_EQ(lines[0].line, line);
  EXPECT_EQ(lines[0].text, "slot 7 is quarantined");
}

TEST_F(LogSinkTest, LosesNoLineOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) TRYST_LOG(Info) << t << ":" << i;
    });
  }
  for (std::thread& thread : threads) thread.join();
  int next[kThreads] = {};
  for (const Line& line : TakeCaught()) {
    const size_t colon = line.text.find(':');
    ASSERT_NE(colon, std::string::npos) << line.text;
    int& expected = next[std::stoi(line.text.substr(0, colon))];
    EXPECT_EQ(std::stoi(line.text.substr(colon + 1)), expected++);
  }
  EXPECT_THAT(next, ElementsAre(kLines, kLines, kLines, kLines));
}

TEST_F(LogSinkTest, AFalseCheckReachesTheSinkBeforeTheEnd) {
  EXPECT_DEATH(
      {
        SetLogSink([](LogSeverity severity, const char*, int, absl::string_view text) {
          fprintf(stderr, "sink got %d %s\n", static_cast<int>(severity),
                  std::string(text).c_str());
        });
        TRYST_CHECK(2 + 2 == 5) << "in slot " << 3;
      },
      "sink got 3 CHECK failed: 2 \\+ 2 == 5 in slot 3");
}

TEST(LogTest, WritesOneWholeLineToStderr) {
  testing::internal::CaptureStderr();
  TRYST_LOG(Error) << "no port";
  const std::string out = testing::internal::GetCapturedStderr();
  EXPECT_THAT(out, ContainsRegex("^E[0-9]{4} [0-9:.]+ [0-9]+ log_test.cc:[0-9]+\\] no port\n$"));
}

TEST(CheckTest, ATrueCheckEvaluatesNothingElse) {
  int evaluated = 0;
  TRYST_CHECK(true) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(CheckTest, IsOneStatement) {
  bool other = false;
  for (const bool left : {true, false}) {
    if (left)
      TRYST_CHECK(left) << "an else must bind to the if outside";
    else
      other = true;
  }
  EXPECT_TRUE(other);
}

TEST(CheckDeathTest, AFalseCheckAborts) {
  const bool ours = false;
  EXPECT_EXIT(TRYST_CHECK(ours) << "generation " << 9, testing::KilledBySignal(SIGABRT),
              "CHECK failed: ours generation 9");
}

TEST(CheckDeathTest, FatalAborts) {
  EXPECT_EXIT(TRYST_LOG(Fatal) << "gone", testing::KilledBySignal(SIGABRT), "gone");
}

TEST(DcheckTest, IsFreeWhenOptimisedAndFatalWhenNot) {
  int evaluated = 0;
  TRYST_DCHECK(++evaluated > 0);
#ifdef NDEBUG
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_EQ(evaluated, 1);
  EXPECT_DEATH(TRYST_DCHECK(evaluated == 2), "CHECK failed: evaluated == 2");
#endif
}

TEST_F(LogSinkTest, WarningsAreKeptForWhoAsksLater) {
  for (int i = 0; i < 100; ++i) TRYST_LOG(Error) << "trouble " << i;
  TRYST_LOG(Info) << "all is well";
  const std::vector<LoggedLine> lines = RecentTrouble();
  ASSERT_EQ(lines.size(), 64u);
  EXPECT_EQ(lines.front().text, "trouble 36");
  EXPECT_EQ(lines.back().text, "trouble 99");
  EXPECT_THAT(lines.back().place, ContainsRegex("^log_test.cc:[0-9]+$"));
  EXPECT_GT(lines.back().unix_ms, 0);
}

// What the default sink writes while `work` runs.
std::string StderrOf(void (*work)()) {
  testing::internal::CaptureStderr();
  work();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, APlaceThatRepeatsItselfIsCutShort) {
  const std::string text = StderrOf([] {
    for (int i = 0; i < 1000; ++i) TRYST_LOG(Warning) << "again " << i;
    TRYST_LOG(Warning) << "another place";
  });
  EXPECT_THAT(text, ContainsRegex("again 19\n"));
  EXPECT_EQ(text.find("again 20\n"), std::string::npos);
  EXPECT_THAT(text, ContainsRegex("another place"));
}

TEST(Log, APeersTextIsNoLineAndNoOrderToATerminal) {
  const std::string text = StderrOf([] {
    TRYST_LOG(Warning) << "from a\nE1122 00:00:00 forged.cc:1] \x1b[2J\x9b\r"
                       << std::string(9000, 'x');
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_LT(text.size(), 4096u);
  EXPECT_THAT(text, ContainsRegex("from a\\\\nE1122"));
  EXPECT_TRUE(
      std::all_of(text.begin(), text.end() - 1, [](char c) { return c >= 0x20 && c < 0x7f; }));
}

TEST(Log, AnUnreadOrClosedStderrHoldsNobodyUp) {
  signal(SIGPIPE, SIG_IGN);
  const int own = dup(STDERR_FILENO);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  dup2(ends[1], STDERR_FILENO);
  for (int i = 0; i < 100; ++i) {
    TRYST_LOG(Warning) << std::string(1000, 'x');
    TRYST_LOG(Error) << std::string(1000, 'y');
  }
  close(ends[0]);
  TRYST_LOG(Info) << "nobody hears it";
  dup2(own, STDERR_FILENO);
  close(ends[1]);
  close(own);
  EXPECT_NE(StderrOf([] { TRYST_LOG(Info) << "heard again"; }).find("heard again"),
            std::string::npos);
}

TEST(Log, JsonLinesAreObjects) {
  SetLogFormat(LogFormat::kJson);
  const std::string text = StderrOf([] { TRYST_LOG(Warning) << "a \"quoted\" \\ line\x80"; });
  SetLogFormat(LogFormat::kText);
  EXPECT_THAT(text,
              ContainsRegex("^\\{\"unix_ms\":[0-9]+,\"severity\":\"warning\",\"thread\":[0-9]+,"
                            "\"place\":\"log_test.cc:[0-9]+\",\"text\":"));
  EXPECT_NE(text.find(R"("text":"a \"quoted\" \\ line\\x80"})"), std::string::npos) << text;
}

}  // namespace
}  // namespace tryst
