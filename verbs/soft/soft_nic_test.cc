#include "verbs/soft/soft_nic.h"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/guards_reached.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/doubles/soft/hostile_peer.h"
#include "tests/doubles/soft/soft_world.h"
#include "verbs/soft/soft_context.h"
#include "verbs/soft/soft_pipe.h"
#include "verbs/soft/soft_receive_ring.h"
#include "verbs/soft/soft_tls.h"

namespace tryst {
namespace {

// As a poller does that sleeps, for so long at most. Returns whether it was woken.
bool PollIfWoken(SoftSide* side, int most_ms) {
  EXPECT_TRUE(side->completions->Arm().ok());
  pollfd news = {side->completions->event_fd(), POLLIN, 0};
  const bool woken = poll(&news, 1, most_ms) > 0;
  if (woken) side->Poll();
  return woken;
}

int OpenDescriptors() {
  DIR* const all = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(all) != nullptr) ++count;
  closedir(all);
  return count;
}

// A byte that a helper may be writing.
ABSL_ATTRIBUTE_NO_SANITIZE_THREAD ABSL_ATTRIBUTE_NOINLINE uint8_t Peek(const uint8_t* byte) {
  return *static_cast<const volatile uint8_t*>(byte);
}

TEST(SoftNicTest, OptionsThatCannotWorkAreRefused) {
  SoftNicOptions options;
  options.listen_address = "localhost:0";
  EXPECT_EQ(OpenSoftNic(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = SoftNicOptions();
  options.listen_address = "0.0.0.0:0";
  EXPECT_EQ(OpenSoftNic(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.advertised_host = "127.0.0.1";
  EXPECT_TRUE(OpenSoftNic(options).ok());
  options = SoftNicOptions();
  for (const int sockets : {0, 66}) {
    options.sockets_per_queue_pair = sockets;
    EXPECT_EQ(OpenSoftNic(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  options.sockets_per_queue_pair = 64;
  EXPECT_TRUE(OpenSoftNic(options).ok());
  options = SoftNicOptions();
  options.limits.max_entries = 1000;
  EXPECT_EQ(OpenSoftNic(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = SoftNicOptions();
  options.max_pending_handshakes = 0;
  EXPECT_EQ(OpenSoftNic(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.max_pending_handshakes = 1;
  EXPECT_TRUE(OpenSoftNic(options).ok());
}

// ---- Several networks ----

// Two that the loopback has, and more that fail.
constexpr char kTwoNetworks[] = "127.0.0.1:0,127.0.0.2:0";

SoftNicOptions OnNetworks(const std::string& addresses) {
  SoftNicOptions options;
  options.listen_address = addresses;
  return options;
}

TEST(SoftNetworksTest, AddressesThatCannotWorkTogetherAreRefused) {
  for (const char* bad :
       {"127.0.0.1:0,", "127.0.0.1:0,localhost:0", "127.0.0.1:0,unix:", "127.0.0.1:0,0.0.0.0:0",
        "127.0.0.1:0,127.0.0.2:0,127.0.0.3:0,127.0.0.4:0,127.0.0.5:0,127.0.0.6:0,127.0.0.7:0,"
        "127.0.0.8:0,127.0.0.9:0"}) {
    EXPECT_EQ(OpenSoftNic(OnNetworks(bad)).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
  SoftNicOptions by_one_host = OnNetworks(kTwoNetworks);
  by_one_host.advertised_host = "127.0.0.1";
  EXPECT_EQ(OpenSoftNic(by_one_host).status().code(), absl::StatusCode::kInvalidArgument);
  const auto taken = MustOpenSoftNic(OnNetworks("127.0.0.1:0,203.0.113.9:0"));
  EXPECT_EQ(taken->CreateCompletionQueue(16).status().code(), absl::StatusCode::kUnavailable);
}

// Writes one large message from `a` to `b`, and waits until all sockets of `a` are there.
void WriteOverAll(SoftSide* a, SoftSide* b, const std::string& all) {
  constexpr uint64_t kBytes = 4 << 20;
  for (uint64_t i = 0; i < kBytes; ++i) a->data()[i] = static_cast<uint8_t>(i * 31 + i / 4096);
  int written = 0;
  while (a->queue_pair->Networks() != all && written < 100) {
    ASSERT_TRUE(a->PostWrite(kBytes).ok());
    ++written;
    ASSERT_TRUE(PollUntil({a, b}, [&] { return static_cast<int>(a->done.size()) == written; }));
    ASSERT_EQ(a->done.back().status, CompletionStatus::kOk);
    ASSERT_EQ(memcmp(a->data(), b->data(), kBytes), 0);
  }
}

// Writes between two sides of such a NIC, until these are the sockets.
void ExpectSockets(const SoftNicOptions& options, const std::string& all) {
  const auto nic = MustOpenSoftNic(options);
  SoftSide a(nic.get(), 4 << 20);
  SoftSide b(nic.get(), 4 << 20);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  WriteOverAll(&a, &b, all);
  EXPECT_EQ(a.queue_pair->Networks(), all);
  EXPECT_TRUE(a.RedZonesIntact() && b.RedZonesIntact());
}

TEST(SoftNetworksTest, EachHasASocket) {
  ExpectSockets(OnNetworks(kTwoNetworks), "2 sockets by 127.0.0.1, 1 by 127.0.0.2");
}

TEST(SoftNetworksTest, OneAddressMayHaveSeveralFlows) {
  SoftNicOptions options;
  options.flows = 3;
  ExpectSockets(options, "4 sockets by 127.0.0.1");
}

TEST(SoftNetworksTest, FlowsThatCannotBeAreRefused) {
  for (const int bad : {-1, 0, 65}) {
    SoftNicOptions options;
    options.flows = bad;
    EXPECT_EQ(OpenSoftNic(options).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  SoftNicOptions many = OnNetworks(kTwoNetworks);
  many.flows = 33;
  EXPECT_EQ(OpenSoftNic(many).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SoftNetworksTest, OneAddressIsNoNetworkToTellOf) {
  const auto nic = MustOpenSoftNic();
  SoftSide a(nic.get());
  SoftSide b(nic.get());
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(8).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; }));
  EXPECT_EQ(a.queue_pair->Networks(), "");
}

// `b` as its peer is told of it: with other addresses.
std::string AddressWith(const SoftSide& b, const std::string& listeners) {
  SoftAddress address = *DecodeSoftAddress(b.queue_pair->LocalAddress());
  address.listener = absl::StrReplaceAll(listeners, {{"B", address.listener}});
  return EncodeSoftAddress(address);
}

// An address of the loopback that answers nobody: its queue of connections is full.
class SilentAddress {
 public:
  SilentAddress() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in self = {};
    self.sin_family = AF_INET;
    self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool listens =
        bind(fd_.get(), reinterpret_cast<const sockaddr*>(&self), sizeof(self)) == 0 &&
        listen(fd_.get(), 0) == 0;
    TRYST_CHECK(listens) << errno;
    address_ = SocketAddress::Of(fd_.get())->ToString();
    for (int i = 0; i < 8; ++i) waiting_.push_back(SocketAddress::Parse(address_)->Dial());
  }
  const std::string& text() const { return address_; }

 private:
  const Fd fd_;
  std::string address_;
  std::vector<Fd> waiting_;
};

// Nobody listens on the other address, or nobody is there, or nobody answers.
TEST(SoftNetworksTest, WhatIsDownIsPassedOver) {
  const SilentAddress silent;
  for (const std::string& listeners :
       {std::string("127.0.0.9:9,B"), std::string("192.0.2.1:9,B"), std::string("B,127.0.0.9:9"),
        std::string("B,192.0.2.1:9"), silent.text() + ",B", "B," + silent.text()}) {
    SoftNicOptions many;
    many.sockets_per_queue_pair = 3;
    const auto nic = MustOpenSoftNic(many);
    SoftSide a(nic.get(), 4 << 20);
    SoftSide b(nic.get(), 4 << 20);
    QueuePairOptions options = SoftSide::UsualOptions();
    options.ack_timeout = 17;
    b.OpenQueuePair(options);
    options.dials = true;
    a.OpenQueuePair(options);
    a.remote = b.region.get();
    b.remote = a.region.get();
    b.PostReceives(8);
    ASSERT_TRUE(a.queue_pair->Connect(AddressWith(b, listeners)).ok());
    ASSERT_TRUE(b.queue_pair->Connect(a.queue_pair->LocalAddress()).ok());
    WriteOverAll(&a, &b, "2 sockets by 127.0.0.1");
    EXPECT_EQ(a.queue_pair->Networks(), "2 sockets by 127.0.0.1") << listeners;
  }
}

// It rides on the next message, or leaves when its time is over, although nobody polls.
TEST(SoftNicTest, AnAcknowledgementMayWaitWhileTheReceiverSleeps) {
  constexpr absl::Duration kDelay = absl::Milliseconds(200);
  SoftNicOptions options;
  options.ack_delay = kDelay;
  const auto first = MustOpenSoftNic(options);
  const auto second = MustOpenSoftNic(options);
  SoftSide a(first.get()), b(second.get());
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(8).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return !a.done.empty(); }));
  a.done.clear();
  a.data()[0] = 7;
  const absl::Time sent = absl::Now();
  ASSERT_TRUE(a.PostWrite(8).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return b.data()[0] == 7; }));
  ASSERT_TRUE(b.completions->Arm().ok());
  while (a.done.empty() && absl::Now() < sent + absl::Seconds(10)) {
    pollfd sleeper = {b.completions->event_fd(), POLLIN, 0};
    if (poll(&sleeper, 1, 10) == 1) {
      b.Poll();
      ASSERT_TRUE(b.completions->Arm().ok());
    }
    a.Poll();
  }
  EXPECT_FALSE(a.done.empty());
  EXPECT_GE(absl::Now() - sent, kDelay / 2);
}

// Either could, and which one does would be left to chance.
TEST(SoftNicTest, WhoArmsWhileCompletionsWaitIsWokenEachTime) {
  const auto nic = MustOpenSoftNic();
  SoftSide a(nic.get());
  SoftSide b(nic.get());
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  Completion one[1];
  const auto take = [&] {
    while (*a.completions->Poll(absl::MakeSpan(one)) == 0) b.Poll();
  };
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(a.PostWrite(8).ok());
    ASSERT_TRUE(a.PostWrite(8).ok());
    take();
    ASSERT_TRUE(a.completions->Arm().ok());
    pollfd news = {a.completions->event_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&news, 1, 10'000), 1) << round;
    take();
  }
}

TEST(SoftNicTest, TheEndThatIsToDialDoes) {
  const auto from = MustOpenSoftNic();
  const auto to = MustOpenSoftNic();
  constexpr uint64_t kPairs = 8;
  for (uint64_t i = 0; i < kPairs; ++i) {
    SoftSide a(from.get()), b(to.get());
    QueuePairOptions options = SoftSide::UsualOptions();
    b.OpenQueuePair(options);
    options.dials = true;
    a.OpenQueuePair(options);
    ConnectSides(&a, &b);
    ASSERT_TRUE(b.PostWrite(8).ok());
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return !b.done.empty(); }));
  }
  EXPECT_EQ(from->counters().connections_accepted, 0u);
  EXPECT_EQ(to->counters().connections_accepted, kPairs);
}

TEST(SoftNicTest, EveryQueueListensOnAPortOfTheRange) {
  SoftNicOptions options;
  const auto probe = SocketAddress::Parse("127.0.0.1:0")->Listen();
  ASSERT_TRUE(probe.ok());
  // The probe holds the first port, and so leaves one.
  options.listen_address = SocketAddress::Of(probe->get())->ToString();
  options.listen_ports = 2;
  const auto nic = MustOpenSoftNic(options);
  const auto queue = nic->CreateCompletionQueue(16);
  if (!queue.ok()) GTEST_SKIP() << "another program has the port: " << queue.status();
  EXPECT_EQ(nic->CreateCompletionQueue(16).status().code(), absl::StatusCode::kUnavailable);
}

TEST(SoftNicTest, ItHasOnePortWhichIsUp) {
  const std::vector<NicPort> ports = MustOpenSoftNic()->Ports();
  ASSERT_EQ(ports.size(), 1u);
  EXPECT_EQ(ports[0].state, PortState::kActive);
  EXPECT_EQ(ports[0].address, SoftNicOptions().listen_address);
}

// Two under one key and number would show how their tokens differ, and how to make another.
TEST(SoftNicTest, ItsDescriptorIsReadyUntilTheLastEventIsTaken) {
  SoftEvents events;
  events.Add({NicEvent::Kind::kQueuePairFatal, 0, 1});
  events.Add({NicEvent::Kind::kQueuePairFatal, 0, 2});
  pollfd news = {events.fd(), POLLIN, 0};
  for (const uint32_t id : {1, 2}) {
    EXPECT_EQ(poll(&news, 1, 0), 1) << id;
    const auto event = events.Take();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->id, id);
  }
  EXPECT_EQ(poll(&news, 1, 0), 0);
}

TEST(SoftNicTest, NoTwoAddressesAreSealedAlike) {
  constexpr size_t kAddresses = 8;
  SoftNicOptions options;
  options.secret = "a token that all workers share";
  const auto nic = MustOpenSoftNic(options);
  std::set<std::string> pads;  // What hides the token of each.
  for (size_t i = 0; i < kAddresses; ++i) {
    SoftSide side(nic.get());
    side.OpenQueuePair();
    const std::string sealed = side.queue_pair->LocalAddress();
    const absl::StatusOr<SoftAddress> address = DecodeSoftAddress(sealed, options.secret);
    ASSERT_TRUE(address.ok()) << address.status();
    std::string pad = sealed.substr(EncodeSoftAddress(*address).size(), sizeof(Token));
    for (size_t at = 0; at < pad.size(); ++at) {
      pad[at] = static_cast<char>(pad[at] ^ static_cast<char>(address->token[at]));
    }
    pads.insert(pad);
  }
  EXPECT_EQ(pads.size(), kAddresses);
}

TEST(SoftNicTest, AReceiveOfTooManyEntriesIsRefused) {
  const auto nic = MustOpenSoftNic();
  SoftSide side(nic.get());
  QueuePairOptions options = SoftSide::UsualOptions();
  options.max_entries = 2;
  side.OpenQueuePair(options);
  const std::vector<Entry> three(3, {side.region->address(), 1, side.region->local_key()});
  EXPECT_TRUE(absl::IsInvalidArgument(side.queue_pair->PostReceive({ReceiveWork{1, three}})));
}

TEST(SoftNicTest, AdvertisedHostIsWhatPeersDial) {
  SoftNicOptions options;
  options.listen_address = "0.0.0.0:0";
  options.advertised_host = "127.0.0.1";
  const auto nic = MustOpenSoftNic(options);
  SoftSide a(nic.get());
  SoftSide b(nic.get());
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(100).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; }));
  EXPECT_EQ(a.done[0].status, CompletionStatus::kOk);
}

TEST(SoftNicTest, ConnectsOverIpv6) {
  SoftNicOptions options;
  options.listen_address = "[::1]:0";
  const auto nic = MustOpenSoftNic(options);
  if (!nic->CreateCompletionQueue(16).ok()) GTEST_SKIP() << "this machine has no IPv6";
  SoftSide a(nic.get());
  SoftSide b(nic.get());
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(100).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; }));
}

