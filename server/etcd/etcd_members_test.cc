// A worker's entry in etcd, against a server that speaks etcd's protocol and lets leases expire.
#include "server/etcd/etcd_members.h"

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/etcd/member_record.h"
#include "tests/doubles/server/pretended_etcd.h"
#include "tests/doubles/server/test_certificates.h"

namespace tryst {
namespace {

const char kPs[] = "/job:ps/replica:0/task:0";
const char kSelf[] = "/job:worker/replica:0/task:0";

class EtcdMembersTest : public testing::Test {
 protected:
  EtcdMembersTest()
      : members_(false, [](const std::string&, const std::string&) { return nullptr; }) {}

  std::unique_ptr<EtcdMembers> Register(absl::Duration lease, std::vector<std::string> endpoints,
                                        const std::string& password = "") {
    EtcdAccess access;
    access.endpoints = std::move(endpoints);
    if (!password.empty()) {
      access.user = "tryst";
      access.password = password;
    }
    return Register(lease, access);
  }
  std::unique_ptr<EtcdMembers> Register(absl::Duration lease, const EtcdAccess& access) {
    EtcdMembers::Options options;
    options.access = access;
    options.cluster = "train";
    options.self = self_;
    options.lease = lease;
    return std::make_unique<EtcdMembers>(options, &members_, &clock_);
  }
  static bool Await(const std::function<bool()>& what) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!what()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  const SteadyClock clock_;
  const Member self_{kSelf, "node1:2222", 0xabcdef};
  const std::string key_ = MemberKey("train", kSelf);
  Membership members_;
  PretendedEtcd etcd_;
};

TEST_F(EtcdMembersTest, ALeaseIsRenewedForAsLongAsTheWorkerLives) {
  constexpr int kLeaseSeconds = 2;
  auto worker = Register(absl::Seconds(kLeaseSeconds), {etcd_.address()});
  ASSERT_TRUE(Await([&] { return etcd_.Get(key_) == MemberValue(self_); }));
  const int64_t lease = etcd_.LeaseOf(key_);
  const uint64_t renewals = etcd_.renewals();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500 * kLeaseSeconds));
  EXPECT_EQ(etcd_.expired(), 0u);
  EXPECT_EQ(etcd_.LeaseOf(key_), lease);
  // Every third of the lease, or sooner.
  EXPECT_GE(etcd_.renewals() - renewals, 4u);
  EXPECT_EQ(worker->Look().leases, 1u);
  EXPECT_EQ(worker->Look().sessions, 1u);
  EXPECT_EQ(worker->Look().trouble, "");
  EXPECT_LT(worker->Look().age_s, kLeaseSeconds);
  worker.reset();
  EXPECT_EQ(etcd_.Get(key_), "") << "who leaves says so";
}

TEST_F(EtcdMembersTest, WhoseLeaseIsLostRegistersAnew) {
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  ASSERT_TRUE(Await([&] { return etcd_.Get(key_) == MemberValue(self_); }));
  const int64_t lease = etcd_.LeaseOf(key_);
  etcd_.LoseLease(lease);
  EXPECT_TRUE(Await([&] { return etcd_.Get(key_) == MemberValue(self_); }));
  EXPECT_NE(etcd_.LeaseOf(key_), lease);
  EXPECT_TRUE(Await([&] { return worker->Look().leases == 2; }));
  EXPECT_EQ(worker->Look().sessions, 1u) << worker->Text();
  EXPECT_FALSE(worker->Look().superseded);
}

// etcd may be slow, and no stop waits for all that a new worker has to say there.
TEST_F(EtcdMembersTest, WhoStopsWhileItRegistersSaysNoMore) {
  etcd_.SetPause(600);
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  ASSERT_TRUE(Await([&] { return etcd_.leases_asked() > 0; }));
  worker.reset();
  EXPECT_EQ(etcd_.writes(key_), 0u);
}

