// `tryst verify` on what a real pair has traced: every way to ask, cancels, deadlines, over each
// path; and a fault planted into either end of that trace.
#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "channel/ops/verify_traces.h"
#include "channel/trace/trace_dump.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "server/server_parts.h"
#include "server/status/insight.h"
#include "tests/process/e2e/process.h"
#include "tests/process/e2e/tested_paths.h"

namespace tryst {
namespace {

constexpr int kSteps = 60;
constexpr int kKeys = 24;
// There are 1,440 receives; those that end early may have no pair.
constexpr int kFewestPairs = 700;

std::unique_ptr<Server> StartServer(const TestedPath& path, const std::string& job,
                                    const std::string& join) {
  std::vector<std::string> flags =
      With({"--insecure", "--open_cluster", "--listen=127.0.0.1:0", "--trace_sample_every=1",
            "--landing_bytes=8MiB", absl::StrCat("--job=", job)},
           path.flags);
  if (!join.empty()) flags.push_back(absl::StrCat("--join=", join));
  std::vector<std::string> rest;
  auto config = LoadConfig(flags, {}, &rest);
  EXPECT_TRUE(config.ok()) << config.status();
  absl::StatusOr<ServerParts> parts = ServerBuilder().Prepare(*config);
  EXPECT_TRUE(parts.ok()) << parts.status();
  parts->inner.trace.records = 65536;  // All that is moved here.
  std::unique_ptr<Server> server = MakeServer(*std::move(parts));
  const absl::Status started = server->Start();
  EXPECT_TRUE(started.ok()) << started;
  return server;
}

Tensor Some(std::mt19937* random) {
  static constexpr int64_t kSizes[] = {0, 1, 700, 3000, 20'000, 70'000, 400'000};
  const int64_t size = kSizes[(*random)() % std::size(kSizes)];
  if ((*random)() % 8 == 0) {
    Tensor strings = *Tensor::Allocate(DType::kString, TensorShape({size % 100}));
    for (std::string& text : strings.mutable_strings()) text.assign((*random)() % 300, 'x');
    return strings;
  }
  return *Tensor::Allocate(DType::kUint32, TensorShape({size}));
}

class VerifyTest : public ::testing::TestWithParam<TestedPath> {
 protected:
  void SetUp() override {
    producer_ = StartServer(GetParam(), "ps", "");
    consumer_ = StartServer(GetParam(), "worker",
                            absl::StrCat(producer_->worker(), "@", producer_->address()));
  }

  TensorKey Key(int k) {
    return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k%d;0:0",
                                             producer_->worker(), producer_->incarnation(),
                                             consumer_->worker(), k));
  }

