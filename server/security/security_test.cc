// Which callers are admitted: whole servers under mutual TLS and under a shared token.
#include "server/security/security.h"

#include <grpcpp/create_channel.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/failing_call.h"
#include "base/log_record.h"
#include "channel/bootstrap.h"
#include "channel/signing/caller.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "server/security/certificate_files.h"
#include "server/server.h"
#include "server/server_parts.h"
#include "tests/doubles/server/test_certificates.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";

std::string Folder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  mkdir(folder.c_str(), 0700);
  return folder;
}

ServerConfig Config(const std::string& job) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.nic = "soft";
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.patience = absl::Seconds(3);
  config.stop_deadline = absl::Seconds(2);
  return config;
}

ServerConfig TlsConfig(const std::string& job, const TestAuthority& authority,
                       const std::string& uri, const std::string& folder_name) {
  ServerConfig config = Config(job);
  const std::string folder = Folder(folder_name);
  authority.Write(folder, uri);
  config.ca_file = folder + "/ca.pem";
  config.certificate_file = folder + "/cert.pem";
  config.key_file = folder + "/key.pem";
  return config;
}

ServerConfig TokenConfig(const std::string& job, const std::string& token) {
  ServerConfig config = Config(job);
  config.token_file = absl::StrCat(testing::TempDir(), "/", job, ".token");
  std::ofstream(config.token_file) << token << "\n";
  return config;
}

std::unique_ptr<Server> Start(const ServerConfig& config) {
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  if (!server.ok()) return nullptr;
  EXPECT_TRUE((*server)->Start().ok());
  return *std::move(server);
}

// Reads its certificates again when the test says so, and looks at its connections each second.
std::unique_ptr<Server> StartThatReloadsByHand(const ServerConfig& config) {
  auto parts = ServerBuilder().SetEnvironment({}).Prepare(config);
  EXPECT_TRUE(parts.ok()) << parts.status();
  if (!parts.ok()) return nullptr;
  parts->security.idle = absl::Seconds(1);
  parts->security.reload_period = absl::Hours(1);
  auto server = MakeServer(*std::move(parts));
  EXPECT_TRUE(server->Start().ok());
  return server;
}

// Fetches one tensor from the ps, as a worker that joins it.
absl::Status FetchFrom(Server* ps, ServerConfig config, int64_t step) {
  config.join = absl::StrCat(kPs, "@", ps->address());
  auto worker = Start(config);
  const TensorKey key = *TensorKey::Parse(absl::StrFormat(
      "%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", kPs, ps->incarnation(), worker->worker()));
  auto rendezvous = ps->steps()->StartStep(step);
  if (!rendezvous.ok()) return rendezvous.status();
  (void)(*rendezvous)->Send(key, {}, *Tensor::Allocate(DType::kFloat, TensorShape({2})), false);
  return (*worker->steps()->StartStep(step))->Recv(key, {}, absl::Seconds(5)).status();
}

