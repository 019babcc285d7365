// Parsers of what servers are given: configuration, clusters, allow lists, .npy files.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "channel/rdma/link_options.h"
#include "channel/rdma/serve_source.h"
#include "gtest/gtest.h"
#include "server/cli/npy.h"
#include "server/config/config.h"
#include "server/config/pollers.h"
#include "server/data_plane/open_nics.h"
#include "server/members/cluster_spec.h"
#include "server/members/membership.h"
#include "server/security/allow_list.h"

namespace tryst {
namespace {

absl::StatusOr<ServerConfig> Load(const std::vector<std::string>& args,
                                  const Environment& environment = {}) {
  std::vector<std::string> rest;
  return LoadConfig(args, environment, &rest);
}

TEST(Config, FlagsWinOverTheEnvironmentAndThatOverTheFile) {
  const std::string path = absl::StrCat(testing::TempDir(), "/tryst.conf");
  std::ofstream(path) << "# a comment\njob = file\n task=3\nprotocol =  grpc \n";
  auto config = Load({"--config", path, "--task=5", "--insecure", "--max_kept_bytes", "64MiB"},
                     {{"TRYST_JOB", "environment"}, {"TRYST_TASK", "4"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->protocol, "grpc");
  EXPECT_EQ(config->job, "environment");
  EXPECT_EQ(config->task, 5);
  EXPECT_TRUE(config->insecure);
  EXPECT_EQ(config->max_kept_bytes, uint64_t{64} << 20);
  config = Load({"--noinsecure"}, {{"TRYST_INSECURE", "true"}, {"TRYST_CONFIG", path}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->insecure);
  EXPECT_EQ(config->job, "file");
}

TEST(Config, TheEnvironmentIsThatOfTheProcess) {
  ASSERT_EQ(setenv("TRYST_JOB", "of=process", 1), 0);
  const std::map<std::string, std::string> environment = ProcessEnvironment();
  ASSERT_EQ(unsetenv("TRYST_JOB"), 0);
  ASSERT_EQ(environment.count("TRYST_JOB"), 1u);
  EXPECT_EQ(environment.at("TRYST_JOB"), "of=process");
  EXPECT_EQ(ProcessEnvironment().count("TRYST_JOB"), 0u);
}

TEST(Config, NamesWhatIsWrongAndWhere) {
  const std::string path = absl::StrCat(testing::TempDir(), "/bad.conf");
  std::ofstream(path) << "job = ps\ntusk = 3\n";
  EXPECT_NE(
      Load({"--config", path}).status().message().find("bad.conf:2: there is no setting 'tusk'"),
      std::string::npos);
  std::ofstream(path) << "task = 3\njob\n";
  EXPECT_NE(
      Load({"--config", path}).status().message().find("bad.conf:2: there is no setting 'job'"),
      std::string::npos)
      << "it has no value";
  std::ofstream(path) << "job = ps\ntask = many\n";
  EXPECT_EQ(Load({"--config", path}).status().message(),
            path + ":2: task is 'many', and should be number");
  EXPECT_EQ(Load({"--tusk=3"}).status().message(), "there is no flag --tusk");
  EXPECT_EQ(Load({"--task=many"}).status().message(), "--task is 'many', and should be number");
  EXPECT_EQ(Load({"--task=-1"}).status().message(), "--task is '-1', and should be number");
  EXPECT_EQ(Load({"--job"}).status().message(), "flag --job needs a value");
  EXPECT_NE(Load({}, {{"TRYST_PATIENCE", "soon"}}).status().message().find("TRYST_PATIENCE"),
            std::string::npos);
  EXPECT_FALSE(Load({"--landing_bytes=99999999999TiB"}).ok());
  EXPECT_FALSE(Load({"--config=/nowhere"}).ok());
  EXPECT_FALSE(Load({"--config=/"}).ok()) << "a folder";
}

// Everywhere that a setting can be set: C and Python set flags.
TEST(Config, SettingsOfEarlierReleasesAreRefusedWithWhatToDo) {
  for (const RemovedSetting& removed : RemovedSettings()) {
    const std::string name = removed.name;
    const std::string path = absl::StrCat(testing::TempDir(), "/old.conf");
    std::ofstream(path) << name << " = 1\n";
    const std::string variable = absl::StrCat("TRYST_", absl::AsciiStrToUpper(name));
    const std::string flag = absl::StrCat("--", name);
    const std::string off = absl::StrCat("--no", name);
    for (const auto& [place, config] :
         {std::pair(flag, Load({flag + "=1"})), std::pair(flag, Load({flag})),
          std::pair(off, Load({off})), std::pair(path + ":1", Load({"--config", path})),
          std::pair(variable, Load({}, {{variable, "1"}}))}) {
      EXPECT_EQ(config.status(),
                absl::InvalidArgumentError(absl::StrCat(place, ": this release has no setting '",
                                                        name, "' any more. ", removed.instead)));
    }
    for (const ConfigRow& row : ConfigRows()) EXPECT_NE(name, row.name);
    EXPECT_NE(ConfigTable().find(absl::StrCat("`", name, "`: ", removed.instead)),
              std::string::npos);
  }
  EXPECT_LE(ConfigRows().size(), 45u)
      << "a further setting is one more that everybody must read of";
}

TEST(Config, RowsOfRemovedSettingsGoAfterTwoReleases) {
  std::ifstream file("server/c/tryst.pc");
  std::string line;
  while (std::getline(file, line) && line.rfind("Version: ", 0) != 0) {
  }
  const auto numbers = [](const std::string& version) -> std::vector<std::string> {
    std::vector<std::string> all = absl::StrSplit(version, '.');
    for (std::string& number : all) number.insert(0, 4 - number.size(), '0');
    return all;
  };
  ASSERT_EQ(line.rfind("Version: ", 0), 0u);
  EXPECT_TRUE(RemovedSettings().empty() || numbers(line.substr(9)) < numbers(kRemovedUntil))
      << "empty the table in removed_settings.cc";
}

TEST(Config, EncryptsWhereThereIsASecret) {
  const auto load = [](std::vector<std::string> flags) { return *Load(std::move(flags)); };
  EXPECT_TRUE(Encrypts(load({"--certificate_file=c"})));
  EXPECT_TRUE(Encrypts(load({"--token_file=t"})));
  EXPECT_FALSE(Encrypts(load({"--insecure"})));
  EXPECT_FALSE(Encrypts(load({"--certificate_file=c", "--encrypt=off"})));
  EXPECT_TRUE(ClearDespiteProof(load({"--certificate_file=c", "--encrypt=off"})));
  EXPECT_TRUE(ClearDespiteProof(load({"--token_file=t", "--encrypt=off"})));
  EXPECT_FALSE(ClearDespiteProof(load({"--insecure", "--encrypt=off"})));
  EXPECT_FALSE(ClearDespiteProof(load({"--token_file=t"})));
  EXPECT_NE(CheckLimits(load({"--encrypt=perhaps"})).message().find("encrypt is 'perhaps'"),
            std::string::npos);
  EXPECT_NE(CheckLimits(load({"--insecure", "--encrypt=on"})).message().find("encrypt=on"),
            std::string::npos);
  EXPECT_TRUE(CheckLimits(load({"--token_file=t", "--encrypt=on"})).ok());
  EXPECT_TRUE(Encrypts(load({"--token_file=t", "--encrypt=trusted_nic"})));
  EXPECT_TRUE(CheckLimits(load({"--token_file=t", "--encrypt=trusted_nic"})).ok());
  EXPECT_FALSE(CheckLimits(load({"--insecure", "--encrypt=trusted_nic"})).ok());
}

// Nothing encrypts what RDMA hardware and libfabric carry, so they need consent.
TEST(OpenNics, NoNicThatEncryptsNothingIsTakenWithoutConsent) {
  NicPlace place{"127.0.0.1", "127.0.0.1", {}, nullptr, "a token of sixteen bytes"};
  for (const char* nic : {"ibv", "ofi:tcp"}) {
    const std::string flag = absl::StrCat("--nic=", nic);
    const auto refused = OpenNics(*Load({flag, "--token_file=t"}), place);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << nic;
    EXPECT_NE(refused.status().message().find("encrypt=trusted_nic"), std::string::npos);
    for (const char* consent : {"--encrypt=trusted_nic", "--encrypt=off"}) {
      const auto opened = OpenNics(*Load({flag, "--token_file=t", consent}), place);
      EXPECT_NE(opened.status().code(), absl::StatusCode::kFailedPrecondition)
          << nic << " " << opened.status();
    }
  }
}

TEST(OpenNics, TheSoftNicEncryptsByDefault) {
  NicPlace place{"127.0.0.1", "127.0.0.1", {}, nullptr, ""};
  const auto path = [&](std::vector<std::string> flags) {
    flags.push_back("--nic=soft");
    const auto paths = OpenNics(*Load(flags), place);
    return paths.ok() ? paths->front().path : std::string(paths.status().message());
  };
  EXPECT_EQ(path({"--certificate_file=c"}), "rdma/soft-tls");
  EXPECT_EQ(path({"--token_file=t"}), "rdma/soft-tls");
  EXPECT_EQ(path({"--certificate_file=c", "--encrypt=off"}), "rdma/soft");
  EXPECT_EQ(path({"--insecure"}), "rdma/soft");
}

TEST(OpenNics, TheSoftNicIsReachedByAHostsName) {
  NicPlace place{"localhost", "localhost", {}, nullptr, ""};
  const auto paths = OpenNics(*Load({"--insecure", "--nic=soft"}), place);
  EXPECT_TRUE(paths.ok()) << paths.status();
}

TEST(Config, EverySettingIsPrintedAsItIsRead) {
  const ServerConfig defaults;
  for (const ConfigRow& row : ConfigRows()) {
    ServerConfig config;
    const std::string text = PrintSetting(row, defaults);
    EXPECT_TRUE(ParseSetting(row, text, &config).ok()) << row.name << " " << text;
    EXPECT_EQ(PrintSetting(row, config), text) << row.name;
    EXPECT_NE(ConfigTable().find(absl::StrCat("`", row.name, "`")), std::string::npos);
  }
}

TEST(Config, LimitsMustAddUp) {
  ServerConfig config;
  EXPECT_TRUE(CheckLimits(config).ok());
  config.memory_bytes = 2 << 20;
  EXPECT_NE(CheckLimits(config).message().find("landing_bytes"), std::string::npos);
  config.memory_bytes = uint64_t{3} << 30;
  EXPECT_NE(CheckLimits(config).message().find("shm_bytes"), std::string::npos);
  config.shm = "off";
  EXPECT_TRUE(CheckLimits(config).ok());
  config.shm = "auto";
  config.memory_bytes = uint64_t{4} << 30;
  EXPECT_TRUE(CheckLimits(config).ok());
  for (const auto& [nic, landing] : {std::make_pair("auto", "1280MiB  landing_bytes"),
                                     {"soft", "1152MiB  landing_bytes"},
                                     {"grpc", "1GiB  landing_bytes"}}) {
    config.nic = nic;
    EXPECT_NE(PrintLimits(config).find(landing), std::string::npos) << PrintLimits(config);
  }
  config.nic = "auto";
  config.shm_bytes = 16 << 20;
  EXPECT_TRUE(CheckLimits(config).ok()) << CheckLimits(config);
  --config.shm_bytes;
  EXPECT_NE(CheckLimits(config).message().find("shm_bytes must be at least 16 MiB"),
            std::string::npos);
  const std::string no_cap = "max_held_bytes has no cap";
  config.max_held_bytes = 1;
  EXPECT_EQ(PrintLimits(config).find(no_cap), std::string::npos);
  config.max_held_bytes = 0;
  EXPECT_NE(PrintLimits(config).find(no_cap), std::string::npos);
  config = ServerConfig();
  config.cluster = "a/b";  // A '/' would make names in certificates ambiguous.
  EXPECT_FALSE(CheckLimits(config).ok());
}

TEST(Cluster, FromText) {
  auto spec = ClusterFromText("ps=a:1,b:2; worker=c:3");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->Workers().at("/job:ps/replica:0/task:1"), "b:2");
  EXPECT_EQ(spec->Workers().size(), 3u);
  EXPECT_FALSE(ClusterFromText("ps=a:1,,b:2").ok());
  EXPECT_FALSE(ClusterFromText("p/s=a:1").ok());
  EXPECT_FALSE(ClusterFromText("ps=a:1;ps=b:2").ok());
}

TEST(Cluster, FromJsonAsTensorFlowWritesIt) {
  auto spec = ClusterFromJson(
      R"({"cluster": {"job": [{"name": "ps", "tasks": {"0": "a:1", "5": "b:2"}}]},
          "jobName": "ps", "taskIndex": 5, "protocol": "grpc+verbs", "defaultSessionConfig": {}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->jobs.at("ps").at(5), "b:2");
  EXPECT_EQ(spec->job, "ps");
  EXPECT_EQ(spec->task, 5);
  EXPECT_EQ(spec->protocol, "grpc+verbs");
  spec = ClusterFromJson(R"({"job": [{"name": "w", "tasks": {"0": "a:1"}}]})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->jobs.size(), 1u);
  EXPECT_FALSE(ClusterFromJson("{").ok());
  EXPECT_FALSE(ClusterFromJson("{}").ok());
}

TEST(Cluster, FromTfConfig) {
  auto spec =
      ClusterFromTfConfig({{"TF_CONFIG", R"({"cluster": {"ps": ["a:1"], "worker": {"3": "b:2"}},
                         "task": {"type": "worker", "index": 3}})"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->jobs.at("worker").at(3), "b:2");
  EXPECT_EQ(spec->job, "worker");
  EXPECT_EQ(spec->task, 3);
  EXPECT_FALSE(ClusterFromTfConfig({}).ok());
  EXPECT_FALSE(ClusterFromTfConfig({{"TF_CONFIG", "[]"}}).ok());
  EXPECT_FALSE(ClusterFromTfConfig({{"TF_CONFIG", "{}"}}).ok());
}

TEST(Cluster, FromSlurm) {
  const Environment environment = {{"SLURM_STEP_NODELIST", "n[01-02,10],x"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1(x2)"},
                                   {"SLURM_PROCID", "3"}};
  auto spec = ClusterFromSlurm(environment, "ps=2,worker=*", 5000);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->jobs.at("ps").at(1), "n01:5001");
  EXPECT_EQ(spec->jobs.at("worker").at(0), "n02:5000");
  EXPECT_EQ(spec->jobs.at("worker").at(3), "x:5000");
  EXPECT_EQ(spec->job, "worker");
  EXPECT_EQ(spec->task, 1);
  EXPECT_FALSE(ClusterFromSlurm(environment, "ps=7", 5000).ok());
  // The jobs have no task for our rank.
  EXPECT_FALSE(ClusterFromSlurm(environment, "ps=2", 5000).ok());
  EXPECT_FALSE(ClusterFromSlurm(environment, "ps=*,worker=1", 5000).ok());
  EXPECT_FALSE(ClusterFromSlurm({}, "ps=1", 5000).ok());
  Environment odd = environment;
  for (const char* rank : {"first", "-1", "6"}) {
    odd["SLURM_PROCID"] = rank;
    EXPECT_FALSE(ClusterFromSlurm(odd, "ps=2,worker=*", 5000).ok()) << rank;
  }
}

TEST(Config, WhatNoPathCanUseIsRefusedAtTheStart) {
  const auto check = [](const char* flag) {
    auto config = Load({flag});
    return config.ok() ? CheckLimits(*config) : config.status();
  };
  for (const char* good : {"--queue_pairs=8", "--task=2147483647", "--pollers=64", "--pollers=0",
                           "--pollers=auto", "--pollers=cpus:0,2,4-7"}) {
    EXPECT_TRUE(check(good).ok()) << check(good);
  }
  for (const char* bad :
       {"--queue_pairs=9", "--queue_pairs=0", "--task=4294967296", "--max_peers=1000000",
        "--trace_sample_every=0", "--shm=perhaps", "--log_format=xml", "--pollers=65",
        "--pollers=-1", "--pollers=many", "--pollers=cpus:", "--pollers=cpus:1-",
        "--pollers=cpus:7-4", "--pollers=cpus:a", "--pollers=cpus:-1", "--pollers=cpus:100000",
        "--pollers=cpus:0-64"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(check(bad))) << bad;
  }
  EXPECT_EQ(kMaxLanes, 8u);
  // What the limits say of message rings, in KiB.
  const LinkOptions link;
  EXPECT_EQ(2 * link.ring_slots * link.message_bytes, 264u << 10);
  EXPECT_NE(PrintLimits(ServerConfig()).find("264KiB  message rings"), std::string::npos);
}

TEST(Config, PollersSuitTheProcessors) {
  ServerConfig config;
  for (const auto& [cpus, pollers] : {std::pair(1, 1), std::pair(2, 1), std::pair(3, 1),
                                      std::pair(4, 2), std::pair(16, 8), std::pair(128, 8)}) {
    EXPECT_EQ(PollerCount(config, cpus), pollers) << cpus;
  }
  config.pollers = "12";
  EXPECT_EQ(PollerCount(config, 16), 12);
  EXPECT_EQ(PollerCount(config, 4), 4);
  config.pollers = "cpus:0,2,4-6";
  EXPECT_EQ(PollerPlan::Parse(config.pollers)->cpus, (std::vector<int>{0, 2, 4, 5, 6}));
  EXPECT_EQ(PollerCount(config, 16), 5);
  config.gpus = "all";
  EXPECT_EQ(PollerCount(config, 16), 1);
}

TEST(Config, HelpersSuitTheProcessors) {
  for (const auto& [cpus, helpers] : {std::pair(1, 0), std::pair(2, 0), std::pair(4, 1),
                                      std::pair(8, 3), std::pair(16, 7), std::pair(128, 7)}) {
    EXPECT_EQ(HelperCount(cpus), helpers) << cpus;
  }
}

TEST(Config, WhatFollowsFromPatience) {
  for (const auto& [patience, lease, keep] :
       {std::tuple(1, 2, 120), std::tuple(5, 5, 120), std::tuple(90, 10, 180)}) {
    ServerConfig config;
    config.patience = absl::Seconds(patience);
    EXPECT_EQ(KeepFor(config), absl::Seconds(keep));
    EXPECT_EQ(EtcdLease(config), absl::Seconds(lease));
  }
}

TEST(Cluster, Resolvers) {
  const auto parse = [](const char* text) {
    const auto resolver = Resolver::Parse(text);
    return resolver.ok() ? absl::StrCat(resolver->name, " ", resolver->where, " ", resolver->port)
                         : std::string(resolver.status().message());
  };
  EXPECT_EQ(parse("flags"), "flags  2222");
  EXPECT_EQ(parse("file:/a:b.json"), "file /a:b.json 2222");
  EXPECT_EQ(parse("slurm"), "slurm  2222");
  EXPECT_EQ(parse("slurm:5000"), "slurm  5000");
  EXPECT_EQ(parse("mpi:node[1-4]"), "mpi node[1-4] 2222");
  EXPECT_EQ(parse("mpi:node[1-4]:5000"), "mpi node[1-4] 5000");
  EXPECT_EQ(parse("kubernetes:tryst.default.svc:7"), "kubernetes tryst.default.svc 7");
  EXPECT_EQ(parse("etcd:a:2379,b:2379"), "etcd a:2379,b:2379 2222");
  for (const char* bad :
       {"", "zookeeper", "file", "file:", "flags:x", "tf_config:5000", "slurm:x", "slurm:0",
        "slurm:65536", "mpi:99999999999", "kubernetes", "kubernetes:5000", "etcd"}) {
    EXPECT_NE(parse(bad).find("resolver should be"), std::string::npos) << bad;
  }
}

TEST(Config, AFolderIsNoConfigFile) {
  EXPECT_TRUE(absl::IsInvalidArgument(Load({"--config", testing::TempDir()}).status()));
  const std::string empty = absl::StrCat(testing::TempDir(), "/empty.conf");
  std::ofstream(empty).flush();
  EXPECT_TRUE(Load({"--config", empty}).ok());
}

TEST(Cluster, FromMpi) {
  Environment environment = {{"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  auto spec = ClusterFromMpi(environment, "ps=1,worker=*", "n[1-2]", 5000);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->jobs.at("ps").at(0), "n1:5000");
  EXPECT_EQ(spec->jobs.at("worker").at(0), "n1:5001");
  EXPECT_EQ(spec->jobs.at("worker").at(2), "n2:5001");
  EXPECT_EQ(WorkerName(spec->job, spec->task), "/job:worker/replica:0/task:2");
  // There are two hosts, and no variable says which.
  EXPECT_FALSE(ClusterFromMpi(environment, "ps=1,worker=*", "", 5000).ok());
  environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";  // Ranks are dealt to the hosts in turn.
  EXPECT_FALSE(ClusterFromMpi(environment, "ps=1,worker=*", "n[1-2]", 5000).ok());
  environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "many";
  EXPECT_FALSE(ClusterFromMpi(environment, "ps=1,worker=*", "n[1-2]", 5000).ok());
  // MPICH's mpiexec, on this host.
  spec = ClusterFromMpi({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "ps=1,worker=1", "", 5000);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->jobs.at("worker").at(0), "127.0.0.1:5001");
  EXPECT_FALSE(ClusterFromMpi({}, "ps=1", "", 5000).ok());
}

TEST(Cluster, Hostlists) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(*ExpandHostlist("a"), Names({"a"}));
  EXPECT_EQ(*ExpandHostlist("r[1-2]n[08-10],b"),
            Names({"r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10", "b"}));
  for (const char* bad : {"", "a,", "a[", "a[1", "a[x]", "a[2-1]", "a[1-999999999]", "a[]"}) {
    EXPECT_FALSE(ExpandHostlist(bad).ok()) << bad;
  }
  EXPECT_EQ(ExpandHostlist("a[4294967290-4294967295]")->size(), 6u);
  EXPECT_EQ(*ExpandCounts("2(x3),1"), std::vector<int>({2, 2, 2, 1}));
  for (const char* bad : {"", "x", "2(x", "2(x0)", "-1", "2(x999999999)"}) {
    EXPECT_FALSE(ExpandCounts(bad).ok()) << bad;
  }
}

TEST(Cluster, FromKubernetes) {
  auto spec = ClusterFromKubernetes({{"HOSTNAME", "my-worker-2"}}, "ps=1,my-worker=3",
                                    "tryst.default.svc.cluster.local", 2222);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->jobs.at("my-worker").at(2),
            "dns:///my-worker-2.tryst.default.svc.cluster.local:2222");
  EXPECT_EQ(spec->job, "my-worker");
  EXPECT_EQ(spec->task, 2);
  EXPECT_FALSE(ClusterFromKubernetes({{"HOSTNAME", "host"}}, "ps=1", "s", 1).ok());
  EXPECT_FALSE(ClusterFromKubernetes({{"HOSTNAME", "ps-0"}}, "ps=*", "s", 1).ok());
}

TEST(AllowListTest, ConsumersByNameAndKeysByPrefix) {
  const auto key = [](const std::string& producer, const std::string& consumer) {
    return *TensorKey::Parse(
        absl::StrCat(producer, "/device:CPU:0;0000000000000001;", consumer, "/device:CPU:0;e;0:0"));
  };
  const std::string ps = "/job:ps/replica:0/task:0";
  const std::string worker = "/job:worker/replica:0/task:1";
  const std::string worker11 = "/job:worker/replica:0/task:11";
  auto list = AllowList::Parse("");
  ASSERT_TRUE(list.ok());
  EXPECT_TRUE(list->Check(worker, key(ps, worker)).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(list->Check(worker, key(ps, worker11))));
  list = AllowList::Parse("/job:worker/replica:0/task:1=/job:ps;/job:eval/=/job:worker");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_TRUE(list->Check(worker, key(ps, worker)).ok());
  EXPECT_FALSE(list->Check(worker11, key(ps, worker11)).ok());
  EXPECT_FALSE(list->Check(worker, key(worker11, worker)).ok());
  const std::string eval = "/job:eval/replica:0/task:0";
  EXPECT_TRUE(list->Check(eval, key(worker, eval)).ok());
  // A prefix must end with the whole task number; within an edge's name it may end anywhere.
  list = AllowList::Parse("/job:worker=/job:ps/replica:0/task:1");
  EXPECT_TRUE(list->Check(worker, key("/job:ps/replica:0/task:1", worker)).ok());
  EXPECT_FALSE(list->Check(worker, key("/job:ps/replica:0/task:10", worker)).ok());
  EXPECT_FALSE(AllowList::Parse("/job:worker=/job:p")->Check(worker, key(ps, worker)).ok());
  EXPECT_TRUE(AllowList::Parse("/job:worker=/job:ps/")->Check(worker, key(ps, worker)).ok());
  // Keys have the name that a device has today; a rule may have the one of TensorFlow 1.
  for (const char* device : {"/cpu:0", "/CPU:0", "/device:CPU:0"}) {
    const auto rule = absl::StrCat("/job:worker=/job:ps/replica:0/task:0", device);
    EXPECT_TRUE(AllowList::Parse(rule)->Check(worker, key(ps, worker)).ok()) << rule;
  }
  EXPECT_FALSE(AllowList::Parse("/job:worker=/job:ps/replica:0/task:0/gpu:0")
                   ->Check(worker, key(ps, worker))
                   .ok());
  EXPECT_FALSE(AllowList::Parse("x").ok());
  EXPECT_FALSE(AllowList::Parse("/job:a=b").ok());
}

TEST(AllowListTest, ATakeThatIsRefusedEndsAtOnce) {
  GuardedSource guard(*AllowList::Parse("/job:worker=/job:ps"));
  const auto take = [&guard](const std::string& consumer) {
    const TensorKey key =
        *TensorKey::Parse(absl::StrCat("/job:ps/replica:0/task:0/device:CPU:0;0000000000000001;",
                                       consumer, "/replica:0/task:0/device:CPU:0;e;0:0"));
    absl::Status ended = absl::UnknownError("it goes on");
    guard.Take(1, key, RecvArgs(), [&ended](Received&& received) { ended = received.status; });
    return ended.code();
  };
  EXPECT_EQ(take("/job:eval"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(take("/job:worker"), absl::StatusCode::kUnavailable) << "nothing serves yet";
}

TEST(MembershipTest, WorkersComeMoveAndGo) {
  std::vector<std::string> connected;
  const auto connect = [&](const std::string&, const std::string& address) {
    connected.push_back(address);
    return std::shared_ptr<grpc::Channel>();
  };
  const std::string ps = "/job:ps/replica:0/task:0";
  Membership closed(false, connect);
  EXPECT_TRUE(closed.Set(ps, "a:1"));
  EXPECT_FALSE(closed.Set(ps, "a:1"));
  EXPECT_TRUE(absl::IsNotFound(closed.ChannelTo("/job:x/replica:0/task:0").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(closed.Announce({"/job:x/replica:0/task:0", "b:1", 1})));
  ASSERT_TRUE(closed.Announce({ps, "b:1", 7}).ok());
  EXPECT_FALSE(closed.Set(ps, "a:1"));  // The configuration has not changed.
  ASSERT_TRUE(closed.ChannelTo(ps).ok());
  EXPECT_EQ(connected, std::vector<std::string>({"b:1"}));
  closed.Leave(ps, 6);  // It is an earlier incarnation's.
  EXPECT_EQ(closed.Members()[0].incarnation, 7u);
  closed.Leave(ps, 7);
  ASSERT_TRUE(closed.ChannelTo(ps).ok());
  EXPECT_EQ(connected.back(), "a:1");
  closed.Remove(ps);
  EXPECT_FALSE(closed.Admits(ps));

  Membership open(true, connect);
  EXPECT_TRUE(absl::IsUnavailable(open.ChannelTo(ps).status()));
  EXPECT_TRUE(open.Hear({ps, "c:1", 0}));
  EXPECT_FALSE(open.Hear({ps, "evil:1", 0}));  // The worker is known already.
  ASSERT_TRUE(open.Announce({ps, "d:1", 8}).ok());
  ASSERT_TRUE(open.ChannelTo(ps).ok());
  EXPECT_EQ(connected.back(), "d:1");
  open.Leave(ps, 8);
  EXPECT_TRUE(absl::IsUnavailable(open.ChannelTo(ps).status()));
  EXPECT_FALSE(open.Admits("no worker"));
  EXPECT_TRUE(absl::IsInvalidArgument(open.Announce({"no worker", "x:1", 1})));
}

TEST(MembershipTest, TellsWhatHasChanged) {
  Membership members(true, nullptr);
  const std::string ps = "/job:ps/replica:0/task:0";
  const auto last = [&members] { return members.Changes().back().what; };
  ASSERT_TRUE(members.Announce({ps, "a:1", 7}).ok());
  EXPECT_EQ(last(), "joined: incarnation 0000000000000007, at a:1");
  ASSERT_TRUE(members.Announce({ps, "", 7}).ok());
  EXPECT_EQ(members.Changes().size(), 1u) << "it is where it was";
  ASSERT_TRUE(members.Announce({ps, "b:1", 7}).ok());
  EXPECT_EQ(last(), "is at b:1");
  ASSERT_TRUE(members.Announce({ps, "b:1", 8}).ok());
  EXPECT_EQ(last(), "restarted: incarnation 0000000000000007 became 0000000000000008, at b:1");
}

TEST(MembershipTest, AnOpenClusterHasABound) {
  Membership members(true, nullptr);
  const auto name = [](int task) { return absl::StrCat("/job:w/replica:0/task:", task); };
  constexpr int kMost = 16384;
  for (int task = 0; task < kMost; ++task) members.Set(name(task), "a:1");
  EXPECT_TRUE(absl::IsResourceExhausted(members.Announce({name(kMost), "b:1", 1})));
  members.Remove(name(0));
  EXPECT_TRUE(members.Announce({name(kMost), "b:1", 1}).ok());
}

TEST(MembershipTest, ChannelsThatNobodyAsksForAreDropped) {
  int connects = 0;
  Membership members(true, [&](const std::string&, const std::string&) {
    ++connects;
    return grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
  });
  const std::string ps = "/job:ps/replica:0/task:0";
  members.Set(ps, "127.0.0.1:1");
  ASSERT_TRUE(members.ChannelTo(ps).ok());
  members.DropIdleChannels();
  ASSERT_TRUE(members.ChannelTo(ps).ok());
  EXPECT_EQ(connects, 1);  // The channel was asked for in between.
  members.DropIdleChannels();
  members.DropIdleChannels();
  const auto used = members.ChannelTo(ps);
  EXPECT_EQ(connects, 2);
  members.DropIdleChannels();
  members.DropIdleChannels();
  ASSERT_TRUE(members.ChannelTo(ps).ok());
  EXPECT_EQ(connects, 2);  // The test holds it.
}

TEST(Npy, RoundTripsAndRefusesGarbage) {
  Tensor tensor = *Tensor::Allocate(DType::kInt16, TensorShape({2, 3}));
  for (int i = 0; i < 6; ++i)
    static_cast<int16_t*>(tensor.mutable_data())[i] = static_cast<int16_t>(i);
  const std::string text = *PrintNpy(tensor);
  EXPECT_EQ(text.size(), 128u + 12u);
  auto back = ParseNpy(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->shape(), tensor.shape());
  EXPECT_EQ(back->dtype(), DType::kInt16);
  EXPECT_EQ(back->data_as<int16_t>()[5], 5);
  for (DType dtype : {DType::kFloat, DType::kBool, DType::kComplex128, DType::kUint64}) {
    for (const TensorShape& shape : {TensorShape(), TensorShape({3}), TensorShape({0, 2})}) {
      back = ParseNpy(*PrintNpy(*Tensor::Allocate(dtype, shape)));
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(back->dtype(), dtype);
      EXPECT_EQ(back->shape(), shape);
    }
  }
  for (size_t cut = 0; cut < text.size(); ++cut) {
    EXPECT_FALSE(ParseNpy(absl::string_view(text).substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(ParseNpy(text + "x").ok());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return ParseNpy(changed).ok();
  };
  EXPECT_FALSE(with("False", "True "));
  EXPECT_FALSE(with("<i2", ">i2"));
  EXPECT_FALSE(with("(2, 3", "(2,-3"));
  EXPECT_FALSE(with("(2, 3, )", "(2, 3, x"));
  EXPECT_FALSE(with("(2, 3, )", "(9999999"));
  EXPECT_FALSE(PrintNpy(*Tensor::FromStrings({"x"}, TensorShape({1}))).ok());
}

}  // namespace
}  // namespace tryst
