// A transport that is named only in its registration shows up everywhere.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "channel/trace/trace_dump.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "server/status/insight.h"
#include "tests/contract/toy/toy_transport.h"

namespace tryst {
namespace {

class ToyShowsTest : public testing::Test {
 protected:
  static std::unique_ptr<Server> Start(const char* job, const std::string& join,
                                       const TransportFactory& transport) {
    ServerConfig config;
    config.cluster = "lab";
    config.job = job;
    config.insecure = true;
    config.listen = "127.0.0.1:0";
    config.open_cluster = true;
    config.nic = "soft";
    config.shm = "off";
    config.join = join;
    auto server = ServerBuilder().SetEnvironment({}).AddTransport(transport).Build(config);
    EXPECT_TRUE(server.ok()) << server.status();
    const absl::Status started = (*server)->Start();
    EXPECT_TRUE(started.ok()) << started;
    return *std::move(server);
  }

  void Open(const TransportFactory& of_producer, const TransportFactory& of_consumer) {
    producer_ = Start("ps", "", of_producer);
    consumer_ =
        Start("worker", absl::StrCat(producer_->worker(), "@", producer_->address()), of_consumer);
  }
  TensorKey Key() const {
    return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;toys;0:0",
                                             producer_->worker(), producer_->incarnation(),
                                             consumer_->worker()));
  }
  void Bring(int count) {
    for (int32_t i = 0; i < count; ++i) {
      const Tensor tensor = *Tensor::Allocate(DType::kInt32, TensorShape({1}));
      *static_cast<int32_t*>(tensor.mutable_data()) = i;
      ASSERT_TRUE((*producer_->steps()->StartStep(1))->Send(Key(), {}, tensor, false).ok());
      auto got = (*consumer_->steps()->StartStep(1))->Recv(Key(), {}, absl::Seconds(20));
      ASSERT_TRUE(got.ok()) << got.status() << consumer_->Explain("");
      EXPECT_EQ(*got->tensor.data_as<int32_t>(), i);
    }
  }

  std::unique_ptr<Server> producer_;
  std::unique_ptr<Server> consumer_;
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ToyShowsTest, InExplainWithItsReasons) {
  const TransportFactory toy = ToyFactory();
  Open(toy, toy);
  Bring(3);
  const std::string said = consumer_->Explain(producer_->worker());
  EXPECT_TRUE(Has(said, "grpc+verbs: toy, rdma/soft, grpc")) << said;
  EXPECT_TRUE(Has(said, "fetch from /job:ps/replica:0/task:0 over toy: in use")) << said;
  EXPECT_TRUE(Has(said, "over rdma/soft: not tried")) << said;
}

TEST_F(ToyShowsTest, InMetricsAndStats) {
  const TransportFactory toy = ToyFactory();
  Open(toy, toy);
  Bring(3);
  EXPECT_EQ(consumer_->Stats().at("toy_fetches"), 3);
  const std::string page = consumer_->insight()->Metrics();
  EXPECT_TRUE(Has(page, "# TYPE tryst_toy_fetches_total counter")) << page;
  EXPECT_TRUE(Has(page, "# TYPE tryst_pollers gauge")) << page;
  EXPECT_TRUE(Has(page, "tryst_toy_fetches_total 3\n")) << page;
  EXPECT_TRUE(Has(page,
                  "tryst_operations_total{role=\"fetch\",peer=\"/job:ps/replica:0/task:0\","
                  "path=\"toy\",result=\"ok\"} 3"))
      << page;
  EXPECT_TRUE(Has(page,
                  "tryst_bytes_total{role=\"fetch\",peer=\"/job:ps/replica:0/task:0\","
                  "path=\"toy\"} "))
      << page;
}

TEST_F(ToyShowsTest, InTheTrace) {
  const TransportFactory toy = ToyFactory();
  Open(toy, toy);
  Bring(3);
  const TraceDump dump = consumer_->insight()->Dump({});
  int shown = 0;
  for (const auto& record : dump.records) shown += Has(record.key, "toys");
  EXPECT_EQ(shown, 3);
  EXPECT_TRUE(Has(TraceText({dump}), "toy")) << TraceText({dump});
}

TEST_F(ToyShowsTest, AmongWhatWaits) {
  const TransportFactory toy = ToyFactory();
  Open(toy, toy);
  Bring(1);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  (*consumer_->steps()->StartStep(1))->RecvAsync(Key(), args, [](Received&&) {});
  std::string said;
  for (int i = 0; i < 1000 && !Has(said, "by toy"); ++i) {
    said = consumer_->insight()->WaitingText(-1);
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(Has(said, "fetch from /job:ps/replica:0/task:0 by toy")) << said;
  EXPECT_TRUE(Has(said, "for the producer's Send: ")) << said;
}

TEST_F(ToyShowsTest, InTop) {
  const TransportFactory toy = ToyFactory();
  Open(toy, toy);
  Bring(3);
  const std::string command =
      absl::StrCat("server/tryst top ", consumer_->worker(), "@", consumer_->address(),
                   " --cluster=lab --insecure --count=1 2>&1");
  FILE* const out = popen(command.c_str(), "r");
  ASSERT_NE(out, nullptr);
  std::string said;
  char line[4096];
  while (fgets(line, sizeof(line), out) != nullptr) said += line;
  EXPECT_EQ(pclose(out), 0) << said;
  bool shown = false;
  for (absl::string_view row : absl::StrSplit(said, '\n')) {
    shown |= Has(std::string(row), "fetch") && Has(std::string(row), " toy ");
  }
  EXPECT_TRUE(shown) << said;
}

// Two factories' toys cannot reach each other, like those of two processes: the next path is taken,
// and Explain() says why.
TEST_F(ToyShowsTest, AsTurnedDownWhereThePeerHasItNot) {
  Open(ToyFactory(), ToyFactory());
  Bring(3);
  const std::string said = consumer_->Explain(producer_->worker());
  EXPECT_TRUE(Has(said, "not over toy: turned down")) << said;
  EXPECT_TRUE(Has(said, "toy: /job:ps/replica:0/task:0 not in this process")) << said;
  EXPECT_TRUE(Has(said, "fetch from /job:ps/replica:0/task:0 over rdma/soft: connected")) << said;
}

}  // namespace
}  // namespace tryst
