// Members of one process that have weights for each other, and what goes wrong between them.
#include "server/weights/weight_relay.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "rendezvous/rendezvous.h"
#include "server/testing.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr int64_t kRows = 64, kColumns = 64;
constexpr uint64_t kBytes = kRows * kColumns * sizeof(int32_t);

TensorLayout Layout() {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kInt32;
  layout.shape = {kRows, kColumns};
  return layout;
}

// All but one row of two versions are equal.
int32_t Element(uint64_t number, int64_t row, int64_t column) {
  return static_cast<int32_t>((row == 3 ? number : 0) * 100'000 + row * kColumns + column);
}

// Answers with as many bytes as were asked for, which are no version's.
class Liar final : public Answerer {
 public:
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    ++asked;
    Received received;
    const auto ask = ParseEdge("policy", key.edge());
    const int64_t bytes = ask->box.elements() * int64_t{sizeof(int32_t)};
    received.tensor = *Tensor::Allocate(DType::kUint8, {bytes});
    memset(received.tensor.mutable_data(), 0x5a, bytes);
    EndReceive(args.executor, std::move(received), std::move(done));
  }
  std::atomic<int> asked{0};
};

// A worker that is a member: it votes and switches by itself.
struct Engine {
  Engine(int task, const Server* seed, const std::string& owner, uint64_t hold_bytes)
      : server(StartTestServer("member", task, seed)) {
    WeightMemberOptions options;
    options.set = "policy";
    options.owners = {owner};
    options.hold_bytes = hold_bytes;
    auto opened = WeightMember::Open(server.get(), options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    member = *std::move(opened);
  }
  void Await(WeightEvent::Kind kind, uint64_t number) const {
    for (;;) {
      const auto event = member->NextEvent(kLong);
      ASSERT_TRUE(event.ok()) << WeightEventName(kind) << " " << number << ": " << event.status();
      if (event->kind == kind && event->number == number) return;
    }
  }
  // Fetches rows, and checks them. What lies there already is of version `has`.
  absl::Status Fetch(uint64_t number, int64_t begin = 0, int64_t rows = kRows, uint64_t has = 0) {
    const auto version = member->Find(number, kLong);
    if (!version.ok()) return version.status();
    const Tensor into = *Tensor::Allocate(DType::kInt32, {rows, kColumns});
    int32_t* const at = static_cast<int32_t*>(into.mutable_data());
    for (int64_t i = 0; i < rows * kColumns; ++i) {
      at[i] = has == 0 ? -1 : Element(has, begin + i / kColumns, i % kColumns);
    }
    const absl::Status fetched = member->Fetch(
        *version, {{"w", {{begin, 0}, {rows, kColumns}}, into, Dense({rows, kColumns}), has}},
        kLong);
    if (!fetched.ok()) return fetched;
    for (int64_t i = 0; i < rows * kColumns; ++i) {
      if (at[i] != Element(number, begin + i / kColumns, i % kColumns)) {
        return absl::DataLossError(absl::StrCat("element ", i, " is ", at[i]));
      }
    }
    return absl::OkStatus();
  }
  uint64_t sent_on() const { return member->View().sent_on; }

  std::unique_ptr<Server> server;
  std::unique_ptr<WeightMember> member;
};

class WeightRelayTest : public testing::Test {
 protected:
  WeightRelayTest() : owner_server_(StartTestServer("owner", 0, nullptr)) {
    WeightOwnerOptions options;
    options.set = "policy";
    options.owners = {owner_server_->worker()};
    owner_ = *WeightOwner::Open(owner_server_.get(), options);
    EXPECT_TRUE(owner_->Declare({Layout()}).ok());
  }
  ~WeightRelayTest() override {
    engines_.clear();
    owner_.reset();
  }
  Engine* AddEngine(uint64_t hold_bytes = 2 * kBytes) {
    engines_.push_back(std::make_unique<Engine>(engines_.size(), owner_server_.get(),
                                                owner_server_->worker(), hold_bytes));
    return engines_.back().get();
  }
  void Seal(uint64_t number) {
    const Tensor bytes = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      static_cast<int32_t*>(bytes.mutable_data())[i] = Element(number, i / kColumns, i % kColumns);
    }
    const Box box = Box::Whole(bytes.shape());
    ASSERT_TRUE(owner_->Publish(number, "w", box, bytes, Dense(box.extent)).ok());
    const auto sealed = owner_->Seal(number, "", kLong);
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    for (const auto& engine : engines_) engine->Await(WeightEvent::Kind::kSealed, number);
  }
  // Stages nothing: what members have fetched stands for it.
  void Activate(uint64_t number) {
    absl::Status activated;
    std::thread waits([&] { activated = owner_->Activate(number, ActivateMode::kRolling, kLong); });
    for (const auto& engine : engines_) {
      engine->Await(WeightEvent::Kind::kPrepare, number);
      EXPECT_TRUE(engine->member->Vote(number, absl::OkStatus()).ok());
    }
    for (const auto& engine : engines_) {
      engine->Await(WeightEvent::Kind::kActive, number);
      EXPECT_TRUE(engine->member->Switched(number).ok());
    }
    waits.join();
    ASSERT_TRUE(activated.ok()) << activated;
  }
  uint64_t SentByOwner() const { return owner_server_->weight_views()->List().front().bytes; }
  // What a holder answers to whoever asks it for all of a version.
  absl::StatusOr<Tensor> AskHolder(const Engine& holder, const SealedVersion& version,
                                   const Engine& asker,
                                   WeightAsk::Kind kind = WeightAsk::Kind::kPart) {
    WeightAsk ask;
    ask.kind = kind;
    ask.number = version.name.number;
    ask.birth = version.name.birth;
    ask.box = Box::Whole(Layout().shape);
    WeightCalls calls(asker.server.get(), "policy");
    return std::move(calls.Ask({{holder.server->worker(), ask}}, kLong)[0]);
  }

