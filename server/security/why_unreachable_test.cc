#include "server/security/why_unreachable.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

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

}  // namespace
}  // namespace tryst