TEST(SoftNicTest, SameRandomBytesGiveSameKeys) {
  SoftNicOptions options;
  const auto count = std::make_shared<std::atomic<uint32_t>>(0);
  options.random = [count](absl::Span<uint8_t> out) {
    for (uint8_t& byte : out) byte = static_cast<uint8_t>(count->fetch_add(1) * 37);
  };
  const auto first = MustOpenSoftNic(options);
  uint8_t byte = 0;
  const uint32_t key = (*first->RegisterRegion(&byte, 1, kRemoteWrite))->remote_key();
  count->store(0);
  const auto second = MustOpenSoftNic(options);
  EXPECT_EQ((*second->RegisterRegion(&byte, 1, kRemoteWrite))->remote_key(), key);
}

TEST(SoftNicTest, FourSocketsKeepTheOrderOfLargeAndSmall) {
  SoftNicOptions options;
  options.sockets_per_queue_pair = 4;
  options.stripe_bytes = 1 << 16;
  const auto nic = MustOpenSoftNic(options);
  constexpr uint64_t kBytes = 5 << 20;
  SoftSide a(nic.get(), kBytes);
  SoftSide b(nic.get(), kBytes);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  // A large write and a small one over its end, again and again: at the last the small
  // one's byte must stand, whichever socket was faster.
  for (uint8_t round = 0; round < 20; ++round) {
    a.done.clear();
    memset(a.data(), round, kBytes);
    a.data()[0] = 200;
    const Entry all = {a.region->address(), kBytes, a.region->local_key()};
    const Entry one = {a.region->address(), 1, a.region->local_key()};
    SendWork works[3];
    for (SendWork& work : works) {
      work.entries = absl::MakeConstSpan(&all, 1);
      work.remote_address = b.region->address();
      work.remote_key = b.region->remote_key();
    }
    works[1].entries = absl::MakeConstSpan(&one, 1);
    works[1].remote_address += kBytes - 1;
    works[2].op = SendOp::kRead;
    works[2].entries = absl::MakeConstSpan(&one, 1);
    works[2].remote_address += kBytes - 1;
    ASSERT_TRUE(a.queue_pair->PostSend(works).ok());
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 3; }));
    ASSERT_EQ(b.data()[kBytes - 1], 200);
    ASSERT_EQ(b.data()[kBytes - 2], round);
    ASSERT_EQ(b.data()[1], round);
    ASSERT_EQ(a.done[2].status, CompletionStatus::kOk);
  }
}

TEST(SoftNicTest, WritesThatEndWhenLeftWaitForNobody) {
  const auto nic = MustOpenSoftNic(SoftNicOptions());
  SoftSide a(nic.get());
  SoftSide b(nic.get());
  QueuePairOptions options = SoftSide::UsualOptions();
  options.ends_when_left = true;
  options.receive_depth = 8;
  a.OpenQueuePair(options);
  b.OpenQueuePair(options);
  b.PostReceives(8);
  ConnectSides(&a, &b);
  a.data()[0] = 1;
  ASSERT_TRUE(a.PostWrite(4096).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1 && b.data()[0] == 1; }));
  // The peer does not poll, and so has neither the bytes nor a word to say of them.
  a.data()[0] = 2;
  ASSERT_TRUE(a.PostWrite(4096).ok());
  ASSERT_TRUE(PollUntil({&a}, [&] { return a.done.size() == 2; }));
  EXPECT_EQ(a.done[1].status, CompletionStatus::kOk);
  EXPECT_EQ(b.data()[0], 1);
  ASSERT_TRUE(PollUntil({&b}, [&] { return b.data()[0] == 2; }));
  // Its words about new receives still come in time: without them a write would wait for ever.
  a.done.clear();
  for (size_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(a.PostWrite(4096, SendOp::kWriteWithImmediate).ok());
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == i && b.done.size() == i; }));
    b.PostReceives(1);
  }
}

// Two sides whose writes end when they have left, of which the second does not poll.
struct Deaf {
  static constexpr uint32_t kBytes = 10'000;

  explicit Deaf(SoftNic* nic) : a(nic, kBytes), b(nic, kBytes) {
    QueuePairOptions options = SoftSide::UsualOptions();
    options.ends_when_left = true;
    a.OpenQueuePair(options);
    b.OpenQueuePair(options);
    ConnectSides(&a, &b);
    EXPECT_TRUE(a.PostWrite(kBytes).ok());
    EXPECT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; }));
  }
  // False: it does not leave, because both kernels are full.
  bool Write() {
    const size_t done = a.done.size();
    ++written;
    a.data()[kBytes - 1] = static_cast<uint8_t>(written);
    a.data()[kBytes - 2] = static_cast<uint8_t>(written >> 8);
    EXPECT_TRUE(a.PostWrite(kBytes).ok());
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (a.done.size() == done && std::chrono::steady_clock::now() < end) a.Poll();
    return a.done.size() > done;
  }

  // The number of the last write that has landed.
  int landed() { return b.data()[kBytes - 2] << 8 | b.data()[kBytes - 1]; }

  SoftSide a;
  SoftSide b;
  int written = 0;
};

// The peer reads late here, and has sent bytes that nobody reads any more.
TEST(SoftNicTest, WritesThatHaveLeftAreNotLostWithTheirQueuePair) {
  const auto nic = MustOpenSoftNic(SoftNicOptions());
  int most = 0;
  for (Deaf scout(nic.get()); scout.Write();) ++most;
  ASSERT_GT(most, 4);
  Deaf deaf(nic.get());
  for (int i = 0; i < most * 2 / 3; ++i) ASSERT_TRUE(deaf.Write());
  ASSERT_TRUE(deaf.b.PostWrite(100).ok());
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(PollUntil({&deaf.b}, [&] { return deaf.landed() == deaf.written; }));
  });
  deaf.a.queue_pair.reset();
  reader.join();
}

// A peer that hangs must not hang us.
TEST(SoftNicTest, APeerThatReadsNothingIsNotWaitedForLong) {
  const auto nic = MustOpenSoftNic(SoftNicOptions());
  int most = 0;
  for (Deaf scout(nic.get()); scout.Write();) ++most;
  Deaf deaf(nic.get());
  for (int i = 0; i < most * 2 / 3; ++i) ASSERT_TRUE(deaf.Write());
  const auto began = std::chrono::steady_clock::now();
  deaf.a.queue_pair.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(8));
}

// Stands still, and knows how often the thread that made it has looked.
class WatchedClock final : public Clock {
 public:
  int64_t NowNs() const override {
    looks_ += std::this_thread::get_id() == whose_;
    return now_ns_;
  }
  void Pass(absl::Duration duration) { now_ns_ += absl::ToInt64Nanoseconds(duration); }
  int looks() const { return looks_; }

 private:
  const std::thread::id whose_ = std::this_thread::get_id();
  mutable std::atomic<int> looks_{0};
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

// One that sends, and does not read what waits for it.
class TalkingPeerTest : public testing::Test {
 protected:
  TalkingPeerTest() {
    int most = 0;
    for (Deaf scout(nic_.get()); scout.Write();) ++most;
    deaf_ = std::make_unique<Deaf>(nic_.get());
    for (int i = 0; i < most * 2 / 3; ++i) EXPECT_TRUE(deaf_->Write());
  }
  // Each time before nearly the time has passed in which nothing moves. False: `a` is gone.
  bool Talk() {
    EXPECT_TRUE(deaf_->b.PostWrite(100).ok());
    for (const int before = clock_.looks(); clock_.looks() < before + 2; sched_yield()) {
      if (gone_) return false;
    }
    clock_.Pass(absl::Milliseconds(800));
    return true;
  }
  static SoftNicOptions Options(const Clock* clock) {
    SoftNicOptions options;
    options.clock = clock;
    return options;
  }

