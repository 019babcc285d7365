// Threads that wait for tensors of another server, on every path.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/server.h"

namespace tryst {
namespace {

// "shm" stands for grpc+verbs with shared memory before the soft NIC.
std::unique_ptr<Server> Serve(const std::string& job, const std::string& way, int64_t pollers,
                              const Server* seed) {
  ServerConfig config;
  config.job = job;
  config.protocol = way == "grpc" ? "grpc" : "grpc+verbs";
  config.nic = "soft";
  config.shm = way == "shm" ? "on" : "off";
  config.insecure = true;
  config.open_cluster = true;
  config.listen = "127.0.0.1:0";
  config.pollers = absl::StrCat(pollers);
  config.stop_deadline = absl::Seconds(5);
  if (seed != nullptr) config.join = absl::StrCat(seed->worker(), "@", seed->address());
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  const absl::Status started = (*server)->Start();
  EXPECT_TRUE(started.ok()) << started;
  return *std::move(server);
}

TensorKey KeyOf(const Server& producer, const Server& consumer, const std::string& edge) {
  return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0",
                                           producer.worker(), producer.incarnation(),
                                           consumer.worker(), edge));
}

Tensor Number(int64_t value) {
  Tensor tensor = *Tensor::Allocate(DType::kInt64, TensorShape({1}));
  *static_cast<int64_t*>(tensor.mutable_data()) = value;
  return tensor;
}

class Waiting : public testing::TestWithParam<const char*> {
 protected:
  Waiting() {
    ps_ = Serve("ps", GetParam(), 1, nullptr);
    worker_ = Serve("worker", GetParam(), 1, ps_.get());
    sends_ = *ps_->steps()->StartStep(1);
    receives_ = *worker_->steps()->StartStep(1);
  }
  TensorKey Key(const std::string& edge) const { return KeyOf(*ps_, *worker_, edge); }
  void Send(const std::string& edge, int64_t value) {
    const absl::Status sent = sends_->Send(Key(edge), {}, Number(value), false);
    EXPECT_TRUE(sent.ok()) << sent;
  }

  std::unique_ptr<Server> ps_, worker_;
  std::shared_ptr<Rendezvous> sends_, receives_;
};

INSTANTIATE_TEST_SUITE_P(, Waiting, testing::Values("grpc", "soft", "shm"),
                         [](const auto& info) { return std::string(info.param); });

// Each thread receives its own keys in their order, while callbacks in place and on the executor
// chase others on the same poller, and receives of what is never sent run into their deadlines.
TEST_P(Waiting, ManyAtOnceWithCallbacksAndDeadlines) {
  constexpr int kThreads = 3;
  constexpr int64_t kEach = 1500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const std::string edge = absl::StrCat("blocking", t);
      for (int64_t i = 0; i < kEach; ++i) {
        if (i % 3 == 0) Send(edge, i);  // Before, and soon after.
        std::thread late;
        if (i % 3 == 1 && i % 50 == 1) {
          late = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(300));
            Send(edge, i);
          });
        } else if (i % 3 != 0) {
          Send(edge, i);
        }
        const auto got = receives_->Recv(Key(edge), {}, absl::Seconds(30));
        if (late.joinable()) late.join();
        ASSERT_TRUE(got.ok()) << got.status();
        ASSERT_EQ(*got->tensor.data_as<int64_t>(), i);
      }
    });
  }
  threads.emplace_back([this] {
    for (int i = 0; i < 100; ++i) {
      const absl::Time began = absl::Now();
      const absl::Duration limit = absl::Microseconds(500 * (i % 8));
      const auto got = receives_->Recv(Key(absl::StrCat("never", i)), {}, limit);
      EXPECT_TRUE(absl::IsDeadlineExceeded(got.status())) << got.status();
      EXPECT_GE(absl::Now() - began, limit - absl::Milliseconds(1));
    }
  });
  // What stays on one worker has no poller.
  threads.emplace_back([this] {
    const TensorKey own = KeyOf(*worker_, *worker_, "own");
    for (int64_t i = 0; i < 300; ++i) {
      std::thread sends([&] { EXPECT_TRUE(receives_->Send(own, {}, Number(i), false).ok()); });
      const auto got = receives_->Recv(own, {}, absl::Seconds(30));
      sends.join();
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_EQ(*got->tensor.data_as<int64_t>(), i);
    }
  });
  struct Chain {
    std::string edge;
    Executor* executor = nullptr;
    int64_t next = 0;
    absl::Notification over;
    std::function<void()> ask;
  };
  Chain chains[2];
  chains[0].edge = "in place";
  chains[1].edge = "on the executor";
  chains[1].executor = worker_->executor();
  for (Chain& chain : chains) {
    chain.ask = [this, &chain] {
      Send(chain.edge, chain.next);
      RecvArgs args;
      args.executor = chain.executor;
      receives_->RecvAsync(Key(chain.edge), args, [&chain](Received&& received) {
        ASSERT_TRUE(received.status.ok()) << received.status;
        ASSERT_EQ(*received.tensor.data_as<int64_t>(), chain.next);
        if (++chain.next == kEach) return chain.over.Notify();
        chain.ask();
      });
    };
    chain.ask();
  }
  for (std::thread& thread : threads) thread.join();
  for (Chain& chain : chains) {
    EXPECT_TRUE(chain.over.WaitForNotificationWithTimeout(absl::Seconds(60))) << chain.next;
  }
}

