// Owners and members in processes of their own.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/process/e2e/process.h"

namespace tryst {
namespace {

constexpr char kWorker[] = "tests/weights/weights_worker";

std::unique_ptr<Process> Start(const std::string& role, int task, int owners,
                               const std::string& protocol, const std::string& seed, int versions) {
  return std::make_unique<Process>(
      kWorker, std::vector<std::string>{role, absl::StrCat(task), absl::StrCat(owners), protocol,
                                        seed, absl::StrCat(versions)});
}

std::string SeedOf(Process* owner) {
  return absl::StrCat("/job:owner/replica:0/task:0@", owner->Address());
}

// The line "sealed N ROOT" or "fetched N ROOT", without its first word.
std::string LineOf(const Process& process, const std::string& word, int number) {
  const std::string text = process.out(), begin = absl::StrCat("\n", word, " ", number, " ");
  const size_t at = text.find(begin);
  if (at == std::string::npos) return "";
  return text.substr(at + begin.size(), text.find('\n', at + 1) - at - begin.size());
}

void WaitFor(const Process& process, const std::string& word, int number) {
  for (int i = 0; i < 6000 && LineOf(process, word, number).empty(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_NE(LineOf(process, word, number), "") << process.out() << process.err();
}

class WeightsTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, WeightsTest, testing::Values("grpc", "verbs", "shm"));

TEST_P(WeightsTest, MembersFetchWhatOwnersHaveSealed) {
  constexpr int kOwners = 3, kVersions = 3;
  std::vector<std::unique_ptr<Process>> owners;
  owners.push_back(Start("owner", 0, kOwners, GetParam(), "-", kVersions));
  const std::string seed = SeedOf(owners[0].get());
  auto early = Start("member", 0, kOwners, GetParam(), seed, kVersions);
  for (int rank = 1; rank < kOwners; ++rank) {
    owners.push_back(Start("owner", rank, kOwners, GetParam(), seed, kVersions));
  }
  EXPECT_EQ(early->Wait(absl::Seconds(120)), 0) << early->out() << early->err();
  WaitFor(*owners[0], "sealed", kVersions);
  auto late = Start("member", 1, kOwners, GetParam(), seed, kVersions);
  EXPECT_EQ(late->Wait(absl::Seconds(120)), 0) << late->out() << late->err();
  const std::string root = LineOf(*owners[0], "sealed", kVersions);
  EXPECT_EQ(LineOf(*early, "fetched", kVersions), root);
  EXPECT_EQ(LineOf(*late, "fetched", kVersions), root);
  for (const auto& owner : owners) {
    EXPECT_TRUE(owner->Running()) << owner->err();
    EXPECT_EQ(LineOf(*owner, "sealed", kVersions), root);
  }
}

}  // namespace
}  // namespace tryst
