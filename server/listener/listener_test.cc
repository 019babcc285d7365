#include "server/listener/listener.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/failing_call.h"
#include "gtest/gtest.h"

// The name "both" leads to two addresses of this host.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* wanted,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || strcmp(host, "both") != 0) return real(host, port, wanted, found);
  const int error = real("127.0.0.1", port, wanted, found);
  return error != 0 ? error : real("127.0.0.2", port, wanted, &(*found)->ai_next);
}

// How often there was no descriptor to accept with, and when at first and the third time.
static std::atomic<int> refusals{0};
static std::atomic<int64_t> first_refusal_ns{0}, third_refusal_ns{0};

extern "C" int accept4(int listener, sockaddr* peer, socklen_t* length, int flags) {
  static const auto real = reinterpret_cast<decltype(&accept4)>(dlsym(RTLD_NEXT, "accept4"));
  const int fd = real(listener, peer, length, flags);
  if (fd >= 0 || errno != EMFILE) return fd;
  const int refused = ++refusals;
  if (refused == 1) first_refusal_ns = tryst::SteadyClock().NowNs();
  if (refused == 3) third_refusal_ns = tryst::SteadyClock().NowNs();
  errno = EMFILE;
  return fd;
}

namespace tryst {
namespace {

OwnedFd Dial(int port) {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return OwnedFd();
  return fd;
}

template <typename Condition>
bool Soon(Condition condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

// Takes connections as gRPC does: it reads until the end, then closes.
class Reader {
 public:
  void Take(int fd) {
    MutexLock lock(&mu_);
    threads_.emplace_back([fd] {
      OwnedFd owned(fd);
      char bytes[4096];
      for (;;) {
        const ssize_t got = read(owned.get(), bytes, sizeof(bytes));
        if (got == 0 || (got < 0 && errno != EAGAIN)) return;
        if (got < 0) absl::SleepFor(absl::Milliseconds(1));
      }
    });
  }
  ~Reader() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  Mutex mu_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

bool IsClosed(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EINTR);
}

class ListenerTest : public testing::Test {
 protected:
  void Start(ConnectionLimits limits) {
    auto listener = Listener::Open("127.0.0.1:0", limits);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    listener_->Start([this](int, int fd) { reader_.Take(fd); });
  }
  // The peer's name as gRPC gives it to a handler.
  static std::string PeerOf(const OwnedFd& ours) {
    sockaddr_storage own = {};
    socklen_t length = sizeof(own);
    getsockname(ours.get(), reinterpret_cast<sockaddr*>(&own), &length);
    return absl::StrCat("ipv4:", AddressText(own));
  }

  Reader reader_;
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, EndsThoseWhoDoNotSayWhoTheyAre) {
  ConnectionLimits limits;
  limits.stranger_ns = 200'000'000;
  Start(limits);
  const OwnedFd silent = Dial(listener_->port());
  const OwnedFd member = Dial(listener_->port());
  ASSERT_TRUE(Soon([&] { return listener_->counts().open == 2; }));
  listener_->Authenticated(PeerOf(member));
  EXPECT_TRUE(Soon([&] { return IsClosed(silent.get()); }));
  EXPECT_FALSE(IsClosed(member.get()));
  EXPECT_TRUE(Soon([&] { return listener_->counts().open == 1; }));
}

TEST_F(ListenerTest, AQuietOneUsesNoProcessor) {
  Start(ConnectionLimits());
  const auto used = [] {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
  };
  const absl::Duration before = used();
  absl::SleepFor(absl::Seconds(1));
  EXPECT_LT(used() - before, absl::Milliseconds(20));
}

TEST_F(ListenerTest, EndsAFloodAndNotItsNeighbour) {
  Start(ConnectionLimits());
  const OwnedFd quiet = Dial(listener_->port());
  const OwnedFd flood = Dial(listener_->port());
  const std::vector<char> bytes(64 << 10);
  EXPECT_TRUE(Soon([&] {
    return send(flood.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
           errno != EAGAIN;
  }));
  EXPECT_EQ(listener_->counts().flooded, 1u);
  EXPECT_FALSE(IsClosed(quiet.get()));
}

TEST_F(ListenerTest, ShortConnectionsFloodToo) {
  Start(ConnectionLimits());
  const std::vector<char> bytes(60 << 10);
  EXPECT_TRUE(Soon([&] {
    const OwnedFd fd = Dial(listener_->port());
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd.get(), SHUT_WR);
    return listener_->counts().flooded > 0;
  }));
}

// The first is held back, and unread, when the second floods: then the first has sent too much for
// a host that floods, and its sender hears of the end although it is held back.
TEST_F(ListenerTest, EndsOneThatIsHeldBack) {
  ConnectionLimits limits;
  limits.burst_bytes = 48 << 10;
  limits.stranger_bytes = 60 << 10;
  auto listener = Listener::Open("127.0.0.1:0", limits);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::vector<OwnedFd> unread;
  listener_ = *std::move(listener);
  listener_->Start([&](int, int fd) { unread.emplace_back(fd); });
  const OwnedFd held = Dial(listener_->port());
  const OwnedFd flood = Dial(listener_->port());
  const std::vector<char> bytes(128 << 10);
  ASSERT_EQ(send(held.get(), bytes.data(), 56 << 10, MSG_NOSIGNAL), 56 << 10);
  ASSERT_TRUE(Soon([&] { return listener_->counts().held_back == 1; }));
  send(flood.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  for (const OwnedFd* peer : {&flood, &held}) {
    EXPECT_TRUE(Soon([&] {
      return send(peer->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
             errno != EAGAIN;
    }));
  }
  EXPECT_EQ(listener_->counts().flooded, 2u);
  listener_->Stop();
}

// A large first message arrives all the same, and at once where its sender has authenticated.
TEST_F(ListenerTest, HoldsBackWhoSaysMuchAtOnce) {
  ConnectionLimits limits;
  limits.burst_bytes = 48 << 10;  // What even a busy machine takes in a tenth of a second.
  limits.stranger_ns = 60'000'000'000;
  Start(limits);
  const OwnedFd stranger = Dial(listener_->port());
  const OwnedFd member = Dial(listener_->port());
  const std::vector<char> bytes(600 << 10);
  ASSERT_TRUE(Soon([&] { return listener_->counts().open == 2; }));
  std::thread says([&] {
    EXPECT_EQ(send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  });
  EXPECT_TRUE(Soon([&] { return listener_->counts().held_back > 0; }));
  says.join();
  EXPECT_TRUE(Soon([&] {
    int unacknowledged = 0;
    return ioctl(stranger.get(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
  }));
  listener_->Authenticated(PeerOf(member));
  const uint64_t before = listener_->counts().held_back;
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(send(member.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  EXPECT_EQ(listener_->counts().held_back, before);
  EXPECT_EQ(listener_->counts().flooded, 0u);
}

TEST_F(ListenerTest, ForgetsWhoHasGone) {
  Start(ConnectionLimits());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Dial(listener_->port()).valid());
  EXPECT_TRUE(Soon([&] {
    const ConnectionCounts counts = listener_->counts();
    return counts.accepted == 50 && counts.open == 0;
  }));
}

// gRPC may take connections more slowly than strangers open and leave them.
TEST_F(ListenerTest, KeepsNoDescriptorOfWhoHasGoneBeforeItWasDelivered) {
  auto listener = Listener::Open("127.0.0.1:0", ConnectionLimits());
  ASSERT_TRUE(listener.ok()) << listener.status();
  listener_ = *std::move(listener);
  absl::Notification taken;
  absl::Notification go_on;
  listener_->Start([&](int, int fd) {
    if (!taken.HasBeenNotified()) {
      taken.Notify();
      go_on.WaitForNotification();
    }
    reader_.Take(fd);
  });
  const OwnedFd first = Dial(listener_->port());
  taken.WaitForNotification();
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(Dial(listener_->port()).valid());
  EXPECT_TRUE(Soon([&] {
    const ConnectionCounts counts = listener_->counts();
    return counts.accepted == 51 && counts.open == 1;
  }));
  EXPECT_EQ(OpenDescriptors(), before);
  go_on.Notify();
  listener_->Stop();
}

TEST_F(ListenerTest, ComesBackAfterDescriptorsRanOut) {
  ConnectionLimits limits;
  limits.stranger_ns = 3'600'000'000'000;  // Nothing else wakes it.
  Start(limits);
  const OwnedFd before = Dial(listener_->port());
  ASSERT_TRUE(Soon([&] { return listener_->counts().open == 1; }));
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  // The clients use up the remaining descriptors, so that none is left to accept with.
  const OwnedFd one = OwnedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const rlimit none = {static_cast<rlim_t>(one.get() + 2), files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const OwnedFd waits = Dial(listener_->port());
  ASSERT_TRUE(waits.valid());
  // Meanwhile a listening socket that waits keeps nobody awake.
  const bool rested = Soon([] { return third_refusal_ns != 0; });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_TRUE(rested);
  EXPECT_GT(listener_->counts().listener_rests, 0u);
  EXPECT_GT(third_refusal_ns - first_refusal_ns, 190'000'000) << "two rests";
  const OwnedFd after = Dial(listener_->port());
  EXPECT_TRUE(Soon([&] { return listener_->counts().open >= 2; }));
  EXPECT_FALSE(IsClosed(after.get()));
}

TEST(ListeningSockets, PeersHaveOneSpelling) {
  EXPECT_EQ(AddressTextOfPeer("ipv4:127.0.0.1:80"), "127.0.0.1:80");
  EXPECT_EQ(AddressTextOfPeer("ipv6:%5B::1%5D:80"), "[::1]:80");
  EXPECT_EQ(AddressTextOfPeer("ipv6:[::1]:80"), "[::1]:80");
  EXPECT_EQ(AddressTextOfPeer("ipv6:%5Bfe80::1%253%5D:80"), "[fe80::1]:80");
  EXPECT_EQ(AddressTextOfPeer("ipv4:127.0.0.1%253:80"), "127.0.0.1%3:80");
  EXPECT_EQ(AddressTextOfPeer("nonsense"), "");
  EXPECT_EQ(HostPart("[::1]:80"), "[::1]");
}

TEST(ListeningSockets, APortIsTakenOnce) {
  const auto first = ListenOn("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const auto second = ListenOn(absl::StrCat("127.0.0.1:", first->port));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(ListenOn("no.such.host.invalid:0").ok());
  const auto every = ListenOn("0.0.0.0:0");
  ASSERT_TRUE(every.ok()) << every.status();
  EXPECT_TRUE(Dial(every->port).valid());
}

// Peers are told of one port.
TEST(ListeningSockets, AllAddressesOfANameHaveOnePort) {
  const auto both = ListenOn("both:0");
  ASSERT_TRUE(both.ok()) << both.status();
  ASSERT_EQ(both->sockets.size(), 2u);
  for (const OwnedFd& one : both->sockets) {
    sockaddr_in own = {};
    socklen_t length = sizeof(own);
    ASSERT_EQ(getsockname(one.get(), reinterpret_cast<sockaddr*>(&own), &length), 0);
    EXPECT_EQ(ntohs(own.sin_port), both->port);
  }
}

// Two of which neither listened yet may have bound the same port.
TEST(ListeningSockets, APortOnWhichAnotherBeganToListenMeanwhileIsUnavailable) {
  absl::Status status;
  if (!RunWhereCallFails(SYS_listen, EADDRINUSE,
                         [&status] { status = ListenOn("127.0.0.1:0").status(); })) {
    GTEST_SKIP() << "needs seccomp filters";
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(ListeningSockets, ConnectionsStayBelowTheDescriptors) {
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit few = {256, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const ConnectionLimits limits = WithinDescriptors(ConnectionLimits());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(limits.connections, 64u);
  EXPECT_LE(limits.strangers, limits.connections / 2);
}

}  // namespace
}  // namespace tryst