// A callback on the executor may wait, for another tensor on the same poller.
TEST_P(Waiting, ACallbackOnTheExecutorWaits) {
  absl::Notification over;
  RecvArgs args;
  args.executor = worker_->executor();
  receives_->RecvAsync(Key("first"), args, [&](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    for (int64_t i = 0; i < 50; ++i) {
      const auto got = receives_->Recv(Key("second"), {}, absl::Seconds(30));
      EXPECT_TRUE(got.ok()) << got.status();
    }
    over.Notify();
  });
  Send("first", 0);
  for (int64_t i = 0; i < 50; ++i) Send("second", i);
  EXPECT_TRUE(over.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

// What is ended from outside wakes a thread that sleeps in place of the poller's.
TEST_P(Waiting, AbortCancelAndStopEndTheWait) {
  Send("known", 0);
  ASSERT_TRUE(receives_->Recv(Key("known"), {}, absl::Seconds(30)).ok());
  Cancellation cancellation;
  std::thread cancels([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    cancellation.StartCancel();
  });
  RecvArgs args;
  args.cancellation = &cancellation;
  EXPECT_TRUE(absl::IsCancelled(receives_->Recv(Key("a"), args, absl::Seconds(30)).status()));
  cancels.join();
  std::thread aborts([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    receives_->StartAbort(absl::DataLossError("on purpose"));
  });
  EXPECT_EQ(receives_->Recv(Key("b"), {}, absl::Seconds(30)).status().code(),
            absl::StatusCode::kDataLoss);
  aborts.join();
  std::vector<std::thread> waits;
  std::atomic<int> ended{0};
  for (int i = 0; i < 3; ++i) {
    waits.emplace_back([&, i, step = *worker_->steps()->StartStep(2)] {
      EXPECT_FALSE(step->Recv(Key(absl::StrCat("c", i)), {}, absl::Seconds(60)).ok());
      ++ended;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  receives_.reset();
  EXPECT_TRUE(worker_->Stop(absl::Seconds(5)).ok());
  worker_.reset();
  for (std::thread& wait : waits) wait.join();
  EXPECT_EQ(ended, 3);
}

TEST_P(Waiting, PeersOfDifferentPollers) {
  const auto consumer = Serve("many", GetParam(), 2, ps_.get());
  const auto step = *consumer->steps()->StartStep(3);
  std::vector<std::unique_ptr<Server>> producers;
  std::vector<std::thread> threads;
  for (const char* job : {"a", "b", "c"}) {
    producers.push_back(Serve(job, GetParam(), 1, consumer.get()));
    threads.emplace_back([&, producer = producers.back().get()] {
      const auto sends = *producer->steps()->StartStep(3);
      const TensorKey key = KeyOf(*producer, *consumer, "x");
      for (int64_t i = 0; i < 500; ++i) {
        EXPECT_TRUE(sends->Send(key, {}, Number(i), false).ok());
        const auto got = step->Recv(key, {}, absl::Seconds(30));
        ASSERT_TRUE(got.ok()) << got.status();
        ASSERT_EQ(*got->tensor.data_as<int64_t>(), i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tryst