// Every worker of the cluster would be told of it.
TEST_F(EtcdMembersTest, AKeyThatIsThereIsNotWrittenAgain) {
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  ASSERT_TRUE(Await([&] { return worker->Look().members == 1; }));
  EXPECT_EQ(etcd_.writes(key_), 1u);
  EXPECT_TRUE(Await([&] {
    const EtcdMembers::View view = worker->Look();
    if (view.sessions == 1) etcd_.EndWatches();  // Its watch may begin a little later.
    return view.sessions > 1 && view.trouble.empty();
  })) << worker->Text();
  EXPECT_EQ(worker->Look().leases, 1u);
  EXPECT_EQ(etcd_.writes(key_), 1u);
}

// It was cut off for longer than its lease.
TEST_F(EtcdMembersTest, WhoComesBackWithoutALeaseRegistersBeforeItLists) {
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  ASSERT_TRUE(Await([&] { return worker->Look().members == 1; }));
  etcd_.LoseLease(etcd_.LeaseOf(key_));
  ASSERT_TRUE(Await([&] {
    const EtcdMembers::View view = worker->Look();
    if (view.sessions == 1) etcd_.EndWatches();  // Its watch may begin a little later.
    return view.sessions > 1 && view.trouble.empty();
  })) << worker->Text();
  EXPECT_EQ(etcd_.Get(key_), MemberValue(self_));
}

TEST_F(EtcdMembersTest, WhoGetsNoLeaseIsNotListedAndAsksNowAndThen) {
  etcd_.RefuseLeases();
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_TRUE(Await([&] { return absl::StrContains(worker->Look().trouble, "refuses a lease"); }))
      << worker->Text();
  EXPECT_LT(worker->Look().age_s, 0) << "it has heard of no member";
  EXPECT_LT(worker->Look().sessions, 15u)
      << "a server that is in trouble is not asked all the time";
  EXPECT_EQ(etcd_.Get(key_), "");
}