  WatchedClock clock_;
  const std::unique_ptr<SoftNic> nic_ = MustOpenSoftNic(Options(&clock_));
  std::unique_ptr<Deaf> deaf_;
  std::atomic<bool> gone_{false};
};

TEST_F(TalkingPeerTest, IsWaitedForBecauseItIsNotGone) {
  std::thread peer([this] {
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(Talk()) << i;
    EXPECT_TRUE(PollUntil({&deaf_->b}, [&] { return deaf_->landed() == deaf_->written; }));
  });
  deaf_->a.queue_pair.reset();
  gone_ = true;
  peer.join();
}

// The thread that waits for it has other peers.
TEST_F(TalkingPeerTest, IsNotWaitedForWithoutEnd) {
  std::thread peer([this] {
    int talks = 0;
    while (talks < 25 && Talk()) ++talks;
    EXPECT_LT(talks, 20);
    deaf_->b.queue_pair.reset();
  });
  deaf_->a.queue_pair.reset();
  gone_ = true;
  peer.join();
}

// It has nothing to do but to answer a READ, for which its socket has no room at once.
TEST(SoftNicTest, WhoSleepsIsWokenByRoomForItsAnswer) {
  constexpr uint64_t kBytes = 32 << 20;
  const auto nic = MustOpenSoftNic();
  SoftSide a(nic.get(), kBytes);
  SoftSide b(nic.get(), kBytes);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  const auto sleep = [&b] {
    ASSERT_TRUE(b.completions->Arm().ok());
    b.Poll();
    pollfd news = {b.completions->event_fd(), POLLIN, 0};
    if (poll(&news, 1, 0) > 0) b.Poll();
  };
  ASSERT_TRUE(a.PostWrite(1).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; }));
  for (int i = 0; i < 10; ++i) sleep();
  ASSERT_TRUE(a.PostWrite(kBytes, SendOp::kRead).ok());
  int sleeps = 0;
  ASSERT_TRUE(PollUntil({&a}, [&] {
    EXPECT_TRUE(b.completions->Arm().ok());
    pollfd news = {b.completions->event_fd(), POLLIN, 0};
    if (poll(&news, 1, 0) > 0) {
      ++sleeps;
      b.Poll();
    }
    return a.done.size() == 2;
  }));
  EXPECT_GT(sleeps, 1) << "there is room for all at once";
}

TEST(SoftNicTest, RefusalOfAWriteThatHasEndedBreaksItsQueuePair) {
  const auto nic = MustOpenSoftNic(SoftNicOptions());
  SoftSide a(nic.get());
  SoftSide b(nic.get());
  QueuePairOptions options = SoftSide::UsualOptions();
  options.ends_when_left = true;
  a.OpenQueuePair(options);
  b.OpenQueuePair(options);
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(100).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; }));
  b.region.reset();
  const uint8_t untouched = b.data()[0];
  a.data()[0] = static_cast<uint8_t>(untouched + 1);
  const Entry from = {a.region->address(), 100, a.region->local_key()};
  SendWork work;
  work.entries = absl::MakeConstSpan(&from, 1);
  work.remote_address = reinterpret_cast<uint64_t>(b.data());
  work.remote_key = 12345;
  ASSERT_TRUE(a.queue_pair->PostSend(absl::MakeConstSpan(&work, 1)).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.queue_pair->state() != QueuePairState::kReady; }));
  EXPECT_EQ(b.data()[0], untouched);
  EXPECT_EQ(nic->counters().protocol_errors, 0u);
}

TEST(SoftNicTest, SidesUseTheSmallerNumberOfSockets) {
  SoftNicOptions many;
  many.sockets_per_queue_pair = 4;
  many.stripe_bytes = 1 << 16;
  const auto first = MustOpenSoftNic(many);
  const auto second = MustOpenSoftNic();
  for (int i = 0; i < 8; ++i) {  // Either side dials, by chance.
    SoftSide a(first.get(), 1 << 20);
    SoftSide b(second.get(), 1 << 20);
    a.OpenQueuePair();
    b.OpenQueuePair();
    ConnectSides(&a, &b);
    ASSERT_TRUE(a.PostWrite(1 << 20).ok());
    ASSERT_TRUE(b.PostWrite(1 << 20).ok());
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1 && b.done.size() == 1; }));
    EXPECT_EQ(a.done[0].status, CompletionStatus::kOk);
    EXPECT_EQ(b.done[0].status, CompletionStatus::kOk);
  }
}

TEST(SoftNicTest, SeveralHelpersCarryMessagesOfOneMegabyte) {
  SoftNicOptions options;
  options.UseCrew(std::make_shared<Crew>(3, &Crew::Never));
  SoftNicOptions peer_options;
  peer_options.sockets_per_queue_pair = 4;
  const auto nic = MustOpenSoftNic(options);
  const auto peer_nic = MustOpenSoftNic(peer_options);
  SoftSide a(nic.get(), 1 << 20);
  SoftSide b(peer_nic.get(), 1 << 20);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    a.done.clear();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(a.PostWrite(1 << 20).ok());
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 4; }));
    for (const Completion& one : a.done) EXPECT_EQ(one.status, CompletionStatus::kOk);
  }
  EXPECT_GT(options.crew->threads(), 1u);
}

// Into a posted receive, and as the answer to a READ: no region's key is needed for either.
TEST(SoftNicTest, HelpersReadWhatGoesIntoNoRegion) {
  SoftNicOptions options;
  options.UseCrew(std::make_shared<Crew>(3, &Crew::Never));
  const auto nic = MustOpenSoftNic(options);
  const auto peer_nic = MustOpenSoftNic(options);
  constexpr uint64_t kBytes = 1 << 20;
  SoftSide a(nic.get(), kBytes);
  SoftSide b(peer_nic.get(), kBytes);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  {
    SoftSide other(nic.get(), kBytes);  // What was written last is a region that has gone.
    b.remote = other.region.get();
    ASSERT_TRUE(b.PostWrite(kBytes).ok());
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return b.done.size() == 1; }));
  }
  for (const SendOp op : {SendOp::kRead, SendOp::kSend}) {
    for (uint8_t round = 1; round <= 30; ++round) {
      a.done.clear();
      b.done.clear();
      SoftSide* const from = op == SendOp::kSend ? &a : &b;
      SoftSide* const into = op == SendOp::kSend ? &b : &a;
      memset(from->data(), round, kBytes);
      if (op == SendOp::kSend) b.PostReceives(1);
      ASSERT_TRUE(a.PostWrite(kBytes, op).ok());
      ASSERT_TRUE(PollUntil({&a, &b}, [&] {
        return a.done.size() == 1 && b.done.size() == (op == SendOp::kSend ? 1u : 0u);
      }));
      ASSERT_EQ(a.done[0].status, CompletionStatus::kOk);
      ASSERT_TRUE(std::all_of(into->data(), into->data() + kBytes,
                              [round](uint8_t byte) { return byte == round; }));
    }
  }
  EXPECT_GT(options.crew->threads(), 0u);
}

// Its peer may take it as fast as it comes, and others wait.
TEST(SoftNicTest, AQueuePairSendsInATurnWhatItMay) {
  constexpr uint64_t kBytes = 8 << 10;
  constexpr int kWrites = 128;  // At most 32 of them go with one system call.
  SoftNicOptions options;
  options.bytes_per_turn = kBytes;
  const auto nic = MustOpenSoftNic(options);
  SoftSide a(nic.get(), kBytes);
  SoftSide b(nic.get(), kBytes);
  QueuePairOptions deep = SoftSide::UsualOptions();
  deep.send_depth = kWrites;
  a.OpenQueuePair(deep);
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(1).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; })) << "they are connected";
  // What is posted at once, and so in one turn.
  const Entry entry{a.region->address(), kBytes, a.region->local_key()};
  std::vector<SendWork> works(kWrites);
  for (SendWork& work : works) {
    work.op = SendOp::kWrite;
    work.entries = absl::MakeConstSpan(&entry, 1);
    work.remote_address = b.region->address();
    work.remote_key = b.region->remote_key();
  }
  ASSERT_TRUE(a.queue_pair->PostSend(works).ok());
  int turns = 0;
  ASSERT_TRUE(PollUntil({}, [&] {
    for (int i = 0; i < 50; ++i) b.Poll();  // It always has room.
    PollIfWoken(&a, 100);
    ++turns;
    return a.done.size() == 1 + kWrites;
  }));
  EXPECT_GE(turns, 3) << "and the first goes with the post";
  EXPECT_EQ(a.done.back().status, CompletionStatus::kOk);
}

// Whoever encrypts faster than we decrypt does not keep the poller. What the session still holds
// then is shown by no descriptor.
TEST(SoftNicTest, AnEncryptedLaneThatBringsMuchIsServedAgain) {
  SoftNicOptions options;
  options.tls = true;
  const auto nic = MustOpenSoftNic(options);
  options.bytes_per_turn = 8 << 10;  // A record holds more.
  const auto peer_nic = MustOpenSoftNic(options);
  constexpr uint64_t kBytes = 60 << 10;
  SoftSide a(nic.get(), kBytes);
  SoftSide b(peer_nic.get(), kBytes);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(1).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; })) << "they are connected";
  for (uint8_t round = 1; round <= 20; ++round) {
    a.done.clear();
    memset(a.data(), round, kBytes);
    ASSERT_TRUE(a.PostWrite(kBytes).ok());
    for (int i = 0; i < 20; ++i) a.Poll();  // All of it is on its way.
    // It looks only when it is woken.
    EXPECT_TRUE(PollUntil({}, [&] {
      PollIfWoken(&b, 100);
      return b.data()[kBytes - 1] == round;
    }));
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; }));
    EXPECT_EQ(a.done[0].status, CompletionStatus::kOk);
  }
}

TEST(SoftNicTest, ALaneThatIsToBeServedAgainMayGoFirst) {
  SoftNicOptions options;
  options.tls = true;
  options.bytes_per_turn = 8 << 10;
  const auto nic = MustOpenSoftNic(options);
  constexpr uint64_t kBytes = 60 << 10;
  SoftSide a(nic.get(), kBytes);
  SoftSide b(nic.get(), kBytes);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  ASSERT_TRUE(a.PostWrite(1).ok());
  ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 1; })) << "they are connected";
  memset(a.data(), 1, kBytes);
  ASSERT_TRUE(a.PostWrite(kBytes).ok());
  for (int i = 0; i < 20; ++i) a.Poll();  // All of it is on its way.
  ASSERT_TRUE(PollUntil({&b}, [&] { return b.data()[0] == 1; }));
  ASSERT_NE(b.data()[kBytes - 1], 1) << "the rest is for other turns";
  b.queue_pair.reset();
  for (int i = 0; i < 3; ++i) b.Poll();
  EXPECT_NE(b.data()[kBytes - 1], 1);
}

// A small message waits in its lane for a large one of other lanes. What lies behind it there may
// be read later, and by a helper, while the session holds bytes that epoll does not show.
TEST(SoftNicTest, HelpersReadEncryptedLanesThatHaveWaitedForOthers) {
  SoftNicOptions options;
  options.tls = true;
  options.UseCrew(std::make_shared<Crew>(3, &Crew::Never));
  const auto nic = MustOpenSoftNic(options);
  const auto peer_nic = MustOpenSoftNic(options);
  constexpr uint64_t kBytes = 1 << 20;
  constexpr int kPairs = 8;
  SoftSide a(nic.get(), kBytes);
  SoftSide b(peer_nic.get(), kBytes);
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  for (uint8_t round = 0; round < 60; ++round) {
    a.done.clear();
    memset(a.data(), round, kBytes);
    for (int i = 0; i < kPairs; ++i) {
      ASSERT_TRUE(a.PostWrite(kBytes).ok());
      ASSERT_TRUE(a.PostWrite(8).ok());
    }
    ASSERT_TRUE(PollUntil({&a, &b}, [&] { return a.done.size() == 2 * kPairs; }));
    for (const Completion& one : a.done) ASSERT_EQ(one.status, CompletionStatus::kOk);
    ASSERT_EQ(memcmp(a.data(), b.data(), kBytes), 0) << "round " << int{round};
  }
}

// A connection to a peer that this test plays.
class HostilePeerTest : public ::testing::Test {
 protected:
  explicit HostilePeerTest(SoftNicOptions options = {})
      : nic_(MustOpenSoftNic(options)), victim_(nic_.get()) {}

  // Acknowledges a send before all of it can have been read: it ends only when it has.
  void AcknowledgeEarly(uint64_t bytes) {
    Introduce();
    SoftSide large(nic_.get(), bytes);
    const Entry from = {large.region->address(), large.region->bytes(), large.region->local_key()};
    SendWork work;
    work.entries = absl::MakeConstSpan(&from, 1);
    ASSERT_TRUE(victim_.queue_pair->PostSend(absl::MakeConstSpan(&work, 1)).ok());
    FrameHeader ack;
    ack.executed = 1;
    peer_->Say(ack);
    for (int i = 0; i < 1000; ++i) victim_.Poll();
    EXPECT_TRUE(victim_.done.empty());
    ASSERT_TRUE(PollUntil({&victim_}, [&] {
      peer_->ForgetWhatWasHeard();
      return !victim_.done.empty();
    }));
    EXPECT_EQ(victim_.done[0].status, CompletionStatus::kOk);
  }

