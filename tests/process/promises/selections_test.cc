// Selections at both ends, groups and regions, between two processes and over every path.
//
//   selections_test [--sends=150] [--rounds=40] [--aborts=2000] [--fetches=100] [--seed=1]
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "rendezvous/fetch_group.h"
#include "rendezvous/selection.h"
#include "server/regions/region.h"
#include "server/regions/region_asks.h"
#include "server/regions/region_fetch.h"
#include "tests/process/pair/moment.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr uint64_t kPoolBytes = (6 << 20) + 123;
constexpr int kOfARound = 8;
constexpr char kCanary = 0x5a, kLater = 0x33;

char ContentAt(uint64_t i) { return static_cast<char>(i * 131 + i / 4093); }

Tensor Pool() {
  const Tensor pool = *Tensor::Allocate(DType::kUint8, {kPoolBytes});
  auto* const at = static_cast<char*>(pool.mutable_data());
  for (uint64_t i = 0; i < kPoolBytes; ++i) at[i] = ContentAt(i);
  return pool;
}

// A number of bytes: few, many, and now and then none.
uint64_t DrawBytes(std::mt19937_64* random) {
  const uint64_t most[] = {1, 100, 5'000, 70'000, 3'000'000};
  return (*random)() % most[(*random)() % 5];
}

// Spans of `bytes` in all, anywhere in a pool, perhaps some bytes twice.
std::vector<ByteSpan> DrawSpans(uint64_t bytes, uint64_t pool_bytes, std::mt19937_64* random) {
  std::vector<ByteSpan> spans;
  const uint64_t most = 1 + bytes / (1 + (*random)() % 300);
  while (bytes > 0) {
    const uint64_t one = std::min(bytes, 1 + (*random)() % most);
    spans.push_back({(*random)() % (pool_bytes - one + 1), one});
    bytes -= one;
  }
  return spans;
}

// What is sent under a number, as both ends know it.
std::vector<ByteSpan> SentSpans(int64_t number) {
  std::mt19937_64 random(static_cast<uint64_t>(number));
  const uint64_t bytes = DrawBytes(&random);
  return DrawSpans(bytes, kPoolBytes, &random);
}

bool HasDigests(int64_t number) { return number % 3 == 0; }

uint64_t BytesOf(const std::vector<ByteSpan>& spans) {
  uint64_t bytes = 0;
  for (const ByteSpan& span : spans) bytes += span.bytes;
  return bytes;
}

// Where so many bytes land: parts of a tensor of its own, with gaps, in any order.
struct Landing {
  Landing(uint64_t bytes, std::mt19937_64* random) {
    uint64_t end = 0;
    const uint64_t most = 1 + bytes / (1 + (*random)() % 300);
    for (uint64_t left = bytes; left > 0;) {
      end += (*random)() % 3 == 0 ? (*random)() % 5000 : 0;
      spans.push_back({end, std::min(left, 1 + (*random)() % most)});
      left -= spans.back().bytes;
      end += spans.back().bytes;
    }
    std::shuffle(spans.begin(), spans.end(), *random);
    into = *Tensor::Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(end + 64)}));
    memset(into.mutable_data(), kCanary, into.bytes());
  }
  // Those bytes of a pool in its spans, and canaries around them.
  std::string Expected(const std::vector<ByteSpan>& sent) const {
    std::string expected(into.bytes(), kCanary);
    size_t at = 0;
    uint64_t inside = 0;
    for (const ByteSpan& span : spans) {
      for (uint64_t i = 0; i < span.bytes; ++i) {
        while (inside == sent[at].bytes) {
          ++at;
          inside = 0;
        }
        expected[span.offset + i] = ContentAt(sent[at].offset + inside++);
      }
    }
    return expected;
  }
  // What is in the spans that have failed does not count.
  bool Holds(std::string expected, const std::vector<uint32_t>& failed) const {
    for (const uint32_t number : failed) {
      const ByteSpan& span = spans[number];
      memcpy(&expected[span.offset], into.data_as<char>() + span.offset, span.bytes);
    }
    return memcmp(expected.data(), into.data(), into.bytes()) == 0;
  }
  bool Holds(const std::vector<ByteSpan>& sent, const std::vector<uint32_t>& failed = {}) const {
    return Holds(Expected(sent), failed);
  }
  // Whether no byte outside of the spans has been written; all of them count if `none`.
  bool Untouched(char with, bool none) const {
    const char* const at = into.data_as<char>();
    if (none) return at[0] == with && memcmp(at, at + 1, into.bytes() - 1) == 0;
    std::string seen(at, into.bytes());
    for (const ByteSpan& span : spans) memset(&seen[span.offset], with, span.bytes);
    return std::all_of(seen.begin(), seen.end(), [with](char c) { return c == with; });
  }

  std::vector<ByteSpan> spans;
  Tensor into;
};