TEST_F(EtcdMembersTest, WithAPasswordEtcdTellsEverything) {
  etcd_.RequireLogin();
  auto worker = Register(absl::Seconds(60), {etcd_.address()}, "secret");
  ASSERT_TRUE(Await([&] { return worker->Look().members == 1; })) << worker->Text();
  etcd_.Put(MemberKey("train", kPs), MemberValue({kPs, "node3:2222", 7}));
  EXPECT_TRUE(Await([&] { return worker->Look().members == 2; })) << worker->Text();
  EXPECT_EQ(worker->Look().sessions, 1u) << worker->Text();
  auto wrong = Register(absl::Seconds(60), {etcd_.address()}, "guessed");
  EXPECT_TRUE(Await([&] {
    return absl::StrContains(wrong->Look().trouble, "invalid user ID or password");
  })) << wrong->Text();
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Both ends show a certificate, and look at the other's.
TEST_F(EtcdMembersTest, OverTlsEtcdTellsEverything) {
  const std::string folder = testing::TempDir() + "/etcd_members_test";
  mkdir(folder.c_str(), 0755);
  TestAuthority().Write(folder, "tryst:etcd,IP:127.0.0.1");
  EtcdAccess access;
  access.ca = TextOf(folder + "/ca.pem");
  access.certificate = TextOf(folder + "/cert.pem");
  access.key = TextOf(folder + "/key.pem");
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = access.ca;
  options.pem_key_cert_pairs = {{access.key, access.certificate}};
  PretendedEtcd etcd(grpc::SslServerCredentials(options));
  access.endpoints = {etcd.address()};
  auto worker = Register(absl::Seconds(60), access);
  EXPECT_TRUE(Await([&] { return worker->Look().members == 1; })) << worker->Text();
}

// It has lost its lease, and in between another process has taken its name.
TEST_F(EtcdMembersTest, AnEarlierIncarnationTakesNoNameBack) {
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  ASSERT_TRUE(Await([&] { return worker->Look().members == 1; }));
  const std::string newer = MemberValue({kSelf, "node2:2222", 0x123});
  const int64_t lease = etcd_.LeaseOf(key_);
  etcd_.Put(key_, newer);
  etcd_.LoseLease(lease);
  EXPECT_TRUE(Await([&] { return worker->Look().superseded; }));
  EXPECT_EQ(etcd_.Get(key_), newer);
  worker.reset();
  EXPECT_EQ(etcd_.Get(key_), newer) << "nor does it take it along";
}

// Its first call was done and had no answer; it stood still, its lease expired, and another process
// took its name.
TEST_F(EtcdMembersTest, NorDoesOneThatNeverHeardThatItWasRegistered) {
  etcd_.Put(key_, MemberValue({kSelf, "node0:2222", 0x99}));  // What it may replace.
  etcd_.LoseAnswerOfNextWrite([&] {
    EXPECT_EQ(etcd_.Get(key_), MemberValue(self_));
    etcd_.LoseLease(etcd_.LeaseOf(key_));
    etcd_.Put(key_, MemberValue({kSelf, "node2:2222", 0x123}));
  });
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  EXPECT_TRUE(Await([&] { return worker->Look().superseded; }));
  EXPECT_EQ(etcd_.Get(key_), MemberValue({kSelf, "node2:2222", 0x123}));
}

// Another process had taken its name, and has left.
TEST_F(EtcdMembersTest, WhoseKeyIsGoneRegistersAnewUnderTheSameLease) {
  auto worker = Register(absl::Seconds(60), {etcd_.address()});
  ASSERT_TRUE(Await([&] { return worker->Look().members == 1; })) << worker->Text();
  const int64_t lease = etcd_.LeaseOf(key_);
  Membership others(false, [](const std::string&, const std::string&) { return nullptr; });
  EtcdMembers::Options options;
  options.access.endpoints = {etcd_.address()};
  options.cluster = "train";
  options.self = {kSelf, "node2:2222", 0x123};
  options.lease = absl::Seconds(2);
  auto other = std::make_unique<EtcdMembers>(options, &others, &clock_);
  ASSERT_TRUE(Await([&] { return etcd_.Get(key_) == MemberValue(options.self); }));
  other.reset();
  EXPECT_TRUE(Await([&] { return etcd_.Get(key_) == MemberValue(self_); })) << worker->Text();
  EXPECT_EQ(etcd_.LeaseOf(key_), lease);
  EXPECT_TRUE(Await([&] { return !worker->Look().superseded; })) << worker->Text();
}

TEST_F(EtcdMembersTest, OthersAreMembersForAsLongAsTheirKeysAreThere) {
  PretendedEtcd* const etcd = &etcd_;
  // All of them are more than gRPC lets a message have by itself.
  for (int i = 0; i < 5; ++i) {
    etcd->Put(MemberKey("train", absl::StrCat("/job:x/replica:0/task:", i)),
              std::string(1 << 20, 'x'));
  }
  // The first one does not answer.
  auto worker = Register(absl::Seconds(60), {"127.0.0.1:1", etcd->address()});
  ASSERT_TRUE(Await([&] { return worker->Look().members == 1; })) << worker->Text();
  Membership others(false, [](const std::string&, const std::string&) { return nullptr; });
  EtcdMembers::Options options;
  options.access.endpoints = {etcd->address()};
  options.cluster = "train";
  options.self = {kPs, "node3:2222", 7};
  options.lease = absl::Seconds(60);
  auto ps = std::make_unique<EtcdMembers>(options, &others, &clock_);
  EXPECT_TRUE(Await([&] { return worker->Look().members == 2; })) << worker->Text();
  EXPECT_TRUE(Await([&] { return ps->Look().members == 2; })) << ps->Text();
  ps.reset();
  EXPECT_TRUE(Await([&] { return worker->Look().members == 1; })) << worker->Text();
}

}  // namespace
}  // namespace tryst