  // Has the victim dial this test, because its token is the largest that there is.
  void LetItDial(bool tls = false) {
    absl::StatusOr<Fd> listener = SocketAddress::Parse("127.0.0.1:0")->Listen();
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    SoftAddress ours;
    ours.token.fill(0xff);
    ours.number = HostilePeer::kNumber;
    ours.tls = tls;
    ours.listener = SocketAddress::Of(listener_.get())->ToString();
    victim_.OpenQueuePair();
    address_ = victim_.queue_pair->LocalAddress();
    ASSERT_TRUE(victim_.queue_pair->Connect(EncodeSoftAddress(ours)).ok());
  }
  Fd AcceptItsDial() {
    Fd fd;
    EXPECT_TRUE(PollUntil({&victim_}, [&] {
      fd = AcceptFrom(listener_.get());
      return fd.valid();
    }));
    return fd;
  }

  // The hello tells of the receives, so that no frame need.
  void Introduce(int receives = 0, QueuePairOptions options = SoftSide::UsualOptions()) {
    victim_.OpenQueuePair(options);
    victim_.PostReceives(receives);
    address_ = victim_.queue_pair->LocalAddress();
    ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address()).ok());
    peer_ = std::make_unique<HostilePeer>(address_);
    peer_->Say(HostilePeer::HelloFor(address_));
    absl::optional<SoftHello> answer;
    ASSERT_TRUE(PollUntil({&victim_}, [&] {
      if (!answer.has_value()) answer = peer_->HearHello();
      return answer.has_value();
    }));
    EXPECT_EQ(answer->token, Token());
    EXPECT_EQ(answer->receives, static_cast<uint32_t>(receives));
    EXPECT_EQ(answer->from_number, victim_.queue_pair->number());
  }

  FrameHeader Write(uint64_t bytes) {
    FrameHeader header;
    header.type = FrameType::kWrite;
    header.address = victim_.region->address();
    header.remote_key = victim_.region->remote_key();
    header.total = bytes;
    header.bytes = static_cast<uint32_t>(bytes);
    return header;
  }

  bool BecomesBroken() {
    return PollUntil({&victim_},
                     [&] { return victim_.queue_pair->state() != QueuePairState::kReady; });
  }
  // The next frame that the victim sends.
  absl::optional<FrameHeader> Hear() {
    absl::optional<FrameHeader> header;
    EXPECT_TRUE(PollUntil({&victim_}, [&] {
      header = peer_->HearHeader();
      return header.has_value();
    }));
    return header;
  }

  const std::unique_ptr<SoftNic> nic_;
  SoftSide victim_;
  std::string address_;
  std::unique_ptr<HostilePeer> peer_;
  Fd listener_;
};

TEST_F(HostilePeerTest, HonestWriteLands) {
  Introduce();
  peer_->Say(Write(3), {1, 2, 3});
  const auto ack = Hear();
  EXPECT_EQ(ack->type, FrameType::kAck);
  EXPECT_EQ(ack->executed, 1u);
  EXPECT_EQ(victim_.data()[2], 3);
}

TEST_F(HostilePeerTest, BytesMayComeOneByOne) {
  Introduce(1);
  FrameHeader header = Write(3);
  header.has_immediate = true;
  std::vector<uint8_t> bytes(kFrameHeaderBytes);
  EncodeFrameHeader(header, bytes.data());
  bytes.insert(bytes.end(), {7, 8, 9});
  for (uint8_t byte : bytes) {
    EXPECT_TRUE(victim_.done.empty());
    peer_->SayBytes({byte});
    for (int i = 0; i < 3; ++i) victim_.Poll();
  }
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() == 1; }));
  EXPECT_EQ(victim_.data()[2], 9);
}

// A peer by pipes that says hello and then acknowledges without end. From a moment on nothing that
// is sent to it leaves.
class EndlessPeer final : public SoftPipes {
 public:
  absl::StatusOr<std::unique_ptr<Listener>> Listen() override {
    return std::make_unique<AtDoor>(this);
  }
  std::unique_ptr<SoftPipe> Dial(const std::string&) override { return nullptr; }
  void Come(absl::string_view victim_address) {
    hello_.resize(kHelloBytes);
    EncodeHello(HostilePeer::HelloFor(victim_address), hello_.data());
    EncodeFrameHeader(FrameHeader(), ack_);
    waits_ = true;
  }

  bool is_lost = false;
  uint64_t said = 0;  // Bytes.

 private:
  class End final : public SoftPipe {
   public:
    explicit End(EndlessPeer* peer) : peer_(peer) {}
    ssize_t Send(const iovec* pieces, int count) override {
      ssize_t bytes = 0;
      for (int i = 0; i < count; ++i) bytes += static_cast<ssize_t>(pieces[i].iov_len);
      if (peer_->is_lost) errno = EPIPE;
      return peer_->is_lost ? -1 : bytes;
    }
    ssize_t SendOf(const iovec* pieces, const void* const*, int count, KeepOwner) override {
      return Send(pieces, count);
    }
    ssize_t Receive(const iovec* pieces, int count) override {
      ssize_t bytes = 0;
      for (int i = 0; i < count; ++i) {
        auto* const into = static_cast<uint8_t*>(pieces[i].iov_base);
        for (size_t at = 0; at < pieces[i].iov_len; ++at) into[at] = peer_->Next();
        bytes += static_cast<ssize_t>(pieces[i].iov_len);
      }
      return bytes;
    }
    void EndSending() override {}
    size_t unsent() const override { return 0; }
    bool Quiet() override { return false; }
    int event_fd() const override { return event_.get(); }

   private:
    EndlessPeer* const peer_;
    const Fd event_{eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)};
  };
  class AtDoor final : public Listener {
   public:
    explicit AtDoor(EndlessPeer* peer) : peer_(peer) {}
    const std::string& address() const override { return address_; }
    std::unique_ptr<SoftPipe> Accept() override {
      if (!std::exchange(peer_->waits_, false)) return nullptr;
      return std::make_unique<End>(peer_);
    }
    int event_fd() const override { return event_.get(); }

   private:
    EndlessPeer* const peer_;
    const std::string address_ = "endless";
    const Fd event_{eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)};
  };

  uint8_t Next() {
    const uint64_t at = said++;
    return at < kHelloBytes ? hello_[at] : ack_[(at - kHelloBytes) % kFrameHeaderBytes];
  }

  std::vector<uint8_t> hello_;
  uint8_t ack_[kFrameHeaderBytes];
  bool waits_ = false;
};

// What it has said before is read to the end, as the reason may be there; but for so long only.
TEST(EndlessPeerTest, WhoIsLostAndGoesOnSendingIsNotHeardForEver) {
  const auto peer = std::make_shared<EndlessPeer>();
  SoftNicOptions options;
  options.pipes = peer;
  options.bytes_per_turn = 64 << 10;
  const auto nic = MustOpenSoftNic(options);
  SoftSide victim(nic.get());
  victim.OpenQueuePair();
  const std::string address = victim.queue_pair->LocalAddress();
  ASSERT_TRUE(victim.queue_pair->Connect(HostilePeer::Address()).ok());
  peer->Come(address);
  ASSERT_TRUE(PollUntil({&victim}, [&] { return peer->said > options.bytes_per_turn; }));
  victim.remote = victim.region.get();
  peer->is_lost = true;
  const uint64_t before = peer->said;
  ASSERT_TRUE(victim.PostWrite(64).ok());
  ASSERT_TRUE(PollUntil({&victim}, [&] { return !victim.done.empty(); }));
  EXPECT_NE(victim.done[0].status, CompletionStatus::kOk);
  EXPECT_LT(peer->said - before, 64 * options.bytes_per_turn);
}

TEST_F(HostilePeerTest, AHelloMayComeByteByByte) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address()).ok());
  uint8_t hello[kHelloBytes];
  EncodeHello(HostilePeer::HelloFor(address_), hello);
  HostilePeer peer(address_);
  for (const uint8_t byte : hello) {
    peer.SayBytes({byte});
    for (int i = 0; i < 3; ++i) victim_.Poll();
  }
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return peer.HearHello().has_value(); }));
}

TEST_F(HostilePeerTest, OnlyThePeerMayAnswerADial) {
  LetItDial();
  const SoftHello good = HostilePeer::HelloFor(address_);
  const auto answer = [](const Fd& fd, const SoftHello& hello, size_t bytes = kHelloBytes) {
    uint8_t out[kHelloBytes];
    EncodeHello(hello, out);
    EXPECT_EQ(send(fd.get(), out, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  };
  for (uint64_t i = 0; i < 5; ++i) {
    SoftHello bad = good;
    if (i == 0) bad.token[15] ^= 1;
    if (i == 1) bad.to_number ^= 1;
    if (i == 2) bad.from_number ^= 1;
    if (i >= 3) bad.sockets = 2;
    if (i == 4) bad.socket = 1;
    const Fd fd = AcceptItsDial();
    answer(fd, bad);
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return nic_->counters().tokens_refused == i + 1; }));
  }
  {  // What a lost connection has said of an answer is no part of the next one's.
    const Fd fd = AcceptItsDial();
    answer(fd, good, 10);
    for (int i = 0; i < 100; ++i) victim_.Poll();
  }
  const Fd fd = AcceptItsDial();
  answer(fd, good);
  ASSERT_TRUE(victim_.PostWrite(8).ok());
  std::vector<uint8_t> heard(kHelloBytes + kFrameHeaderBytes + 8);
  EXPECT_TRUE(PollUntil({&victim_}, [&] {
    return recv(fd.get(), heard.data(), heard.size(), MSG_DONTWAIT | MSG_PEEK) ==
           static_cast<ssize_t>(heard.size());
  }));
  EXPECT_EQ(nic_->counters().tokens_refused, 5u);
}

TEST_F(HostilePeerTest, WrongTokenIsRefusedAndCounted) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address()).ok());
  const SoftHello good = HostilePeer::HelloFor(address_);
  for (int i = 0; i < 4; ++i) {
    SoftHello bad = good;
    if (i == 0) bad.token[0] ^= 1;
    if (i == 1) bad.token[15] ^= 1;
    if (i == 2) bad.to_number ^= 1;
    if (i == 3) bad.from_number ^= 1;
    HostilePeer stranger(address_);
    stranger.Say(bad);
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return stranger.Closed(); }));
    EXPECT_EQ(nic_->counters().tokens_refused, static_cast<uint64_t>(i + 1));
  }
  // None of it hurts the one who has the token.
  HostilePeer peer(address_);
  peer.Say(good);
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return peer.HearHello().has_value(); }));
  EXPECT_EQ(nic_->counters().connections_accepted, 1u);
  EXPECT_EQ(victim_.queue_pair->state(), QueuePairState::kReady);
}

// It holds the token, and names a place behind those of the queue pair.
TEST_F(HostilePeerTest, ASocketThatTheQueuePairHasNotIsSentAway) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  SoftHello hello = HostilePeer::HelloFor(address_);
  uint64_t refused = 0;
  for (const uint8_t which : {uint8_t{1}, uint8_t{2}, uint8_t{62}, uint8_t{254}}) {
    hello.socket = which;
    hello.sockets = static_cast<uint8_t>(which + 1);
    HostilePeer stranger(address_);
    stranger.Say(hello);
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return stranger.Closed(); })) << int{which};
    EXPECT_EQ(nic_->counters().tokens_refused, ++refused) << int{which};
  }
  EXPECT_EQ(nic_->counters().connections_accepted, 0u);
}

