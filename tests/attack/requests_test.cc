// A member that asks over gRPC for more than it may: every request that docs/CONFIG.md counts is
// made, and its memory looked at.
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "proto/transport.pb.h"
#include "server/server.h"
#include "tests/attack/insider.h"
#include "tests/attack/process_use.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:1";
constexpr char kToken[] = "0123456789abcdef";
// The sum: docs/CONFIG.md, "What peers can make a worker hold".
constexpr uint64_t kMostRequests = 1'065'536;
constexpr uint64_t kBytesOfARequest = 1250;
constexpr uint64_t kMostKeyBytes = 256 << 20;
// The process has these beside what is counted: buffers of gRPC's, and free pieces of heap.
constexpr uint64_t kBesideBytes = 64 << 20;

struct Asked {
  uint64_t requests = 0;  // That the producer holds.
  uint64_t key_bytes = 0;
  uint64_t grown_bytes = 0;
  grpc::Status next;  // What one more was told.
};

std::string KeyOf(const Server& ps, uint64_t number, size_t edge_bytes) {
  std::string edge = absl::StrCat("k", number);
  edge.resize(std::max(edge.size(), edge_bytes), 'x');
  return absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0", kPs, ps.incarnation(),
                         kWorker, edge);
}

// Has begun step 1. Null: the test has failed.
std::unique_ptr<Server> StartPs() {
  ServerConfig config;
  config.cluster = "lab";
  config.job = "ps";
  config.protocol = "grpc";
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.patience = absl::Hours(1);  // On a machine as slow as may be.
  config.token_file = absl::StrCat(testing::TempDir(), "/requests.token");
  std::ofstream(config.token_file) << kToken << "\n";
  config.encrypt = "off";  // The test reads the answers.
  auto ps = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(ps.ok()) << ps.status();
  if (!ps.ok()) return nullptr;
  EXPECT_TRUE((*ps)->Start().ok());
  EXPECT_TRUE((*ps)->steps()->StartStep(1).ok());
  return *std::move(ps);
}

// A batch that asks for the `count` serials that follow `*serial` in such steps.
rpc::FetchRequest Batch(const Server& ps, int count, uint64_t step, size_t edge_bytes,
                        uint64_t* serial) {
  rpc::FetchRequest request;
  request.set_waits(true);
  request.set_channel(1);
  request.set_oldest_serial(1);
  for (int i = 0; i < count; ++i) {
    rpc::FetchAsk* ask = request.add_asks();
    ask->set_serial(*serial += step);
    ask->set_step_id(1);
    ask->set_key(KeyOf(ps, *serial, edge_bytes));
  }
  return request;
}

// Asks in batches until the producer holds no more.
void AskUntilFull(size_t edge_bytes, int batch, Asked* asked) {
  const std::unique_ptr<Server> ps = StartPs();
  ASSERT_NE(ps, nullptr);
  Insider member({ps->worker(), ps->address(), "lab", kToken}, kWorker, 9);
  malloc_trim(0);
  const uint64_t before = ResidentBytes();
  uint64_t serial = 0;
  for (bool full = false; !full;) {
    const rpc::FetchRequest request = Batch(*ps, batch, 1, edge_bytes, &serial);
    for (const rpc::FetchAsk& ask : request.asks()) asked->key_bytes += ask.key().size();
    // Its answer names those that were not taken in, and that are to be asked for alone.
    std::string answer;
    const grpc::Status status = member.Fetch(request.SerializeAsString(), 0, &answer);
    ASSERT_TRUE(status.ok()) << status.error_message();
    rpc::FetchResponse response;
    ASSERT_TRUE(response.ParseFromString(answer));
    const int refused = response.header().ready_size();
    full = refused > 0;
    asked->requests += static_cast<uint64_t>(batch - refused);
    asked->key_bytes -= static_cast<uint64_t>(refused) * KeyOf(*ps, serial, edge_bytes).size();
    ASSERT_LE(asked->requests, kMostRequests);
  }
  asked->grown_bytes = ResidentBytes() - before;
  rpc::FetchRequest one;
  one.set_channel(1);
  one.set_oldest_serial(1);
  one.set_serial(++serial);
  one.set_step_id(1);
  one.set_key(KeyOf(*ps, serial, edge_bytes));
  asked->next = member.Fetch(one.SerializeAsString(), 0);
}

// First, so that no heap is left of the other.
TEST(RequestsOfAConsumer, TheirKeysHaveABound) {
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(AskUntilFull(3000, 128, &asked));  // Few: it is no member yet.
  EXPECT_GE(asked.key_bytes, kMostKeyBytes);
  EXPECT_LT(asked.key_bytes, kMostKeyBytes + 4096);
  EXPECT_EQ(asked.next.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_LT(asked.grown_bytes, kMostKeyBytes + asked.requests * kBytesOfARequest + kBesideBytes)
      << asked.requests << " requests";
  RecordProperty("bytes", absl::StrCat(asked.grown_bytes));
}

TEST(RequestsOfAConsumer, TheyHaveABound) {
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(AskUntilFull(0, 8192, &asked));
  EXPECT_EQ(asked.requests, kMostRequests);
  EXPECT_EQ(asked.next.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_LT(asked.grown_bytes, asked.key_bytes + asked.requests * kBytesOfARequest + kBesideBytes);
  RecordProperty("bytes", absl::StrCat(asked.grown_bytes));
}

// Each that is no longer wanted leaves a gap behind.
TEST(RequestsOfAConsumer, GapsBetweenThoseThatEndedHaveABound) {
  const std::unique_ptr<Server> ps = StartPs();
  ASSERT_NE(ps, nullptr);
  Insider member({ps->worker(), ps->address(), "lab", kToken}, kWorker, 9);
  constexpr int kBatch = 8192;
  uint64_t serial = 1;
  int rounds = 0;
  grpc::Status status;
  for (; status.ok() && rounds < 40; ++rounds) {
    const rpc::FetchRequest request = Batch(*ps, kBatch, 2, 0, &serial);
    status = member.Fetch(request.SerializeAsString(), 0);
    if (!status.ok()) break;
    rpc::FetchRequest note;
    note.set_ends(true);
    note.set_channel(1);
    note.set_oldest_serial(1);
    note.set_serial(serial + 1);
    for (const rpc::FetchAsk& ask : request.asks()) note.add_unwanted(ask.serial());
    status = member.Fetch(note.SerializeAsString(), 0);
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  constexpr int kMostGaps = 131'072;
  EXPECT_LE(rounds, kMostGaps / kBatch);
  // The end of the oldest makes room.
  rpc::FetchRequest next = Batch(*ps, 1, 1, 0, &serial);
  next.set_oldest_serial(serial);
  EXPECT_TRUE(member.Fetch(next.SerializeAsString(), 0).ok());
}

}  // namespace
}  // namespace tryst
