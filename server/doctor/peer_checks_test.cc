#include "server/doctor/peer_checks.h"

#include <dlfcn.h>
#include <netdb.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/peer_client.h"
#include "server/server.h"

namespace {

constexpr char kTwoAddresses[] = "two-addresses.invalid";

}  // namespace

// In libc's place: a host of two addresses, of which most servers listen at the second alone.
int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** list) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::string(host) != kTwoAddresses) return real(host, port, hints, list);
  const int failed = real("127.0.0.2", port, hints, list);
  return failed != 0 ? failed : real("127.0.0.1", port, hints, &(*list)->ai_next);
}

namespace tryst {
namespace {

constexpr char kPeer[] = "/job:ps/replica:0/task:0";

// A peer without faults; each test seeds one.
class PeerChecksTest : public ::testing::Test {
 protected:
  PeerChecksTest() {
    probes_.connect = [this](const std::string&, absl::Duration) { return reach_; };
    probes_.least_mtu = [] { return 1500; };
    probes_.ping = [this](absl::Duration) -> absl::StatusOr<PeerCalls::Heard> {
      now_ += took_;
      return heard_;
    };
    probes_.now = [this] { return now_; };
  }

  // The only finding, as "weight check: seen"; empty when there is none.
  std::string Examined(const std::string& address = "node7:2222") {
    Report report;
    ExaminePeer(probes_, kPeer, address, absl::Seconds(1), &report);
    if (report.findings().empty()) return "";
    EXPECT_EQ(report.findings().size(), 1U) << report.ToText(false);
    const Finding& finding = report.findings()[0];
    EXPECT_FALSE(finding.means.empty() || finding.action.empty());
    return absl::StrCat(WeightName(finding.weight), " ", finding.check, ": ", finding.seen);
  }

  PeerProbes probes_;
  PeerProbes::Reach reach_ = {absl::OkStatus(), 1500};
  absl::StatusOr<PeerCalls::Heard> heard_ = PeerCalls::Heard{Member{kPeer, "node7:2222", 7}, {}};
  absl::Time now_ = absl::UnixEpoch();
  absl::Duration took_ = absl::Milliseconds(1);
};

TEST_F(PeerChecksTest, APeerThatIsWell) { EXPECT_EQ(Examined(), ""); }

TEST_F(PeerChecksTest, NobodyKnowsWhereItIs) {
  EXPECT_EQ(Examined(""), absl::StrCat("fault peer-address: nobody says where ", kPeer, " is"));
}

TEST_F(PeerChecksTest, ItsNameLeadsNowhere) {
  reach_.status = absl::NotFoundError("Name or service not known");
  EXPECT_EQ(Examined(), "fault peer-name: node7: Name or service not known");
}

TEST_F(PeerChecksTest, ItsPortDoesNotAnswer) {
  reach_.status = absl::UnavailableError("Connection refused");
  EXPECT_EQ(Examined(), "fault peer-port: node7:2222: Connection refused");
  reach_.status = absl::DeadlineExceededError("no answer");
  EXPECT_EQ(Examined(), "fault peer-port: node7:2222: no answer");
}

TEST_F(PeerChecksTest, ATunnelIsOnTheWay) {
  reach_.path_mtu = 1450;
  EXPECT_EQ(Examined(),
            "warning peer-mtu: the way to node7:2222 carries packets of 1450 bytes, "
            "our interfaces 1500");
}

TEST_F(PeerChecksTest, ItDoesNotLetUsIn) {
  heard_ = absl::UnauthenticatedError("token");
  EXPECT_EQ(Examined(), "fault peer-answer: UNAUTHENTICATED: token");
}

TEST_F(PeerChecksTest, AnotherWorkerLivesThere) {
  heard_ = PeerCalls::Heard{Member{"/job:ps/replica:0/task:1", "node7:2222", 7}, {}};
  EXPECT_TRUE(absl::StartsWith(Examined(), "fault peer-identity: that address belongs to"));
}

TEST_F(PeerChecksTest, ItIsFarAway) {
  took_ = absl::Milliseconds(80);
  EXPECT_EQ(Examined(), "note peer-latency: a call takes 80ms");
}

TEST(RealPeerProbesTest, AskARealServerAndAClosedPort) {
  ServerConfig config;
  config.job = "ps";
  config.insecure = true;
  config.open_cluster = true;
  config.listen = "127.0.0.1:0";
  config.nic = "soft";
  auto server = ServerBuilder().Build(config);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE((*server)->Start().ok());
  ServerConfig ours;
  ours.insecure = true;
  ours.join = absl::StrCat(kPeer, "@", (*server)->address());
  auto client = PeerClient::Make(ours);
  ASSERT_TRUE(client.ok()) << client.status();
  const PeerProbes probes = RealPeerProbes((*client)->calls(), kPeer);
  Report well;
  ExaminePeer(probes, kPeer, (*server)->address(), absl::Seconds(5), &well);
  EXPECT_FALSE(well.Has(Weight::kFault) || well.Has(Weight::kWarning)) << well.ToText(false);
  const std::string address = (*server)->address();
  const std::string port = address.substr(address.rfind(':'));
  const auto reached = probes.connect(absl::StrCat(kTwoAddresses, port), absl::Seconds(5)).status;
  EXPECT_TRUE(reached.ok()) << reached;
  ASSERT_TRUE((*server)->Stop(absl::Seconds(5)).ok());
  Report gone;
  ExaminePeer(probes, kPeer, address, absl::Seconds(1), &gone);
  EXPECT_TRUE(absl::StrContains(gone.ToText(false), "Connection refused")) << gone.ToText(false);
  const auto refused = probes.connect(absl::StrCat("[::1]", port), absl::Seconds(1)).status;
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused << ": the name leads somewhere";
  Report nowhere;
  ExaminePeer(probes, kPeer, "no-such-host.invalid:1", absl::Seconds(1), &nowhere);
  EXPECT_TRUE(absl::StrContains(nowhere.ToText(false), "peer-name")) << nowhere.ToText(false);
}

}  // namespace
}  // namespace tryst