TEST_F(HostilePeerTest, TokenServesOnce) {
  Introduce();
  HostilePeer again(address_);
  again.Say(HostilePeer::HelloFor(address_));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return again.Closed(); }));
  EXPECT_EQ(nic_->counters().tokens_refused, 1u);
  peer_->HangUp();
  ASSERT_TRUE(BecomesBroken());
  HostilePeer later(address_);
  later.Say(HostilePeer::HelloFor(address_));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return later.Closed(); }));
  EXPECT_EQ(nic_->counters().tokens_refused, 2u);
}

TEST_F(HostilePeerTest, DiallerThatComesEarlyIsHeldAndMayGoAgain) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  {
    HostilePeer early(address_);
    early.Say(HostilePeer::HelloFor(address_));
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return nic_->counters().connections_accepted == 1; }));
    EXPECT_FALSE(early.HearHello().has_value()) << "before its own Connect()";
    HostilePeer second(address_);
    second.Say(HostilePeer::HelloFor(address_));
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return second.Closed(); })) << "one at a time";
  }
  // It has hung up: the place is free again.
  const uint64_t refused = nic_->counters().tokens_refused;
  peer_ = std::make_unique<HostilePeer>(address_);
  ASSERT_TRUE(PollUntil({&victim_}, [&] {
    if (nic_->counters().connections_accepted == 2) return true;
    peer_ = std::make_unique<HostilePeer>(address_);
    peer_->Say(HostilePeer::HelloFor(address_));
    for (int i = 0; i < 100; ++i) victim_.Poll();
    return false;
  }));
  EXPECT_GE(nic_->counters().tokens_refused, refused);
  ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address()).ok());
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return peer_->HearHello().has_value(); }));
}

TEST_F(HostilePeerTest, WhoComesEarlyAndIsAnotherIsSentAway) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  SoftHello hello = HostilePeer::HelloFor(address_);
  ++hello.from_number;
  HostilePeer another(address_);
  another.Say(hello);
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return nic_->counters().connections_accepted == 1; }));
  ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address()).ok());
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return another.Closed(); }));
  EXPECT_EQ(nic_->counters().tokens_refused, 1u);
  peer_ = std::make_unique<HostilePeer>(address_);
  peer_->Say(HostilePeer::HelloFor(address_));
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return peer_->HearHello().has_value(); }));
}

TEST_F(HostilePeerTest, EachKindOfNonsenseBreaksOnlyThisQueuePair) {
  SoftSide bystander(nic_.get());
  SoftSide friendly(nic_.get());
  bystander.OpenQueuePair();
  friendly.OpenQueuePair();
  ConnectSides(&bystander, &friendly);
  struct Case {
    const char* what;
    std::function<void(FrameHeader*)> make;
  };
  const Case cases[] = {
      {"a request out of order", [](FrameHeader* frame) { frame->sequence = 1; }},
      {"an ack of what was never sent", [](FrameHeader* frame) { frame->executed = 1; }},
      {"an ack from the past", [](FrameHeader* frame) { frame->executed = 0xffffffff; }},
      {"a fragment of nothing", [](FrameHeader* frame) { frame->type = FrameType::kFragment; }},
      {"an answer to nothing", [](FrameHeader* frame) { frame->type = FrameType::kReadResponse; }},
      {"an error of nothing",
       [](FrameHeader* frame) {
         frame->type = FrameType::kError;
         frame->bytes = 0;
       }},
      {"a message without a receive", [](FrameHeader* frame) { frame->has_immediate = true; }},
      {"a send without a receive", [](FrameHeader* frame) { frame->type = FrameType::kSend; }},
      {"a send of nothing without a receive",
       [](FrameHeader* frame) {
         frame->type = FrameType::kSend;
         frame->bytes = 0;
         frame->total = 0;
       }},
  };
  uint64_t count = 0;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    Introduce();
    victim_.done.clear();
    FrameHeader header = Write(100);
    header.address -= 50;  // Were it obeyed, it would write into the red.
    header.total = 200;
    one.make(&header);
    peer_->Say(header, std::vector<uint8_t>(header.bytes, 1));
    ASSERT_TRUE(BecomesBroken());
    EXPECT_EQ(nic_->counters().protocol_errors, ++count);
    EXPECT_TRUE(victim_.RedZonesIntact());
    const auto event = nic_->NextEvent();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->kind, NicEvent::Kind::kQueuePairFatal);
    EXPECT_EQ(event->id, victim_.queue_pair->number());
  }
  ASSERT_TRUE(bystander.PostWrite(100).ok());
  ASSERT_TRUE(PollUntil({&bystander, &friendly}, [&] { return bystander.done.size() == 1; }));
  EXPECT_EQ(bystander.done[0].status, CompletionStatus::kOk);
}

TEST_F(HostilePeerTest, AFragmentThatItsMessageHasNoRoomForIsNotTaken) {
  struct Case {
    uint64_t total;
    uint32_t bytes;
  };
  for (const Case& one : {Case{100, 51}, Case{101, 10}, Case{100, 0}}) {
    SCOPED_TRACE(one.bytes);
    Introduce();
    FrameHeader header = Write(100);
    header.bytes = 50;
    peer_->Say(header, std::vector<uint8_t>(50, 1));
    FrameHeader fragment;
    fragment.type = FrameType::kFragment;
    fragment.total = one.total;
    fragment.address = 50;
    fragment.bytes = one.bytes;
    peer_->Say(fragment, std::vector<uint8_t>(one.bytes, 1));
    ASSERT_TRUE(BecomesBroken());
    EXPECT_TRUE(victim_.RedZonesIntact());
  }
  EXPECT_EQ(nic_->counters().protocol_errors, 3u);
}

// The frames are well formed and belong to no message or request.
TEST_F(HostilePeerTest, FragmentsAndAnswersOfNothingAreNotTaken) {
  for (const FrameType type : {FrameType::kFragment, FrameType::kReadResponse}) {
    Introduce();
    FrameHeader frame;
    frame.type = type;
    frame.total = 100;
    frame.bytes = 10;
    peer_->Say(frame, std::vector<uint8_t>(10, 1));
    ASSERT_TRUE(BecomesBroken());
  }
  EXPECT_EQ(nic_->counters().protocol_errors, 2u);
}

// It would write over what the victim is sending.
TEST_F(HostilePeerTest, AnAnswerToAWriteIsNotTaken) {
  Introduce();
  victim_.data()[0] = 7;
  ASSERT_TRUE(victim_.PostWrite(10).ok());
  ASSERT_TRUE(Hear().has_value());
  FrameHeader answer;
  answer.type = FrameType::kReadResponse;
  answer.total = 10;
  answer.bytes = 10;
  peer_->Say(answer, std::vector<uint8_t>(10, 99));
  ASSERT_TRUE(BecomesBroken());
  EXPECT_EQ(victim_.data()[0], 7);
}

TEST_F(HostilePeerTest, AnOlderFrameTakesNoReceivesBack) {
  Introduce();
  FrameHeader ack;
  ack.receives = 4;
  peer_->Say(ack);
  ack.receives = 1;
  peer_->Say(ack);
  for (int i = 0; i < 100; ++i) victim_.Poll();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(victim_.PostWrite(10, SendOp::kWriteWithImmediate).ok());
  }
  for (int i = 0; i < 3; ++i) {
    const auto frame = Hear();
    ASSERT_TRUE(frame.has_value()) << "it was told of four receives";
    EXPECT_EQ(frame->sequence, static_cast<uint32_t>(i));
    peer_->HearBytes(10);
  }
}

TEST_F(HostilePeerTest, GarbageBreaksTheQueuePairWithABadResponse) {
  Introduce();
  ASSERT_TRUE(victim_.PostWrite(10).ok());
  ASSERT_TRUE(victim_.PostWrite(10).ok());
  peer_->SayBytes(std::vector<uint8_t>(1000, 0xa5));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() == 2; }));
  EXPECT_EQ(victim_.done[0].status, CompletionStatus::kBadResponse);
  EXPECT_EQ(victim_.done[1].status, CompletionStatus::kFlushed);
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return peer_->HearBytes(1).empty(); }));
}

TEST_F(HostilePeerTest, ErrorOfAnUnknownKindIsABadResponse) {
  Introduce();
  ASSERT_TRUE(victim_.PostWrite(10).ok());
  ASSERT_TRUE(Hear().has_value());
  FrameHeader error;
  error.type = FrameType::kError;
  error.immediate = 999;
  peer_->Say(error);
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() == 1; }));
  EXPECT_EQ(victim_.done[0].status, CompletionStatus::kBadResponse);
}

TEST_F(HostilePeerTest, AnErrorOfOneTransferTellsOfThoseBefore) {
  Introduce();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(victim_.PostWrite(10).ok());
    ASSERT_TRUE(Hear().has_value());
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return peer_->HearBytes(10).size() == 10; }));
  }
  FrameHeader error;
  error.type = FrameType::kError;
  error.sequence = 1;
  error.executed = 1;
  error.immediate = static_cast<uint32_t>(WireError::kRemoteAccess);
  peer_->Say(error);
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() == 2; }));
  EXPECT_EQ(victim_.done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(victim_.done[1].status, CompletionStatus::kRemoteAccess);
}

class TwoSocketsTest : public HostilePeerTest {
 protected:
  static SoftNicOptions Options() {
    SoftNicOptions options;
    options.UseCrew(std::make_shared<Crew>(1, &Crew::Never));
    return options;
  }
  TwoSocketsTest() : HostilePeerTest(Options()) {}

  void IntroduceBoth() {
    victim_.OpenQueuePair();
    address_ = victim_.queue_pair->LocalAddress();
    ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address(2)).ok());
    SoftHello hello = HostilePeer::HelloFor(address_, 2);
    for (auto* one : {&peer_, &second_}) {
      *one = std::make_unique<HostilePeer>(address_);
      (*one)->Say(hello);
      ASSERT_TRUE(PollUntil({&victim_}, [&] { return (*one)->HearHello().has_value(); }));
      hello.socket = 1;
    }
  }

  // The first says half of a message whose other half is the second's, and the next request.
  void SayHalfAndTheNext() {
    for (const uint32_t sequence : {0, 1}) {
      FrameHeader header = Write(sequence == 0 ? 100 : 50);
      header.sequence = sequence;
      header.bytes = 50;
      peer_->Say(header, std::vector<uint8_t>(50, 1));
    }
    for (int i = 0; i < 100; ++i) victim_.Poll();
  }

  // Whether the victim executes so many requests, though it looks only when it is woken.
  bool ExecutesAsleep(uint32_t requests) {
    uint32_t executed = 0;
    return PollUntil({}, [&] {
      PollIfWoken(&victim_, 1);
      const auto heard = peer_->HearHeader();
      if (heard.has_value()) executed = heard->executed;
      return executed == requests;
    });
  }

  std::unique_ptr<HostilePeer> second_;
};

TEST_F(TwoSocketsTest, ARequestOnTheSecondIsNotTaken) {
  IntroduceBoth();
  second_->Say(Write(3), {1, 2, 3});
  ASSERT_TRUE(BecomesBroken());
  EXPECT_EQ(nic_->counters().protocol_errors, 1u);
  EXPECT_EQ(victim_.data()[2], 0);
}

// A part of a fragment that has waited for its message.
TEST_F(TwoSocketsTest, AMessageOfWhichPartsAreMissingKeepsNoRegion) {
  IntroduceBoth();
  FrameHeader fragment;
  fragment.type = FrameType::kFragment;
  fragment.total = 100;
  fragment.address = 50;
  fragment.bytes = 50;
  second_->Say(fragment, std::vector<uint8_t>(10, 1));
  for (int i = 0; i < 100; ++i) victim_.Poll();
  FrameHeader header = Write(100);
  header.bytes = 50;
  peer_->Say(header, std::vector<uint8_t>(50, 1));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.data()[59] == 1; }));
  victim_.region.reset();  // It waits for whoever uses it.
  second_->SayBytes(std::vector<uint8_t>(40, 1));
  ASSERT_TRUE(BecomesBroken());
  EXPECT_EQ(victim_.data()[60], 0);
}

