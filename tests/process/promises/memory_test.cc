// What waiting receives cost, and what is left of them afterwards.
//
//   memory_test [--receives=1000000] [--local=1000000]
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr int64_t kMiB = 1 << 20;

int64_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Bytes of the heap that are in use.
int64_t HeapBytes() {
  const struct mallinfo2 now = mallinfo2();
  return static_cast<int64_t>(now.uordblks + now.hblkhd);
}

// Sends one tensor, and prints how much memory it uses whenever it is asked.
int SayMemory(const Worker& self, const Numbers&, WireLine* line) {
  auto step = self.Step(1);
  if (!step->Send(self.KeyTo(kThisEnd, "hello"), {}, Numbered(1, 1), false).ok()) return 2;
  std::string word;
  while (line->Hear(&word, absl::Minutes(10)) && word == "memory") {
    if (!line->Say(absl::StrCat(ResidentBytes()))) return 3;
  }
  return 0;
}

class Memory : public testing::TestWithParam<TestedPath> {};
INSTANTIATE_TEST_SUITE_P(, Memory, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

// A dozen seconds after the step is over: the names of keys stay for ten, and free pages of the
// heap until the next look, every ten seconds.
TEST_P(Memory, ReceivesThatEndedLeaveNearlyNothing) {
  SKIP_IF_KNOWN();
  const int64_t count = TestFlag("receives", 100'000);
  // gRPC's own pages, which the tests before this one gave back, are touched again.
  const bool is_grpc = absl::StartsWith(GetParam().name, "Grpc");
  const int64_t most_left = (is_grpc ? 40 : 20) * kMiB;
  // A producer remembers the names of 65,536 keys for as long as its consumer is connected. Over
  // shared memory a consumer that does nothing ends the link.
  const bool remembers = absl::StrContains(GetParam().path, "over rdma/soft") ||
                         absl::StrContains(GetParam().path, "over grpc/stream");
  const int64_t most_left_there = most_left + (remembers ? 65'536 * 280 : 0);
  const PromisePair pair(GetParam());
  auto other = pair.Start("say memory");
  ASSERT_TRUE(other->AwaitReady());
  const auto others = [&] {
    std::string word;
    int64_t bytes = 0;
    EXPECT_TRUE(other->line()->Say("memory") && other->line()->Hear(&word) &&
                absl::SimpleAtoi(word, &bytes));
    return bytes;
  };
  ASSERT_TRUE(pair.self().Step(1)->Recv(other->Key("hello"), {}, absl::Seconds(20)).ok());
  ASSERT_TRUE(pair.CameByThePath());
  const int64_t before = ResidentBytes(), other_before = others();
  int64_t waiting = 0, other_waiting = 0;
  {
    auto step = pair.self().Step(2);
    Receives receives;
    for (int64_t i = 0; i < count; ++i) {
      receives.Make(step.get(), other->Key("w", static_cast<uint64_t>(i)));
    }
    // Waits until the other end has received everything.
    for (int64_t last = -1; last != other_waiting;) {
      last = other_waiting;
      absl::SleepFor(absl::Milliseconds(500));
      other_waiting = others();
    }
    waiting = ResidentBytes();
    step->StartAbort(absl::AbortedError("the step is over"));
    ASSERT_TRUE(receives.AwaitAll(absl::Seconds(60))) << receives.open();
    pair.self().server->steps()->CleanupStep(2);
  }
  int64_t after = 0, other_after = 0;
  const absl::Time over = absl::Now();
  do {
    absl::SleepFor(absl::Milliseconds(500));
    after = ResidentBytes();
    other_after = others();
  } while ((after - before > most_left || other_after - other_before > most_left_there) &&
           absl::Now() - over < kSlowness * absl::Seconds(40));
  std::printf(
      "{\"path\":\"%s\",\"receives\":%lld,\"consumer_mib\":{\"before\":%lld,\"waiting\":%lld,"
      "\"over\":%lld},\"producer_mib\":{\"before\":%lld,\"waiting\":%lld,\"over\":%lld},"
      "\"after_s\":%.1f}\n",
      GetParam().name, static_cast<long long>(count), static_cast<long long>(before / kMiB),
      static_cast<long long>(waiting / kMiB), static_cast<long long>(after / kMiB),
      static_cast<long long>(other_before / kMiB), static_cast<long long>(other_waiting / kMiB),
      static_cast<long long>(other_after / kMiB), absl::ToDoubleSeconds(absl::Now() - over));
  EXPECT_LE(after - before, most_left);
  EXPECT_LE(other_after - other_before, most_left_there);
}

// Sends and receives of one process meet in a table: measures its cost beside the keys' own.
TEST(LocalMemory, AReceiveThatWaitsTakesLittle) {
  SKIP_IF_KNOWN();
  const int64_t count = TestFlag("local", 200'000);
  const PromisePair pair(TestedPaths()[0]);
  auto step = pair.self().Step(1);
  const int64_t empty = HeapBytes();
  std::vector<TensorKey> keys;
  keys.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    keys.push_back(pair.self().KeyTo(kThisEnd, "w", static_cast<uint64_t>(i)));
  }
  const int64_t with_keys = HeapBytes();
  int64_t ended = 0;
  for (const TensorKey& key : keys) {
    step->RecvAsync(key, {}, [&ended](Received&&) { ++ended; });
  }
  const int64_t waiting = HeapBytes();
  step->StartAbort(absl::AbortedError("over"));
  EXPECT_EQ(ended, count);
  const int64_t of_key = (with_keys - empty) / count, of_receive = (waiting - with_keys) / count;
  std::printf("{\"local_receives\":%lld,\"bytes_of_key\":%lld,\"bytes_of_receive\":%lld}\n",
              static_cast<long long>(count), static_cast<long long>(of_key),
              static_cast<long long>(of_receive));
  EXPECT_LE(of_receive, 450);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(argc, argv, {{"say memory", &tryst::SayMemory}});
}
