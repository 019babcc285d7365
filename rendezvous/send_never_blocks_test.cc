// "Send never blocks" holds while the executors of its receivers are full.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/thread_alarms.h"

namespace tryst {
namespace {

// Holds the one thread of an executor until told, and fills its queue of one.
class FullExecutor {
 public:
  FullExecutor() {
    executor_.Run([this] {
      in_ = true;
      while (!out_) std::this_thread::yield();
    });
    while (!in_) std::this_thread::yield();
    executor_.Run([] {});
  }
  ~FullExecutor() { Release(); }
  void Release() { out_ = true; }
  ThreadPoolExecutor* get() { return &executor_; }
  RecvArgs args() {
    RecvArgs args;
    args.executor = &executor_;
    return args;
  }

 private:
  std::atomic<bool> in_{false};
  std::atomic<bool> out_{false};
  ThreadPoolExecutor executor_{1, 1};
};

// Whether `fn` returns within a generous time. If it does not, unblocks it by freeing the executor.
template <typename Fn>
bool Returns(FullExecutor* executor, Fn fn) {
  std::atomic<bool> returned{false};
  std::thread caller([&] {
    fn();
    returned = true;
  });
  for (int i = 0; i < 1000 && !returned; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const bool in_time = returned;
  if (!in_time) executor->Release();
  caller.join();
  return in_time;
}

struct SendNeverBlocks : testing::Test {
  DoneFn Count() {
    return [this](Received&& received) {
      ok += received.status.ok();
      if (received.tensor.valid()) {
        EXPECT_EQ(*received.tensor.data_as<int64_t>(), got++) << "in order";
      }
      ++ended;
    };
  }
  void WaitForEnds(int count) {
    while (ended < count) std::this_thread::yield();
  }

  std::atomic<int> ok{0}, got{0}, ended{0};
  ThreadAlarms alarms;
  LocalRendezvous rendezvous{LocalRendezvous::Options(), &alarms};
  FullExecutor full;
};

TEST_F(SendNeverBlocks, OnAFullExecutor) {
  const TensorKey key = LocalKey("a");
  constexpr int kReceives = 50;
  for (int i = 0; i < kReceives; ++i) rendezvous.RecvAsync(key, full.args(), Count());
  EXPECT_TRUE(Returns(&full, [&] {
    for (int i = 0; i < kReceives; ++i) ASSERT_TRUE(SendNumber(&rendezvous, key, i).ok());
  }));
  EXPECT_EQ(full.get()->queued(), 1u + kReceives) << "nothing has run in place";
  full.Release();
  WaitForEnds(kReceives);
  EXPECT_EQ(ok, kReceives);
}

TEST_F(SendNeverBlocks, ThatManyReceivesWaitFor) {
  std::atomic<int> batches{0};
  for (int i = 0; i < 4; ++i) {
    rendezvous.RecvManyAsync({LocalKey("a"), LocalKey("b")}, full.args(),
                             [&](absl::Status status, absl::Span<Received>) {
                               EXPECT_TRUE(status.ok());
                               ++batches;
                             });
  }
  EXPECT_TRUE(Returns(&full, [&] {
    for (int i = 0; i < 4; ++i) {
      SendItem items[] = {{LocalKey("a"), Number(i), false}, {LocalKey("b"), Number(i), false}};
      ASSERT_TRUE(rendezvous.SendMany(absl::MakeSpan(items), SendArgs()).ok());
    }
  }));
  full.Release();
  while (batches < 4) std::this_thread::yield();
}

TEST_F(SendNeverBlocks, NorDoReceivesCancelsAlarmsAndAborts) {
  ASSERT_TRUE(SendNumber(&rendezvous, LocalKey("here"), 0).ok());
  Cancellation cancellation;
  RecvArgs cancelled = full.args();
  cancelled.cancellation = &cancellation;
  RecvArgs late = full.args();
  late.deadline = Deadline::After(alarms.clock(), absl::Milliseconds(1));
  EXPECT_TRUE(Returns(&full, [&] {
    rendezvous.RecvAsync(LocalKey("here"), full.args(), Count());
    rendezvous.RecvAsync(TensorKey(), full.args(), Count());
    rendezvous.RecvAsync(LocalKey("cancelled"), cancelled, Count());
    cancellation.StartCancel();
    rendezvous.RecvAsync(LocalKey("late"), late, Count());
    // The thread of the alarms goes on, too: other deadlines pass.
    EXPECT_EQ(rendezvous.Recv(LocalKey("x"), RecvArgs(), absl::Milliseconds(50)).status().code(),
              absl::StatusCode::kDeadlineExceeded);
    rendezvous.RecvAsync(LocalKey("aborted"), full.args(), Count());
    rendezvous.StartAbort(absl::InternalError("over"));
  }));
  full.Release();
  WaitForEnds(5);
  EXPECT_EQ(ok, 1);
}

// Two executors whose tasks send to each other while both are full: neither can make room
// before its sends have returned.
TEST(SendBetweenFullExecutors, EndsWithoutADeadlock) {
  constexpr int kTasks = 200;
  ThreadAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  std::atomic<int> ended{0};
  std::atomic<int> sending{0};
  ThreadPoolExecutor executors[] = {ThreadPoolExecutor(1, 1), ThreadPoolExecutor(1, 1)};
  for (int side : {0, 1}) {
    RecvArgs args;
    args.executor = &executors[side];
    for (int i = 0; i < kTasks; ++i) {
      rendezvous.RecvAsync(LocalKey(absl::StrCat("to", side)), args, [&](Received&&) { ++ended; });
    }
  }
  for (int side : {0, 1}) {
    executors[side].Run([&, side] {
      ++sending;
      while (sending < 2) std::this_thread::yield();
      for (int i = 0; i < kTasks; ++i) {
        EXPECT_TRUE(SendNumber(&rendezvous, LocalKey(absl::StrCat("to", 1 - side)), i).ok());
      }
    });
  }
  for (int i = 0; i < 2000 && ended < 2 * kTasks; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // On failure the threads wait for each other and cannot be joined, so the process has to end.
  TRYST_CHECK(ended == 2 * kTasks) << "only " << ended << " receives have ended";
}

}  // namespace
}  // namespace tryst
