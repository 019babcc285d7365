// Threads make random calls on one LocalRendezvous in real time, for ThreadSanitizer and for what
// the models leave out. `--operations=N` for each thread makes a longer run.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/thread_alarms.h"

namespace tryst {
namespace {

constexpr int kThreads = 8;
constexpr int kKeys = 32;
int64_t operations_per_thread = 1'000'000;

struct Shared {
  ThreadAlarms alarms;
  ThreadPoolExecutor executor{2, 1024};
  std::unique_ptr<LocalRendezvous> rendezvous;
  std::vector<TensorKey> keys;
  std::vector<std::atomic<uint8_t>> delivered;  // By number.
  std::atomic<int64_t> numbers{0};
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> asked{0};
  std::atomic<int64_t> ended{0};
  std::atomic<int64_t> got{0};

  explicit Shared(int64_t max_numbers) : delivered(max_numbers) {
    LocalRendezvous::Options options;
    options.shards = 4;
    options.max_held_bytes = 1000 * LocalRendezvous::kMinChargeBytes;
    rendezvous = std::make_unique<LocalRendezvous>(options, &alarms);
    for (int i = 0; i < kKeys; ++i) keys.push_back(LocalKey(absl::StrCat("k", i)));
  }
  void OnEnd(const absl::Status& status, const Tensor& tensor, bool is_dead) {
    if (status.ok() && !is_dead) {
      ASSERT_EQ(delivered[*tensor.data_as<int64_t>()].exchange(1), 0) << "delivered twice";
    }
    got += status.ok();
    ++ended;
  }
};

class Worker {
 public:
  Worker(Shared* shared, uint64_t seed) : shared_(*shared), random_(seed) {}

  void Run() {
    for (int64_t i = 0; i < operations_per_thread; ++i) {
      switch (random_() % 12) {
        case 0:
          SendSeveral();
          break;
        case 1:
          ReceiveSeveral();
          break;
        case 2:
          Cancel();
          break;
        default:
          random_() % 2 != 0 ? Send() : ReceiveOne();
      }
    }
    for (const auto& cancellation : cancellations_) cancellation->StartCancel();
  }
  // REQUIRES: every operation has ended.
  void Clear() { cancellations_.clear(); }

 private:
  const TensorKey& Key() { return shared_.keys[random_() % kKeys]; }
  Tensor Next() { return Number(shared_.numbers.fetch_add(1)); }

  RecvArgs RandomArgs() {
    RecvArgs args;
    if (random_() % 4 == 0) {
      if (current_ == nullptr || random_() % 8 == 0) {
        cancellations_.push_back(std::make_unique<Cancellation>());
        current_ = cancellations_.back().get();
      }
      args.cancellation = current_;
    }
    if (random_() % 8 == 0) {
      args.deadline =
          Deadline::AtNs(shared_.alarms.clock().NowNs() + static_cast<int64_t>(random_() % 50'000));
    }
    if (random_() % 8 == 0) args.executor = &shared_.executor;
    return args;
  }

  void Send() {
    const bool ok = shared_.rendezvous->Send(Key(), SendArgs(), Next(), random_() % 16 == 0).ok();
    shared_.accepted += ok;
  }
  void SendSeveral() {
    std::vector<SendItem> items;
    for (int i = 0; i < 4; ++i) items.push_back({Key(), Next(), false});
    if (shared_.rendezvous->SendMany(absl::MakeSpan(items), SendArgs()).ok()) shared_.accepted += 4;
  }
  void ReceiveOne() {
    ++shared_.asked;
    shared_.rendezvous->RecvAsync(Key(), RandomArgs(), [shared = &shared_](Received&& received) {
      shared->OnEnd(received.status, received.tensor, received.is_dead);
    });
  }
  void ReceiveSeveral() {
    std::vector<TensorKey> keys;
    for (int i = 0; i < 4; ++i) keys.push_back(Key());
    shared_.asked += 4;
    shared_.rendezvous->RecvManyAsync(
        keys, RandomArgs(), [shared = &shared_](absl::Status, absl::Span<Received> results) {
          for (const Received& r : results) shared->OnEnd(r.status, r.tensor, r.is_dead);
        });
  }
  void Cancel() {
    if (current_ == nullptr) return;
    current_->StartCancel();
    current_ = nullptr;
  }

  Shared& shared_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Cancellation>> cancellations_;
  Cancellation* current_ = nullptr;
};

TEST(Stress, EveryReceiveEndsOnceAndEveryTensorArrivesAtMostOnce) {
  Shared shared(operations_per_thread * kThreads * 4);
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    workers.push_back(std::make_unique<Worker>(&shared, i + 1));
    threads.emplace_back([worker = workers.back().get()] { worker->Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  const RendezvousCounters counters = shared.rendezvous->counters();
  shared.rendezvous->StartAbort(absl::InternalError("over"));
  // Operations that other threads ended may still be in their callbacks.
  while (shared.ended != shared.asked) std::this_thread::yield();
  shared.rendezvous.reset();
  for (const auto& worker : workers) worker->Clear();
  EXPECT_EQ(counters.sends, shared.accepted);
  EXPECT_EQ(counters.delivered, shared.got);
  EXPECT_EQ(counters.waiting_sends, shared.accepted - shared.got) << "nothing is lost";
  printf("%s", counters.ToText().c_str());
}

// An abort in the middle: no send is kept, and no receive hangs.
TEST(Stress, AbortAmidst) {
  for (int round = 0; round < 100; ++round) {
    ThreadAlarms alarms;
    LocalRendezvous rendezvous({}, &alarms);
    std::atomic<int> asked{0};
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        RecvArgs args;
        args.deadline = Deadline::After(alarms.clock(), absl::Hours(1));
        for (int i = 0; i < 50; ++i) {
          const TensorKey key = LocalKey(absl::StrCat(i % 8));
          if (t % 2 == 0) {
            ++asked;
            rendezvous.RecvAsync(key, args, [&](Received&&) { ++ended; });
          } else {
            (void)SendNumber(&rendezvous, key, i);
          }
        }
      });
    }
    rendezvous.StartAbort(absl::InternalError("over"));
    for (std::thread& thread : threads) thread.join();
    while (ended != asked) std::this_thread::yield();
    EXPECT_EQ(rendezvous.counters().waiting_sends, 0);
  }
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--operations=", 0) == 0) {
      tryst::operations_per_thread = std::max<int64_t>(1, atoll(arg.c_str() + 13));
    }
  }
  return RUN_ALL_TESTS();
}