// The helper has taken the next header out of the socket, of which epoll says nothing then.
TEST_F(TwoSocketsTest, WhatFollowsAPayloadThatAHelperReceivesIsTaken) {
  constexpr uint32_t kBytes = 200 << 10;
  SoftSide large(nic_.get(), kBytes);
  IntroduceBoth();
  std::vector<uint8_t> said(kFrameHeaderBytes + kBytes + kFrameHeaderBytes, 1);
  FrameHeader header = Write(kBytes);
  header.address = large.region->address();
  header.remote_key = large.region->remote_key();
  EncodeFrameHeader(header, said.data());
  header = Write(0);
  header.sequence = 1;
  EncodeFrameHeader(header, said.data() + kFrameHeaderBytes + kBytes);
  std::thread sender([&] { peer_->SayBytes(said); });
  absl::SleepFor(absl::Milliseconds(20));  // All may come before any is received.
  EXPECT_TRUE(ExecutesAsleep(2));
  sender.join();
}

// The second brings what the first waits for, and then what itself waits for the first.
TEST_F(TwoSocketsTest, WhatWaitsForAnotherSocketIsTakenAtOnce) {
  IntroduceBoth();
  const std::vector<uint8_t> half(50, 1);
  for (const uint32_t sequence : {0, 1, 2, 3}) {
    FrameHeader header = Write(sequence % 2 == 0 ? 100 : 50);  // Half of 0 and of 2.
    header.sequence = sequence;
    header.bytes = 50;
    peer_->Say(header, half);
  }
  for (int i = 0; i < 100; ++i) victim_.Poll();
  std::vector<uint8_t> rest;
  for (const uint32_t sequence : {0, 2}) {
    FrameHeader fragment;
    fragment.type = FrameType::kFragment;
    fragment.sequence = sequence;
    fragment.total = 100;
    fragment.address = fragment.bytes = 50;
    rest.resize(rest.size() + kFrameHeaderBytes);
    EncodeFrameHeader(fragment, &rest[rest.size() - kFrameHeaderBytes]);
    rest.insert(rest.end(), half.begin(), half.end());
  }
  second_->SayBytes(rest);
  EXPECT_TRUE(ExecutesAsleep(4));
}

// A process that was killed: nothing brings the other half any more, and the end of the first
// socket is behind what waits for it.
TEST_F(TwoSocketsTest, APeerThatGoesBetweenTheHalvesOfAMessageIsLost) {
  IntroduceBoth();
  SayHalfAndTheNext();
  ASSERT_EQ(victim_.queue_pair->state(), QueuePairState::kReady);
  peer_->HangUp();
  for (int i = 0; i < 100; ++i) victim_.Poll();
  EXPECT_EQ(victim_.queue_pair->state(), QueuePairState::kReady) << "the other half may come";
  second_->HangUp();
  EXPECT_TRUE(BecomesBroken());
}

TEST_F(TwoSocketsTest, WhatThenWaitsForASocketThatIsLostEndsIt) {
  IntroduceBoth();
  FrameHeader header = Write(100);
  header.bytes = 50;
  peer_->Say(header, std::vector<uint8_t>(50, 1));
  for (int i = 0; i < 100; ++i) victim_.Poll();
  second_->HangUp();
  for (int i = 0; i < 100; ++i) victim_.Poll();
  ASSERT_EQ(victim_.queue_pair->state(), QueuePairState::kReady) << "the first may say more";
  header = Write(50);
  header.sequence = 1;
  header.bytes = 50;
  peer_->Say(header, std::vector<uint8_t>(50, 1));
  EXPECT_TRUE(BecomesBroken());
}

// A helper meets the end of the second socket behind the half that it has brought.
TEST_F(TwoSocketsTest, WhatHasComeIsTakenThoughThePeerGoes) {
  constexpr uint32_t kHalf = 300 << 10;
  SoftSide large(nic_.get(), 2 * kHalf);
  IntroduceBoth();
  FrameHeader header = Write(2 * kHalf);
  header.address = large.region->address();
  header.remote_key = large.region->remote_key();
  header.bytes = kHalf;
  peer_->Say(header, std::vector<uint8_t>(kHalf, 1));
  header = Write(50);
  header.sequence = 1;
  peer_->Say(header, std::vector<uint8_t>(50, 1));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return Peek(large.data() + kHalf - 1) == 1; }));
  for (int i = 0; i < 100; ++i) victim_.Poll();
  EXPECT_EQ(victim_.data()[49], 0);
  FrameHeader fragment;
  fragment.type = FrameType::kFragment;
  fragment.total = 2 * kHalf;
  fragment.address = fragment.bytes = kHalf;
  std::thread sender([&] {
    second_->Say(fragment, std::vector<uint8_t>(kHalf, 1));
    second_->HangUp();
    peer_->HangUp();
  });
  ASSERT_TRUE(BecomesBroken());
  sender.join();
  EXPECT_EQ(large.data()[2 * kHalf - 1], 1);
  EXPECT_EQ(victim_.data()[49], 1);
}

// What waits stays in its socket, which must not wake the poller until the other half is here.
TEST_F(TwoSocketsTest, ThePollerSleepsWhileOneSocketWaitsForAnother) {
  IntroduceBoth();
  SayHalfAndTheNext();
  FrameHeader header = Write(50);
  header.sequence = 2;
  header.bytes = 50;
  peer_->Say(header, std::vector<uint8_t>(50, 1));  // It is not read.
  int woken = 0;
  for (int i = 0; i < 50; ++i) woken += PollIfWoken(&victim_, 1) ? 1 : 0;
  EXPECT_LT(woken, 25);
  FrameHeader fragment;
  fragment.type = FrameType::kFragment;
  fragment.total = 100;
  fragment.address = fragment.bytes = 50;
  second_->Say(fragment, std::vector<uint8_t>(50, 1));
  EXPECT_TRUE(ExecutesAsleep(3));
}

// The memory is somebody else's by then.
TEST_F(TwoSocketsTest, AHelperReceivesNothingIntoARegionThatHasGone) {
  constexpr uint64_t kSaid = 1000;
  SoftSide large(nic_.get(), 1 << 20);
  IntroduceBoth();
  FrameHeader header = Write(1 << 20);
  header.address = large.region->address();
  header.remote_key = large.region->remote_key();
  peer_->Say(header, std::vector<uint8_t>(kSaid, 1));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return Peek(large.data() + kSaid - 1) == 1; }));
  large.region.reset();  // The key opens nothing from here on.
  peer_->SayBytes(std::vector<uint8_t>(kSaid, 1));
  ASSERT_TRUE(PollUntil({&victim_}, [&] {
    return victim_.queue_pair->state() != QueuePairState::kReady || large.data()[kSaid] != 0;
  }));
  EXPECT_EQ(large.data()[kSaid], 0);
  EXPECT_NE(victim_.queue_pair->state(), QueuePairState::kReady);
}

TEST_F(TwoSocketsTest, APeerThatGoesWhileAHelperReceivesIsLost) {
  SoftSide large(nic_.get(), 1 << 20);
  IntroduceBoth();
  FrameHeader header = Write(1 << 20);
  header.address = large.region->address();
  header.remote_key = large.region->remote_key();
  peer_->Say(header, std::vector<uint8_t>(1000, 1));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return large.data()[999] == 1; }));
  peer_->HangUp();
  ASSERT_TRUE(BecomesBroken());
  for (int i = 0; i < 100; ++i) victim_.Poll();
}

SoftNicOptions ListeningAt(const std::string& address) {
  SoftNicOptions options;
  options.listen_address = address;
  return options;
}

class UnixPeerTest : public HostilePeerTest {
 protected:
  UnixPeerTest() : HostilePeerTest(ListeningAt("unix:")) {}
};

// A frame of which the socket, whose buffer is small, has taken a part.
TEST_F(UnixPeerTest, EarlyAckDoesNotFreeAFrameThatIsStillBeingSent) {
  AcknowledgeEarly(kMaxFrameBytes);
}

TEST_F(UnixPeerTest, AnAnswerToAReadThatHasNotLeftIsNotTaken) {
  Introduce();
  SoftSide large(nic_.get(), 500 << 10);  // More than the socket holds.
  const Entry from = {large.region->address(), large.region->bytes(), large.region->local_key()};
  const Entry to = {victim_.region->address(), 8, victim_.region->local_key()};
  SendWork works[2];
  works[0].entries = absl::MakeConstSpan(&from, 1);
  works[1].op = SendOp::kRead;
  works[1].entries = absl::MakeConstSpan(&to, 1);
  ASSERT_TRUE(victim_.queue_pair->PostSend(works).ok());
  FrameHeader answer;
  answer.type = FrameType::kReadResponse;
  answer.sequence = 1;
  answer.total = answer.bytes = 8;
  peer_->Say(answer, std::vector<uint8_t>(8, 99));
  ASSERT_TRUE(BecomesBroken());
  EXPECT_NE(victim_.data()[0], 99);
}

// More than the sockets hold; and the peer reads nothing, but says that it has it.
TEST_F(HostilePeerTest, EarlyAckDoesNotFreeAMessageThatIsStillBeingSent) {
  AcknowledgeEarly(32 << 20);
}

TEST_F(HostilePeerTest, RegionRevokedBetweenTwoPiecesIsNotWritten) {
  Introduce();
  std::vector<uint8_t> header(kFrameHeaderBytes);
  EncodeFrameHeader(Write(60000), header.data());
  header.insert(header.end(), 30000, uint8_t{1});
  peer_->SayBytes(header);
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.data()[29999] == 1; }));
  victim_.region.reset();
  memset(victim_.data(), 0, 60000);
  peer_->SayBytes(std::vector<uint8_t>(30000, 1));
  ASSERT_TRUE(BecomesBroken());
  for (int i = 0; i < 60000; ++i) ASSERT_EQ(victim_.data()[i], 0);
  const auto error = Hear();
  EXPECT_EQ(error->type, FrameType::kError);
  EXPECT_EQ(error->immediate, static_cast<uint32_t>(WireError::kRemoteAccess));
}

// It says why it goes, behind what the frame before still lacks.
TEST_F(HostilePeerTest, ARefusalArrivesThroughAFullSocket) {
  Introduce();
  SoftSide large(nic_.get(), 64 << 20);
  const Entry from = {large.region->address(), large.region->bytes(), large.region->local_key()};
  SendWork work;
  work.entries = absl::MakeConstSpan(&from, 1);
  ASSERT_TRUE(victim_.queue_pair->PostSend(absl::MakeConstSpan(&work, 1)).ok());
  for (int i = 0; i < 100; ++i) victim_.Poll();
  FrameHeader wrong = Write(8);
  wrong.remote_key ^= 1;
  peer_->Say(wrong, std::vector<uint8_t>(8));
  ASSERT_TRUE(BecomesBroken());
  peer_->SayBytes({1, 2, 3});  // When this is thrown away, there is no room yet.
  for (int i = 0; i < 100; ++i) victim_.Poll();
  uint64_t bytes = 0;
  auto heard = Hear();
  for (; heard.has_value() && heard->type != FrameType::kError; heard = Hear()) {
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return !peer_->HearBytes(heard->bytes).empty(); }));
    bytes += heard->bytes;
  }
  ASSERT_TRUE(heard.has_value());
  EXPECT_LT(bytes, large.region->bytes()) << "the socket has room for all";
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return peer_->Closed(); }));
}

// It has said its last word, and reads nothing more.
TEST_F(HostilePeerTest, APeerThatHasEndedIsNotWaitedFor) {
  int most = 0;
  for (Deaf scout(nic_.get()); scout.Write();) ++most;
  QueuePairOptions options = SoftSide::UsualOptions();
  options.ends_when_left = true;
  Introduce(0, options);
  victim_.remote = victim_.region.get();  // Any, since nobody reads it.
  for (int i = 0; i < most * 2 / 3; ++i) {
    ASSERT_TRUE(victim_.PostWrite(Deaf::kBytes).ok());
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() > size_t(i); }));
  }
  peer_->EndSending();
  const auto began = std::chrono::steady_clock::now();
  victim_.queue_pair.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(700));
}

