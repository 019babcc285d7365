// What a FetchServer promises when a consumer repeats itself, comes back as another, or goes away.
#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "channel/grpc/fetch_wire.h"
#include "channel/signing/caller.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "rendezvous/tensor_key.h"
#include "rendezvous/thread_alarms.h"
#include "tests/contract/fetch_host.h"

namespace tryst {
namespace {

constexpr uint64_t kIncarnation = 0xab;

// Answers a take when the test says so, even if it was cancelled before: a send had met it.
class ScriptedSource final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey& key, const Args&, DoneFn done) override {
    MutexLock lock(&mu_);
    log_.push_back(absl::StrCat("take ", key.edge()));
    takes_.push_back(std::move(done));
    changed_.NotifyAll();
  }
  void GiveBack(int64_t, const TensorKey& key, Taken) override {
    MutexLock lock(&mu_);
    log_.push_back(absl::StrCat("give back ", key.edge()));
  }

  bool AwaitTakes(size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(&mu_);
    while (takes_.size() < count) {
      if (changed_.WaitUntil(&mu_, until)) break;
    }
    return takes_.size() >= count;
  }
  void Answer(size_t number, const Tensor& tensor) {
    DoneFn done;
    {
      MutexLock lock(&mu_);
      done = std::move(takes_.at(number));
    }
    std::move(done)(absl::OkStatus(), Args(), Args(), tensor, false);
  }
  std::vector<std::string> log() {
    MutexLock lock(&mu_);
    return log_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<DoneFn> takes_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> log_ ABSL_GUARDED_BY(mu_);
};

Tensor Numbers(int64_t elements) {
  Tensor tensor = *Tensor::Allocate(DType::kFloat, {elements});
  float* const at = static_cast<float*>(tensor.mutable_data());
  for (int64_t i = 0; i < elements; ++i) at[i] = static_cast<float>(i);
  return tensor;
}

std::string BytesOf(const Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.data()), tensor.bytes());
}

// One FetchTensor call, made by hand.
class Call {
 public:
  Call(rpc::TransportService::Stub* stub, CallSigner* signer, const rpc::FetchRequest& request) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    context_.AddMetadata(kCallerMetadata,
                         signer->Sign(kHostWorker, kFetchMethod, request.SerializeAsString()));
    stream_ = stub->FetchTensor(&context_);
    stream_->Write(request);
  }
  bool Read(rpc::FetchResponse* response) { return stream_->Read(response); }
  // Reads to the end.
  grpc::Status End(rpc::FetchHeader* header = nullptr, std::string* payload = nullptr) {
    for (rpc::FetchResponse response; Read(&response);) {
      if (header != nullptr && response.has_header()) *header = response.header();
      if (payload != nullptr) payload->append(response.chunk());
    }
    return stream_->Finish();
  }
  // The consumer is gone.
  void Break() {
    context_.TryCancel();
    End();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<rpc::FetchRequest, rpc::FetchResponse>> stream_;
};

class HostileGrpcConsumerTest : public ::testing::Test {
 protected:
  void Open(const FetchServerOptions& options = {}) {
    host_ = std::make_unique<FetchHost>(&source_, &alarms_, kIncarnation, options);
    stub_ = rpc::TransportService::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", host_->port()), grpc::InsecureChannelCredentials()));
  }
  static rpc::FetchRequest Request(uint64_t serial, const std::string& edge) {
    const std::string ps = absl::StrCat(kHostWorker, "/device:CPU:0");
    const std::string worker = absl::StrCat(kHostConsumer, "/device:CPU:0");
    rpc::FetchRequest request;
    request.set_step_id(1);
    request.set_key(
        std::string(TensorKeyPrefix::Make(ps, kIncarnation, worker, edge)->At(0, 0).text()));
    request.set_serial(serial);
    request.set_oldest_serial(1);
    request.set_channel(1);
    return request;
  }
  std::unique_ptr<Call> Start(const rpc::FetchRequest& request) {
    return std::make_unique<Call>(stub_.get(), &consumer_, request);
  }
  // Ends without an answer: it only says what has ended.
  void Note(uint64_t serial, bool wanted) {
    rpc::FetchRequest note;
    note.set_ends(true);
    note.set_channel(1);
    note.set_serial(serial + 1);
    note.set_oldest_serial(1);
    wanted ? note.add_over(serial) : note.add_unwanted(serial);
    ASSERT_TRUE(Start(note)->End().ok());
  }
  // Fetches a tensor to its end, and says nothing of it.
  void FetchWhole(uint64_t serial, const std::string& edge, const Tensor& tensor) {
    const size_t before = source_.log().size();
    auto call = Start(Request(serial, edge));
    ASSERT_TRUE(source_.AwaitTakes(before + 1));
    source_.Answer(before, tensor);
    std::string payload;
    ASSERT_TRUE(call->End(nullptr, &payload).ok());
    EXPECT_EQ(payload, BytesOf(tensor));
  }
  template <typename Condition>
  bool Eventually(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition(host_->counts())) return true;
      usleep(5'000);
    }
    return false;
  }
  // What a request that is not asked of the source is told in its header.
  absl::StatusCode Told(const rpc::FetchRequest& request) {
    rpc::FetchHeader header;
    const grpc::Status status = Start(request)->End(&header);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return static_cast<absl::StatusCode>(header.code());
  }

  ThreadAlarms alarms_;
  ScriptedSource source_;
  std::unique_ptr<FetchHost> host_;
  CallSigner consumer_{{"lab", kHostConsumer, 1}, "", UnixMs};
  std::unique_ptr<rpc::TransportService::Stub> stub_;
};

