// Outsiders without a token flood a whole server on real sockets. It goes on serving, in bounded
// memory, and no descriptors leak.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/attack/http2_flood.h"
#include "tests/attack/insider.h"
#include "tests/attack/process_use.h"
#include "tests/doubles/server/test_certificates.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
// docs/CONFIG.md has the sum: seventy times the 2 MiB of strangers' bytes. On a busy machine as
// much again may arrive before the listener sees it.
constexpr uint64_t kMostBytes = 400 << 20;

ServerConfig Config(const std::string& job) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.protocol = "grpc";
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.token_file = absl::StrCat(testing::TempDir(), "/outsider.token");
  std::ofstream(config.token_file) << "0123456789abcdef\n";
  return config;
}

std::unique_ptr<Server> Start(const ServerConfig& config) {
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  if (!server.ok()) return nullptr;
  const absl::Status started = (*server)->Start();
  EXPECT_TRUE(started.ok()) << started;
  return *std::move(server);
}

// An honest pair. Its worker opens a new connection for each fetch, or keeps one.
class OutsiderTest : public testing::Test {
 protected:
  void Open(ServerConfig ps, ServerConfig worker) {
    ps_ = Start(ps);
    ASSERT_NE(ps_, nullptr);
    worker.join = absl::StrCat(kPs, "@", ps_->address());
    worker_ = Start(worker);
    ASSERT_NE(worker_, nullptr);
    sends_ = *ps_->steps()->StartStep(1);
    receives_ = *worker_->steps()->StartStep(1);
  }
  void Open() { Open(Config("ps"), Config("worker")); }
  absl::Status FetchOne() {
    const TensorKey key =
        *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k%d;0:0", kPs,
                                          ps_->incarnation(), kWorker, next_++));
    absl::Status sent =
        sends_->Send(key, {}, *Tensor::Allocate(DType::kFloat, TensorShape({10'000})), false);
    return sent.ok() ? receives_->Recv(key, {}, absl::Seconds(60)).status() : sent;
  }
  int64_t Stat(const std::string& name) { return ps_->Stats().at(name); }

  std::unique_ptr<Server> ps_;
  std::unique_ptr<Server> worker_;
  std::shared_ptr<Rendezvous> sends_;
  std::shared_ptr<Rendezvous> receives_;
  int next_ = 0;
};

TEST_F(OutsiderTest, FloodsCostBoundedMemoryAndNobodyElse) {
  Open();
  ASSERT_TRUE(FetchOne().ok());
  const uint64_t before = ResidentBytes();
  for (Flood flood : AllFloods()) {
    const int descriptors = OpenDescriptors();
    uint64_t most = 0;
    {
      Http2Flood attack(flood, ps_->port(), 4);
      const absl::Time until = absl::Now() + absl::Seconds(2);
      int fetched = 0;
      while (absl::Now() < until || fetched < 10) {
        const absl::Status got = FetchOne();
        ASSERT_TRUE(got.ok()) << FloodName(flood) << ": " << got;
        ++fetched;
        most = std::max(most, ResidentBytes());
      }
      EXPECT_GT(attack.connections(), 0u) << FloodName(flood);
    }
    std::printf("%s: %lld MiB more\n", FloodName(flood),
                (static_cast<long long>(most) - static_cast<long long>(before)) / (1 << 20));
    EXPECT_LT(most, before + kMostBytes) << FloodName(flood);
    for (int i = 0; i < 1000 && OpenDescriptors() > descriptors; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_LE(OpenDescriptors(), descriptors) << FloodName(flood);
  }
  EXPECT_GT(Stat("connections_flooded"), 0);
}

TEST_F(OutsiderTest, WhoCompressesIsTold) {
  Open();
  Insider packer({kPs, ps_->address(), "lab", "0123456789abcdef"}, kWorker, 9);
  const grpc::Status told = packer.Call("Stats", "", nullptr, GRPC_COMPRESS_GZIP);
  EXPECT_EQ(told.error_code(), grpc::StatusCode::UNIMPLEMENTED) << told.error_message();
  EXPECT_NE(told.error_message().find("gzip"), std::string::npos) << told.error_message();
  EXPECT_TRUE(packer.Call("Stats", "").ok());
}

TEST_F(OutsiderTest, FloodsBeforeTlsDoNoMore) {
  const TestAuthority authority;
  const auto certified = [&](ServerConfig config) {
    const std::string folder = absl::StrCat(testing::TempDir(), "/outsider_", config.job);
    EXPECT_EQ(system(absl::StrCat("mkdir -p ", folder).c_str()), 0);
    authority.Write(folder, absl::StrCat("tryst://lab/job:", config.job));
    config.token_file.clear();
    config.certificate_file = absl::StrCat(folder, "/cert.pem");
    config.key_file = absl::StrCat(folder, "/key.pem");
    config.ca_file = absl::StrCat(folder, "/ca.pem");
    return config;
  };
  Open(certified(Config("ps")), certified(Config("worker")));
  ASSERT_TRUE(FetchOne().ok());
  const uint64_t before = ResidentBytes();
  for (Flood flood : {Flood::kNonsense, Flood::kResets, Flood::kReconnect, Flood::kDrip}) {
    Http2Flood attack(flood, ps_->port(), 4);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(FetchOne().ok()) << FloodName(flood);
  }
  EXPECT_LT(ResidentBytes(), before + kMostBytes);
}

TEST_F(OutsiderTest, WhoSaysNothingIsHungUpOn) {
  Open();
  ASSERT_TRUE(FetchOne().ok());
  Http2Flood attack(Flood::kDrip, ps_->port(), 8);  // Ten seconds are what each has.
  for (int i = 0; i < 3000 && Stat("connections_timed_out") < 8; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_GE(Stat("connections_timed_out"), 8);
  EXPECT_TRUE(FetchOne().ok());
}

TEST_F(OutsiderTest, CrowdsMakeWayForEachOtherAndForMembers) {
  Open();
  ASSERT_TRUE(FetchOne().ok());
  Http2Flood crowd(Flood::kDrip, ps_->port(), 90);
  Http2Flood another(Flood::kDrip, ps_->port(), 90, "127.0.0.2");
  for (int i = 0; i < 3000 && Stat("connections_crowded_out") < 20; ++i) {
    ASSERT_LE(Stat("connections_strangers"), 128);
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_GE(Stat("connections_crowded_out"), 20);
  EXPECT_TRUE(FetchOne().ok());
  // A worker that starts only now gets in.
  ServerConfig late = Config("late");
  late.join = absl::StrCat(kPs, "@", ps_->address());
  auto newcomer = Start(late);
  EXPECT_TRUE(newcomer->calls()->Ping(kPs, absl::Seconds(60)).ok());
}

// gRPC's own listener never recovers from that (a fault of 1.51).
TEST_F(OutsiderTest, ServesAgainAfterDescriptorsRanOut) {
  Open();
  ASSERT_TRUE(FetchOne().ok());
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  {
    std::vector<int> taken;
    for (int fd = dup(0); fd >= 0 && taken.size() < 100'000; fd = dup(0)) taken.push_back(fd);
    close(taken.back());
    taken.pop_back();  // Leaves one descriptor for the attacker's end.
    Http2Flood attack(Flood::kDrip, ps_->port(), 1);
    for (int i = 0; i < 3000 && Stat("connections_listener_rests") == 0; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_GT(Stat("connections_listener_rests"), 0);
    for (int fd : taken) close(fd);
  }
  worker_ = Start([&] {
    ServerConfig config = Config("worker");
    config.join = absl::StrCat(kPs, "@", ps_->address());
    return config;
  }());
  EXPECT_TRUE(worker_->calls()->Ping(kPs, absl::Seconds(60)).ok());
}

}  // namespace
}  // namespace tryst