TEST_F(HostilePeerTest, MoreReadsThanAgreedAreRefused) {
  Introduce();
  // Large enough for the first to be unanswered when the last comes.
  SoftSide large(nic_.get(), 64 << 20);
  FrameHeader read;
  read.type = FrameType::kRead;
  read.address = large.region->address();
  read.remote_key = large.region->remote_key();
  read.total = large.region->bytes();
  for (uint32_t i = 0; i <= nic_->limits().max_reads_in_flight; ++i) {
    read.sequence = i;
    peer_->Say(read);
  }
  EXPECT_TRUE(BecomesBroken());
}

// Else who always has something to read from us would never hear of anything else.
TEST_F(HostilePeerTest, WhatWeSendTakesTurnsWithTheAnswerToARead) {
  Introduce();
  SoftSide large(nic_.get(), 64 << 20);
  FrameHeader read;
  read.type = FrameType::kRead;
  read.address = large.region->address();
  read.remote_key = large.region->remote_key();
  read.total = large.region->bytes();
  peer_->Say(read);
  for (int i = 0; i < 100; ++i) victim_.Poll();
  ASSERT_TRUE(victim_.PostWrite(8).ok());
  uint64_t answered = 0;
  for (auto heard = Hear(); heard->type != FrameType::kWrite; heard = Hear()) {
    ASSERT_EQ(heard->type, FrameType::kReadResponse);
    answered += heard->bytes;
    ASSERT_LT(answered, read.total) << "nothing of ours comes before the end of the answer";
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return !peer_->HearBytes(heard->bytes).empty(); }));
  }
  EXPECT_GT(answered, 0u);
}

TEST_F(HostilePeerTest, PeerThatNeverAnswersIsLostInTime) {
  QueuePairOptions options = SoftSide::UsualOptions();
  options.ack_timeout = 13;  // 33 ms
  options.retry_count = 2;
  Introduce(0, options);
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(victim_.PostWrite(10).ok());
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() == 1; }));
  EXPECT_EQ(victim_.done[0].status, CompletionStatus::kRetryExceeded);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(100));
  EXPECT_LE(absl::Now() - begin, absl::Seconds(5)) << "the machine may be busy, but not so";
}

TEST_F(HostilePeerTest, AnswerCarriesTheAcknowledgement) {
  Introduce(4);
  FrameHeader header = Write(8);
  header.has_immediate = true;
  for (uint32_t round = 0; round < 10; ++round) {
    header.sequence = round;
    header.executed = round;
    peer_->Say(header, std::vector<uint8_t>(8));
    victim_.done.clear();
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return !victim_.done.empty(); }));
    EXPECT_EQ(victim_.done[0].op, CompletionOp::kReceiveWriteImmediate);
    victim_.PostReceives(1);
    ASSERT_TRUE(victim_.PostWrite(8).ok());
    // One frame comes back, and it says everything.
    const auto answer = Hear();
    EXPECT_EQ(answer->type, FrameType::kWrite);
    EXPECT_EQ(answer->executed, round + 1);
    EXPECT_EQ(peer_->HearBytes(8).size(), 8u);
    for (int i = 0; i < 100; ++i) victim_.Poll();
    EXPECT_TRUE(peer_->HearBytes(1).empty());
  }
}

TEST_F(HostilePeerTest, AcknowledgementDoesNotWaitForEver) {
  Introduce(2);
  FrameHeader header = Write(8);
  header.has_immediate = true;
  peer_->Say(header, std::vector<uint8_t>(8));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() == 1; }));
  // No answer by this side's user: the next turn pays.
  victim_.Poll();
  EXPECT_EQ(Hear()->executed, 1u);
  // Nor is there a next turn when it goes to sleep.
  header.sequence = 1;
  peer_->Say(header, std::vector<uint8_t>(8));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return victim_.done.size() == 2; }));
  ASSERT_TRUE(victim_.completions->Arm().ok());
  absl::optional<FrameHeader> ack;
  for (int i = 0; i < 1000 && !ack.has_value(); ++i) {
    ack = peer_->HearHeader();
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_TRUE(ack.has_value());
  EXPECT_EQ(ack->executed, 2u);
}

TEST_F(HostilePeerTest, ReceivesPostedWhileArmedAreAnnounced) {
  Introduce();
  ASSERT_TRUE(victim_.completions->Arm().ok());
  victim_.PostReceives(3);
  absl::optional<FrameHeader> credit;
  for (int i = 0; i < 1000 && !credit.has_value(); ++i) {
    credit = peer_->HearHeader();
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_TRUE(credit.has_value());
  EXPECT_GE(credit->receives, 1u);
}

class ManualClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns.load(); }
  std::atomic<int64_t> now_ns{1'000'000'000};
};

struct HasClock {
  ManualClock clock_;
};

class PatienceTest : protected HasClock, public HostilePeerTest {
 protected:
  PatienceTest() : HostilePeerTest(Options(&clock_)) {}

  // Looks at its timers several times, and time passes meanwhile.
  void Pass(absl::Duration duration) {
    for (int i = 0; i < 10; ++i) {
      clock_.now_ns += absl::ToInt64Nanoseconds(duration) / 10;
      for (int turn = 0; turn < 40; ++turn) victim_.Poll();
    }
  }
  // Whether it comes to a turn after which nothing wakes it.
  bool FallsAsleep() {
    for (int wakings = 0; wakings < 20; ++wakings) {
      for (int turn = 0; turn < 40; ++turn) victim_.Poll();
      EXPECT_TRUE(victim_.completions->Arm().ok());
      pollfd news = {victim_.completions->event_fd(), POLLIN, 0};
      if (poll(&news, 1, 20) == 0) return true;
    }
    return false;
  }

 private:
  static SoftNicOptions Options(const Clock* clock) {
    SoftNicOptions options;
    options.clock = clock;
    options.rnr_timer = absl::Milliseconds(10);
    options.handshake_timeout = absl::Seconds(1);
    return options;
  }
};

TEST_F(PatienceTest, EachReceiveIsWaitedForAnew) {
  QueuePairOptions options = SoftSide::UsualOptions();
  options.rnr_retry_count = 6;  // 70 ms in all.
  Introduce(0, options);
  ASSERT_TRUE(victim_.PostWrite(8, SendOp::kWriteWithImmediate).ok());
  FrameHeader credit;
  for (uint32_t i = 0; i < 20; ++i) {
    // Whenever it looks, something waits; but never the same for long.
    ASSERT_TRUE(victim_.PostWrite(8, SendOp::kWriteWithImmediate).ok());
    Pass(absl::Milliseconds(50));
    credit.receives = i + 1;
    peer_->Say(credit);
    ASSERT_TRUE(Hear().has_value());
    peer_->ForgetWhatWasHeard();
    credit.executed = i + 1;
  }
  ASSERT_EQ(victim_.queue_pair->state(), QueuePairState::kReady);
  Pass(absl::Milliseconds(100));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return !victim_.done.empty(); }));
  EXPECT_EQ(victim_.queue_pair->state(), QueuePairState::kReady)
      << "an older work has not been answered";
  credit.executed = 20;
  peer_->Say(credit);
  ASSERT_TRUE(BecomesBroken());
  EXPECT_EQ(victim_.done.back().status, CompletionStatus::kReceiverNotReady);
  EXPECT_EQ(victim_.done.size(), 21u);
}

TEST_F(PatienceTest, AnythingHeardProlongsIt) {
  QueuePairOptions options = SoftSide::UsualOptions();
  options.ack_timeout = 13;
  options.retry_count = 2;  // 100 ms in all.
  Introduce(0, options);
  ASSERT_TRUE(victim_.PostWrite(8).ok());
  for (int i = 0; i < 10; ++i) {
    Pass(absl::Milliseconds(80));
    peer_->Say(FrameHeader());
    Pass(absl::Milliseconds(1));
  }
  EXPECT_EQ(victim_.queue_pair->state(), QueuePairState::kReady);
  Pass(absl::Milliseconds(130));
  EXPECT_NE(victim_.queue_pair->state(), QueuePairState::kReady);
  ASSERT_EQ(victim_.done.size(), 1u);
  EXPECT_EQ(victim_.done[0].status, CompletionStatus::kRetryExceeded);
}

// In exactly a second, which is nothing but seconds.
TEST_F(PatienceTest, WhoSleepsIsWokenToSeeAStrangerOff) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  HostilePeer stranger(address_);
  pollfd news = {victim_.completions->event_fd(), POLLIN, 0};
  do {
    for (int turn = 0; turn < 40; ++turn) victim_.Poll();
    ASSERT_TRUE(victim_.completions->Arm().ok());
  } while (poll(&news, 1, 0) > 0);
  clock_.now_ns += 1'000'000'000;
  EXPECT_EQ(poll(&news, 1, 20'000), 1) << "it sleeps on";
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return nic_->counters().handshakes_timed_out == 1; }));
  EXPECT_TRUE(FallsAsleep()) << "what has rung rings on";
}

// Whoever knocks meanwhile is let in later, and keeps nobody awake until then.
TEST_F(PatienceTest, ItListensAgainAfterDescriptorsRanOut) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address()).ok());
  // UBSan takes descriptors to look at an object whose type it meets for the first time.
  EXPECT_TRUE(FallsAsleep());
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const int free = socket(AF_INET, SOCK_STREAM, 0);
  close(free);
  const rlimit one_more = {static_cast<rlim_t>(free + 1), files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  peer_ = std::make_unique<HostilePeer>(address_);  // Takes it.
  peer_->Say(HostilePeer::HelloFor(address_));
  EXPECT_TRUE(FallsAsleep());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  clock_.now_ns += 100'000'000;
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return peer_->HearHello().has_value(); }));
}

TEST_F(PatienceTest, IdleQueuePairWaitsForNobody) {
  Introduce();
  Pass(absl::Hours(10));
  EXPECT_EQ(victim_.queue_pair->state(), QueuePairState::kReady);
}

// Here no time passes in which it would be given up.
TEST_F(PatienceTest, ARefusalIsTheLastWord) {
  Introduce();
  FrameHeader header = Write(8);
  header.remote_key ^= 1;
  peer_->Say(header, std::vector<uint8_t>(8));
  ASSERT_TRUE(BecomesBroken());
  ASSERT_EQ(Hear()->type, FrameType::kError);
  EXPECT_TRUE(PollUntil({&victim_}, [&] { return peer_->Closed(); }));
}

// It reads the last word, and keeps its end open.
TEST_F(PatienceTest, WhoWasRefusedAndStaysIsSeenOffInTime) {
  Introduce();
  FrameHeader header = Write(8);
  header.remote_key ^= 1;
  peer_->Say(header, std::vector<uint8_t>(8));
  ASSERT_TRUE(BecomesBroken());
  ASSERT_EQ(Hear()->type, FrameType::kError);
  const int descriptors = OpenDescriptors();
  Pass(absl::Seconds(2));
  EXPECT_EQ(OpenDescriptors(), descriptors - 1);
  EXPECT_TRUE(FallsAsleep()) << "its time is over again and again";
}

TEST_F(PatienceTest, ThoseWhoComeToNothingAreLetInOnlySoFast) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  constexpr int kStrangers = 40;
  std::vector<std::unique_ptr<HostilePeer>> strangers;
  for (int i = 0; i < kStrangers; ++i) {
    strangers.push_back(std::make_unique<HostilePeer>(address_));
    strangers.back()->SayBytes(std::vector<uint8_t>(kHelloBytes, 'x'));
  }
  const auto errors = [this] { return nic_->counters().protocol_errors; };
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return errors() >= 16; }));
  for (int i = 0; i < 1000; ++i) victim_.Poll();
  EXPECT_LT(errors(), uint64_t{kStrangers});
  ASSERT_TRUE(PollUntil({&victim_}, [&] {
    clock_.now_ns += 1'000'000;
    return errors() == kStrangers;
  }));
}

