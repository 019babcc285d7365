// The server understands the flags in the files beside this one.
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "server/config/config.h"
#include "server/members/cluster_spec.h"

namespace tryst {
namespace {

std::string ReadFile(const std::string& name) {
  std::ifstream in("examples/deploy/" + name);
  EXPECT_TRUE(in.good()) << name;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The --flags in a text, as a shell would pass them.
std::vector<std::string> Flags(const std::string& text, const Environment& environment) {
  std::vector<std::string> flags;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n\\"), absl::SkipEmpty())) {
    if (!absl::StartsWith(word, "--")) continue;
    std::string flag = absl::StrReplaceAll(word, {{"\"", ""}});
    for (const auto& [name, value] : environment) {
      flag = absl::StrReplaceAll(flag, {{"$" + name, value}});
    }
    flags.push_back(flag);
  }
  return flags;
}

TEST(DeployTest, TheConfigFileLoadsAndItsLimitsAddUp) {
  std::vector<std::string> rest;
  const auto config = LoadConfig({"--config=examples/deploy/trystd.conf"}, {}, &rest);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(CheckLimits(*config).ok()) << CheckLimits(*config);
  EXPECT_EQ(config->job, "ps");
  const auto cluster = ClusterFromJson(ReadFile("cluster.json"));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->Workers().size(), 5U);
  EXPECT_EQ(cluster->Workers().count(WorkerName(config->job, static_cast<int>(config->task))), 1U);
}

TEST(DeployTest, TheUnitStopsLaterThanTheServer) {
  const std::string unit = ReadFile("trystd.service");
  const ServerConfig defaults;
  EXPECT_TRUE(absl::StrContains(unit, "TimeoutStopSec=15"));
  EXPECT_LT(defaults.stop_deadline, absl::Seconds(15));
}

TEST(DeployTest, TheBatchScriptMakesAClusterOfItsStep) {
  const Environment slurm = {{"SLURM_JOB_ID", "42"},
                             {"SLURM_STEP_NODELIST", "node[1-4]"},
                             {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"},
                             {"SLURM_PROCID", "3"},
                             {"token", "/shared/token"}};
  const std::string script = ReadFile("train.sbatch");
  std::vector<std::string> rest;
  const auto config =
      LoadConfig(Flags(script.substr(script.find(":-trystd}")), slurm), slurm, &rest);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->cluster, "train-42");
  EXPECT_EQ(config->token_file, "/shared/token");
  const auto resolver = Resolver::Parse(config->resolver);
  ASSERT_TRUE(resolver.ok()) << resolver.status();
  EXPECT_EQ(resolver->name, "slurm");
  const auto cluster = ClusterFromSlurm(slurm, config->cluster_spec, resolver->port);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->Workers().size(), 8U);
  EXPECT_EQ(WorkerName(cluster->job, cluster->task), "/job:worker/replica:0/task:1");
}

TEST(DeployTest, TheManifestsVariablesAreSettings) {
  Environment pod = {{"HOSTNAME", "worker-2"}};
  for (absl::string_view line : absl::StrSplit(ReadFile("kubernetes.yaml"), '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!absl::StartsWith(line, "TRYST_")) continue;
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    pod[parts.first] = absl::StrReplaceAll(parts.second, {{"\"", ""}});
    bool known = false;
    for (const ConfigRow& row : ConfigRows()) {
      known = known || parts.first == absl::StrCat("TRYST_", absl::AsciiStrToUpper(row.name));
    }
    EXPECT_TRUE(known) << line;
  }
  std::vector<std::string> rest;
  const auto config = LoadConfig({}, pod, &rest);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(CheckLimits(*config).ok()) << CheckLimits(*config);
  const auto resolver = Resolver::Parse(config->resolver);
  ASSERT_TRUE(resolver.ok()) << resolver.status();
  EXPECT_EQ(resolver->name, "kubernetes");
  const auto cluster =
      ClusterFromKubernetes(pod, config->cluster_spec, resolver->where, resolver->port);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->Workers().size(), 5U);
  EXPECT_EQ(WorkerName(cluster->job, cluster->task), "/job:worker/replica:0/task:2");
}

}  // namespace
}  // namespace tryst
