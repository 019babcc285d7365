// Calls that a callback makes, on every path: none hangs, and none crashes the process.
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/process/pair/moment.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr std::chrono::seconds kSoon(20);

// Sends two tensors.
int SendTwo(const Worker& self, const Numbers&, WireLine* line) {
  auto step = self.Step(1);
  for (const char* edge : {"first", "second"}) {
    if (!step->Send(self.KeyTo(kThisEnd, edge), {}, Numbered(1, 1), false).ok()) return 2;
  }
  std::string word;
  (void)line->Hear(&word, absl::Minutes(10));
  return 0;
}

// Receives one tensor, and stops its server in the callback.
int StopInside(const Worker& self, const Numbers& numbers, WireLine* line) {
  std::string word;
  uint64_t incarnation = 0;
  if (!line->Hear(&word) || !absl::SimpleAtoi(word, &incarnation)) return 3;
  Moment stopped;
  RecvArgs args;
  if (numbers.at("executor") != 0) args.executor = self.server->executor();
  self.Step(1)->RecvAsync(KeyBetween(kThisEnd, incarnation, self.server->worker(), "go"), args,
                          [&](Received&&) {
                            const absl::Status status = self.server->Stop(absl::Seconds(1));
                            (void)line->Say(absl::StrCat("stopped ", status.ToString()));
                            stopped.Come();
                          });
  // If Stop() was refused there, it must work here.
  return stopped.Wait(kSoon) ? 0 : 4;
}

class Calls : public testing::TestWithParam<TestedPath> {};
INSTANTIATE_TEST_SUITE_P(, Calls, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

// The call may be refused, with advice what to do instead, but it must return.
TEST_P(Calls, ARecvInsideAnInPlaceDoneComesBack) {
  SKIP_IF_KNOWN();
  auto ended = std::make_shared<Moment>();
  auto first_ended = std::make_shared<Moment>();
  auto status = std::make_shared<absl::Status>();
  auto pair = std::make_unique<PromisePair>(GetParam());
  auto other = pair->Start("send two");
  ASSERT_TRUE(other->AwaitReady());
  auto step = pair->self().Step(1);
  const TensorKey second = other->Key("second");
  step->RecvAsync(
      other->Key("first"), {}, [step, second, ended, first_ended, status](Received&& received) {
        first_ended->Come();
        *status = received.status.ok() ? step->Recv(second, {}, absl::Seconds(2)).status()
                                       : received.status;
        ended->Come();
      });
  ASSERT_TRUE(first_ended->Wait(kSoon));
  if (!ended->Wait(kSoon)) {
    (void)pair.release();  // Its thread never returns, so the pair cannot be stopped.
    FAIL() << "Recv hangs, and its timeout with it";
  }
  EXPECT_TRUE(status->ok() || absl::IsFailedPrecondition(*status)) << *status;
  if (!status->ok()) {  // Then nothing was taken.
    const auto got = step->Recv(second, {}, absl::Seconds(20));
    EXPECT_TRUE(got.ok()) << got.status();
  }
  (void)other->line()->Say("end");
}

class Stops : public Calls {
 protected:
  void StopsInside(int64_t executor) {
    const PromisePair pair(GetParam());
    auto other = pair.Start("stop inside", {{"executor", executor}});
    ASSERT_TRUE(other->AwaitReady());
    ASSERT_TRUE(other->line()->Say(absl::StrCat(pair.self().server->incarnation())));
    ASSERT_TRUE(pair.self()
                    .Step(1)
                    ->Send(pair.self().KeyTo(other->name(), "go"), {}, Numbered(1, 1), false)
                    .ok());
    std::string word;
    EXPECT_TRUE(other->line()->Hear(&word, absl::Seconds(30))) << "Stop() does not return";
    EXPECT_EQ(other->Wait(absl::Seconds(30)), 0) << word << "\n" << other->words();
  }
};
INSTANTIATE_TEST_SUITE_P(, Stops, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Stops, InsideAnInPlaceDoneItReturns) {
  SKIP_IF_KNOWN();
  StopsInside(0);
}
TEST_P(Stops, OnTheServersExecutorItReturns) {
  SKIP_IF_KNOWN();
  StopsInside(1);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(argc, argv,
                            {{"send two", &tryst::SendTwo}, {"stop inside", &tryst::StopInside}});
}