int SendThem(const Worker& self, const Numbers& numbers, WireLine* line) {
  const Tensor pool = Pool();
  auto step = self.Step(1);
  for (int64_t n = 0; n < numbers.at("sends"); ++n) {
    const std::vector<ByteSpan> spans = SentSpans(n);
    SendArgs args;
    args.digests = HasDigests(n);
    const absl::Status sent = step->SendSelected(self.KeyTo(kThisEnd, absl::StrCat("s", n)), args,
                                                 pool, Selection::Spans(spans));
    if (!sent.ok()) return 2;
  }
  memset(pool.mutable_data(), 0, kPoolBytes);  // It is ours again.
  std::string end;
  (void)line->Hear(&end, absl::Hours(1));
  return 0;
}

// Sends what the test asks for, at a random pace.
int SendRounds(const Worker& self, const Numbers&, WireLine* line) {
  const Tensor pool = Pool();
  std::mt19937_64 random(1);
  int64_t round = 1;
  for (std::string word; line->Hear(&word, absl::Hours(1)) && word != "end"; ++round) {
    auto step = self.Step(round);
    for (int64_t k = 0; k < kOfARound; ++k) {
      if (random() % 2 == 0) usleep(static_cast<useconds_t>(random() % 300));
      const std::vector<ByteSpan> spans = SentSpans(round * kOfARound + k);
      (void)step->SendSelected(self.KeyTo(kThisEnd, absl::StrCat("k", k)), {}, pool,
                               Selection::Spans(spans));
    }
    if (!line->Hear(&word, absl::Hours(1))) return 0;
    self.server->steps()->CleanupStep(round);
  }
  return 0;
}

int OpenRegion(const Worker& self, const Numbers&, WireLine* line) {
  const Tensor pool = Pool();
  auto region = Region::Open(self.server, "l1", pool, {});
  RegionOptions others;
  others.readers = {"/job:other"};
  auto closed_to_us = Region::Open(self.server, "l2", pool, others);
  if (!region.ok() || !closed_to_us.ok() || !line->Say("open")) return 2;
  for (std::string word; line->Hear(&word, absl::Hours(1)) && word != "end";) {
    region->reset();
    memset(pool.mutable_data(), 0, kPoolBytes);
    if (!line->Say("closed")) return 0;
  }
  return 0;
}

