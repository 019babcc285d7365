#include "server/security/why_unreachable.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/memory_bound.h"
#include "tests/doubles/server/test_certificates.h"

namespace {

std::atomic<int64_t> day_behind_s{0}, day_loses_s{0}, steady_ahead_s{0};
std::atomic<int> names_asked_for{0}, names_told{0};
std::atomic<bool> dns_is_down{true};

}  // namespace

// Nobody tells the name "slow" while DNS is down.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* wanted,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || strcmp(host, "slow") != 0) return real(host, port, wanted, found);
  ++names_asked_for;
  while (dns_is_down) usleep(1'000);
  const int failed = real("127.0.0.1", port, wanted, found);
  ++names_told;
  return failed;
}

// In place of the C library's, also for Abseil: each look at the clock of the day finds it set back
// by day_loses_s more.
extern "C" int clock_gettime(clockid_t clock, timespec* now) {
  const int failed = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME) now->tv_sec -= day_behind_s += day_loses_s;
  if (clock == CLOCK_MONOTONIC) now->tv_sec += steady_ahead_s;
  return failed;
}

namespace tryst {
namespace {

// While it lives, the clock of the day loses an hour at each look.
struct DayIsSetBack {
  DayIsSetBack() { day_loses_s = 3600; }
  ~DayIsSetBack() { day_loses_s = day_behind_s = steady_ahead_s = 0; }
};

// A port of the loopback at which nobody listens yet.
struct BoundPort {
  BoundPort() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  }
  ~BoundPort() { close(fd); }
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  std::string address;
};

TEST(WhyUnreachableTest, ASetBackClockOfTheDayMakesNobodyWait) {
  const DayIsSetBack set_back;
  const BoundPort silent;
  ASSERT_EQ(listen(silent.fd, 1), 0);
  EXPECT_EQ(
      WhyUnreachable("worker", silent.address, SecurityOptions(), "lab", absl::Milliseconds(50)),
      "");
}

TEST(UnreachablePeers, ASetBackClockOfTheDayDoesNotKeepWhatWasFound) {
  const DayIsSetBack set_back;
  const BoundPort port;
  UnreachablePeers peers(SecurityOptions(), "lab");
  const auto await = [&](bool reason) {
    for (int i = 0; i < 4000; ++i) {
      if (peers.Why("worker", port.address).empty() != reason) return true;
      usleep(5'000);
    }
    return false;
  };
  ASSERT_TRUE(await(true));
  ASSERT_EQ(listen(port.fd, 1), 0);
  steady_ahead_s = 6;
  EXPECT_TRUE(await(false));
}

TEST(UnreachablePeers, TheirEndDoesNotWaitForDns) {
  auto peers = std::make_unique<UnreachablePeers>(SecurityOptions(), "lab");
  peers->Why("worker", "slow:1");
  while (names_asked_for == 0) usleep(1'000);
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    peers.reset();
    ended = true;
  });
  for (int i = 0; i < 10'000 && !ended; ++i) usleep(1'000);
  EXPECT_TRUE(ended);
  dns_is_down = false;
  ends.join();
  while (names_told == 0) usleep(1'000);
}

// A process that lacks threads for a moment asks again later.
TEST(UnreachablePeers, WithoutAThreadNothingIsSeenYet) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends a process that has no more memory";
#endif
  const auto ask = [] {
    UnreachablePeers peers(SecurityOptions(), "lab");
    {
      const MemoryBound no_stack(4 << 20);
      if (!peers.Why("worker", "127.0.0.1:1").empty()) _exit(3);
    }
    for (int i = 0; i < 2000; ++i) {
      if (!peers.Why("worker", "127.0.0.1:1").empty()) _exit(0);
      usleep(5'000);
    }
    _exit(4);
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(0), "");
}

// Servers of later gRPCs end a handshake that offers no HTTP/2.
TEST(WhyUnreachableTest, TheGreetingOffersHttp2) {
  const std::string folder = testing::TempDir() + "/why_unreachable_test";
  mkdir(folder.c_str(), 0700);
  constexpr char kPs[] = "/job:ps/replica:0/task:0";
  TestAuthority().Write(folder, absl::StrCat("tryst://lab", kPs));
  SecurityOptions options;
  options.ca_file = folder + "/ca.pem";
  options.certificate_file = folder + "/cert.pem";
  options.key_file = folder + "/key.pem";
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str());
  SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM);
  SSL_CTX_set_alpn_select_cb(
      context,
      [](SSL*, const unsigned char** out, unsigned char* size, const unsigned char* offered,
         unsigned int, void*) {
        *out = offered + 1;
        *size = offered[0];
        return SSL_TLSEXT_ERR_OK;
      },
      nullptr);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(listen(listener, 1), 0);
  sockaddr_in at{};
  socklen_t size = sizeof(at);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  bool greeted = false;
  std::string offered;
  std::thread server([&] {
    const int fd = accept(listener, nullptr, nullptr);
    SSL* const session = SSL_new(context);
    SSL_set_fd(session, fd);
    SSL_set_verify(session, SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
    char preface[64];
    greeted = SSL_accept(session) == 1 && SSL_read(session, preface, sizeof(preface)) > 0 &&
              SSL_write(session, "!", 1) == 1;
    const unsigned char* first = nullptr;
    unsigned int bytes = 0;
    SSL_get0_alpn_selected(session, &first, &bytes);
    offered.assign(reinterpret_cast<const char*>(first), bytes);
    SSL_free(session);
    close(fd);
  });
  EXPECT_EQ(WhyUnreachable(kPs, absl::StrCat("127.0.0.1:", ntohs(at.sin_port)), options, "lab",
                           absl::Seconds(20)),
            "");
  server.join();
  EXPECT_TRUE(greeted);
  EXPECT_EQ(offered, "h2");
  close(listener);
  SSL_CTX_free(context);
}

}  // namespace
}  // namespace tryst