TEST_F(HostileGrpcConsumerTest, AFetchThatIsOverIsNotTakenAgain) {
  Open();
  FetchWhole(1, "k", Numbers(4));
  Note(1, true);
  EXPECT_EQ(Told(Request(1, "k")), absl::StatusCode::kAborted);
  EXPECT_EQ(source_.log(), std::vector<std::string>{"take k"});
}

TEST_F(HostileGrpcConsumerTest, AnAttemptThatBeginsInTheMiddleTakesNothing) {
  Open();
  rpc::FetchRequest request = Request(1, "k");
  request.set_offset(8);
  EXPECT_EQ(Told(request), absl::StatusCode::kAborted);
  EXPECT_TRUE(source_.log().empty());
}

TEST_F(HostileGrpcConsumerTest, ALaterAttemptGetsTheRestOfTheTensor) {
  Open();
  const Tensor tensor = Numbers(750);
  FetchWhole(1, "k", tensor);
  rpc::FetchRequest again = Request(1, "k");
  again.set_offset(1000);
  std::string payload;
  ASSERT_TRUE(Start(again)->End(nullptr, &payload).ok());
  EXPECT_EQ(payload, BytesOf(tensor).substr(1000));
}

// The consumer may have the tensor, so another one must not get it.
TEST_F(HostileGrpcConsumerTest, ATensorOfWhichSomeWasSentDoesNotGoBack) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(50);
  Open(options);
  auto call = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  source_.Answer(0, Numbers(8 << 20));
  rpc::FetchResponse first;
  ASSERT_TRUE(call->Read(&first));
  call->Break();
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.dropped == 1; }));
  EXPECT_EQ(host_->counts().given_back, 0u);
}

// The first request was given up while its take was under way. What the take then brings is the
// older tensor, and the second request must find it.
TEST_F(HostileGrpcConsumerTest, AKeyIsTakenAgainAfterItsTensorWentBack) {
  Open();
  auto first = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  Note(1, false);
  first->Break();
  auto second = Start(Request(2, "k"));
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) { return counts.requests == 2; }));
  source_.Answer(0, Numbers(4));
  ASSERT_TRUE(source_.AwaitTakes(2));
  EXPECT_EQ(source_.log(), (std::vector<std::string>{"take k", "give back k", "take k"}));
  source_.Answer(1, Numbers(4));
  EXPECT_TRUE(second->End().ok());
}

TEST_F(HostileGrpcConsumerTest, AnEarlierLifeOfTheConsumerIsRefused) {
  Open();
  auto earlier = Start(Request(1, "k"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  CallSigner next_life({"lab", kHostConsumer, 2}, "", UnixMs);
  Call later(stub_.get(), &next_life, Request(1, "k2"));
  ASSERT_TRUE(source_.AwaitTakes(2));
  EXPECT_TRUE(Start(Request(2, "k3"))->End().error_code() == grpc::StatusCode::ABORTED);
  EXPECT_EQ(source_.log().size(), 2u);
}

TEST_F(HostileGrpcConsumerTest, TensorsKeptForAConsumerHaveABound) {
  FetchServerOptions options;
  options.max_kept_bytes = 1000;
  options.keep_for = absl::Hours(1);
  Open(options);
  FetchWhole(1, "old", Numbers(200));
  FetchWhole(2, "new", Numbers(200));
  ASSERT_TRUE(Eventually([](const FetchServer::Counts& counts) {
    return counts.dropped == 1 && counts.kept_bytes == 800;
  }));
  EXPECT_EQ(Told(Request(1, "old")), absl::StatusCode::kAborted);
  EXPECT_EQ(Told(Request(2, "new")), absl::StatusCode::kOk);
}

TEST_F(HostileGrpcConsumerTest, TheRequestsOfAConsumerHaveABound) {
  FetchServerOptions options;
  options.max_requests = 2;
  Open(options);
  auto a = Start(Request(1, "a"));
  auto b = Start(Request(2, "b"));
  ASSERT_TRUE(source_.AwaitTakes(2));
  EXPECT_EQ(Start(Request(3, "c"))->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(source_.log().size(), 2u);
}

TEST_F(HostileGrpcConsumerTest, TheKeysOfAConsumerHaveABound) {
  FetchServerOptions options;
  options.max_key_bytes = 100;  // One is longer.
  Open(options);
  auto a = Start(Request(1, "a"));
  ASSERT_TRUE(source_.AwaitTakes(1));
  EXPECT_EQ(Start(Request(2, "b"))->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(HostileGrpcConsumerTest, TheChannelsOfAConsumerHaveABound) {
  constexpr uint64_t kMostChannels = 256;
  Open();
  std::vector<std::unique_ptr<Call>> calls;
  const auto on_channel = [](uint64_t channel) {
    rpc::FetchRequest request = Request(1, absl::StrCat("edge", channel));
    request.set_channel(channel);
    return request;
  };
  for (uint64_t channel = 1; channel <= kMostChannels; ++channel) {
    calls.push_back(Start(on_channel(channel)));
    ASSERT_TRUE(source_.AwaitTakes(channel));
  }
  const rpc::FetchRequest one_more = on_channel(kMostChannels + 1);
  EXPECT_EQ(Start(one_more)->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(source_.log().size(), kMostChannels);
  Note(1, /*wanted=*/true);  // Nothing waits on the first channel any more.
  calls.push_back(Start(one_more));
  EXPECT_TRUE(Eventually([](const auto& counts) { return counts.requests == kMostChannels + 1; }));
}

}  // namespace
}  // namespace tryst