TEST(Tls, WorkersWithTheirOwnCertificatesMeet) {
  TestAuthority authority;
  for (const char* protocol : {"grpc", "grpc+verbs"}) {
    ServerConfig config = TlsConfig("ps", authority, absl::StrCat("tryst://lab", kPs), "ps");
    config.protocol = protocol;
    auto ps = Start(config);
    ServerConfig worker = TlsConfig("worker", authority, "tryst://lab/job:worker", "worker");
    worker.protocol = protocol;
    absl::Status fetched = FetchFrom(ps.get(), worker, 1);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
}

TEST(Tls, NobodyElseGetsIn) {
  TestAuthority authority;
  TestAuthority impostors;
  ServerConfig config = TlsConfig("ps", authority, absl::StrCat("tryst://lab", kPs), "ps");
  config.protocol = "grpc";
  auto ps = Start(config);
  // Another authority signed the certificate.
  ServerConfig worker = TlsConfig("worker", impostors, "tryst://lab/job:worker", "impostor");
  worker.protocol = "grpc";
  EXPECT_TRUE(absl::IsUnavailable(FetchFrom(ps.get(), worker, 1)));
  // Our authority signed it, but for another worker, another cluster, or no worker.
  worker = TlsConfig("worker", authority, "tryst://lab/job:eval", "eval");
  worker.protocol = "grpc";
  EXPECT_TRUE(absl::IsUnauthenticated(FetchFrom(ps.get(), worker, 2)));
  worker = TlsConfig("worker", authority, "tryst://factory/job:worker", "factory");
  worker.protocol = "grpc";
  EXPECT_FALSE(FetchFrom(ps.get(), worker, 3).ok());
  worker = TlsConfig("worker", authority, "https://lab/job:worker", "https");
  worker.protocol = "grpc";
  EXPECT_TRUE(absl::IsUnauthenticated(FetchFrom(ps.get(), worker, 4)));
  // The worker uses no TLS.
  worker = Config("worker");
  worker.protocol = "grpc";
  worker.insecure = true;
  EXPECT_TRUE(absl::IsUnavailable(FetchFrom(ps.get(), worker, 5)));
  // The right worker still gets in.
  worker = TlsConfig("worker", authority, "tryst://lab", "right");
  worker.protocol = "grpc";
  absl::Status fetched = FetchFrom(ps.get(), worker, 6);
  EXPECT_TRUE(fetched.ok()) << fetched;
}

TEST(Tls, AServerThatIsSomebodyElseIsNotBelieved) {
  TestAuthority authority;
  ServerConfig config = TlsConfig("ps", authority, "tryst://lab/job:worker", "masked_ps");
  config.protocol = "grpc";
  auto masked = Start(config);
  ServerConfig worker = TlsConfig("worker", authority, "tryst://lab/job:worker", "worker");
  worker.protocol = "grpc";
  EXPECT_TRUE(absl::IsUnavailable(FetchFrom(masked.get(), worker, 1)));
}

TEST(Tls, CertificatesAreReloadedWithoutARestart) {
  TestAuthority old_authority;
  TestAuthority new_authority;
  ServerConfig config = TlsConfig("ps", old_authority, absl::StrCat("tryst://lab", kPs), "ps");
  config.protocol = "grpc";
  auto ps = Start(config);
  ServerConfig worker = TlsConfig("worker", new_authority, "tryst://lab/job:worker", "worker");
  worker.protocol = "grpc";
  worker.patience = absl::Milliseconds(300);
  EXPECT_FALSE(FetchFrom(ps.get(), worker, 1).ok());
  new_authority.Write(Folder("ps"), absl::StrCat("tryst://lab", kPs));
  ps->Reload();
  worker.patience = absl::Seconds(5);
  absl::Status fetched = absl::UnavailableError("not tried");
  for (int64_t step = 2; step < 12 && !fetched.ok(); ++step) {
    absl::SleepFor(absl::Milliseconds(300));
    fetched = FetchFrom(ps.get(), worker, step);
  }
  EXPECT_TRUE(fetched.ok()) << fetched;
}

// Else a worker goes on under certificates that are over.
TEST(Tls, ConnectionsAreMadeAnewWithNewCertificates) {
  TestAuthority authority;
  for (const char* nic : {"soft", "grpc"}) {
    SCOPED_TRACE(nic);
    ServerConfig config = TlsConfig("ps", authority, absl::StrCat("tryst://lab", kPs), "ps");
    config.shm = "off";
    config.nic = nic;
    auto ps = Start(config);
    config = TlsConfig("worker", authority, "tryst://lab/job:worker", "worker");
    config.shm = "off";
    config.nic = nic;
    config.join = absl::StrCat(kPs, "@", ps->address());
    const auto worker = StartThatReloadsByHand(config);
    ASSERT_NE(worker, nullptr);
    int64_t step = 0;
    const auto fetch = [&] {
      const TensorKey key = *TensorKey::Parse(absl::StrFormat(
          "%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", kPs, ps->incarnation(), worker->worker()));
      auto sends = *ps->steps()->StartStep(++step);
      (void)sends->Send(key, {}, *Tensor::Allocate(DType::kFloat, TensorShape({2})), false);
      const auto got = (*worker->steps()->StartStep(step))->Recv(key, {}, absl::Seconds(20));
      EXPECT_TRUE(got.ok()) << got.status() << worker->Explain("");
      for (Server* server : {ps.get(), worker.get()}) server->steps()->CleanupStep(step);
    };
    const auto links = [&] { return worker->Stats().at("rdma_epochs"); };
    fetch();
    const int64_t before = links();
    authority.Write(Folder("worker"), "tryst://lab/job:worker");
    worker->Reload();
    for (int i = 0; i < 2000 && links() == before; ++i) {
      fetch();
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_EQ(links(), before + 1);
    for (int i = 0; i < 20; ++i) fetch();
    EXPECT_EQ(links(), before + 1) << "once is enough";
  }
}

// The new certificate names another worker, for which this one's calls are refused. Those that go
// on over the former connection are not.
TEST(Tls, CallsComeUnderTheNewCertificate) {
  TestAuthority authority;
  ServerConfig config = TlsConfig("ps", authority, absl::StrCat("tryst://lab", kPs), "ps");
  config.protocol = "grpc";
  auto ps = Start(config);
  config = TlsConfig("worker", authority, "tryst://lab/job:worker", "worker");
  config.protocol = "grpc";
  config.join = absl::StrCat(kPs, "@", ps->address());
  const auto worker = StartThatReloadsByHand(config);
  ASSERT_NE(worker, nullptr);
  const auto ping = [&] { return worker->calls()->Ping(kPs, absl::Seconds(20)).status(); };
  EXPECT_TRUE(ping().ok()) << ping();
  authority.Write(Folder("worker"), "tryst://lab/job:eval");
  worker->Reload();
  absl::Status pinged;
  // It never rests for long enough that its connection would end by itself.
  for (int i = 0; i < 2000 && !absl::IsUnauthenticated(pinged); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    pinged = ping();
  }
  EXPECT_TRUE(absl::IsUnauthenticated(pinged)) << pinged;
}

TEST(Tls, FilesThatMakeNoSenseAreRefusedAtTheStart) {
  const TestAuthority authority;
  const std::string uri = absl::StrCat("tryst://lab", kPs);
  const auto why = [](const ServerConfig& config) {
    const auto server = ServerBuilder().SetEnvironment({}).Build(config);
    EXPECT_TRUE(absl::IsInvalidArgument(server.status())) << server.status();
    return std::string(server.status().message());
  };
  ServerConfig config = TlsConfig("ps", authority, uri, "senseless");
  EXPECT_TRUE(ServerBuilder().SetEnvironment({}).Build(config).ok());
  const std::string folder = Folder("senseless");
  for (const char* name : {"ca.pem", "cert.pem", "key.pem"}) {
    authority.Write(folder, uri);
    std::ofstream(folder + "/" + name) << "garbage\n";
    EXPECT_TRUE(absl::StrContains(why(config), name)) << why(config);
  }
  authority.Write(folder, uri, /*lasts_s=*/-3600);
  EXPECT_TRUE(absl::StrContains(why(config), "has expired"));
  authority.Write(folder, uri, /*lasts_s=*/86400, /*begins_s=*/3600);
  EXPECT_TRUE(absl::StrContains(why(config), "is not valid yet"));
  authority.Write(folder, uri);
  authority.Write(Folder("senseless_other"), uri);
  config.key_file = Folder("senseless_other") + "/key.pem";
  EXPECT_TRUE(absl::StrContains(why(config), "does not hold the private key that belongs to"));
}

CertificatePaths PathsIn(const std::string& folder) {
  return {folder + "/cert.pem", folder + "/key.pem", folder + "/ca.pem"};
}

// Then gRPC reads the files themselves.
TEST(Tls, WithoutDescriptorsForCopiesTheFilesAreWatched) {
  const TestAuthority authority;
  const std::string folder = Folder("few");
  authority.Write(folder, "tryst://lab");
  const CertificatePaths paths = PathsIn(folder);
  EXPECT_TRUE(CertificateFiles(paths, absl::Hours(1)).watches_copies());
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  const rlimit two = {static_cast<rlim_t>(next) + 2, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &two), 0);
  const CertificateFiles files_themselves(paths, absl::Hours(1));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_FALSE(files_themselves.watches_copies());
  EXPECT_EQ(files_themselves.watched().key, paths.key);
}

// Nor can gRPC open copies where there is no /proc.
TEST(Tls, WhereCopiesCannotBeOpenedTheFilesAreWatched) {
#ifndef SYS_access
  GTEST_SKIP() << "needs access() as a system call";
#else
  const TestAuthority authority;
  const std::string folder = Folder("no_proc");
  authority.Write(folder, "tryst://lab");
  const CertificatePaths paths = PathsIn(folder);
  if (!RunWhereCallFails(SYS_access, ENOENT, [&paths] {
        const CertificateFiles files(paths, absl::Hours(1));
        EXPECT_FALSE(files.watches_copies());
        EXPECT_EQ(files.watched().key, paths.key);
      })) {
    GTEST_SKIP() << "needs seccomp filters";
  }
#endif
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Tls, FilesThatWereReplacedAreReadWhenThatIsAsked) {
  const TestAuthority authority;
  const std::string folder = Folder("replaced");
  authority.Write(folder, "tryst://lab");
  const CertificatePaths paths = PathsIn(folder);
  CertificateFiles files(paths, absl::Hours(1));
  const std::string before = TextOf(files.watched().certificate);
  EXPECT_EQ(before, TextOf(paths.certificate));
  authority.Write(folder, "tryst://lab");
  ASSERT_NE(TextOf(paths.certificate), before);
  files.ReadSoon();
  for (int i = 0; i < 2000 && TextOf(files.watched().certificate) == before; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(TextOf(files.watched().certificate), TextOf(paths.certificate));
}

// So connections are made anew with them, although gRPC reads the files themselves.
TEST(Tls, WhereNoCopiesAreMadeNewFilesAreNoticed) {
  const TestAuthority authority;
  const std::string folder = Folder("no_copies");
  authority.Write(folder, "tryst://lab");
  const CertificatePaths paths = PathsIn(folder);
  if (!RunWhereCallFails(SYS_memfd_create, EPERM, [&] {
        CertificateFiles files(paths, absl::Hours(1));
        EXPECT_FALSE(files.watches_copies());
        EXPECT_EQ(files.published(), 1u);
        authority.Write(folder, "tryst://lab");
        files.ReadSoon();
        for (int i = 0; i < 2000 && files.published() == 1; ++i) {
          absl::SleepFor(absl::Milliseconds(5));
        }
        EXPECT_EQ(files.published(), 2u);
      })) {
    GTEST_SKIP() << "needs seccomp filters";
  }
}

// A certificate that comes without its authorities would be refused by all.
TEST(Tls, OfNewFilesThatCannotAllBeCopiedNoneIsUsed) {
  const TestAuthority authority;
  const std::string folder = Folder("too_large");
  authority.Write(folder, "tryst://lab");
  const CertificatePaths paths = PathsIn(folder);
  CertificateFiles files(paths, absl::Hours(1));
  const std::string before = TextOf(files.watched().certificate);
  authority.Write(folder, "tryst://lab");
  std::ofstream(paths.ca, std::ios::app) << std::string(800'000, '\n');
  signal(SIGXFSZ, SIG_IGN);
  rlimit sizes = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &sizes), 0);
  const rlimit less = {700'000, sizes.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
  files.ReadSoon();
  const auto is_told = [] {
    const std::vector<LoggedLine> told = RecentTrouble();
    return std::any_of(told.begin(), told.end(), [](const LoggedLine& line) {
      return absl::StrContains(line.text, "files in memory: write: No space left");
    });
  };
  for (int i = 0; i < 2000 && !is_told(); ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(is_told());
  EXPECT_EQ(TextOf(files.watched().certificate), before);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &sizes), 0);
  files.ReadSoon();
  for (int i = 0; i < 2000 && files.published() == 1; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(TextOf(files.watched().certificate), TextOf(paths.certificate));
}

// A new authority is added before the first certificate of it comes, and the former one is taken
// out when the last of its own has gone.
TEST(Tls, AuthoritiesThatChangeAloneAreRead) {
  const TestAuthority authority;
  const TestAuthority next;
  const std::string folder = Folder("authorities");
  authority.Write(folder, "tryst://lab");
  next.Write(Folder("next_authority"), "tryst://lab");
  const CertificatePaths paths = PathsIn(folder);
  CertificateFiles files(paths, absl::Hours(1));
  const std::string before = TextOf(files.watched().ca);
  EXPECT_EQ(before, TextOf(paths.ca));
  std::ofstream(paths.ca, std::ios::app) << TextOf(Folder("next_authority") + "/ca.pem");
  ASSERT_NE(TextOf(paths.ca), before);
  files.ReadSoon();
  for (int i = 0; i < 2000 && TextOf(files.watched().ca) == before; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(TextOf(files.watched().ca), TextOf(paths.ca));
}

TEST(Tls, AGarbageFileDoesNotReplaceTheLastGoodOne) {
  const TestAuthority authority;
  ServerConfig config = TlsConfig("ps", authority, absl::StrCat("tryst://lab", kPs), "garbled");
  config.protocol = "grpc";
  auto ps = Start(config);
  ServerConfig worker = TlsConfig("worker", authority, "tryst://lab/job:worker", "ungarbled");
  worker.protocol = "grpc";
  for (const char* name : {"ca.pem", "cert.pem", "key.pem"}) {
    std::ofstream(Folder("garbled") + "/" + name) << "garbage\n";
  }
  ps->Reload();
  absl::SleepFor(absl::Seconds(4));  // gRPC looks every second at what our thread has read.
  const absl::Status fetched = FetchFrom(ps.get(), worker, 1);
  EXPECT_TRUE(fetched.ok()) << fetched;
}

TEST(Tls, FilesThatWereReplacedAreReadThoughNobodyAsks) {
  const TestAuthority authority;
  const std::string folder = Folder("renewed");
  authority.Write(folder, "tryst://lab");
  const CertificatePaths paths = PathsIn(folder);
  const CertificateFiles files(paths, absl::Milliseconds(20));
  const std::string before = TextOf(files.watched().certificate);
  authority.Write(folder, "tryst://lab");
  ASSERT_NE(TextOf(paths.certificate), before);
  for (int i = 0; i < 2000 && TextOf(files.watched().certificate) == before; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(TextOf(files.watched().certificate), TextOf(paths.certificate));
}

TEST(Token, LetsInWhoKnowsIt) {
  for (const char* protocol : {"grpc", "grpc+verbs"}) {
    ServerConfig config = TokenConfig("ps", "0123456789abcdef");
    config.protocol = protocol;
    auto ps = Start(config);
    ServerConfig worker = TokenConfig("worker", "0123456789abcdef");
    worker.protocol = protocol;
    absl::Status fetched = FetchFrom(ps.get(), worker, 1);
    EXPECT_TRUE(fetched.ok()) << protocol << fetched;
    worker = TokenConfig("worker", "0123456789abcdeg");
    worker.protocol = "grpc";
    EXPECT_TRUE(absl::IsUnauthenticated(FetchFrom(ps.get(), worker, 2)));
    worker = Config("worker");
    worker.protocol = "grpc";
    worker.insecure = true;
    EXPECT_TRUE(absl::IsUnauthenticated(FetchFrom(ps.get(), worker, 3)));
  }
}

// A hello with another version, a forged name or a replayed signature does not open the data plane.
TEST(Hello, OtherVersionsForgedNamesAndReplaysAreRefused) {
  ServerConfig config = TokenConfig("ps", "0123456789abcdef");
  auto ps = Start(config);
  CallSigner signer({"lab", "/job:worker/replica:0/task:0", 9}, "0123456789abcdef", UnixMs);
  auto stub = rpc::TransportService::NewStub(
      grpc::CreateChannel(ps->address(), grpc::InsecureChannelCredentials()));
  const auto call = [&](const rpc::HelloRequest& request, const std::string& statement) {
    grpc::ClientContext context;
    context.AddMetadata(kCallerMetadata, statement);
    rpc::HelloResponse response;
    return stub->Hello(&context, request, &response).error_code();
  };
  const auto sign = [&](const rpc::HelloRequest& request) {
    return signer.Sign(kPs, "/tryst.rpc.TransportService/Hello", request.SerializeAsString());
  };
  rpc::HelloRequest hello;
  hello.set_peer(kPs);
  hello.set_worker("/job:worker/replica:0/task:0");
  hello.set_incarnation(9);
  hello.set_protocol_oldest(kProtocolOldest);
  hello.set_protocol_newest(kProtocolNewest);
  hello.set_epoch(1);
  hello.set_path("rdma/none");
  hello.add_queue_pairs("any: without one it is a farewell");
  // All is right but the version of the path.
  EXPECT_EQ(call(hello, sign(hello)), grpc::StatusCode::UNIMPLEMENTED);
  const std::string used = sign(hello);
  EXPECT_EQ(call(hello, used), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(call(hello, used), grpc::StatusCode::UNAUTHENTICATED);  // A replay.
  rpc::HelloRequest other = hello;
  other.set_protocol_oldest(kProtocolNewest + 1);
  other.set_protocol_newest(kProtocolNewest + 2);
  EXPECT_EQ(call(other, sign(other)), grpc::StatusCode::FAILED_PRECONDITION);
  other.set_protocol_oldest(0);  // A downgrade attempt.
  other.set_protocol_newest(0);
  EXPECT_EQ(call(other, sign(other)), grpc::StatusCode::FAILED_PRECONDITION);
  other = hello;
  other.set_worker("/job:eval/replica:0/task:0");
  EXPECT_EQ(call(other, sign(other)), grpc::StatusCode::PERMISSION_DENIED);
  // The signature is of another request.
  EXPECT_EQ(call(other, sign(hello)), grpc::StatusCode::UNAUTHENTICATED);
  other = hello;
  other.set_incarnation(10);  // It speaks for a life that is not its own.
  EXPECT_EQ(call(other, sign(other)), grpc::StatusCode::PERMISSION_DENIED);
  other = hello;
  other.set_peer("/job:ps/replica:0/task:1");
  EXPECT_EQ(call(other, sign(other)), grpc::StatusCode::FAILED_PRECONDITION);
  other = hello;
  other.set_path("rdma/soft");
  other.add_queue_pairs("no address of a queue pair");
  other.set_parameters(std::string(1000, '\xff'));
  EXPECT_NE(call(other, sign(other)), grpc::StatusCode::OK);
  other.set_parameters(std::string(1 << 20, 'x'));
  EXPECT_EQ(call(other, sign(other)), grpc::StatusCode::INVALID_ARGUMENT);
  other.set_parameters(std::string(5 << 20, 'x'));
  EXPECT_EQ(call(other, sign(other)), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(ps->calls()->Ping(kPs, absl::Seconds(5)).ok());  // The server still answers.
}

// gRPC's own pauses would grow to two minutes.
TEST(Security, APeerThatIsDownIsLookedForAgainSoon) {
  const int down = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(bind(down, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(down, 64), 0);
  ASSERT_EQ(getsockname(down, reinterpret_cast<sockaddr*>(&at), &size), 0);
  std::atomic<int> attempts{0};
  std::thread hangs_up([&] {
    for (int fd = 0; (fd = accept4(down, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ++attempts) {
      close(fd);
    }
  });
  SecurityOptions options;
  options.insecure = true;
  options.longest_pause = absl::Milliseconds(100);
  const Security security(options, "lab");
  const auto channel = security.Connect(kPs, absl::StrCat("127.0.0.1:", ntohs(at.sin_port)));
  for (const absl::Time until = absl::Now() + absl::Seconds(12);
       attempts < 12 && absl::Now() < until;) {
    (void)channel->GetState(/*try_to_connect=*/true);
    absl::SleepFor(absl::Milliseconds(5));
  }
  shutdown(down, SHUT_RDWR);
  hangs_up.join();
  close(down);
  EXPECT_GE(attempts, 12) << "where pauses grow that many take 29 s";
}

TEST(UriNames, MatchesWholeNamesOnly) {
  const std::string worker = "/job:ps/replica:0/task:1";
  EXPECT_TRUE(UriNames({"tryst://lab/job:ps/replica:0/task:1"}, "lab", worker));
  EXPECT_TRUE(UriNames({"x", "tryst://lab/job:ps"}, "lab", worker));
  EXPECT_TRUE(UriNames({"tryst://lab/"}, "lab", worker));
  EXPECT_FALSE(UriNames({"tryst://lab/job:p"}, "lab", worker));
  EXPECT_FALSE(UriNames({"tryst://lab/job:ps/replica:0/task:11"}, "lab", worker));
  EXPECT_FALSE(UriNames({"tryst://la"}, "lab", worker));
  EXPECT_FALSE(UriNames({"tryst://"}, "lab", worker));
  EXPECT_FALSE(UriNames({"tryst:/"}, "lab", worker));
  EXPECT_FALSE(UriNames({""}, "lab", worker));
  EXPECT_FALSE(UriNames({}, "lab", worker));
}

TEST(SecurityCheck, LoopbackMeansLoopback) {
  SecurityOptions options;
  options.insecure = true;
  for (const char* address : {"127.0.0.1:1", "127.9.9.9:0", "localhost:1", "[::1]:1", "unix:/x"}) {
    EXPECT_TRUE(Security::Check(options, address).ok()) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.evil.org:1", "host:1"}) {
    EXPECT_FALSE(Security::Check(options, address).ok()) << address;
  }
  options.token = "0123456789abcdef";
  EXPECT_FALSE(Security::Check(options, "127.0.0.1:1").ok());  // Two modes are chosen.
  options.insecure = false;
  EXPECT_TRUE(Security::Check(options, "0.0.0.0:1").ok());
  options.token = "short";
  EXPECT_FALSE(Security::Check(options, "0.0.0.0:1").ok());
}

}  // namespace
}  // namespace tryst
