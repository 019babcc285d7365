// Workers of neighbouring protocol versions: what each may ask of the other.

#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "channel/ops/farewell.h"
#include "gtest/gtest.h"
#include "tests/process/pair/moment.h"
#include "tests/process/pair/pool_counters.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

std::unique_ptr<Nic> OpenNic() {
  auto nic = OpenSoftNic(SoftNicOptions());
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

absl::Status FetchFrom(ChannelPool* consumer, int64_t step, const TensorKey& key,
                       const RecvArgs& args, Tensor* tensor) {
  Moment ended;
  absl::Status result;
  consumer->Fetch(step, key, args, [&](Received&& received) {
    result = std::move(received.status);
    if (tensor != nullptr) *tensor = std::move(received.tensor);
    ended.Come();
  });
  TRYST_CHECK(ended.Wait()) << key.text() << " never ended";
  return result;
}

// An older producer, or one with a lower setting, refuses messages of our size.
TEST(VersionTest, ProducerThatGrantsSmallerMessagesIsAskedForThose) {
  WorkerPairOptions options;
  options.open_nic = OpenNic;
  options.adjust = [](TransportsOptions* pool) {
    const bool is_producer = pool->self.find("/job:ps") == 0;
    if (is_producer) pool->link.message_bytes = 8192;
  };
  WorkerPair pair(options);
  for (const int64_t elements : {100, 8100, 100'000}) {
    const TensorKey key = WorkerPair::Key("some");
    const Tensor source = *Tensor::Allocate(DType::kUint8, {elements});
    EXPECT_TRUE(pair.step()->Send(key, SendArgs(), source, false).ok());
    Tensor got;
    EXPECT_EQ(FetchFrom(pair.consumer(), 1, key, RecvArgs(), &got), absl::OkStatus());
    EXPECT_TRUE(got.valid() && got.shape() == source.shape());
  }
  EXPECT_EQ(Ask(pair.consumer(), &RdmaFetched).ended_ok, 3u);  // By no other path.
}

TEST(VersionTest, WhoHasNoVersionInCommonIsRefusedByBothRanges) {
  WorkerPairOptions options;
  options.open_nic = OpenNic;
  WorkerPair pair(options);
  Hello hello;
  hello.worker = "/job:worker/replica:0/task:7";
  hello.incarnation = 7;
  hello.epoch = 1;
  hello.path = "rdma/pair";
  for (const uint32_t only : {kProtocolOfCalls - 1, kProtocolNewest + 1}) {
    hello.protocol_oldest = hello.protocol_newest = only;
    Moment answered;
    absl::Status status;
    pair.producer()->OnHello(hello, [&](absl::StatusOr<Hello> answer) {
      status = answer.status();
      answered.Come();
    });
    ASSERT_TRUE(answered.Wait());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("task:0 4 to 4"), std::string::npos) << status;
  }
}

// It goes on by calls. What it had asked of this worker's last life ends as at any restart, when
// the farewell over that path is answered.
TEST(VersionTest, TheLastReleaseIsToldThatThereIsNoPathAndMaySayFarewell) {
  WorkerPairOptions options;
  options.open_nic = OpenNic;
  WorkerPair pair(options);
  for (const bool farewell : {false, true}) {
    Hello hello;
    hello.worker = "/job:worker/replica:0/task:7";
    hello.incarnation = 7;
    hello.epoch = 1;
    hello.path = "rdma/pair";
    hello.protocol_oldest = hello.protocol_newest = kProtocolOfCalls;
    if (farewell) {
      hello.parameters = EncodeFarewell({5, {}});
    } else {
      hello.queue_pairs = {"one"};
    }
    Moment answered;
    absl::StatusOr<Hello> answer;
    pair.producer()->OnHello(hello, [&](absl::StatusOr<Hello> its) {
      answer = std::move(its);
      answered.Come();
    });
    ASSERT_TRUE(answered.Wait());
    EXPECT_EQ(answer.status().code(),
              farewell ? absl::StatusCode::kOk : absl::StatusCode::kUnimplemented)
        << answer.status();
    if (answer.ok()) {
      EXPECT_NE(answer->incarnation, 0u);
    }
  }
}

// A peer that answers in versions that we do not speak.
class OtherVersions final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    Hello answer = hello;
    answer.protocol_oldest = kProtocolNewest + 1;
    answer.protocol_newest = kProtocolNewest + 2;
    std::move(done)(std::move(answer));
  }
};

TEST(VersionTest, AnswerInVersionsThatWeDoNotSpeakEndsTheFetch) {
  const SteadyClock clock;
  Poller poller(&clock);
  OtherVersions peer;
  TransportsOptions options;
  options.self = "/job:worker/replica:0/task:0";
  options.incarnation = 1;
  const auto pool =
      MakeChannelPool(&poller, &peer, nullptr, {{"rdma/pair", OpenNic()}}, nullptr, options);
  ASSERT_TRUE(pool->Open().ok());
  poller.Start();
  const absl::Status status = FetchFrom(pool.get(), 1, WorkerPair::Key("any"), RecvArgs(), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("speaks protocol 5 to 6 and "), std::string::npos) << status;
  EXPECT_TRUE(pool->Stop(absl::CancelledError("done"), absl::Seconds(10)).ok());
  poller.Stop();
}

}  // namespace
}  // namespace tryst
