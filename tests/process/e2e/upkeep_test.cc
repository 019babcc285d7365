// What operators' tools and embedding processes rely on: health, reflection, stopping within a
// deadline, and leaving nothing behind.
#include <dirent.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "channel/signing/caller.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "server/server.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

std::unique_ptr<Server> Start(const std::string& job, const std::string& join = "") {
  ServerConfig config;
  config.job = job;
  config.insecure = true;
  config.nic = "soft";
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.join = join;
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE((*server)->Start().ok());
  return *std::move(server);
}

// A bidirectional call by hand: sends `request` and receives one answer.
class RawStream {
 public:
  RawStream(const std::string& address, const std::string& method, const std::string& statement)
      : stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!statement.empty()) context_.AddMetadata(kCallerMetadata, statement);
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Next();
  }
  ~RawStream() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  bool Say(const std::string& request) {
    const grpc::Slice slice(request);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return Next();
  }
  std::string Hear() {
    grpc::ByteBuffer answer;
    call_->Read(&answer, nullptr);
    std::vector<grpc::Slice> slices;
    if (!Next() || !answer.Dump(&slices).ok()) return "";
    std::string out;
    for (const grpc::Slice& slice : slices) {
      out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return out;
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

// This program links gRPC's reflection, which turns it on for every server that does not turn it
// off.
TEST(Upkeep, ReflectionAnswersNobody) {
  auto ps = Start("ps");
  RawStream reflection(ps->address(),
                       "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "");
  reflection.Say("\x3a\x01*");
  EXPECT_EQ(reflection.Hear(), "");
}

TEST(Upkeep, WhoWatchesItsHealthIsToldThatItStops) {
  auto ps = Start("ps");
  RawStream watch(ps->address(), "/grpc.health.v1.Health/Watch", "");
  ASSERT_TRUE(watch.Say(""));  // The health of the whole server.
  EXPECT_EQ(watch.Hear(), "\x08\x01");
  RawStream other(ps->address(), "/grpc.health.v1.Health/Watch", "");
  ASSERT_TRUE(other.Say("\x0a\x04none"));  // The health of a service named "none".
  EXPECT_EQ(other.Hear(), "\x08\x03");
  std::thread stop([&] { EXPECT_TRUE(ps->Stop(absl::Seconds(5)).ok()); });
  EXPECT_EQ(watch.Hear(), "\x08\x02");
  stop.join();
}

TensorKey Key(const Server& producer, const std::string& consumer) {
  return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0",
                                           producer.worker(), producer.incarnation(), consumer));
}

TEST(Upkeep, StopWaitsNoLongerThanItsDeadline) {
  auto ps = Start("ps");
  const TensorKey key = Key(*ps, kWorker);
  ASSERT_TRUE((*ps->steps()->StartStep(1))
                  ->Send(key, {}, *Tensor::Allocate(DType::kUint8, TensorShape({64 << 20})), false)
                  .ok());
  // A consumer that requests much and then does not read.
  rpc::FetchRequest request;
  request.set_step_id(1);
  request.set_key(std::string(key.text()));
  request.set_serial(1);
  request.set_oldest_serial(1);
  request.set_channel(1);
  const std::string bytes = request.SerializeAsString();
  CallSigner signer({"tryst", kWorker, 9}, "", UnixMs);
  const std::string method = "/tryst.rpc.TransportService/FetchTensor";
  RawStream stalled(ps->address(), method, signer.Sign(kPs, method, bytes));
  ASSERT_TRUE(stalled.Say(bytes));
  ASSERT_FALSE(stalled.Hear().empty());
  const absl::Time start = absl::Now();
  const absl::Status stopped = ps->Stop(absl::Milliseconds(700));
  EXPECT_TRUE(absl::IsDeadlineExceeded(stopped)) << stopped;
  EXPECT_TRUE(absl::StrContains(stopped.message(), "cut off")) << stopped;
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(600));  // It waited for the transfer.
}

int OpenFiles() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count;
}

TEST(Upkeep, ServersThatComeAndGoLeaveNoFilesOpen) {
  auto ps = Start("ps");
  const auto come_and_go = [&](int64_t step) {
    auto worker = Start("worker", absl::StrCat(kPs, "@", ps->address()));
    const TensorKey key = Key(*ps, worker->worker());
    ASSERT_TRUE((*ps->steps()->StartStep(step))
                    ->Send(key, {}, *Tensor::Allocate(DType::kUint8, TensorShape({100})), false)
                    .ok());
    auto got = (*worker->steps()->StartStep(step))->Recv(key, {}, absl::Seconds(20));
    ASSERT_TRUE(got.ok()) << got.status();
    ps->steps()->CleanupStep(step);
    ASSERT_TRUE(worker->Stop(absl::Seconds(5)).ok());
  };
  // In the first rounds gRPC opens descriptors that it then keeps; they are no leak.
  for (int64_t step = 1; step <= 3; ++step) come_and_go(step);
  const int before = OpenFiles();
  for (int64_t step = 4; step <= 103; ++step) come_and_go(step);
  int after = OpenFiles();
  for (int i = 0; i < 100 && after > before + 5; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
    after = OpenFiles();
  }
  EXPECT_LE(after, before + 5);
}

}  // namespace
}  // namespace tryst
