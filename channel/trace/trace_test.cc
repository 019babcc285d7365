#include "channel/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

// Counts the program's allocations. free() works because malloc() allocates.
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return malloc(bytes);
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }

namespace tryst {
namespace {

TensorKey Key(const std::string& edge) {
  return *TensorKey::Parse(absl::StrCat(
      "/job:ps/replica:0/task:0/device:CPU:0;0000000000000001;/job:worker/replica:0/task:0/"
      "device:CPU:0;",
      edge, ";0:0"));
}

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;

// Records an operation `id` that took `took_ns`.
void EndOne(Trace* trace, TraceTrack* track, uint64_t id, const TensorKey& key, int64_t took_ns,
            absl::StatusCode code = kOk) {
  TraceSpan span;
  span.Begin(WaitsFor::kSlot, 1000);
  span.id = id;
  span.Enter(WaitsFor::kPeerSend, 1000 + took_ns / 2);
  trace->End(span, track, 7, key, 64, code, 1000 + took_ns);
}

TEST(TraceSpan, SaysWhatItWaitsForAndSinceWhen) {
  TraceSpan span;
  EXPECT_EQ(span.waits_for(), WaitsFor::kNothing);
  span.Begin(WaitsFor::kConnection, 100);
  span.Enter(WaitsFor::kSlot, 250);
  span.Enter(WaitsFor::kSlot, 300);  // Unchanged.
  EXPECT_EQ(span.count(), 2u);
  EXPECT_EQ(span.waits_for(), WaitsFor::kSlot);
  EXPECT_EQ(span.since_ns(), 250);
  EXPECT_EQ(span.began_ns(), 100);
  span.Enter(WaitsFor::kPeerSend, 240);  // From another thread's clock, which is slightly behind.
  EXPECT_EQ(span.since_ns(), 240);
}

TEST(TraceSpan, CountsTheTransitionsItHasNoRoomFor) {
  TraceSpan span;
  span.Begin(WaitsFor::kConnection, 0);
  for (int64_t i = 1; i < 20; ++i) {
    span.Enter(i % 2 == 0 ? WaitsFor::kConnection : WaitsFor::kDrain, i);
  }
  EXPECT_EQ(span.count(), TraceSpan::kStamps);
  EXPECT_EQ(span.lost(), 20 - TraceSpan::kStamps);
  EXPECT_EQ(span.since_ns(), 19);
  EXPECT_EQ(span.waits_for(), WaitsFor::kDrain);
  EXPECT_EQ(span.stamp(6).at_ns, 6);
}

TEST(Trace, ReadsBackWhatWasWritten) {
  Trace trace({16, 1});
  TraceTrack* track = trace.Track(TraceRole::kFetch, "/job:ps/replica:0/task:0", "rdma/soft");
  EXPECT_EQ(track, trace.Track(TraceRole::kFetch, track->peer, track->path));
  EXPECT_NE(track, trace.Track(TraceRole::kServe, track->peer, track->path));
  const TensorKey key = Key("loss");
  EndOne(&trace, track, 5, key, 400, absl::StatusCode::kAborted);
  const std::vector<TraceRecord> records = trace.Records();
  ASSERT_EQ(records.size(), 1u);
  const TraceRecord& record = records[0];
  EXPECT_EQ(record.id, 5u);
  EXPECT_EQ(record.step, 7);
  EXPECT_EQ(record.key, key.text());
  EXPECT_EQ(record.key_hash, key.hash());
  EXPECT_EQ(record.track, track->index);
  EXPECT_EQ(record.bytes, 64u);
  EXPECT_EQ(record.end_ns, 1400);
  EXPECT_EQ(record.code, absl::StatusCode::kAborted);
  ASSERT_EQ(record.span.count(), 2u);
  EXPECT_EQ(record.span.stamp(1).what, WaitsFor::kPeerSend);
  EXPECT_EQ(record.span.stamp(1).at_ns, 1200);
}

TEST(Trace, OverwritesTheOldestAndCountsEverything) {
  Trace trace({8, 2, 1000});
  TraceTrack* track = trace.Track(TraceRole::kFetch, "p", "q");
  const TensorKey key = Key("e");
  for (uint64_t id = 1; id <= 40; ++id) EndOne(&trace, track, id, key, 10);  // 20 are sampled,
  EndOne(&trace, track, 41, key, 1000);                                      // one is slow,
  EndOne(&trace, track, 43, key, 10, absl::StatusCode::kAborted);            // and one failed.
  const Trace::Counts counts = trace.counts();
  EXPECT_EQ(counts.ended, 42u);
  EXPECT_EQ(counts.kept, 8u);
  EXPECT_EQ(counts.overwritten, 14u);
  EXPECT_EQ(counts.passed_over, 20u);
  const std::vector<TraceRecord> records = trace.Records();
  ASSERT_EQ(records.size(), 8u);
  EXPECT_EQ(records.front().id, 30u);
  EXPECT_EQ(records[6].id, 41u);
  EXPECT_EQ(records[7].id, 43u);
}

TEST(Trace, CountersMissNothing) {
  Trace trace({8, 1000});
  TraceTrack* track = trace.Track(TraceRole::kServe, "p", "q");
  const TensorKey key = Key("e");
  for (uint64_t id = 1; id <= 100; ++id) EndOne(&trace, track, id, key, 2000);
  EndOne(&trace, track, 101, key, int64_t{1} << 50, absl::StatusCode::kAborted);
  const TraceTrack::Counts counts = track->counts();
  EXPECT_EQ(counts.ended_ok, 100u);
  EXPECT_EQ(counts.ended_failed, 1u);
  EXPECT_EQ(counts.bytes, 101u * 64);
  EXPECT_EQ(counts.took[TraceTrack::BucketOf(2000)], 100u);
  EXPECT_EQ(counts.took[TraceTrack::kBuckets - 1], 1u);
  EXPECT_EQ(counts.waited_ns[static_cast<size_t>(WaitsFor::kSlot)],
            100u * 1000 + (uint64_t{1} << 49));
}

TEST(TraceTrack, BucketsFollowEachOther) {
  EXPECT_EQ(TraceTrack::BucketBeginNs(0), 0u);
  for (size_t i = 0; i < TraceTrack::kBuckets; ++i) {
    const uint64_t begin_ns = TraceTrack::BucketBeginNs(i);
    EXPECT_EQ(TraceTrack::BucketOf(begin_ns), i);
    if (i == 0) continue;
    EXPECT_EQ(TraceTrack::BucketOf(begin_ns - 1), i - 1);
  }
  EXPECT_EQ(TraceTrack::BucketBeginNs(TraceTrack::kBuckets - 1), uint64_t{1} << 40);
  EXPECT_EQ(TraceTrack::BucketOf(UINT64_MAX), TraceTrack::kBuckets - 1);
}

// Quantiles of durations from a microsecond to a quarter of an hour, beside exact ones.
TEST(TraceTrack, QuantilesAreWithinFivePercent) {
  Trace trace({8, 1000});
  const TensorKey key = Key("e");
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    TraceTrack* track = trace.Track(TraceRole::kFetch, absl::StrCat("p", round), "q");
    const double lowest = std::uniform_real_distribution<double>(10, 38)(random);
    std::uniform_real_distribution<double> draw(lowest, std::min(lowest + round % 7, 39.9));
    std::vector<int64_t> all;
    for (uint64_t id = 1; id <= 1000; ++id) {
      all.push_back(static_cast<int64_t>(std::exp2(draw(random))));
      EndOne(&trace, track, id, key, all.back());
    }
    std::sort(all.begin(), all.end());
    for (double quantile : {0.5, 0.9, 0.99}) {
      const auto exact = static_cast<double>(all[static_cast<size_t>(quantile * 1000) - 1]);
      EXPECT_NEAR(track->counts().QuantileNs(quantile), exact, 0.05 * exact) << quantile;
    }
    EXPECT_EQ(track->counts().TookLessThan(uint64_t{1} << 30),
              static_cast<uint64_t>(std::lower_bound(all.begin(), all.end(), int64_t{1} << 30) -
                                    all.begin()));
  }
  EXPECT_EQ(trace.Track(TraceRole::kServe, "nobody", "q")->counts().QuantileNs(0.5), 0);
}

TEST(Trace, BothEndsSampleTheSameOperations) {
  int sampled = 0;
  for (uint64_t slot = 0; slot < 16000; ++slot) {
    const uint64_t id = TraceId(0x1234, slot, 3);
    EXPECT_EQ(id, TraceId(0x1234, slot, 3));
    sampled += id % TraceOptions().sample_every == 0;
  }
  EXPECT_NEAR(sampled, 1000, 150);
}

TEST(Trace, ALongKeyKeepsItsEnds) {
  Trace trace({8, 1});
  TraceTrack* track = trace.Track(TraceRole::kServe, "p", "q");
  EndOne(&trace, track, 1, Key(std::string(1000, 'x') + "_tail"), 1);
  const std::string text = trace.Records()[0].key;
  EXPECT_TRUE(absl::StartsWith(text, "/job:ps/replica:0/task:0/device"));
  EXPECT_TRUE(absl::StrContains(text, "..."));
  EXPECT_TRUE(absl::EndsWith(text, "x_tail;0:0"));
}

TEST(Trace, AllocatesNothingOnTheSteadyPath) {
  Trace trace({64, 1});
  TraceTrack* track = trace.Track(TraceRole::kServe, "p", "q");
  const TensorKey one = Key("one"), two = Key("two");
  EndOne(&trace, track, 1, one, 100);
  const uint64_t before = allocations.load();
  for (uint64_t id = 2; id < 1000; ++id) EndOne(&trace, track, id, id % 2 == 0 ? one : two, 100);
  EXPECT_EQ(allocations.load(), before);
}

TEST(Trace, IsReadWhileItIsWritten) {
  Trace trace({32, 1});
  TraceTrack* track = trace.Track(TraceRole::kFetch, "p", "q");
  std::vector<TensorKey> keys;
  for (int i = 0; i < 20; ++i) keys.push_back(Key(absl::StrCat("edge", i)));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t id = 1; !stop.load(std::memory_order_relaxed); ++id) {
      // Step and bytes are equal for each, so a torn record would show in its span.
      EndOne(&trace, track, id, keys[id % keys.size()], static_cast<int64_t>(2 * id));
    }
  });
  size_t seen = 0;
  for (int round = 0; round < 2000 || seen == 0; ++round) {
    uint64_t last = 0;
    for (const TraceRecord& record : trace.Records()) {
      ASSERT_GT(record.id, last);
      last = record.id;
      ASSERT_EQ(record.end_ns, static_cast<int64_t>(1000 + 2 * record.id));
      ASSERT_EQ(record.span.stamp(1).at_ns, static_cast<int64_t>(1000 + record.id));
      ASSERT_EQ(record.key_hash, keys[record.id % keys.size()].hash());
      ASSERT_EQ(record.key, keys[record.id % keys.size()].text());
      ++seen;
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace tryst
