// The cases that TensorFlow has for its local rendezvous, in our own words and with the names
// of its tests, so that each can be found there. Rules that it states elsewhere are in
// tests/contract/rendezvous/semantics_test.cc.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/executor.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/thread_alarms.h"

namespace tryst {
namespace {

// TensorFlow's keys, as its tests write them.
TensorKey MnistKey(absl::string_view edge) {
  return *TensorKey::Parse(
      absl::StrCat("/job:mnist/replica:1/task:2/CPU:0;0000000000001ed2;"
                   "/job:mnist/replica:1/task:2/device:GPU:0;",
                   edge, ";0:0"));
}

Tensor Text(const std::string& text) { return *Tensor::FromStrings({text}, {}); }

struct TensorFlowCases : testing::Test {
  absl::Status Send(const TensorKey& key, const std::string& text) {
    return rendezvous.Send(key, SendArgs(), Text(text), false);
  }
  // What Recv gave, as text.
  static std::string TextOf(const absl::StatusOr<Received>& received) {
    return received.ok() ? received->tensor.strings()[0] : received.status().ToString();
  }
  absl::StatusOr<Received> Recv(const TensorKey& key, const RecvArgs& args = RecvArgs()) {
    return rendezvous.Recv(key, args, absl::InfiniteDuration());
  }
  void Later(std::function<void()> what) {
    threads.emplace_back([what] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      what();
    });
  }
  ~TensorFlowCases() override {
    for (std::thread& thread : threads) thread.join();
  }