  std::unique_ptr<Server> owner_server_;
  std::unique_ptr<WeightOwner> owner_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

TEST_F(WeightRelayTest, EachPartLeavesItsOwnerOnce) {
  for (int i = 0; i < 4; ++i) AddEngine();
  Seal(5);
  for (const auto& engine : engines_) {
    const absl::Status fetched = engine->Fetch(5);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
  EXPECT_EQ(SentByOwner(), kBytes);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(engines_[i]->sent_on(), i < 3 ? kBytes : 0) << i;
    EXPECT_EQ(engines_[i]->member->View().held_bytes, kBytes) << i;
    EXPECT_EQ(engines_[i]->member->View().bytes, kBytes) << i;
  }
  // What a member has it asks nobody for.
  EXPECT_TRUE(engines_[3]->Fetch(5).ok());
  EXPECT_EQ(engines_[3]->member->View().bytes, kBytes);
  EXPECT_EQ(SentByOwner(), kBytes);
}

TEST_F(WeightRelayTest, APartOfABoxIsHeldAgainstADigestOfItsOwners) {
  for (int i = 0; i < 3; ++i) AddEngine();
  Seal(5);
  for (const auto& engine : engines_) {
    const absl::Status fetched = engine->Fetch(5, 2, 32);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
  EXPECT_EQ(SentByOwner(), kBytes / 2);
  EXPECT_EQ(engines_[1]->sent_on(), kBytes / 2);
  // Other parts have others.
  EXPECT_TRUE(engines_[2]->Fetch(5, 34, 30).ok());
  EXPECT_EQ(SentByOwner(), kBytes / 2 + kBytes * 30 / kRows);
}

TEST_F(WeightRelayTest, AllAtOnceGetItFromOneAnother) {
  for (int i = 0; i < 8; ++i) AddEngine();
  Seal(5);
  std::vector<std::thread> threads;
  std::vector<absl::Status> fetched(engines_.size());
  for (size_t i = 0; i < engines_.size(); ++i) {
    threads.emplace_back([&, i] { fetched[i] = engines_[i]->Fetch(5, 0, 48); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : fetched) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(SentByOwner(), kBytes * 48 / kRows);
}

TEST_F(WeightRelayTest, WhoDoesNotGetAPartDoesNotHaveOthersWaitForIt) {
  Engine* const engine = AddEngine();
  Seal(5);
  EXPECT_TRUE(engine->Fetch(5, 0, 1).ok());
  const uint64_t held = engine->member->View().held_bytes;
  const auto version = *engine->member->Find(5, kLong);
  const Tensor into = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
  const Box box = Box::Whole(into.shape());
  Cancellation cancelled;
  cancelled.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(engine->member->Fetch(
      version, {{"w", box, into, Dense(box.extent)}}, Patience(kLong, &cancelled))));
  EXPECT_EQ(engine->member->View().held_bytes, held);
}

TEST_F(WeightRelayTest, WhoHasNothingForOthersTakesFromThemAllTheSame) {
  Engine* const holder = AddEngine();
  Engine* const small = AddEngine(kBytes - 1);
  Engine* const none = AddEngine(0);
  Seal(5);
  for (Engine* engine : {none, small, holder, none, small, none}) {
    const absl::Status fetched = engine->Fetch(5);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
  // To the first three, since nobody else had it, and to who comes a second time.
  EXPECT_EQ(SentByOwner(), 4 * kBytes);
  EXPECT_EQ(holder->sent_on(), 2 * kBytes);
  EXPECT_EQ(small->sent_on(), 0u);
}

TEST_F(WeightRelayTest, OneThatLiesCostsTimeAlone) {
  Engine* const liar = AddEngine();
  Engine* const second = AddEngine();
  Engine* const third = AddEngine();
  Seal(5);
  EXPECT_TRUE(liar->Fetch(5).ok());
  EXPECT_TRUE(liar->Fetch(5, 2, 32).ok());
  const auto lies = std::make_shared<Liar>();
  liar->server->steps()->SetAnswerer(WeightsPrefix("policy"), lies);
  absl::Status fetched = second->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(lies->asked, 1);
  EXPECT_EQ(SentByOwner(), 2 * kBytes + kBytes / 2);
  // It has the part no more, for its owner; and so the third one gets it of the second.
  fetched = third->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(lies->asked, 1);
  EXPECT_EQ(second->sent_on(), kBytes);
  // A part of a box, too.
  fetched = third->Fetch(5, 2, 32);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(lies->asked, 2);
}

TEST_F(WeightRelayTest, WhenOneDiesTheOwnerSendsAgain) {
  AddEngine();
  Engine* const second = AddEngine();
  Engine* const third = AddEngine();
  Seal(5);
  EXPECT_TRUE(engines_[0]->Fetch(5).ok());
  EXPECT_TRUE(second->Fetch(5).ok());
  second->member.reset();  // It has left the set.
  const absl::Time begun = absl::Now();
  absl::Status fetched = third->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(SentByOwner(), 2 * kBytes);
  EXPECT_TRUE(third->server->Stop(absl::Seconds(5)).ok());  // Its worker is gone.
  Engine* const fourth = AddEngine();
  fourth->Await(WeightEvent::Kind::kSealed, 5);
  fetched = fourth->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(SentByOwner(), 3 * kBytes);
  EXPECT_LT(absl::Now() - begun, absl::Seconds(7));
}

TEST_F(WeightRelayTest, NobodyHasAVersionThatIsOver) {
  Engine* const holder = AddEngine();
  Engine* const asker = AddEngine();
  Seal(5);
  EXPECT_TRUE(holder->Fetch(5).ok());
  const SealedVersion five = *holder->member->Find(5, kLong);
  Activate(5);
  auto answer = AskHolder(*holder, five, *asker);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->bytes(), kBytes);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      AskHolder(*holder, five, *asker, WeightAsk::Kind::kList).status()));
  Seal(6);
  EXPECT_TRUE(AskHolder(*holder, five, *asker).ok());
  Activate(6);
  answer = AskHolder(*holder, five, *asker);
  EXPECT_TRUE(absl::IsNotFound(answer.status())) << answer.status();
  EXPECT_EQ(holder->member->View().held_bytes, 0u);
  // An owner that keeps it sends it, and nobody will have it for others.
  const uint64_t sent = SentByOwner();
  EXPECT_TRUE(asker->Fetch(5).ok());
  EXPECT_EQ(SentByOwner(), sent + kBytes);
  EXPECT_EQ(asker->member->View().held_bytes, 0u);
}

TEST_F(WeightRelayTest, OnlyWhatHasChangedIsSentOn) {
  Engine* const first = AddEngine();
  Engine* const second = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  EXPECT_TRUE(second->Fetch(5).ok());
  Activate(5);
  Seal(6);
  uint64_t sent = SentByOwner(), sent_on = first->sent_on();
  EXPECT_TRUE(first->Fetch(6, 0, kRows, 5).ok());
  absl::Status fetched = second->Fetch(6, 0, kRows, 5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_LT(SentByOwner() - sent, kBytes / 8);
  EXPECT_GT(SentByOwner() - sent, 0u);
  EXPECT_EQ(first->sent_on() - sent_on, SentByOwner() - sent);
  // Who says wrongly what it has gets it all.
  Engine* const third = AddEngine();
  third->Await(WeightEvent::Kind::kSealed, 6);
  sent_on = second->sent_on();
  const auto version = *third->member->Find(6, kLong);
  const Tensor into = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
  memset(into.mutable_data(), 1, into.bytes());
  const Box box = Box::Whole(into.shape());
  fetched = third->member->Fetch(version, {{"w", box, into, Dense(box.extent), 5}}, kLong);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(into.data_as<int32_t>()[3 * kColumns], Element(6, 3, 0));
  EXPECT_GT(second->sent_on() - sent_on, kBytes);
}

TEST_F(WeightRelayTest, WhatIsToComeIsWaitedFor) {
  Engine* const asker = AddEngine(0);
  const auto holder = StartTestServer("holder", 0, owner_server_.get());
  const auto relay = std::make_shared<WeightRelay>(holder.get(), "policy", kBytes);
  relay->Open();
  const WeightVersion version{5, 0xf5};
  const Box box = Box::Whole(Layout().shape);
  const PartName part{version, 0, box};
  relay->Allow(version, {});
  WeightCalls calls(asker->server.get(), "policy");
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kPart;
  ask.number = 5;
  ask.birth = 0xf5;
  ask.box = box;
  struct Outcome {
    Mutex mu;
    CondVar changed;
    std::vector<absl::StatusOr<Tensor>> answers ABSL_GUARDED_BY(mu);
  };
  const auto outcome = std::make_shared<Outcome>();
  const auto start = [&](CancellationRef cancellation) {
    calls.Start({holder->worker(), ask, holder->incarnation()}, Patience(kLong, cancellation),
                [outcome](absl::StatusOr<Tensor> answer) {
                  MutexLock lock(&outcome->mu);
                  outcome->answers.push_back(std::move(answer));
                  outcome->changed.NotifyAll();
                });
  };
  const auto next = [&]() -> absl::StatusOr<Tensor> {
    MutexLock lock(&outcome->mu);
    while (outcome->answers.empty()) outcome->changed.Wait(&outcome->mu);
    auto answer = std::move(outcome->answers.front());
    outcome->answers.clear();
    return answer;
  };
  start(nullptr);
  EXPECT_TRUE(absl::IsNotFound(next().status()));
  // It does not come.
  ASSERT_TRUE(relay->Expect(part, kBytes));
  start(nullptr);
  absl::SleepFor(absl::Milliseconds(100));
  {
    MutexLock lock(&outcome->mu);
    EXPECT_TRUE(outcome->answers.empty());
  }
  relay->GiveUp(part);
  EXPECT_TRUE(absl::IsNotFound(next().status()));
  // The asker cancels.
  ASSERT_TRUE(relay->Expect(part, kBytes));
  Cancellation cancellation;
  start(&cancellation);
  absl::SleepFor(absl::Milliseconds(100));
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(next().status()));
  // Its version is over.
  start(nullptr);
  absl::SleepFor(absl::Milliseconds(100));
  relay->Allow({6, 0xf6}, {});
  EXPECT_TRUE(absl::IsNotFound(next().status()));
  // It comes.
  relay->Allow(version, {});
  ASSERT_TRUE(relay->Expect(part, kBytes));
  start(nullptr);
  absl::SleepFor(absl::Milliseconds(100));
  Tensor bytes = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
  memset(bytes.mutable_data(), 0x5a, kBytes);
  relay->Put(part, bytes);
  const auto came = next();
  ASSERT_TRUE(came.ok()) << came.status();
  ASSERT_EQ(came->bytes(), kBytes);
  EXPECT_EQ(memcmp(came->data(), bytes.data(), kBytes), 0);
  EXPECT_EQ(relay->bytes_sent(), kBytes);
  EXPECT_TRUE(relay->Find(part).SharesBytesWith(bytes));
  // The member leaves.
  const PartName other{version, 1, box};
  EXPECT_FALSE(relay->Expect(other, kBytes));  // There is no room.
  relay->Close();
  EXPECT_FALSE(relay->Find(part).valid());
  EXPECT_FALSE(relay->Expect(part, kBytes));
  start(nullptr);
  EXPECT_TRUE(absl::IsUnavailable(next().status()));
}

TEST_F(WeightRelayTest, AServerThatHasNotStartedHasNothingForOthers) {
  ServerConfig config;
  config.cluster = "lab";
  config.job = "member";
  config.protocol = "grpc";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  ASSERT_TRUE(server.ok()) << server.status();
  WeightMemberOptions options;
  options.set = "policy";
  options.owners = {owner_server_->worker()};
  options.hold_bytes = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(WeightMember::Open(server->get(), options).status()));
}

}  // namespace
}  // namespace tryst
