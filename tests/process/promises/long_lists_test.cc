// Selections of ten million spans, between two processes and over every path: what they take of
// memory, and what is refused.
//
//   long_lists_test [--spans=10000000] [--seed=1]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "rendezvous/selection.h"
#include "server/regions/region.h"
#include "server/regions/region_asks.h"
#include "server/regions/region_fetch.h"
#include "tests/process/pair/moment.h"
#include "tests/process/promises/promise_pair.h"

namespace tryst {
namespace {

constexpr uint64_t kSpanBytes = 4;
constexpr int64_t kMiB = 1 << 20;

// The most memory that this process has had since the last call.
class Peak {
 public:
  Peak() { Take(); }
  int64_t Take() {
    std::ifstream in("/proc/self/status");
    int64_t kib = 0;
    for (std::string line; std::getline(in, line);) {
      if (absl::StartsWith(line, "VmHWM:")) sscanf(line.c_str(), "VmHWM: %ld", &kib);
    }
    std::ofstream("/proc/self/clear_refs") << 5;
    return kib << 10;
  }
};

// The number i is at its place in a pool of twice the spans.
Tensor PoolOf(int64_t spans) {
  const Tensor pool = *Tensor::Allocate(DType::kInt32, {2 * spans});
  auto* const at = static_cast<int32_t*>(pool.mutable_data());
  std::iota(at, at + 2 * spans, 0);
  return pool;
}

// Every other block of a pool, in any order: nothing joins.
std::vector<uint32_t> Scattered(int64_t spans, uint64_t seed) {
  std::vector<uint32_t> blocks(static_cast<size_t>(spans));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint32_t>(2 * i + 1);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(seed));
  return blocks;
}

std::vector<ByteSpan> SpansOf(const std::vector<uint32_t>& blocks) {
  std::vector<ByteSpan> spans(blocks.size());
  for (size_t i = 0; i < spans.size(); ++i) spans[i] = {blocks[i] * kSpanBytes, kSpanBytes};
  return spans;
}

// Opens a region, sends the same blocks of it each time it hears "send", and says what its memory
// has been.
int Serve(const Worker& self, const Numbers& numbers, WireLine* line) {
  const int64_t spans = numbers.at("spans");
  const Tensor pool = PoolOf(spans);
  const std::vector<uint32_t> blocks = Scattered(spans, 7);
  auto region = Region::Open(self.server, "l1", pool, {});
  if (!region.ok()) return 2;
  auto step = self.Step(1);
  Peak peak;
  for (std::string word; line->Hear(&word, absl::Hours(1)) && word != "end";) {
    if (word == "send" && !step->SendSelected(self.KeyTo(kThisEnd, "many"), {}, pool,
                                              Selection::Indices(blocks, kSpanBytes))
                               .ok()) {
      return 3;
    }
    if (!line->Say(absl::StrCat(peak.Take()))) return 4;
  }
  return 0;
}

// The memory that the other end has had since it was asked last.
int64_t Ask(OtherEnd* other, const char* word) {
  std::string answer;
  int64_t bytes = 0;
  EXPECT_TRUE(other->line()->Say(word) && other->line()->Hear(&answer, absl::Minutes(2)) &&
              absl::SimpleAtoi(answer, &bytes));
  return bytes;
}

class LongLists : public testing::TestWithParam<TestedPath> {
 protected:
  const int64_t spans_ = TestFlag("spans", 10'000'000);
};
INSTANTIATE_TEST_SUITE_P(, LongLists, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

TEST_P(LongLists, TenMillionSpansTakeBoundedMemory) {
  const auto seed = static_cast<uint64_t>(TestFlag("seed", 1));
  const PromisePair pair(GetParam());
  const auto other = pair.Start("serve", {{"spans", spans_}});
  ASSERT_TRUE(other->AwaitReady());
  const std::vector<uint32_t> wanted = Scattered(spans_, 7), mine = Scattered(spans_, seed);
  const std::vector<ByteSpan> landing = SpansOf(mine);
  const Tensor into = *Tensor::Allocate(DType::kInt32, {2 * spans_});
  auto* const at = static_cast<int32_t*>(into.mutable_data());
  RecvArgs args;
  args.destination = into;
  const auto holds = [&] {
    for (size_t i = 0; i < mine.size(); ++i) {
      if (at[mine[i]] != static_cast<int32_t>(wanted[i])) return false;
      if (at[mine[i] - 1] != -1) return false;  // Beside it.
    }
    return true;
  };
  // What the fetch keeps of the lists, and what it takes to find spans that overlap.
  const int64_t of_lists = spans_ * static_cast<int64_t>(sizeof(uint32_t) + 2 * sizeof(ByteSpan));
  const int64_t of_bytes = spans_ * static_cast<int64_t>(kSpanBytes);
  Peak peak;
  const int64_t others = Ask(other.get(), "memory");
  for (const bool sends : {false, true}) {
    memset(at, 0xff, into.bytes());
    const int64_t before = peak.Take();
    const absl::Time began = absl::Now();
    const int64_t sent = sends ? Ask(other.get(), "send") : 0;
    Moment ended;
    absl::Status status;
    const auto done = [&](Received&& received) {
      status = received.status;
      ended.Come();
    };
    if (sends) {
      pair.self().Step(1)->RecvSelectedAsync(other->Key("many"), args, Selection::Spans(landing),
                                             done);
    } else {
      FetchRegion(pair.self().server, 1, other->Key(RegionEdge("l1")),
                  Selection::Indices(wanted, kSpanBytes), args, Selection::Spans(landing), done);
    }
    ASSERT_TRUE(ended.Wait(std::chrono::minutes(kSlowness)));
    const absl::Duration took = absl::Now() - began;
    ASSERT_TRUE(status.ok()) << status;
    const int64_t here = peak.Take() - before;
    const int64_t there = std::max(sent, Ask(other.get(), "memory")) - others;
    std::printf(
        "{\"path\":\"%s\",\"work\":\"%s\",\"spans\":%lld,\"s\":%.2f,\"consumer_mib\":%lld,"
        "\"producer_mib\":%lld}\n",
        GetParam().name, sends ? "gather" : "region", static_cast<long long>(spans_),
        absl::ToDoubleSeconds(took), static_cast<long long>(here / kMiB),
        static_cast<long long>(there / kMiB));
    EXPECT_TRUE(holds());
    EXPECT_LE(here, of_lists + (sends ? 2 * of_bytes : 0) + 96 * kMiB);
    EXPECT_LE(there, (sends ? 2 * of_bytes : 0) + 96 * kMiB);
  }
  other->line()->Say("end");
}

// Before anybody is asked, so on whatever path.
TEST(LongListsAlone, WhatIsTooLongOrOverlapsIsRefused) {
  const PromisePair pair(TestedPaths()[0]);
  const auto other = pair.Start("serve", {{"spans", 1000}});
  ASSERT_TRUE(other->AwaitReady());
  const int64_t others = Ask(other.get(), "memory");
  const std::vector<uint32_t> blocks(Selection::kMaxSpans + 1, 3);
  const std::vector<uint32_t> most(10'000'000, 3);
  std::vector<uint32_t> twice = Scattered(10'000'000, 1);
  twice.front() = twice.back();
  const Tensor into = *Tensor::Allocate(DType::kInt32, {20'000'000});
  memset(into.mutable_data(), 0, into.bytes());
  RecvArgs args;
  args.destination = into;
  Peak peak;
  const auto refused = [&](const Selection& wanted, const Selection& landing, bool gathers) {
    Moment ended;
    absl::Status status;
    const auto done = [&](Received&& received) {
      status = received.status;
      ended.Come();
    };
    if (gathers) {
      pair.self().Step(1)->RecvSelectedAsync(other->Key("many"), args, landing, done);
    } else {
      FetchRegion(pair.self().server, 1, other->Key(RegionEdge("l1")), wanted, args, landing, done);
    }
    EXPECT_TRUE(ended.Wait());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const Selection too_many = Selection::Indices(blocks, kSpanBytes);
  const int64_t before = peak.Take();
  EXPECT_TRUE(absl::StrContains(refused(too_many, too_many, false), "16777216"));
  EXPECT_TRUE(absl::StrContains(refused(too_many, too_many, true), "16777216"));
  EXPECT_LE(peak.Take() - before, 80 * kMiB);  // A copy of the landing's list.
  const Selection ten_million = Selection::Indices(most, kSpanBytes);
  for (const bool gathers : {false, true}) {
    const std::string why = refused(ten_million, Selection::Indices(twice, kSpanBytes), gathers);
    EXPECT_TRUE(absl::StrContains(why, "overlap")) << why;
  }
  EXPECT_LE(peak.Take() - before, 256 * kMiB);
  // What lies outside of the region says its owner, who has made room for no answer.
  const std::vector<uint32_t> mine = Scattered(10'000'000, 2);
  const std::string why =
      refused(Selection::Indices(mine, kSpanBytes), Selection::Indices(mine, kSpanBytes), false);
  EXPECT_TRUE(absl::StrContains(why, "outside")) << why;
  EXPECT_LE(Ask(other.get(), "memory") - others, 32 * kMiB);
  other->line()->Say("end");
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(argc, argv, {{"serve", tryst::Serve}});
}
