#include "server/security/why_unreachable.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/doubles/server/test_certificates.h"

namespace tryst {
namespace {

// A process that lacks threads for a moment asks again later.
TEST(UnreachablePeers, WithoutAThreadNothingIsSeenYet) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends a process that has no more memory";
#endif
  const auto ask = [] {
    rlimit before = {};
    if (getrlimit(RLIMIT_AS, &before) != 0) _exit(2);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t no_stack = pages * static_cast<uint64_t>(getpagesize()) + (4 << 20);
    UnreachablePeers peers(SecurityOptions(), "lab");
    const rlimit limit = {no_stack, before.rlim_max};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    if (!peers.Why("worker", "127.0.0.1:1").empty()) _exit(3);
    if (setrlimit(RLIMIT_AS, &before) != 0) _exit(2);
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
