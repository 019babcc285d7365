// Order with cancels and deadlines mixed in: per key, the receives that got a tensor, in the
// order in which they were made, got the tensors in the order in which these were sent.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/step_registry.h"
#include "rendezvous/testing.h"
#include "rendezvous/thread_alarms.h"

namespace tryst {
namespace {

constexpr int kKeys = 6;
constexpr int kThreads = 8;
constexpr int64_t kTensors = 24'000;
constexpr int64_t kTensorsOfAKey = kTensors / kKeys;

// One receive: how to cancel it, and how it ended.
struct Asked {
  Cancellation cancellation;
  std::atomic<bool> ended{false};
  absl::Status status;
  int64_t number = -1;
};

// Expects that the receives of one key, in the order in which they were made, got tensors in the
// order of the sends.
void ExpectInOrder(const std::vector<std::unique_ptr<Asked>>& asked) {
  int64_t next = 0;
  int64_t failed = 0;
  for (const auto& one : asked) {
    ASSERT_TRUE(one->ended);
    if (!one->status.ok()) {
      ++failed;
      continue;
    }
    ASSERT_EQ(one->number, next) << "after " << next << " in their order";
    ++next;
  }
  EXPECT_EQ(next, kTensorsOfAKey) << "none is lost";
  EXPECT_GT(failed, 0);
}

// How many tensors of each key have been received.
struct Progress {
  std::atomic<int64_t> of_key[kKeys] = {};
};

// Calls `send(key, number)` for every tensor of the keys of this thread, now and then ahead of
// the receives and mostly not, so that these wait, too.
template <typename Send>
void Produce(int thread, int threads, const Progress& received, Send send) {
  std::mt19937 random(static_cast<unsigned>(thread));
  for (int64_t number = 0; number < kTensorsOfAKey; ++number) {
    for (int key = thread; key < kKeys; key += threads) {
      const int64_t ahead = random() % 16 == 0 ? 32 : 8;
      while (number > received.of_key[key] + ahead) std::this_thread::yield();
      send(key, number);
    }
  }
}

// Eight threads: three send, three receive, two cancel what the others have asked for.
TEST(Order, OfALocalRendezvous) {
  constexpr int kHalf = 3;
  ThreadAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  std::vector<TensorKey> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(LocalKey(absl::StrCat(i)));
  std::vector<std::vector<std::unique_ptr<Asked>>> asked(kKeys);
  constexpr int kSlots = 64;
  std::atomic<Asked*> to_cancel[kSlots] = {};
  std::atomic<int> receiving{kHalf};

  Progress received;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kHalf; ++thread) {
    threads.emplace_back([&, thread] {
      Produce(thread, kHalf, received, [&](int key, int64_t number) {
        ASSERT_TRUE(SendNumber(&rendezvous, keys[key], number).ok());
      });
    });
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(100 + thread));
      std::vector<int64_t> checked(kKeys, 0);  // How many of `asked` the thread has checked.
      for (bool all = false; !all;) {
        all = true;
        for (int key = thread; key < kKeys; key += kHalf) {
          auto& line = asked[key];
          while (checked[key] < static_cast<int64_t>(line.size()) && line[checked[key]]->ended) {
            received.of_key[key] += line[checked[key]++]->status.ok();
          }
          const int64_t out = static_cast<int64_t>(line.size()) - checked[key];
          if (received.of_key[key] + out < kTensorsOfAKey && out < 16) {
            line.push_back(std::make_unique<Asked>());
            Asked* one = line.back().get();
            RecvArgs args;
            if (random() % 2 == 0) args.cancellation = &one->cancellation;
            if (random() % 4 == 0) {
              args.deadline = Deadline::After(alarms.clock(), absl::Microseconds(random() % 200));
            }
            rendezvous.RecvAsync(keys[key], args, [one](Received&& received) {
              if (received.status.ok()) one->number = *received.tensor.data_as<int64_t>();
              one->status = std::move(received.status);
              one->ended = true;
            });
            if (random() % 4 == 0) to_cancel[random() % kSlots] = one;
          }
          all &= received.of_key[key] == kTensorsOfAKey;
        }
        if (random() % 16 == 0) std::this_thread::yield();
      }
      --receiving;
    });
  }
  for (int thread = 0; thread < kThreads - 2 * kHalf; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(200 + thread));
      while (receiving > 0) {
        Asked* one = to_cancel[random() % kSlots].exchange(nullptr);
        if (one != nullptr) one->cancellation.StartCancel();
        if (random() % 8 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& line : asked) ExpectInOrder(line);
  EXPECT_EQ(rendezvous.counters().waiting_sends, 0);
}

// The serving end of a channel as tensor_source.h asks for it, without the wire: one thread
// that takes tensors for the requests of one consumer. An answer is final.
class ServingEnd {
 public:
  ServingEnd(TensorSource* source, int64_t step, std::vector<TensorKey> keys)
      : source_(source), step_(step), keys_(std::move(keys)), lines_(keys_.size()) {}

