// A poller whose turns are taken over by threads of an executor while there is traffic.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"
#include "rendezvous/executor.h"

namespace tryst {
namespace {

// Works as a channel does: an event on the poller thread starts a callback on the executor, which
// asks for the next event.
class Stream final : public PollerTask {
 public:
  Stream(Poller* poller, ThreadPoolExecutor* executor) : poller_(poller), executor_(executor) {}
  void Begin(int64_t rounds) {
    left_ = rounds;
    poller_->Post(this);
  }
  void WaitUntil(const std::function<bool()>& over) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!over()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void Stop() {
    stopping_ = true;
    WaitUntil([this] { return ended_.load(); });
  }

  std::function<void()> in_callback;  // Runs on the executor; may be null.
  std::atomic<int64_t> rounds{0};
  std::atomic<int64_t> borrowed{0};  // How many of them ran in a turn of an executor's thread.
  std::atomic<bool> wrong{false};

 private:
  void RunOnPoller() override {
    if (turning_.exchange(true) || !poller_->OnThread()) wrong = true;
    if (last_callback_ == std::this_thread::get_id()) ++borrowed;
    ++rounds;
    Executor::Work work([this] {
      if (poller_->OnThread()) wrong = true;
      last_callback_ = std::this_thread::get_id();
      if (in_callback) in_callback();
      if (--left_ == 0 || stopping_) {
        ended_ = true;
      } else {
        poller_->Post(this);
      }
    });
    if (!executor_->TryRun(&work)) wrong = true;
    turning_ = false;
  }

  Poller* const poller_;
  ThreadPoolExecutor* const executor_;
  // Not atomic on purpose: only one thread at a time uses it, which ThreadSanitizer checks.
  int64_t left_ = 0;
  std::thread::id last_callback_;
  std::atomic<bool> turning_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};
};

class BorrowedTurnsTest : public ::testing::Test {
 protected:
  BorrowedTurnsTest() {
    poller_.Start();
    executor_.SetSources({&poller_});
  }
  ~BorrowedTurnsTest() override {
    executor_.SetSources({});
    poller_.Stop();
  }

  const SteadyClock clock_;
  Poller poller_{&clock_};
  ThreadPoolExecutor executor_{2, 64};
  Stream stream_{&poller_, &executor_};
};

TEST_F(BorrowedTurnsTest, WhoRunsTheCallbacksTurnsThePoller) {
  stream_.Begin(1'000'000'000);
  stream_.WaitUntil([this] { return stream_.borrowed > 1000; });
  stream_.Stop();
  EXPECT_FALSE(stream_.wrong);
}

TEST_F(BorrowedTurnsTest, OneWhoStaysInACallbackKeepsNobodyWaiting) {
  stream_.Begin(1'000'000'000);
  stream_.WaitUntil([this] { return stream_.borrowed > 100; });
  stream_.Stop();
  // Holds up the thread that has the turns now; posted tasks must still run.
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> held{false};
    std::atomic<bool> posted_ran{false};
    Stream one(&poller_, &executor_);
    one.in_callback = [&] {
      held = true;
      one.WaitUntil([&] { return posted_ran.load(); });
    };
    one.Begin(1);
    one.WaitUntil([&] { return held.load(); });
    poller_.PostFn([&] { posted_ran = true; });
    one.WaitUntil([&] { return posted_ran.load(); });
    one.Stop();
  }
}

TEST_F(BorrowedTurnsTest, TheSourceCanBeTakenAwayUnderTraffic) {
  stream_.Begin(1'000'000'000);
  for (int i = 0; i < 200; ++i) {
    executor_.SetSources({});
    executor_.SetSources({&poller_});
  }
  stream_.Stop();
  EXPECT_FALSE(stream_.wrong);
}

TEST_F(BorrowedTurnsTest, NobodySpinsBehindTheTraffic) {
  stream_.Begin(1'000'000'000);
  stream_.WaitUntil([this] { return stream_.borrowed > 1000; });
  stream_.Stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto used_us = [] {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * int64_t{1'000'000} +
           used.ru_utime.tv_usec + used.ru_stime.tv_usec;
  };
  const int64_t before_us = used_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(used_us() - before_us, 10'000);
}

}  // namespace
}  // namespace tryst