  // Receives of a step, some of which are given up or have little time, and sends, some before and
  // some after them. A key is received and sent several times in a step.
  void Step(int64_t number) {
    auto here = consumer_->steps()->StartStep(number);
    auto there = producer_->steps()->StartStep(number);
    ASSERT_TRUE(here.ok() && there.ok());
    std::vector<std::unique_ptr<Cancellation>> cancellations;
    for (int i = 0; i < kKeys; ++i) {
      if (random_() % 2 == 0) Send(there->get(), i);
    }
    for (int i = 0; i < kKeys; ++i) {
      RecvArgs args;
      args.recurring = i % 3 == 0;
      if (random_() % 4 == 0) {
        args.deadline = Deadline::After(SteadyClock(), absl::Microseconds(random_() % 3000));
      }
      if (random_() % 4 == 0) {
        cancellations.push_back(std::make_unique<Cancellation>());
        args.cancellation = cancellations.back().get();
      }
      ++open_;
      (*here)->RecvAsync(Key(i % (kKeys / 2)), args, [this](Received&&) { --open_; });
    }
    for (const auto& cancellation : cancellations) {
      if (random_() % 2 == 0) cancellation->StartCancel();
    }
    for (int i = 0; i < kKeys; ++i) Send(there->get(), i);
    for (const auto& cancellation : cancellations) cancellation->StartCancel();
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (open_ > 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(open_, 0) << consumer_->Explain("");
  }

  void Send(Rendezvous* step, int i) {
    const bool is_dead = random_() % 16 == 0;
    Tensor tensor = is_dead ? Tensor() : Some(&random_);
    ASSERT_TRUE(step->Send(Key(i % (kKeys / 2)), {}, std::move(tensor), is_dead).ok());
  }

  std::vector<TraceDump> Dumps() {
    TraceFilter all;
    all.most = 1'000'000;
    return {consumer_->insight()->Dump(all), producer_->insight()->Dump(all)};
  }

  std::mt19937 random_{20261126};
  std::atomic<int> open_{0};
  std::unique_ptr<Server> producer_;
  std::unique_ptr<Server> consumer_;
};

std::string Words(const TraceVerdict& verdict) {
  std::string words;
  for (const TraceBreach& breach : verdict.breaches) absl::StrAppend(&words, breach.what, "\n");
  return words;
}

TEST_P(VerifyTest, ARealPairIsCleanAndAFaultAtEitherEndIsNot) {
  for (int step = 1; step <= kSteps; ++step) {
    Step(step);
    if (HasFatalFailure()) return;
  }
  const std::vector<TraceDump> dumps = Dumps();
  const TraceVerdict verdict = VerifyTraces(dumps);
  EXPECT_TRUE(verdict.breaches.empty()) << Words(verdict).substr(0, 4000);
  EXPECT_GE(verdict.pairs, kFewestPairs);

  // The commands are those that a user types.
  const std::string at = absl::StrCat(producer_->worker(), "@", producer_->address());
  const std::string also = absl::StrCat(consumer_->worker(), "@", consumer_->address());
  const std::string file = TempFile("trace.json");
  Process trace("server/tryst", {"trace", at, also, "--insecure", absl::StrCat("--out=", file)});
  ASSERT_EQ(trace.Wait(), 0) << trace.err();
  Process verify("server/tryst", {"verify", file});
  EXPECT_EQ(verify.Wait(), 0) << verify.out() << verify.err();
  EXPECT_TRUE(absl::StrContains(verify.out(), "0 breaches")) << verify.out();

  // Each end lies once: a record that was right says something else.
  const std::string text = ReadFile(file);
  for (const auto& [what, from, to] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"\"role\":\"fetch\"", "\"status\":\"OK\"", "\"status\":\"DEADLINE_EXCEEDED\""},
           {"\"role\":\"serve\"", "\"status\":\"OK\"", "\"status\":\"CANCELLED\""},
           {"\"role\":\"fetch\"", "\"step\":", "\"step\":9"},
           {"\"role\":\"serve\"", "\"waits\":\"local_send", "\"waits\":\"destination"}}) {
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    bool planted = false;
    // The newest have both ends in the file.
    for (size_t i = lines.size(); i-- > 0 && !planted;) {
      std::string& line = lines[i];
      const size_t place = line.find(from);
      if (!absl::StrContains(line, what) || !absl::StrContains(line, "\"status\":\"OK\"") ||
          place == std::string::npos) {
        continue;
      }
      line.replace(place, from.size(), to);
      planted = true;
    }
    ASSERT_TRUE(planted) << what << from;
    std::ofstream(TempFile("changed.json")) << absl::StrJoin(lines, "\n");
    Process finds("server/tryst", {"verify", TempFile("changed.json")});
    EXPECT_EQ(finds.Wait(), 1) << what << to << finds.out() << finds.err();
  }
}

// What was asked for ahead of a receive of many once was held for 30 s: the receive did not find
// it.
TEST_P(VerifyTest, ManyThatRecurAreNotHeldUp) {
  constexpr int kRounds = 12;
  std::vector<TensorKey> keys;
  for (int k = 0; k < 4; ++k) keys.push_back(Key(k));
  const absl::Time begun = absl::Now();
  for (int64_t number = 1; number <= kRounds; ++number) {
    auto here = consumer_->steps()->StartStep(number);
    auto there = producer_->steps()->StartStep(number);
    ASSERT_TRUE(here.ok() && there.ok());
    for (int k = 0; k < 4; ++k) Send(there->get(), k);
    RecvArgs args;
    args.recurring = true;
    ++open_;
    (*here)->RecvManyAsync(keys, args, [this](absl::Status status, absl::Span<Received>) {
      EXPECT_TRUE(status.ok()) << status;
      --open_;
    });
    while (open_ > 0) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_LT(absl::Now() - begun, absl::Seconds(25)) << consumer_->Explain("");
  const TraceVerdict verdict = VerifyTraces(Dumps());
  EXPECT_TRUE(verdict.breaches.empty()) << Words(verdict).substr(0, 4000);
}

// A request over a NIC has 16 bits of how often its slot was used.
TEST_P(VerifyTest, ASlotThatWasUsedMoreOftenThanARequestSaysIsOneAtBothEnds) {
  const int times = absl::StrContains(GetParam().path, "rdma") ? 66'000 : 1000;
  auto here = consumer_->steps()->StartStep(1);
  auto there = producer_->steps()->StartStep(1);
  ASSERT_TRUE(here.ok() && there.ok());
  const Tensor tensor = *Tensor::Allocate(DType::kUint32, TensorShape({1}));
  for (int i = 0; i < times; ++i) {
    ASSERT_TRUE((*there)->Send(Key(0), {}, tensor, false).ok());
    ++open_;
    (*here)->RecvAsync(Key(0), RecvArgs(), [this](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      --open_;
    });
    while (open_ > 0) std::this_thread::yield();
  }
  const TraceVerdict verdict = VerifyTraces(Dumps());
  EXPECT_TRUE(verdict.breaches.empty()) << Words(verdict).substr(0, 4000);
  EXPECT_LE(verdict.alone, 8u) << "the oldest of one end may be overwritten";
}

INSTANTIATE_TEST_SUITE_P(EveryPath, VerifyTest, ::testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tryst