class Selections : public testing::TestWithParam<TestedPath> {
 protected:
  std::mt19937_64 random_{static_cast<uint64_t>(TestFlag("seed", 1))};
};
INSTANTIATE_TEST_SUITE_P(, Selections, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Selections, BothEndsHaveTheirOwn) {
  const PromisePair pair(GetParam());
  const int64_t sends = TestFlag("sends", 150);
  const auto other = pair.Start("send", {{"sends", sends}});
  ASSERT_TRUE(other->AwaitReady());
  auto step = pair.self().Step(1);
  std::vector<std::unique_ptr<Landing>> landings;
  std::vector<absl::Status> ends(static_cast<size_t>(sends), absl::UnknownError("has not ended"));
  std::vector<GatherResult> results(static_cast<size_t>(sends));
  Moment all;
  std::atomic<int64_t> left{sends};
  for (int64_t n = 0; n < sends; ++n) {
    landings.push_back(std::make_unique<Landing>(BytesOf(SentSpans(n)), &random_));
    RecvArgs args;
    args.destination = landings.back()->into;
    if (random_() % 2 == 0) args.executor = pair.self().server->executor();
    SelectedLanding landing(Selection::Spans(landings.back()->spans));
    landing.digests = HasDigests(n);
    landing.result = &results[static_cast<size_t>(n)];
    step->RecvSelectedAsync(other->Key(absl::StrCat("s", n)), args, landing,
                            [&, n](Received&& received) {
                              ends[static_cast<size_t>(n)] = received.status;
                              if (--left == 0) all.Come();
                            });
  }
  ASSERT_TRUE(all.Wait());
  for (int64_t n = 0; n < sends; ++n) {
    const auto i = static_cast<size_t>(n);
    ASSERT_TRUE(ends[i].ok()) << n << ": " << ends[i];
    ASSERT_TRUE(landings[i]->Holds(SentSpans(n))) << n;
    ASSERT_TRUE(results[i].failed.empty()) << n;
    ASSERT_EQ(results[i].digests.size(), HasDigests(n) ? landings[i]->spans.size() : 0) << n;
  }
  EXPECT_TRUE(pair.CameByThePath()) << pair.self().server->Explain("");
  other->line()->Say("end");
}

TEST_P(Selections, ATensorOfOtherBytesIsThereForTheNext) {
  const PromisePair pair(GetParam());
  const auto other = pair.Start("send", {{"sends", 20}});
  ASSERT_TRUE(other->AwaitReady());
  auto step = pair.self().Step(1);
  int64_t n = 0;
  while (BytesOf(SentSpans(n)) < 10 || HasDigests(n)) ++n;
  const std::vector<ByteSpan> sent = SentSpans(n);
  const auto receive = [&](const Landing& landing) {
    RecvArgs args;
    args.destination = landing.into;
    Moment ended;
    absl::Status status;
    step->RecvSelectedAsync(other->Key(absl::StrCat("s", n)), args, Selection::Spans(landing.spans),
                            [&](Received&& received) {
                              status = received.status;
                              ended.Come();
                            });
    EXPECT_TRUE(ended.Wait());
    return status;
  };
  const Landing small(BytesOf(sent) - 1, &random_);
  const absl::Status misfit = receive(small);
  EXPECT_TRUE(absl::IsInvalidArgument(misfit)) << misfit;
  EXPECT_TRUE(absl::StrContains(misfit.message(), absl::StrCat(BytesOf(sent), ":"))) << misfit;
  EXPECT_TRUE(small.Untouched(kCanary, true));
  const Landing right(BytesOf(sent), &random_);
  const absl::Status fits = receive(right);
  ASSERT_TRUE(fits.ok()) << fits;
  EXPECT_TRUE(right.Holds(sent));
  other->line()->Say("end");
}

