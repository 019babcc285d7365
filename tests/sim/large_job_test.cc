// A job of a hundred hosts in every `./run test`; of a thousand: `./run sim --hosts`.

#include "tests/sim/large_job.h"

#include "base/log.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using Trouble = LargeJobOptions::Trouble;

constexpr double kMibKib = 1024;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasuresMemory = false;  // The sanitizer has more of it than we.
#else
constexpr bool kMeasuresMemory = true;
#endif

LargeJobOptions Job() {
  LargeJobOptions options;
  options.variables = 100;
  options.small_variables = true;
  return options;
}

LargeJobReport RunWell(const LargeJobOptions& options) {
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
  const LargeJobReport report = RunLargeJob(options);
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
  EXPECT_GE(report.tensors, 2u * options.variables * options.workers * options.steps);
  EXPECT_TRUE(!kMeasuresMemory || report.host_kib < 256 * kMibKib) << report.host_kib;
  return report;
}

TEST(LargeJobTest, AStepIsNearItsBound) {
  const LargeJobReport report = RunWell(Job());
  EXPECT_GE(report.step_ms, report.bound_ms * 0.95);
  EXPECT_LE(report.step_ms, report.bound_ms * 1.3);
  EXPECT_EQ(report.asked_again, 0u);
  EXPECT_EQ(report.connections, 2u * 90 * 10);
  // A request and a tensor for each variable each way, of two hosts; and acknowledgements.
  EXPECT_LE(report.messages_per_host_step, 2 * 2 * 100 * 1.5);
}

TEST(LargeJobTest, HostsThatDieAtOnceHoldNobodyUpForEver) {
  LargeJobOptions options = Job();
  options.trouble = Trouble::kKills;
  const LargeJobReport report = RunWell(options);
  EXPECT_EQ(report.restarts, 2u);
  EXPECT_GT(report.asked_again, 0u);
}

TEST(LargeJobTest, ARackThatGoesDarkComesBack) {
  LargeJobOptions options = Job();
  options.trouble = Trouble::kRack;
  const LargeJobReport report = RunWell(options);
  EXPECT_GT(report.connections, 2u * 90 * 10);
  EXPECT_GT(report.trouble_ms, 2000);
}

TEST(LargeJobTest, EveryHostRestartsInTurn) {
  LargeJobOptions options = Job();
  options.trouble = Trouble::kRolling;
  EXPECT_EQ(RunWell(options).restarts, 100u);
}

// There are 1,800 connections. The server holds one end of each and a worker the other, so the
// server's memory is at most half of all that is counted.
TEST(LargeJobTest, AServerOf900WorkersWithTheSettingsThatShipStaysWithinItsMemory) {
  LargeJobOptions options = Job();
  options.workers = 900;
  options.servers = 1;
  options.variables = 10;
  options.steps = 2;
  options.shipped_settings = true;
  const LargeJobReport report = RunWell(options);
  EXPECT_EQ(report.connections, 1800u);
  const double server_mib = report.host_kib * 901 / 2 / kMibKib;
  EXPECT_TRUE(!kMeasuresMemory || server_mib < 256);
  printf("a server of 900 workers: at most %.0f MiB\n", server_mib);
}

}  // namespace
}  // namespace tryst