class OtherNetworkTest : public HostilePeerTest {
 protected:
  OtherNetworkTest() : HostilePeerTest(ListeningAt("127.0.0.2:0")) {}
};

// The kernel knows from which address a peer is reached; of several networks each has its own.
TEST_F(OtherNetworkTest, WhoHasOneAddressDialsFromAny) {
  LetItDial();
  const Fd fd = AcceptItsDial();
  sockaddr_in from{};
  socklen_t size = sizeof(from);
  ASSERT_EQ(getpeername(fd.get(), reinterpret_cast<sockaddr*>(&from), &size), 0);
  EXPECT_EQ(ntohl(from.sin_addr.s_addr), INADDR_LOOPBACK);
}

class StrangersTest : public HostilePeerTest {
 protected:
  static SoftNicOptions Options() {
    SoftNicOptions options;
    options.handshake_timeout = absl::Milliseconds(600);
    options.max_pending_handshakes = 8;
    return options;
  }
  StrangersTest() : HostilePeerTest(Options()) {}
};

TEST_F(StrangersTest, SilentOnesBlockNobodyAndAreSeenOff) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  ASSERT_TRUE(victim_.queue_pair->Connect(HostilePeer::Address()).ok());
  std::vector<std::unique_ptr<HostilePeer>> strangers;
  for (int i = 0; i < 50; ++i) {
    strangers.push_back(std::make_unique<HostilePeer>(address_));
    if (i % 2 == 0) strangers.back()->SayBytes({'T', 'R', 'Y'});
  }
  const int descriptors = OpenDescriptors();
  for (int i = 0; i < 20; ++i) victim_.Poll();
  EXPECT_LE(OpenDescriptors(), descriptors + 8);
  const absl::Time begin = absl::Now();
  peer_ = std::make_unique<HostilePeer>(address_);
  peer_->Say(HostilePeer::HelloFor(address_));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return peer_->HearHello().has_value(); }));
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(600)) << "it has waited for the strangers";
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return strangers.back()->Closed(); }));
  EXPECT_EQ(nic_->counters().handshakes_timed_out, 50u);
}

// While there are few lanes each turn tries them. When a stranger ends that, one that is full must
// be heard of nevertheless.
TEST_F(HostilePeerTest, AFullSocketIsHeardOfBesideAStranger) {
  Introduce();
  for (int i = 0; i < 10; ++i) victim_.Poll();
  SoftSide large(nic_.get(), 1'000'000);  // A larger one would be cut.
  const Entry from = {large.region->address(), large.region->bytes(), large.region->local_key()};
  std::vector<SendWork> works(30);  // More than the socket holds.
  for (SendWork& work : works) work.entries = absl::MakeConstSpan(&from, 1);
  ASSERT_TRUE(victim_.queue_pair->PostSend(works).ok());
  for (int i = 0; i < 100; ++i) victim_.Poll();
  const HostilePeer stranger(address_);
  for (int i = 0; i < 1000; ++i) victim_.Poll();
  uint64_t bytes = 0;
  while (bytes < works.size() * from.bytes) {
    const auto heard = Hear();
    ASSERT_TRUE(heard.has_value()) << bytes << " bytes came";
    ASSERT_TRUE(PollUntil({&victim_}, [&] { return !peer_->HearBytes(heard->bytes).empty(); }));
    bytes += heard->bytes;
  }
  EXPECT_EQ(nic_->counters().handshakes_timed_out, 0u) << "the stranger has gone before";
}

class TlsTest : public HostilePeerTest {
 protected:
  static SoftNicOptions Options() {
    SoftNicOptions options;
    options.tls = true;
    return options;
  }
  TlsTest() : HostilePeerTest(Options()) {}
};

TEST_F(TlsTest, OneSideAloneIsRefused) {
  const auto plain = MustOpenSoftNic();
  SoftSide other(plain.get());
  other.OpenQueuePair();
  victim_.OpenQueuePair();
  EXPECT_EQ(victim_.queue_pair->Connect(other.queue_pair->LocalAddress()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(other.queue_pair->Connect(victim_.queue_pair->LocalAddress()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TlsTest, PlainCallerIsRefusedEvenWithTheToken) {
  victim_.OpenQueuePair();
  address_ = victim_.queue_pair->LocalAddress();
  HostilePeer caller(address_);
  caller.Say(HostilePeer::HelloFor(address_));
  ASSERT_TRUE(PollUntil({&victim_}, [&] {
    caller.ForgetWhatWasHeard();  // An alert.
    return caller.Closed();
  }));
  EXPECT_EQ(nic_->counters().tokens_refused, 1u);
  EXPECT_EQ(nic_->counters().connections_accepted, 0u);
}

TEST_F(TlsTest, CallerWithAnotherKeyIsRefused) {
  victim_.OpenQueuePair();
  const auto tls = SoftTls::Create();
  ASSERT_TRUE(tls.ok()) << tls.status();
  SoftAddress address = *DecodeSoftAddress(victim_.queue_pair->LocalAddress());
  const Fd fd = SocketAddress::Parse(address.listener)->Dial();
  address.token[0] ^= 1;
  const auto session = (*tls)->Dial(fd.get(), address.number, address.token);
  uint8_t byte = 0;
  const iovec piece = {&byte, 1};
  ASSERT_TRUE(
      PollUntil({&victim_}, [&] { return session->Send(&piece, 1) < 0 && errno != EAGAIN; }));
  EXPECT_EQ(nic_->counters().tokens_refused, 1u);
}

// Somebody on the wire puts bytes behind those of a peer that was let in.
TEST_F(TlsTest, ARecordThatThePeerHasNotMadeEndsTheConnection) {
  victim_.OpenQueuePair();
  SoftAddress ours;  // Its token is the smallest that there is, so we dial.
  ours.number = HostilePeer::kNumber;
  ours.tls = true;
  ours.listener = "127.0.0.1:1";
  ASSERT_TRUE(victim_.queue_pair->Connect(EncodeSoftAddress(ours)).ok());
  const std::string address = victim_.queue_pair->LocalAddress();
  const SoftAddress to = *DecodeSoftAddress(address);
  const auto tls = SoftTls::Create();
  ASSERT_TRUE(tls.ok()) << tls.status();
  const Fd fd = SocketAddress::Parse(to.listener)->Dial();
  const auto session = (*tls)->Dial(fd.get(), to.number, to.token);
  uint8_t hello[kHelloBytes];
  EncodeHello(HostilePeer::HelloFor(address), hello);
  const iovec piece = {hello, kHelloBytes};
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return session->Send(&piece, 1) > 0; }));
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return session->Receive(&piece, 1) > 0; }));
  EXPECT_EQ(nic_->counters().connections_accepted, 1u);
  const std::string forged = std::string("\x17\x03\x03\x00\x40", 5) + std::string(64, 'x');
  ASSERT_EQ(send(fd.get(), forged.data(), forged.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(forged.size()));
  ASSERT_TRUE(PollUntil({&victim_},
                        [&] { return victim_.queue_pair->state() == QueuePairState::kDrained; }));
  EXPECT_EQ(nic_->counters().protocol_errors, 1u);
}

TEST_F(TlsTest, NothingCrossesTheWireInTheClear) {
  LetItDial(/*tls=*/true);
  const Fd fd = AcceptItsDial();
  std::string heard(4096, '\0');
  ssize_t got = -1;
  ASSERT_TRUE(PollUntil({&victim_}, [&] {
    got = recv(fd.get(), &heard[0], heard.size(), MSG_DONTWAIT);
    return got > 0;
  }));
  heard.resize(static_cast<size_t>(got));
  EXPECT_EQ(heard[0], 0x16) << "a TLS handshake";
  EXPECT_EQ(heard.find(std::string(16, '\xff')), std::string::npos);
}

TEST_F(TlsTest, WhoWaitsForTheAnswerToItsDialSleeps) {
  LetItDial(/*tls=*/true);
  const Fd fd = AcceptItsDial();
  char byte;
  ASSERT_TRUE(PollUntil({&victim_}, [&] { return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 1; }));
  ASSERT_TRUE(victim_.completions->Arm().ok());
  victim_.Poll();
  pollfd news = {victim_.completions->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&news, 1, 0), 0);
}

// The answer to READs must not be read from memory that is deregistered meanwhile, by
// whatever thread.
TEST(SoftNicThreadsTest, RegionGoesWhileItIsWrittenAndRead) {
  const auto nic = MustOpenSoftNic();
  for (int round = 0; round < 30; ++round) {
    SoftSide a(nic.get(), 1 << 20);
    SoftSide b(nic.get(), 1 << 20);
    a.OpenQueuePair();
    b.OpenQueuePair();
    ConnectSides(&a, &b);
    std::vector<uint8_t> target(1 << 20);
    auto region = nic->RegisterRegion(target.data(), target.size(), kRemoteWrite | kRemoteRead);
    ASSERT_TRUE(region.ok());
    a.remote = region->get();
    memset(a.data(), 1, 1 << 20);
    for (int i = 0; i < 16; ++i) {
      ASSERT_TRUE(a.PostWrite(1 << 20, i % 2 == 0 ? SendOp::kWrite : SendOp::kRead).ok());
    }
    std::atomic<bool> stop{false};
    std::thread poller([&] {
      while (!stop.load()) {
        a.Poll();
        b.Poll();
      }
    });
    absl::SleepFor(absl::Microseconds(100 * round));
    region->reset();
    // Ours alone from here on: TSan sees whoever still touches it.
    memset(target.data(), 2, target.size());
    absl::SleepFor(absl::Milliseconds(1));
    for (uint8_t byte : target) ASSERT_EQ(byte, 2);
    stop.store(true);
    poller.join();
  }
}

const auto* const kReached = ::testing::AddGlobalTestEnvironment(new GuardsReached("soft: ", 10));

TEST(SoftReceiveRingTest, ReceivesComeInTheirOrderEachWithItsEntries) {
  QueuePairOptions options;
  options.receive_depth = 2;
  options.max_entries = 2;
  SoftReceiveRing ring(options);
  const std::vector<Entry> three(3);
  EXPECT_TRUE(absl::IsInvalidArgument(ring.Check({ReceiveWork{1, three}})));
  for (uint64_t turn = 0; turn < 3; ++turn) {  // Its places are used again.
    EXPECT_TRUE(ring.empty());
    const std::vector<Entry> two = {{0, 3, 7}, {0, 4, 8}};
    const std::vector<Entry> one = {{0, 5, 9}};
    const std::vector<ReceiveWork> works = {{10 + turn, two}, {20 + turn, one}};
    ASSERT_TRUE(ring.Check(works).ok());
    for (const ReceiveWork& work : works) ring.Post(work);
    EXPECT_EQ(ring.posted(), 2 * turn + 2);
    EXPECT_EQ(ring.oldest_bytes(), 7u);
    ASSERT_EQ(ring.oldest_entries().size(), 2u);
    EXPECT_EQ(ring.TakeOldest(), 10 + turn);
    EXPECT_EQ(ring.oldest_bytes(), 5u);
    ASSERT_EQ(ring.oldest_entries().size(), 1u);
    EXPECT_FALSE(ring.empty());
    EXPECT_EQ(ring.TakeOldest(), 20 + turn);
    EXPECT_EQ(ring.used(), 2 * turn + 2);
  }
}

// The NIC refuses posts above these limits, so that a lower one would break programs.
TEST(SoftNicLimitsTest, AreAsTheyWere) {
  const NicLimits limits = DefaultSoftNicLimits();
  EXPECT_EQ(limits.max_message_bytes, uint64_t{1} << 30);
  EXPECT_EQ(limits.max_entries, 32u);
  EXPECT_EQ(limits.max_inline_bytes, 1024u);
  EXPECT_EQ(limits.max_send_depth, 16384u);
  EXPECT_EQ(limits.max_receive_depth, 16384u);
  EXPECT_EQ(limits.max_completion_depth, 1u << 22);
  EXPECT_EQ(limits.max_reads_in_flight, 16u);
  EXPECT_TRUE(limits.renews_keys);
}

}  // namespace
}  // namespace tryst