  void Request(int key, Asked* asked) {
    lines_[key].asked.push_back(asked);
    TakeNext(key);
  }
  void Cancel(int key, Asked* asked) {
    Line& line = lines_[key];
    if (line.asked.front() != asked) {
      line.asked.erase(std::find(line.asked.begin(), line.asked.end(), asked));
      return End(asked, absl::CancelledError("cancelled"), -1);
    }
    Op* op = line.op.get();
    op->cancellation.StartCancel();
    while (!op->ended.load(std::memory_order_acquire)) std::this_thread::yield();
    if (op->taken.status.ok()) {
      ++given_back_;
      source_->GiveBack(step_, keys_[key], std::move(op->taken));
    }
    Next(key, absl::CancelledError("cancelled"), -1);
  }
  // Answers the requests whose turn has come.
  void Answer(int key) {
    for (;;) {
      Op* op = lines_[key].op.get();
      if (op == nullptr || !op->ended.load(std::memory_order_acquire)) return;
      const Received& taken = op->taken;
      Next(key, taken.status, taken.status.ok() ? *taken.tensor.data_as<int64_t>() : -1);
    }
  }
  int64_t given_back() const { return given_back_; }

 private:
  struct Op {
    Cancellation cancellation;
    Received taken;
    std::atomic<bool> ended{false};
  };
  struct Line {
    std::deque<Asked*> asked;  // In the order of the requests.
    std::unique_ptr<Op> op;    // The take for the first.
  };

  void TakeNext(int key) {
    Line& line = lines_[key];
    if (line.op != nullptr || line.asked.empty()) return;
    line.op = std::make_unique<Op>();
    Op* op = line.op.get();
    RecvArgs args;
    args.cancellation = &op->cancellation;
    source_->Take(step_, keys_[key], args, [op](Received&& received) {
      op->taken = std::move(received);
      op->ended.store(true, std::memory_order_release);
    });
  }
  void Next(int key, absl::Status status, int64_t number) {
    Line& line = lines_[key];
    End(line.asked.front(), std::move(status), number);
    line.asked.pop_front();
    line.op.reset();
    TakeNext(key);
  }
  static void End(Asked* asked, absl::Status status, int64_t number) {
    asked->status = std::move(status);
    asked->number = number;
    asked->ended = true;
  }

  TensorSource* const source_;
  const int64_t step_;
  const std::vector<TensorKey> keys_;
  std::vector<Line> lines_;
  int64_t given_back_ = 0;
};

// Six threads send, two serve: each serves the keys of one consumer.
TEST(Order, OfAServingEnd) {
  constexpr int kServing = 2;
  ThreadAlarms alarms;
  StepRegistry::Options options;
  options.worker = kWorker0;
  const auto registry = *StepRegistry::Make(options, &alarms, nullptr);
  const std::shared_ptr<Rendezvous> step = *registry->StartStep(1);
  std::vector<TensorKey> keys;
  for (int i = 0; i < kKeys; ++i) {
    keys.push_back(KeyBetween(absl::StrCat(kWorker0, "/device:CPU:0"),
                              absl::StrCat(kWorker1, "/device:CPU:0"), absl::StrCat(i)));
  }
  std::vector<std::vector<std::unique_ptr<Asked>>> asked(kKeys);
  std::atomic<int64_t> given_back{0};
  Progress received;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads - kServing; ++thread) {
    threads.emplace_back([&, thread] {
      Produce(thread, kThreads - kServing, received, [&](int key, int64_t number) {
        ASSERT_TRUE(SendNumber(step.get(), keys[key], number).ok());
      });
    });
  }
  for (int thread = 0; thread < kServing; ++thread) {
    threads.emplace_back([&, thread] {
      ServingEnd serving(registry.get(), 1, keys);
      std::mt19937 random(static_cast<unsigned>(300 + thread));
      std::vector<size_t> checked(kKeys, 0);
      for (bool all = false; !all;) {
        all = true;
        for (int key = thread; key < kKeys; key += kServing) {
          auto& line = asked[key];
          while (checked[key] < line.size() && line[checked[key]]->ended) {
            received.of_key[key] += line[checked[key]++]->status.ok();
          }
          const int64_t out = static_cast<int64_t>(line.size() - checked[key]);
          if (received.of_key[key] + out < kTensorsOfAKey && out < 16) {
            line.push_back(std::make_unique<Asked>());
            serving.Request(key, line.back().get());
          }
          if (random() % 3 == 0 && checked[key] < line.size()) {
            const size_t at = checked[key] + random() % (line.size() - checked[key]);
            if (!line[at]->ended) serving.Cancel(key, line[at].get());
          }
          if (random() % 4 != 0) serving.Answer(key);
          all &= received.of_key[key] == kTensorsOfAKey;
        }
      }
      given_back += serving.given_back();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& line : asked) ExpectInOrder(line);
  EXPECT_GT(given_back, 0);
  RecordProperty("given_back", static_cast<int>(given_back));
}

}  // namespace
}  // namespace tryst