  const TensorKey foo = MnistKey("foo");
  const TensorKey bar = MnistKey("bar");
  ThreadAlarms alarms;
  LocalRendezvous rendezvous{LocalRendezvous::Options(), &alarms};
  Cancellation cancellation;
  std::vector<std::thread> threads;
};

TEST_F(TensorFlowCases, Key) {
  EXPECT_EQ(foo.src_incarnation(), 7890u);
  EXPECT_EQ(foo.src().type, "CPU");
  EXPECT_EQ(foo.src_device(), "/job:mnist/replica:1/task:2/device:CPU:0");
  EXPECT_EQ(foo.dst_device(), "/job:mnist/replica:1/task:2/device:GPU:0");
  EXPECT_FALSE(TensorKey::Parse("foo;bar;baz").ok());
  EXPECT_FALSE(TensorKey::Parse("/job:mnist/replica:1/task:2/CPU:0;"
                                "/job:mnist/replica:1/task:2/device:GPU:0;")
                   .ok());
  EXPECT_FALSE(TensorKey::Parse(absl::StrCat(foo.text(), ";", foo.text())).ok());
}

TEST_F(TensorFlowCases, SendRecv) {
  ASSERT_TRUE(Send(foo, "hello").ok());
  EXPECT_EQ(TextOf(Recv(foo)), "hello");
}

TEST_F(TensorFlowCases, RecvSend) {
  Later([this] { ASSERT_TRUE(Send(foo, "hello").ok()); });
  EXPECT_EQ(TextOf(Recv(foo)), "hello");
}

TEST_F(TensorFlowCases, PingPong) {
  Later([this] {
    const auto ping = Recv(foo);
    ASSERT_TRUE(ping.ok());
    ASSERT_TRUE(rendezvous.Send(bar, SendArgs(), ping->tensor, ping->is_dead).ok());
  });
  ASSERT_TRUE(Send(foo, "secret msg").ok());
  EXPECT_EQ(TextOf(Recv(bar)), "secret msg");
}

TEST_F(TensorFlowCases, CancelBeforeRecv) {
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  const absl::Status status = Recv(foo, args).status();
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(status.message(), "RecvAsync is cancelled.");
  EXPECT_TRUE(IsDerived(status));
}

TEST_F(TensorFlowCases, CancelBeforeRecvOfATensorThatIsHere) {
  ASSERT_TRUE(Send(foo, "hello").ok());
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  EXPECT_EQ(TextOf(Recv(foo, args)), "hello");
}

TEST_F(TensorFlowCases, CancelAfterRecv) {
  Later([this] { cancellation.StartCancel(); });
  RecvArgs args;
  args.cancellation = &cancellation;
  const absl::Status status = Recv(foo, args).status();
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(status.message(), "RecvAsync is cancelled.");
}

TEST_F(TensorFlowCases, CancelEmptyQueue) {
  Later([this] {
    ASSERT_TRUE(Send(foo, "hello").ok());
    cancellation.StartCancel();
  });
  RecvArgs args;
  args.cancellation = &cancellation;
  EXPECT_EQ(TextOf(Recv(foo, args)), "hello");
}

TEST_F(TensorFlowCases, CancelMultiple) {
  RecvArgs cancelled;
  cancelled.cancellation = &cancellation;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (int i = 0; i < 4; ++i) {
    outcomes.push_back(Receive(&rendezvous, foo, i % 2 == 0 ? RecvArgs() : cancelled));
  }
  cancellation.StartCancel();
  ASSERT_TRUE(Send(foo, "first").ok());
  ASSERT_TRUE(Send(foo, "second").ok());
  EXPECT_EQ(outcomes[0]->tensor.strings()[0], "first");
  EXPECT_EQ(outcomes[2]->tensor.strings()[0], "second");
  EXPECT_TRUE(absl::IsCancelled(outcomes[1]->status) && absl::IsCancelled(outcomes[3]->status));
}

TEST_F(TensorFlowCases, RandomSendRecv) {
  constexpr int kCount = 100;
  std::atomic<int> received{0};
  {
    ThreadPoolExecutor pool(16, 2 * kCount);
    std::mt19937 random(17);
    for (int i = 0; i < kCount; ++i) {
      const auto pause = [micros = 100 + random() % 1000] {
        std::this_thread::sleep_for(std::chrono::microseconds(micros));
      };
      pool.Run([this, i, pause] {
        pause();
        ASSERT_TRUE(Send(MnistKey(absl::StrCat(i)), absl::StrCat(i)).ok());
      });
      pool.Run([this, i, pause, &received] {
        pause();
        rendezvous.RecvAsync(MnistKey(absl::StrCat(i)), RecvArgs(), [i, &received](Received&& got) {
          ASSERT_TRUE(got.status.ok() && !got.is_dead);
          EXPECT_EQ(got.tensor.strings()[0], absl::StrCat(i));
          ++received;
        });
      });
    }
  }
  EXPECT_EQ(received, kCount);
}

TEST_F(TensorFlowCases, MultiSends) {
  constexpr int kCount = 100;
  Later([this] {
    for (int i = 0; i < kCount; ++i) ASSERT_TRUE(Send(foo, absl::StrCat(i)).ok());
  });
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(TextOf(Recv(foo)), absl::StrCat(i));
}

TEST_F(TensorFlowCases, DeadTensorsKeepTheirPlace) {
  ASSERT_TRUE(Send(foo, "before").ok());
  ASSERT_TRUE(rendezvous.Send(foo, SendArgs(), Tensor(), true).ok());
  ASSERT_TRUE(Send(foo, "after").ok());
  EXPECT_EQ(TextOf(Recv(foo)), "before");
  EXPECT_TRUE(Recv(foo)->is_dead);
  EXPECT_EQ(TextOf(Recv(foo)), "after");
}

TEST_F(TensorFlowCases, RecvAbort) {
  std::thread aborts([this] { rendezvous.StartAbort(absl::AbortedError("")); });
  EXPECT_TRUE(absl::IsAborted(Recv(foo).status()));
  aborts.join();
}

TEST_F(TensorFlowCases, RecvSleepAbort) {
  Later([this] { rendezvous.StartAbort(absl::AbortedError("")); });
  EXPECT_TRUE(absl::IsAborted(Recv(foo).status()));
}

TEST_F(TensorFlowCases, AbortThenRecvOrSend) {
  rendezvous.StartAbort(absl::AbortedError(""));
  EXPECT_TRUE(absl::IsAborted(Send(foo, "")));
  EXPECT_TRUE(absl::IsAborted(Recv(foo).status()));
}

class NumberedContext final : public DeviceContext {
 public:
  explicit NumberedContext(int number) : number(number) {}
  absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape,
                                  const AllocatorAttributes&) override {
    return Tensor::Allocate(dtype, shape);
  }
  void StartCopy(const Tensor&, const Tensor&,
                 absl::AnyInvocable<void(absl::Status) &&> done) override {
    std::move(done)(absl::OkStatus());
  }
  const int number;
};

TEST_F(TensorFlowCases, TransferDummyDeviceContext) {
  SendArgs from;
  from.device_context = std::make_shared<NumberedContext>(123);
  RecvArgs to;
  to.device_context = std::make_shared<NumberedContext>(1);
  const auto check = [](Received&& received) {
    ASSERT_TRUE(received.status.ok());
    EXPECT_EQ(static_cast<NumberedContext&>(*received.send_context).number, 123);
  };
  ASSERT_TRUE(rendezvous.Send(foo, from, Text("hello"), false).ok());
  rendezvous.RecvAsync(foo, to, check);
  rendezvous.RecvAsync(bar, to, check);
  ASSERT_TRUE(rendezvous.Send(bar, from, Text("hello"), false).ok());
  EXPECT_EQ(rendezvous.counters().delivered, 2);
}

}  // namespace
}  // namespace tryst
