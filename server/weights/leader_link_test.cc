#include "server/weights/leader_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tests/doubles/server/testing.h"

namespace tryst {
namespace {

TEST(LeaderLinkTest, TurnsWhenItIsWokenAndNoSooner) {
  const std::unique_ptr<Server> server = StartTestServer("member", 0, nullptr);
  std::atomic<int> turns{0};
  LeaderLink::Parts parts;
  parts.server = server.get();
  parts.set = "policy";
  parts.leaders = {"/job:owner/replica:0/task:0"};
  parts.incarnation = 1;
  parts.patience_ns = 1'000'000'000;
  parts.turn = [&](const LeaderLink::Heard&, std::vector<Question>*) {
    ++turns;
    return BootClock().NowNs() + absl::ToInt64Nanoseconds(absl::Hours(1));
  };
  LeaderLink link(std::move(parts));
  for (int woken = 1; woken <= 3; ++woken) {
    for (int i = 0; i < 5000 && turns < woken; ++i) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(20));
    ASSERT_EQ(turns, woken);
    link.Wake();
  }
}

}  // namespace
}  // namespace tryst