// Groups are cancelled at random moments. Behind the fence nothing is written any more.
TEST_P(Selections, NothingLandsBehindTheFence) {
  const PromisePair pair(GetParam());
  const auto other = pair.Start("rounds");
  ASSERT_TRUE(other->AwaitReady());
  const SteadyClock clock;
  std::deque<std::vector<Landing>> over;
  size_t ended_ok = 0, cancelled = 0;
  int64_t slowest_ns = 0;
  const auto check_over = [&] {
    for (const auto& round : over) {
      for (const Landing& landing : round) ASSERT_TRUE(landing.Untouched(kLater, true));
    }
  };
  const int64_t rounds = TestFlag("rounds", 40);
  for (int64_t round = 1; round <= rounds; ++round) {
    auto step = pair.self().Step(round);
    FetchGroup group(&clock);
    std::vector<Landing> landings;
    std::vector<absl::Status> ends(kOfARound, absl::UnknownError("has not ended"));
    for (int64_t k = 0; k < kOfARound; ++k) {
      landings.emplace_back(BytesOf(SentSpans(round * kOfARound + k)), &random_);
    }
    for (size_t k = 0; k < kOfARound; ++k) {
      RecvArgs args;
      args.destination = landings[k].into;
      if (random_() % 2 == 0) args.executor = pair.self().server->executor();
      group.RecvSelectedAsync(step.get(), other->Key(absl::StrCat("k", k)), args,
                              Selection::Spans(landings[k].spans),
                              [&ends, k](Received&& received) { ends[k] = received.status; });
    }
    ASSERT_TRUE(other->line()->Say("go"));
    usleep(static_cast<useconds_t>(random_() % 4000));
    Moment fenced;
    FenceReport report;
    group.StartCancel([&](const FenceReport& told) {
      report = told;
      fenced.Come();
    });
    ASSERT_TRUE(fenced.Wait());
    EXPECT_EQ(report.ended_ok + report.cancelled, size_t{kOfARound});
    ended_ok += report.ended_ok;
    cancelled += report.cancelled;
    slowest_ns = std::max(slowest_ns, report.waited_ns);
    for (size_t k = 0; k < kOfARound; ++k) {
      const std::vector<ByteSpan> sent = SentSpans(round * kOfARound + static_cast<int64_t>(k));
      if (ends[k].ok()) {
        EXPECT_TRUE(landings[k].Holds(sent)) << "round " << round << ", " << k;
      } else {
        EXPECT_TRUE(absl::IsCancelled(ends[k])) << ends[k];
        EXPECT_TRUE(landings[k].Untouched(kCanary, true)) << "round " << round << ", " << k;
      }
      memset(landings[k].into.mutable_data(), kLater, landings[k].into.bytes());
    }
    over.push_back(std::move(landings));
    if (over.size() > 4) over.pop_front();
    check_over();
    ASSERT_TRUE(other->line()->Say("over"));
    pair.self().server->steps()->CleanupStep(round);
  }
  usleep(100'000);
  check_over();
  printf("%zu ended well, %zu were cancelled; the slowest fence took %.3f ms\n", ended_ok,
         cancelled, static_cast<double>(slowest_ns) / 1e6);
  other->line()->Say("end");
}

// Fetches of a region are cancelled at any moment of their way, and their memory is the next ones'
// at once.
TEST_P(Selections, AbortsAtRandomMomentsBringNoLateByte) {
  struct Place {
    Place(uint64_t bytes, std::mt19937_64* random)
        : wanted(DrawSpans(bytes, kPoolBytes, random)),
          landing(bytes, random),
          expected(landing.Expected(wanted)) {}
    std::vector<ByteSpan> wanted;
    Landing landing;
    std::string expected;
    GatherResult result;
    absl::Status status;
  };
  constexpr size_t kPlaces = 64, kAtOnce = 16;
  const PromisePair pair(GetParam());
  const auto other = pair.Start("region");
  ASSERT_TRUE(other->AwaitReady());
  std::string word;
  ASSERT_TRUE(other->line()->Hear(&word));
  std::deque<Place> places;
  for (size_t i = 0; i < kPlaces; ++i) {
    const uint64_t most = i % 8 == 0 ? 300'000 : i % 8 < 4 ? 30'000 : 2'000;
    places.emplace_back(1 + random_() % most, &random_);
    memset(places.back().landing.into.mutable_data(), kLater, places.back().landing.into.bytes());
  }
  const SteadyClock clock;
  const TensorKey key = other->Key(RegionEdge("l1"));
  const int64_t aborts = TestFlag("aborts", 2000);
  int64_t cancelled = 0, ended_ok = 0, cut = 0, late = 0, slowest_ns = 0, whole_ns = 200'000;
  for (size_t round = 0; cancelled < aborts; ++round) {
    FetchGroup group(&clock);
    const int64_t began_ns = clock.NowNs();
    for (size_t i = 0; i < kAtOnce; ++i) {
      Place* const place = &places[(round * kAtOnce + i) % kPlaces];
      if (!place->landing.Untouched(kLater, true)) ++late;
      memset(place->landing.into.mutable_data(), kCanary, place->landing.into.bytes());
      RecvArgs args;
      args.destination = place->landing.into;
      group.Start(
          other->name(), 0, args, [place](Received&& received) { place->status = received.status; },
          [&](const RecvArgs& own, DoneFn done) {
            SelectedLanding into(Selection::Spans(place->landing.spans));
            into.digests = i % 4 == 0;
            into.result = &place->result;
            FetchRegion(pair.self().server, 1, key, Selection::Spans(place->wanted), own, into,
                        std::move(done));
          });
    }
    // One in 64 comes to its end, which says how long that takes.
    const bool whole = round % 64 == 0;
    const int64_t until_ns =
        clock.NowNs() + static_cast<int64_t>(random_() % static_cast<uint64_t>(whole_ns / 2 + 1));
    while (whole ? group.under_way() > 0 : clock.NowNs() < until_ns) {
      if (whole) usleep(20);
    }
    if (whole) whole_ns = std::min<int64_t>(clock.NowNs() - began_ns, 20'000'000);
    Moment fenced;
    FenceReport report;
    group.StartCancel([&](const FenceReport& told) {
      report = told;
      fenced.Come();
    });
    ASSERT_TRUE(fenced.Wait());
    slowest_ns = std::max(slowest_ns, report.waited_ns);
    for (size_t i = 0; i < kAtOnce; ++i) {
      Place* const place = &places[(round * kAtOnce + i) % kPlaces];
      ASSERT_TRUE(place->status.ok() || absl::IsCancelled(place->status)) << place->status;
      ++(place->status.ok() ? ended_ok : cancelled);
      const size_t failed = place->result.failed.size();
      ASSERT_EQ(place->status.ok(), failed == 0) << place->status;
      cut += failed > 0 && failed < place->landing.spans.size();
      ASSERT_TRUE(place->landing.Holds(place->expected, place->result.failed)) << round;
      memset(place->landing.into.mutable_data(), kLater, place->landing.into.bytes());
    }
  }
  usleep(100'000);
  for (const Place& place : places) late += !place.landing.Untouched(kLater, true);
  EXPECT_EQ(late, 0);
  printf(
      "%lld were cancelled, %lld of them with some spans there, %lld ended well; %lld late; the "
      "slowest fence took %.3f ms\n",
      static_cast<long long>(cancelled), static_cast<long long>(cut),
      static_cast<long long>(ended_ok), static_cast<long long>(late),
      static_cast<double>(slowest_ns) / 1e6);
  other->line()->Say("end");
}

// No path has the caller's memory, so a peer that says nothing need not be heard.
TEST_P(Selections, APeerThatStandsStillDelaysNoFence) {
  const PromisePair pair(GetParam());
  const auto other = pair.Start("rounds");
  ASSERT_TRUE(other->AwaitReady());
  const SteadyClock clock;
  auto step = pair.self().Step(1);
  ASSERT_TRUE(other->line()->Say("go"));
  FetchGroup group(&clock);
  std::deque<Landing> landings;
  const auto receive = [&](const std::string& edge, uint64_t bytes, DoneFn done) {
    landings.emplace_back(bytes, &random_);
    RecvArgs args;
    args.destination = landings.back().into;
    group.RecvSelectedAsync(step.get(), other->Key(edge), args,
                            Selection::Spans(landings.back().spans), std::move(done));
  };
  Moment connected;
  receive("k0", BytesOf(SentSpans(kOfARound)), [&](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    connected.Come();
  });
  ASSERT_TRUE(connected.Wait());
  for (int i = 0; i < 20; ++i) receive(absl::StrCat("never", i), 1000, nullptr);
  usleep(20'000);
  other->Stop();
  for (int i = 20; i < 40; ++i) receive(absl::StrCat("never", i), 1000, nullptr);
  Moment fenced;
  FenceReport report;
  group.StartCancel([&](const FenceReport& told) {
    report = told;
    fenced.Come();
  });
  EXPECT_TRUE(fenced.Wait(kSlowness * std::chrono::seconds(5)));
  other->GoOn();
  ASSERT_TRUE(fenced.Wait());
  EXPECT_EQ(report.ended_ok, 1u);
  EXPECT_EQ(report.cancelled, 40u);
  // Over shared memory a fetch of a whole tensor may wait for a second.
  if (kSlowness == 1) {
    EXPECT_LT(report.waited_ns, int64_t{900'000'000});
  }
  for (size_t i = 1; i < landings.size(); ++i) EXPECT_TRUE(landings[i].Untouched(kCanary, true));
  other->line()->Say("over");
  other->line()->Say("end");
}

// A fetch from its region ends in the cancel itself, and so does one at its deadline.
TEST_P(Selections, AnOwnerThatStandsStillIsNotWaitedFor) {
  const PromisePair pair(GetParam());
  const auto other = pair.Start("region");
  ASSERT_TRUE(other->AwaitReady());
  std::string word;
  ASSERT_TRUE(other->line()->Hear(&word));
  const SteadyClock clock;
  const TensorKey key = other->Key(RegionEdge("l1"));
  constexpr size_t kFetches = 20;
  std::deque<Landing> landings;
  for (size_t i = 0; i < kFetches + 2; ++i) landings.emplace_back(300'000, &random_);
  const std::vector<ByteSpan> wanted = DrawSpans(300'000, kPoolBytes, &random_);
  FetchGroup group(&clock);
  size_t ended = 0;
  const auto fetch = [&](const Landing& landing, const RecvArgs& args, DoneFn done) {
    RecvArgs own = args;
    own.destination = landing.into;
    SelectedLanding into(Selection::Spans(landing.spans));
    into.digests = true;  // So that the owner is asked.
    FetchRegion(pair.self().server, 1, key, Selection::Spans(wanted), own, into, std::move(done));
  };
  Moment connected, late;
  fetch(landings[kFetches], {}, [&](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    connected.Come();
  });
  ASSERT_TRUE(connected.Wait());
  other->Stop();
  for (size_t i = 0; i < kFetches; ++i) {
    group.Start(
        other->name(), 0, {}, [&](Received&&) { ++ended; },
        [&](const RecvArgs& args, DoneFn done) { fetch(landings[i], args, std::move(done)); });
  }
  FenceReport report;
  group.StartCancel([&](const FenceReport& told) { report = told; });
  EXPECT_EQ(ended, kFetches) << "the cancel has ended them";
  EXPECT_EQ(report.cancelled, kFetches);
  RecvArgs brief;
  brief.deadline = Deadline::After(clock, absl::Milliseconds(100));
  fetch(landings[kFetches + 1], brief, [&](Received&& received) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(received.status)) << received.status;
    late.Come();
  });
  EXPECT_TRUE(late.Wait());
  other->GoOn();
  // What comes now is dropped. One more fetch comes behind it.
  Landing last(300'000, &random_);
  Moment over;
  fetch(last, {}, [&](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    over.Come();
  });
  ASSERT_TRUE(over.Wait());
  EXPECT_TRUE(last.Holds(wanted));
  for (size_t i = 0; i < kFetches; ++i) EXPECT_TRUE(landings[i].Untouched(kCanary, true));
  EXPECT_TRUE(landings[kFetches + 1].Untouched(kCanary, true));
  other->line()->Say("end");
}

TEST_P(Selections, RegionsAnswerAnyNumberOfTimes) {
  const PromisePair pair(GetParam());
  auto other = pair.Start("region");
  ASSERT_TRUE(other->AwaitReady());
  std::string word;
  ASSERT_TRUE(other->line()->Hear(&word));
  Server* const server = pair.self().server;
  const SteadyClock clock;
  GatherResult result;
  const auto fetch = [&](const TensorKey& key, const Landing& landing,
                         const std::vector<ByteSpan>& wanted, int64_t cancel_after_us) {
    FetchGroup group(&clock);
    RecvArgs args;
    args.destination = landing.into;
    Moment ended, fenced;
    absl::Status status;
    group.Start(
        other->name(), 0, args,
        [&](Received&& received) {
          status = received.status;
          ended.Come();
        },
        [&](const RecvArgs& own, DoneFn done) {
          SelectedLanding into(Selection::Spans(landing.spans));
          into.digests = wanted.size() % 2 == 0;
          into.result = &result;
          FetchRegion(server, 1, key, Selection::Spans(wanted), own, into, std::move(done));
        });
    if (cancel_after_us < 0) {
      EXPECT_TRUE(ended.Wait());
    } else {
      usleep(static_cast<useconds_t>(cancel_after_us));
    }
    group.StartCancel([&](const FenceReport&) { fenced.Come(); });
    EXPECT_TRUE(fenced.Wait());
    EXPECT_TRUE(ended.Wait(std::chrono::milliseconds(0))) << "the fence is behind it";
    return status;
  };
  const TensorKey key = other->Key(RegionEdge("l1"));
  std::deque<Landing> over;
  for (int64_t i = 0; i < TestFlag("fetches", 100); ++i) {
    const uint64_t bytes = DrawBytes(&random_);
    const std::vector<ByteSpan> wanted = DrawSpans(bytes, kPoolBytes, &random_);
    Landing landing(bytes, &random_);
    const bool cancels = random_() % 2 == 0;
    const absl::Status status =
        fetch(key, landing, wanted, cancels ? static_cast<int64_t>(random_() % 2000) : -1);
    if (status.ok()) {
      ASSERT_TRUE(landing.Holds(wanted)) << i;
      ASSERT_TRUE(result.failed.empty());
    } else {
      ASSERT_TRUE(cancels && absl::IsCancelled(status)) << status;
      ASSERT_TRUE(landing.Holds(wanted, result.failed)) << i;
    }
    memset(landing.into.mutable_data(), kLater, landing.into.bytes());
    over.push_back(std::move(landing));
    if (over.size() > 8) over.pop_front();
    for (const Landing& late : over) ASSERT_TRUE(late.Untouched(kLater, true));
  }
  const std::vector<ByteSpan> wanted = {{5, 100}}, outside = {{kPoolBytes - 99, 100}};
  const Landing landing(100, &random_);
  EXPECT_TRUE(absl::IsInvalidArgument(fetch(key, landing, outside, -1)));
  EXPECT_TRUE(absl::IsPermissionDenied(fetch(other->Key(RegionEdge("l2")), landing, wanted, -1)));
  EXPECT_TRUE(landing.Untouched(kCanary, true));
  ASSERT_TRUE(other->line()->Say("close"));
  ASSERT_TRUE(other->line()->Hear(&word));
  // Whoever copies under a grant sees behind the copy that the region is closed.
  EXPECT_TRUE(absl::IsUnavailable(fetch(key, landing, wanted, -1)));
  EXPECT_EQ(result.failed.size(), landing.spans.size());

  other->Kill();
  other = pair.Start("region");
  ASSERT_TRUE(other->AwaitReady());
  ASSERT_TRUE(other->line()->Hear(&word));
  const absl::Status again = fetch(other->Key(RegionEdge("l1")), landing, wanted, -1);
  EXPECT_TRUE(again.ok()) << again;
  const absl::Status stale = fetch(key, landing, wanted, -1);
  EXPECT_TRUE(absl::IsAborted(stale)) << stale;
  other->line()->Say("end");
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(
      argc, argv,
      {{"send", tryst::SendThem}, {"rounds", tryst::SendRounds}, {"region", tryst::OpenRegion}});
}
