// Members of one process that have weights for each other, and what goes wrong between them.
#include "server/weights/weight_relay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "rendezvous/executor.h"
#include "rendezvous/rendezvous.h"
#include "server/members/membership.h"
#include "server/members/peer_calls.h"
#include "server/weights/stand_ins.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "tests/doubles/server/cut_proxy.h"
#include "tests/doubles/server/testing.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);
// On a busy machine an owner may stand still for as long as drops what it has not sealed.
GroupTimes Patient() {
  GroupTimes times;
  times.silent_ns = absl::ToInt64Nanoseconds(kLong);
  return times;
}
constexpr int64_t kRows = 64, kColumns = 64;
constexpr uint64_t kBytes = kRows * kColumns * sizeof(int32_t);

// Each owner has as many rows.
TensorLayout Layout(uint32_t owners = 1) {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kInt32;
  layout.shape = {kRows, kColumns};
  layout.mesh = {owners};
  layout.placements = {{0}};
  for (uint32_t owner = 0; owner < owners; ++owner) layout.owners.push_back(owner);
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
    Received received;
    const auto ask = ParseEdge("policy", key.edge());
    if (ask->kind == WeightAsk::Kind::kHeld) {
      const std::string text = EncodeHeld(held);
      received.tensor = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(text.size())});
      memcpy(received.tensor.mutable_data(), text.data(), text.size());
    } else {
      ++asked;
      const int64_t bytes = ask->box.elements() * int64_t{sizeof(int32_t)};
      received.tensor = *Tensor::Allocate(DType::kUint8, {bytes});
      memset(received.tensor.mutable_data(), 0x5a, bytes);
    }
    EndReceive(args.executor, std::move(received), std::move(done));
  }
  std::atomic<int> asked{0};
  HeldParts held;  // What it says that it has.
};

// Names a member to whoever asks for a part, or has none.
class Namer final : public Answerer {
 public:
  explicit Namer(std::optional<Referral> names) : names_(std::move(names)) {}
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    Received received;
    const auto ask = ParseEdge("policy", key.edge());
    const bool of_part = ask->kind == WeightAsk::Kind::kPart;
    asked += of_part;
    asked_for_bytes += of_part && !ask->may_be_sent_on;
    if (of_part && names_.has_value()) {
      const std::string text = EncodeReferral(*names_);
      received.tensor = *Tensor::Allocate(DType::kInt8, {static_cast<int64_t>(text.size())});
      memcpy(received.tensor.mutable_data(), text.data(), text.size());
    } else {
      received.status = absl::NotFoundError("it is not here");
    }
    EndReceive(args.executor, std::move(received), std::move(done));
  }
  std::atomic<int> asked{0}, asked_for_bytes{0};

 private:
  const std::optional<Referral> names_;
};

// Says that it has parts of version 5, and has lost some of them.
class Forgetful final : public Answerer {
 public:
  Forgetful(HeldParts held, std::set<Box> lost) : held_(std::move(held)), lost_(std::move(lost)) {}
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    Received received;
    const auto ask = ParseEdge("policy", key.edge());
    if (ask->kind == WeightAsk::Kind::kHeld) {
      const std::string text = EncodeHeld(held_);
      received.tensor = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(text.size())});
      memcpy(received.tensor.mutable_data(), text.data(), text.size());
    } else if (ask->kind != WeightAsk::Kind::kPart || lost_.count(ask->box) > 0) {
      ++has_not;
      received.status = absl::NotFoundError("it is not here");
    } else {
      ++has;
      const int64_t elements = ask->box.elements(), columns = ask->box.extent[1];
      const int64_t row = ask->box.begin[0], column = ask->box.begin[1];
      received.tensor =
          *Tensor::Allocate(DType::kUint8, {elements * static_cast<int64_t>(sizeof(int32_t))});
      for (int64_t i = 0; i < elements; ++i) {
        static_cast<int32_t*>(received.tensor.mutable_data())[i] =
            Element(5, row + i / columns, column + i % columns);
      }
    }
    EndReceive(args.executor, std::move(received), std::move(done));
  }
  std::atomic<int> has{0}, has_not{0};

 private:
  const HeldParts held_;
  const std::set<Box> lost_;
};

// Says which members it has heard of, what it has of an owner's boxes, and which version there is.
class Teller final : public Answerer {
 public:
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    Received received;
    const auto ask = ParseEdge("policy", key.edge());
    const bool of_held = ask->kind == WeightAsk::Kind::kHeld;
    if (of_held) ++asked[ask->owner];
    const std::string text = of_held                                  ? EncodeHeld(held[ask->owner])
                             : ask->kind == WeightAsk::Kind::kNewer   ? sealed
                             : ask->kind == WeightAsk::Kind::kLayouts ? layouts
                                                                      : EncodeHolders(knows);
    received.tensor = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(text.size())});
    memcpy(received.tensor.mutable_data(), text.data(), text.size());
    EndReceive(args.executor, std::move(received), std::move(done));
  }
  std::vector<Holder> knows;
  std::string sealed, layouts;
  std::array<HeldParts, 2> held;  // By owner.
  std::array<std::atomic<int>, 2> asked{};
};

// Answers nothing until it is told to.
class Mute final : public Answerer {
 public:
  void EndAll() {
    MutexLock lock(&mu_);
    for (DoneFn& done : kept_) std::move(done)({absl::AbortedError("it is over")});
    kept_.clear();
  }
  void Answer(const TensorKey&, const RecvArgs&, DoneFn done) override {
    MutexLock lock(&mu_);
    kept_.push_back(std::move(done));
    ++asked;
  }
  std::atomic<int> asked{0};

 private:
  Mutex mu_;
  std::vector<DoneFn> kept_ ABSL_GUARDED_BY(mu_);
};

// Answers as a member has answered before, but nothing at all until it may.
class Slow final : public Answerer {
 public:
  void Keep(WeightAsk::Kind kind, const Tensor& answer) { answers_[kind] = answer; }
  void EndAll() { mute_.EndAll(); }
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    const auto found = answers_.find(ParseEdge("policy", key.edge())->kind);
    if (!may_answer || found == answers_.end()) return mute_.Answer(key, args, std::move(done));
    Received received;
    received.tensor = found->second;
    EndReceive(args.executor, std::move(received), std::move(done));
  }
  std::atomic<bool> may_answer{false};

 private:
  Mute mute_;
  std::map<WeightAsk::Kind, Tensor> answers_;
};

// Has nothing when it is asked for a part at first, which is twice. Later it comes, but slowly.
class SlowPath final : public Answerer {
 public:
  SlowPath(Tensor bytes, absl::Duration takes) : bytes_(std::move(bytes)), takes_(takes) {}
  ~SlowPath() override {
    for (std::thread& sends : threads_) sends.join();
  }
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    const bool of_part = ParseEdge("policy", key.edge())->kind == WeightAsk::Kind::kPart;
    MutexLock lock(&mu_);
    Received received;
    if (!of_part || asked_++ < 2) {
      received.status = absl::NotFoundError("it is not here yet");
      return EndReceive(args.executor, std::move(received), std::move(done));
    }
    received.tensor = bytes_;
    threads_.emplace_back([this, executor = args.executor, received = std::move(received),
                           done = std::move(done)]() mutable {
      absl::SleepFor(takes_);
      EndReceive(executor, std::move(received), std::move(done));
    });
  }

 private:
  const Tensor bytes_;
  const absl::Duration takes_;
  Mutex mu_;
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;
};

// A worker that is a member: it votes and switches by itself.
struct Engine {
  Engine(int task, const Server* seed, const std::vector<std::string>& owners, uint64_t hold_bytes,
         Executor* executor = nullptr)
      : server(StartTestServer("member", task, seed, "", nullptr, executor)) {
    options.set = "policy";
    options.owners = owners;
    options.hold_bytes = hold_bytes;
    options.times = Patient();
    Open();
  }
  void Open() {
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
  absl::Status Fetch(uint64_t number, int64_t begin = 0, int64_t rows = kRows, uint64_t has = 0,
                     absl::Duration patience = kLong) {
    const auto version = member->Find(number, kLong);
    if (!version.ok()) return version.status();
    const Tensor into = *Tensor::Allocate(DType::kInt32, {rows, kColumns});
    int32_t* const at = static_cast<int32_t*>(into.mutable_data());
    for (int64_t i = 0; i < rows * kColumns; ++i) {
      at[i] = has == 0 ? -1 : Element(has, begin + i / kColumns, i % kColumns);
    }
    const absl::Status fetched = member->Fetch(
        *version, {{"w", {{begin, 0}, {rows, kColumns}}, into, Dense({rows, kColumns}), has}},
        patience);
    if (!fetched.ok()) return fetched;
    for (int64_t i = 0; i < rows * kColumns; ++i) {
      if (at[i] != Element(number, begin + i / kColumns, i % kColumns)) {
        return absl::DataLossError(absl::StrCat("element ", i, " is ", at[i]));
      }
    }
    return absl::OkStatus();
  }
  // Fetches columns of some rows, and checks them.
  absl::Status FetchColumns(uint64_t number, int64_t begin, int64_t columns, int64_t row = 0,
                            int64_t rows = kRows, absl::Duration patience = kLong) {
    const auto version = member->Find(number, kLong);
    if (!version.ok()) return version.status();
    const Tensor into = *Tensor::Allocate(DType::kInt32, {rows, columns});
    const absl::Status fetched = member->Fetch(
        *version, {{"w", {{row, begin}, {rows, columns}}, into, Dense({rows, columns})}}, patience);
    if (!fetched.ok()) return fetched;
    for (int64_t i = 0; i < rows * columns; ++i) {
      if (into.data_as<int32_t>()[i] != Element(number, row + i / columns, begin + i % columns)) {
        return absl::DataLossError(absl::StrCat("element ", i, " is wrong"));
      }
    }
    return absl::OkStatus();
  }
  uint64_t sent_on() const { return member->View().sent_on; }

  WeightMemberOptions options;
  std::unique_ptr<Server> server;
  std::unique_ptr<WeightMember> member;
};

class WeightRelayTest : public testing::Test {
 protected:
  explicit WeightRelayTest(bool two_owners = false, Executor* executor = nullptr)
      : executor_(executor),
        owner_server_(StartTestServer("owner", 0, nullptr, "", nullptr, executor)) {
    owners_ = {owner_server_->worker()};
    if (two_owners) {
      second_server_ = StartTestServer("owner", 1, owner_server_.get());
      owners_.push_back(second_server_->worker());
      second_ = OpenOwner(second_server_.get(), 1);
    }
    owner_ = OpenOwner(owner_server_.get(), 0);
  }
  ~WeightRelayTest() override {
    engines_.clear();
    second_.reset();
    owner_.reset();
  }
  std::unique_ptr<WeightOwner> OpenOwner(Server* server, uint32_t rank) {
    WeightOwnerOptions options;
    options.set = "policy";
    options.owners = owners_;
    options.rank = rank;
    options.times = Patient();
    auto owner = *WeightOwner::Open(server, options);
    EXPECT_TRUE(owner->Declare({Layout(owners_.size())}).ok());
    return owner;
  }
  Engine* AddEngine(uint64_t hold_bytes = 2 * kBytes) {
    engines_.push_back(std::make_unique<Engine>(engines_.size(), owner_server_.get(), owners_,
                                                hold_bytes, executor_));
    return engines_.back().get();
  }
  void SealAs(WeightOwner* owner, uint32_t rank, uint64_t number) {
    const Tensor bytes = *Tensor::Allocate(DType::kInt32, {kRows, kColumns});
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      static_cast<int32_t*>(bytes.mutable_data())[i] = Element(number, i / kColumns, i % kColumns);
    }
    const Box whole = Box::Whole(bytes.shape());
    const Box box = BoxesOf(Layout(owners_.size()), rank)[0];
    EXPECT_TRUE(
        owner->Publish(number, "w", box, bytes, PartOf(whole, Dense(whole.extent), box)).ok());
    const auto sealed = owner->Seal(number, "", kLong);
    EXPECT_TRUE(sealed.ok()) << sealed.status();
  }
  void Seal(uint64_t number) {
    std::thread other([&] {
      if (second_ != nullptr) SealAs(second_.get(), 1, number);
    });
    SealAs(owner_.get(), 0, number);
    other.join();
    ASSERT_FALSE(HasFailure());
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

  Executor* const executor_;  // An embedder's, or null.
  std::unique_ptr<Server> owner_server_, second_server_;
  std::vector<std::string> owners_;
  std::unique_ptr<WeightOwner> owner_, second_;
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

// What it has to do may take as long as it likes.
struct BusyExecutor {
  BusyExecutor() {
    threads.Run([this] { ended.WaitForNotification(); });
  }
  ~BusyExecutor() { ended.Notify(); }
  absl::Notification ended;
  ThreadPoolExecutor threads{1, 1000};
};

class EmbeddedWeightsTest : protected BusyExecutor, public WeightRelayTest {
 protected:
  EmbeddedWeightsTest() : WeightRelayTest(/*two_owners=*/false, &threads) {}
};

TEST_F(EmbeddedWeightsTest, AnEmbeddersExecutorHasNothingToDo) {
  for (int i = 0; i < 2; ++i) AddEngine();
  Seal(5);
  for (const auto& engine : engines_) {
    const absl::Status fetched = engine->Fetch(5);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
  EXPECT_EQ(SentByOwner(), kBytes);
  EXPECT_EQ(engines_[0]->sent_on(), kBytes);
  Activate(5);
  EXPECT_EQ(threads.queued(), 0u);
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

// Else whoever asks for the bytes would be sent to the same member for ever.
TEST_F(WeightRelayTest, WhoAsksForTheBytesIsSentToNobody) {
  Engine* const holder = AddEngine();
  Engine* const asker = AddEngine();
  Seal(5);
  EXPECT_TRUE(asker->FetchColumns(5, 0, 1).ok());
  const auto lacks = std::make_shared<Namer>(std::nullopt);
  holder->server->steps()->SetAnswerer(WeightsPrefix("policy"), lacks);
  const auto names = std::make_shared<Namer>(
      Referral{{holder->server->worker(), holder->server->incarnation()}, Digest{1, 2}});
  owner_server_->steps()->SetAnswerer(WeightsPrefix("policy"), names);
  EXPECT_FALSE(asker->FetchColumns(5, 3, 4, 0, kRows, absl::Seconds(3)).ok());
  EXPECT_GT(names->asked_for_bytes, 0);
  EXPECT_GT(lacks->asked, 0);
  EXPECT_LE(lacks->asked, 2) << "once, and once more when owners are waited for";
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

// The only owner dies, and with it the log.
TEST_F(WeightRelayTest, WhereNobodyLeadsMembersAskThoseOfWhomTheyHaveHeard) {
  Engine* const first = AddEngine();
  Engine* const second = AddEngine();
  Engine* const third = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  // The second one was sent to the first, and the third to the second.
  for (const auto& engine : engines_) EXPECT_TRUE(engine->Fetch(5, 0, 16).ok());
  Activate(5);
  // Who asks is known to whom it asks, and named to others.
  const SealedVersion five = *first->member->Find(5, kLong);
  const auto known = AskHolder(*first, five, *third, WeightAsk::Kind::kHolders);
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(*DecodeHolders({known->data_as<char>(), known->bytes()}),
            (std::vector<Holder>{{second->server->worker(), second->server->incarnation()}}));
  owner_.reset();
  EXPECT_TRUE(owner_server_->Stop(absl::Seconds(5)).ok());
  const uint64_t sent_on = first->sent_on();
  const absl::Status fetched = third->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(first->sent_on() - sent_on, kBytes);
  EXPECT_GE(second->sent_on(), kBytes / 4);
}

TEST_F(WeightRelayTest, ANewLogTakesNoPartOfWhatIsActive) {
  Engine* const first = AddEngine();
  Engine* const second = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  EXPECT_TRUE(first->Fetch(5, 0, 16).ok());
  EXPECT_TRUE(second->Fetch(5, 0, 16).ok());
  const SealedVersion five = *first->member->Find(5, kLong);
  Activate(5);
  const uint64_t held = first->member->View().held_bytes;
  owner_ = nullptr;
  owner_ = OpenOwner(owner_server_.get(), 0);
  for (const auto& engine : engines_) {
    for (int i = 0; i < 1000 && engine->member->View().active != 0; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_EQ(engine->member->View().active, 0u) << "nothing is, by the new log";
    EXPECT_EQ(engine->member->Serve().number, 0u) << "nobody serves without a permit";
  }
  EXPECT_EQ(first->member->View().held_bytes, held);
  absl::Status fetched = second->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(first->sent_on(), kBytes);
  // What is active next takes its place.
  Seal(6);
  EXPECT_EQ(first->member->View().held_bytes, held);
  Activate(6);
  EXPECT_TRUE(absl::IsNotFound(AskHolder(*first, five, *second).status()));
  EXPECT_EQ(first->member->View().held_bytes, 0u);
}

// Two owners, of which the second one dies; the first one leads.
class StandInsTest : public WeightRelayTest {
 protected:
  static constexpr uint64_t kHalf = kBytes / 2;
  StandInsTest() : WeightRelayTest(/*two_owners=*/true) {}

  void SecondDies() {
    second_.reset();
    EXPECT_TRUE(second_server_->Stop(absl::Seconds(5)).ok());
  }
  absl::StatusOr<Tensor> Ask(const std::string& worker, WeightAsk::Kind kind, uint64_t number = 5) {
    WeightAsk ask;
    ask.kind = kind;
    ask.number = number;
    ask.birth = birth_;
    ask.owner = 1;
    ask.incarnation = 1;  // No member has it.
    WeightCalls calls(engines_.back()->server.get(), "policy");
    return std::move(calls.Ask({{worker, ask}}, kLong)[0]);
  }
  static uint64_t IncarnationOf(const Engine& one) { return one.member->View().incarnation; }
  size_t HoldersKnown() {
    const auto answer = Ask(owner_server_->worker(), WeightAsk::Kind::kHolders);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return DecodeHolders({answer->data_as<char>(), answer->bytes()})->size();
  }
  // The leader hears of it by the next questions.
  void AwaitHolders(size_t count) {
    birth_ = engines_[0]->member->Find(5, kLong)->name.birth;
    for (int i = 0; i < 1000 && HoldersKnown() != count; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_EQ(HoldersKnown(), count);
  }
  Engine* AddLate(uint64_t hold_bytes = 2 * kBytes) {
    Engine* const engine = AddEngine(hold_bytes);
    engine->Await(WeightEvent::Kind::kSealed, 5);
    return engine;
  }
  // What a member has of version 5 of the second owner's.
  void KeepSecondHalf(const Engine& holder, Slow* slow) {
    const auto held = Ask(holder.server->worker(), WeightAsk::Kind::kHeld);
    ASSERT_TRUE(held.ok()) << held.status();
    slow->Keep(WeightAsk::Kind::kHeld, *held);
    slow->Keep(WeightAsk::Kind::kPart, SecondHalf());
  }
  HeldParts Held(const Engine& holder) {
    const auto held = Ask(holder.server->worker(), WeightAsk::Kind::kHeld);
    EXPECT_TRUE(held.ok()) << held.status();
    return *DecodeHeld({held->data_as<char>(), held->bytes()});
  }
  static Box SecondBox() { return BoxesOf(Layout(2), 1)[0]; }
  // `holder` alone has version 5 of the second owner's, which dies, and says nothing of it. Its
  // answers once it does: set them as its answerer.
  std::shared_ptr<Slow> HideTheOnlyCopy(Engine* holder) {
    Seal(5);
    EXPECT_TRUE(holder->Fetch(5).ok());
    AwaitHolders(1);
    const auto has = std::make_shared<Slow>();
    KeepSecondHalf(*holder, has.get());
    has->may_answer = true;
    holder->server->steps()->SetAnswerer(WeightsPrefix("policy"),
                                         std::make_shared<Namer>(std::nullopt));
    SecondDies();
    return has;
  }
  static Tensor SecondHalf() {
    Tensor half = *Tensor::Allocate(DType::kUint8, {kHalf});
    for (int64_t i = 0; i < kRows / 2 * kColumns; ++i) {
      static_cast<int32_t*>(half.mutable_data())[i] =
          Element(5, kRows / 2 + i / kColumns, i % kColumns);
    }
    return half;
  }

  uint64_t birth_ = 0;
};

TEST_F(StandInsTest, WhoComesAfterAnOwnersDeathGetsItOfMembers) {
  Engine* const first = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  AwaitHolders(1);
  SecondDies();
  Engine* const second = AddLate();
  const absl::Time begun = absl::Now();
  absl::Status fetched = second->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
  EXPECT_GE(first->sent_on(), kBytes) << "the first owner's, as ever, and the second's";
  // It has it for others now, and so has who has nothing for others.
  AwaitHolders(2);
  first->member.reset();
  Engine* const third = AddLate(0);
  fetched = third->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(second->sent_on(), kHalf);
}

TEST_F(StandInsTest, AnOwnerThatDiesWhileItIsAskedIsNotWaitedFor) {
  Engine* const first = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  AwaitHolders(1);
  const auto mute = std::make_shared<Mute>();
  second_server_->steps()->SetAnswerer(WeightsPrefix("policy"), mute);
  Engine* const second = AddLate();
  absl::Status fetched;
  std::thread fetches([&] { fetched = second->Fetch(5); });
  while (mute->asked == 0) absl::SleepFor(absl::Milliseconds(1));
  const absl::Time died = absl::Now();
  // It is there no more, and stops when its answers have ended.
  std::thread stops([&] { EXPECT_TRUE(second_server_->Stop(kLong).ok()); });
  fetches.join();
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_LT(absl::Now() - died, absl::Seconds(15));
  mute->EndAll();
  stops.join();
}

// The owner is there no more, and has not said so.
TEST_F(StandInsTest, AMemberThatIsSlowIsAskedAgain) {
  Engine* const first = AddEngine();
  Engine* const late = AddEngine(0);
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  AwaitHolders(1);
  const auto slow = std::make_shared<Slow>();
  KeepSecondHalf(*first, slow.get());
  first->server->steps()->SetAnswerer(WeightsPrefix("policy"), slow);
  const auto mute = std::make_shared<Mute>();
  second_server_->steps()->SetAnswerer(WeightsPrefix("policy"), mute);
  absl::Status fetched;
  std::thread fetches([&] { fetched = late->Fetch(5, kRows / 2, kRows / 2); });
  while (mute->asked == 0) absl::SleepFor(absl::Milliseconds(1));
  std::thread stops([&] { EXPECT_TRUE(second_server_->Stop(kLong).ok()); });
  absl::SleepFor(5 * StandIns::kTry);  // All tries of the member are over; owners are waited for.
  slow->may_answer = true;
  fetches.join();
  EXPECT_TRUE(fetched.ok()) << fetched;
  mute->EndAll();
  stops.join();
  slow->EndAll();
}

// Its port refuses, which ends an ask before its time is over.
TEST_F(StandInsTest, AMemberThatHasItLaterIsAskedWhereTheOwnerIsGone) {
  Engine* const first = AddEngine();
  Engine* const late = AddEngine(0);
  const auto has = HideTheOnlyCopy(first);
  absl::Status fetched;
  std::thread fetches([&] { fetched = late->Fetch(5, kRows / 2, kRows / 2); });
  absl::SleepFor(absl::Seconds(9));  // An owner is waited for more than once.
  first->server->steps()->SetAnswerer(WeightsPrefix("policy"), has);
  fetches.join();
  EXPECT_TRUE(fetched.ok()) << fetched;
  has->EndAll();
}

TEST_F(StandInsTest, AnOwnerThatIsThereAndHasClosedTheSetIsNotWaitedFor) {
  Engine* const late = AddEngine(0);
  Seal(5);
  second_.reset();
  const absl::Time begun = absl::Now();
  const absl::Status fetched = late->Fetch(5);
  EXPECT_TRUE(absl::IsUnavailable(fetched)) << fetched;
  EXPECT_LT(absl::Now() - begun, kLong / 2);
}

TEST_F(StandInsTest, AnOwnerThatComesBackOnASlowPathIsGivenTheTime) {
  Engine* const late = AddEngine(0);
  Seal(5);
  EXPECT_TRUE(late->Fetch(5).ok());  // It knows the list of digests.
  const auto slow = std::make_shared<SlowPath>(SecondHalf(), absl::Seconds(8));
  second_server_->steps()->SetAnswerer(WeightsPrefix("policy"), slow);
  const absl::Status fetched = late->Fetch(5, kRows / 2, kRows / 2);
  EXPECT_TRUE(fetched.ok()) << fetched;
}

TEST_F(StandInsTest, PartsOfSeveralMembersMakeTheBoxThatOneWantsAPartOf) {
  Engine* const left = AddEngine();
  Engine* const right = AddEngine();
  Seal(5);
  EXPECT_TRUE(left->FetchColumns(5, 0, 40).ok());
  EXPECT_TRUE(right->FetchColumns(5, 30, 34).ok());
  AwaitHolders(2);
  SecondDies();
  Engine* const third = AddLate();
  absl::Status fetched = third->Fetch(5, 20, 30);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(left->sent_on() + right->sent_on(), kHalf);
  // Its own parts count, too.
  fetched = left->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
}

// Nobody has the last columns, so that parts are held against the digests that the owner gave them.
TEST_F(StandInsTest, OfABoxThatNobodyHasWholeWhatMembersHaveIsTaken) {
  constexpr int64_t kSecond = kRows / 2;  // Where the rows of the second owner begin.
  Engine* const none = AddEngine(0);
  Engine* const left = AddEngine();
  Engine* const middle = AddEngine();
  Seal(5);
  EXPECT_TRUE(left->FetchColumns(5, 0, 40).ok());
  EXPECT_TRUE(middle->FetchColumns(5, 30, 20).ok());
  AwaitHolders(2);
  SecondDies();
  // A part that a member has, and one that only two have between them.
  Engine* const late = AddLate();
  absl::Status fetched = late->FetchColumns(5, 0, 40, kSecond, kSecond);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(left->sent_on(), kBytes / 2 * 40 / kColumns);
  fetched = none->FetchColumns(5, 10, 35, kSecond, kSecond);
  EXPECT_TRUE(fetched.ok()) << fetched;
  // Its own part counts, too.
  const uint64_t sent_on = middle->sent_on();
  fetched = late->FetchColumns(5, 20, 30, kSecond, kSecond);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(middle->sent_on() - sent_on, kBytes / 2 * 20 / kColumns);
  // What it has put together it has for others, with a digest.
  AwaitHolders(3);
  left->member.reset();
  middle->member.reset();
  Engine* const later = AddLate();
  fetched = later->FetchColumns(5, 22, 4, kSecond, 3);
  EXPECT_TRUE(fetched.ok()) << fetched;
}

// Two parts that do not meet, of each of which another member has all.
TEST_F(StandInsTest, WhatSeveralPartsOfABoxAreMadeOfGoesWhereItBelongs) {
  constexpr int64_t kSecond = kRows / 2;
  Engine* const left = AddEngine();
  Engine* const right = AddEngine();
  Engine* const late = AddEngine(0);
  Seal(5);
  EXPECT_TRUE(left->FetchColumns(5, 0, 20).ok());
  EXPECT_TRUE(right->FetchColumns(5, 30, 20).ok());
  AwaitHolders(2);
  SecondDies();
  const auto version = late->member->Find(5, kLong);
  ASSERT_TRUE(version.ok()) << version.status();
  std::vector<WeightMember::Item> items;
  for (const int64_t begin : {0, 30}) {
    const Tensor into = *Tensor::Allocate(DType::kInt32, {kSecond, 20});
    memset(into.mutable_data(), 0xff, into.bytes());
    items.push_back({"w", {{kSecond, begin}, {kSecond, 20}}, into, Dense({kSecond, 20})});
  }
  const absl::Status fetched = late->member->Fetch(*version, items, kLong);
  EXPECT_TRUE(fetched.ok()) << fetched;
  for (const WeightMember::Item& item : items) {
    for (int64_t i = 0; i < kSecond * 20; ++i) {
      ASSERT_EQ(item.into.data_as<int32_t>()[i],
                Element(5, kSecond + i / 20, item.box.begin[1] + i % 20))
          << item.box.begin[1] << " " << i;
    }
  }
}

TEST_F(StandInsTest, APartIsNotWhatOneWhoLiesSendsForIt) {
  constexpr int64_t kSecond = kRows / 2;
  Engine* first = AddEngine();
  Engine* liar = AddEngine();
  // Who asks begins with the next incarnation after its own: mostly with the one that lies.
  if (IncarnationOf(*liar) - IncarnationOf(*first) < uint64_t{1} << 63) std::swap(first, liar);
  AddEngine(0);  // It asks the liar below.
  Seal(5);
  EXPECT_TRUE(first->FetchColumns(5, 0, 40).ok());
  EXPECT_TRUE(liar->FetchColumns(5, 0, 40).ok());
  AwaitHolders(2);
  // It says what it has, and sends something else.
  const auto held = Ask(liar->server->worker(), WeightAsk::Kind::kHeld);
  ASSERT_TRUE(held.ok()) << held.status();
  const auto lies = std::make_shared<Liar>();
  lies->held = *DecodeHeld({held->data_as<char>(), held->bytes()});
  ASSERT_EQ(lies->held.parts.size(), 1u);
  EXPECT_TRUE(lies->held.parts[0].digest.has_value());
  liar->server->steps()->SetAnswerer(WeightsPrefix("policy"), lies);
  SecondDies();
  for (int i = 0; i < 12 && lies->asked == 0; ++i) {
    Engine* const engine = AddLate(0);
    const absl::Status fetched = engine->FetchColumns(5, 5, 20, kSecond, kSecond);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
  EXPECT_GT(lies->asked, 0);
  // Nor is it where it alone has the part.
  first->member.reset();
  Engine* const late = AddLate(0);
  EXPECT_FALSE(late->FetchColumns(5, 5, 20, kSecond, kSecond, absl::Seconds(4)).ok());
}

// Takes connections, and says nothing.
class SilentPeer {
 public:
  explicit SilentPeer(const Server& target)
      : proxy_(std::stoi(target.address().substr(target.address().rfind(':') + 1))) {
    proxy_.Swallow();
  }
  // A server believes that another one is here.
  void StandFor(const Server& other, Server* at) {
    const absl::Status announced =
        at->members()->Announce({other.worker(), proxy_.address(), other.incarnation() + 1});
    EXPECT_TRUE(announced.ok()) << announced;
  }

 private:
  CutProxy proxy_;
};

// So many parts of the second owner's.
std::vector<WeightMember::Item> RowsOfSecond(int64_t count) {
  std::vector<WeightMember::Item> rows;
  for (int64_t row = kRows / 2; row < kRows / 2 + count; ++row) {
    const Tensor into = *Tensor::Allocate(DType::kInt32, {1, kColumns});
    rows.push_back({"w", {{row, 0}, {1, kColumns}}, into, Dense({1, kColumns})});
  }
  return rows;
}

TEST_F(StandInsTest, AnOwnerIsNotLookedForAnewForEachPart) {
  Engine* const first = AddEngine();
  Engine* const late = AddEngine(0);
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  AwaitHolders(1);
  SecondDies();
  SilentPeer silent(*owner_server_);
  silent.StandFor(*second_server_, late->server.get());
  const auto version = late->member->Find(5, kLong);
  ASSERT_TRUE(version.ok()) << version.status();
  const absl::Time begun = absl::Now();
  const absl::Status fetched = late->member->Fetch(*version, RowsOfSecond(8), kLong);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_LT(absl::Now() - begun, 5 * StandIns::kReach);
}

// That says nothing of a slow path.
TEST_F(StandInsTest, MembersAreAskedAsOftenWhereAnOwnerCannotBeReached) {
  Engine* const first = AddEngine();
  Engine* const late = AddEngine(0);
  const auto has = HideTheOnlyCopy(first);
  SilentPeer silent(*owner_server_);
  silent.StandFor(*second_server_, late->server.get());
  const absl::Time begun = absl::Now();
  absl::Status fetched;
  std::thread fetches([&] { fetched = late->Fetch(5, kRows / 2, kRows / 2, 0, absl::Minutes(2)); });
  absl::SleepFor(absl::Seconds(21));  // Were the time doubled, the third round would have begun.
  first->server->steps()->SetAnswerer(WeightsPrefix("policy"), has);
  fetches.join();
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(33));
  has->EndAll();
}

TEST_F(StandInsTest, ACancelIsHeardWhileAnOwnerIsLookedFor) {
  Engine* const late = AddEngine(0);
  Seal(5);
  SecondDies();
  SilentPeer silent(*owner_server_);
  silent.StandFor(*second_server_, late->server.get());
  const auto version = late->member->Find(5, kLong);
  ASSERT_TRUE(version.ok()) << version.status();
  for (const absl::Duration after : {StandIns::kReach / 2, StandIns::kReach * 8}) {
    Cancellation cancellation;
    absl::Status fetched;
    std::thread fetches([&] {
      fetched =
          late->member->Fetch(*version, RowsOfSecond(8), Patience(absl::Minutes(5), &cancellation));
    });
    absl::SleepFor(after);
    const absl::Time cancelled = absl::Now();
    cancellation.StartCancel();
    fetches.join();
    EXPECT_LT(absl::Now() - cancelled, absl::Seconds(1)) << after;
    EXPECT_TRUE(absl::IsCancelled(fetched)) << fetched;
  }
}

TEST_F(StandInsTest, WhatNobodyHasIsNotTaken) {
  Engine* const left = AddEngine();
  Seal(5);
  EXPECT_TRUE(left->FetchColumns(5, 0, 40).ok());
  AwaitHolders(1);
  SecondDies();
  Engine* const second = AddLate();
  const absl::Time begun = absl::Now();
  const absl::Status fetched = second->Fetch(5, 0, kRows, 0, absl::Seconds(4));
  EXPECT_TRUE(absl::IsUnavailable(fetched) || absl::IsDeadlineExceeded(fetched)) << fetched;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(12));
  EXPECT_TRUE(second->Fetch(5, 0, 32).ok()) << "the first owner is there";
}

TEST_F(StandInsTest, AMemberThatLiesCostsTimeAlone) {
  Engine* first = AddEngine();
  Engine* liar = AddEngine();
  // Who asks begins with the next incarnation after its own: mostly with the one that lies.
  if (IncarnationOf(*liar) - IncarnationOf(*first) < uint64_t{1} << 63) std::swap(first, liar);
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  EXPECT_TRUE(liar->Fetch(5).ok());
  AwaitHolders(2);
  SecondDies();
  const auto lies = std::make_shared<Liar>();
  lies->held.parts = {{0, BoxesOf(Layout(2), 1)[0], std::nullopt},
                      {0, {{0, 0}, {kRows, kColumns}}, std::nullopt},
                      {7, {{0, 0}, {1, 1}}, Digest{1, 2}},
                      {0, {{0}, {1}}, std::nullopt},
                      {0, {{kRows, 0}, {1, 1}}, Digest{1, 2}}};
  lies->held.list = {{1, 2}};
  liar->server->steps()->SetAnswerer(WeightsPrefix("policy"), lies);
  // It asks for what the second owner had.
  for (int i = 0; i < 12 && lies->asked == 0; ++i) {
    Engine* const engine = AddLate(0);
    const absl::Status fetched = engine->Fetch(5, kRows / 2, kRows / 2);
    EXPECT_TRUE(fetched.ok()) << fetched;
  }
  EXPECT_GT(lies->asked, 0);
  // The list of the first that answers is looked at, too.
  const auto version = *first->member->Find(5, kLong);
  const auto layouts = *first->member->Layouts(version, kLong);
  WeightCalls calls(engines_[2]->server.get(), "policy");
  for (const Engine* const before : {first, liar}) {
    const StandIns stand_ins({&calls,
                              {owners_[0]},
                              owners_,
                              "",
                              before->member->View().incarnation - 1,
                              std::make_shared<HolderNotes>()});
    std::vector<StandIns::Lost> lost;
    lost.push_back({0, {1}, BoxCover(BoxesOf(Layout(2), 1)[0])});
    const StandIns::Found found = stand_ins.Find(version, *layouts, {}, kLong, &lost);
    ASSERT_EQ(found.holders.size(), 2u);
    EXPECT_EQ(found.holders[0].worker, before->server->worker());
    ASSERT_EQ(found.lists.count(1), 1u);
    EXPECT_EQ(ListDigest(version.name, 1, found.lists.at(1)), version.lists[1]);
    EXPECT_EQ(*lost[0].digest, found.lists.at(1)[0]);
  }
}

TEST_F(StandInsTest, AnOwnersNextLifeHasNothingOfTheVersion) {
  Engine* const first = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  AwaitHolders(1);
  second_ = nullptr;
  second_ = OpenOwner(second_server_.get(), 1);
  Engine* const second = AddLate();
  absl::Status fetched = second->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  // Where no member has it, that is said at once.
  for (const auto& engine : engines_) engine->member.reset();
  engines_.clear();
  Engine* const third = AddLate();
  const absl::Time begun = absl::Now();
  fetched = third->Fetch(5);
  EXPECT_TRUE(absl::IsNotFound(fetched)) << fetched;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

// Whoever has no log asks the other owners which version it is, and whom they have sent it.
TEST_F(StandInsTest, WhoComesWhenTheFirstOwnerIsGoneAsksTheOthers) {
  Engine* const first = AddEngine();
  Engine* const late = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  EXPECT_TRUE(late->Fetch(5, kRows / 2, 1).ok());  // Its worker knows the second owner.
  Activate(5);
  late->member.reset();
  owner_.reset();
  EXPECT_TRUE(owner_server_->Stop(absl::Seconds(5)).ok());
  late->Open();
  const absl::Status fetched = late->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(first->sent_on(), kBytes / 2);
}

// Whoever had parts has died and come back, and has them again, when the leader dies.
TEST_F(StandInsTest, WhatAMembersNextLifeHasIsFoundWhereNobodyLeads) {
  Engine* const first = AddEngine();
  Engine* const asker = AddEngine();
  Seal(5);
  // The asker was sent to the first one's former life.
  for (Engine* const engine : {first, asker}) EXPECT_TRUE(engine->Fetch(5, 0, 16).ok());
  Activate(5);
  const uint64_t former = first->server->incarnation();
  first->member.reset();
  EXPECT_TRUE(first->server->Stop(absl::Seconds(5)).ok());
  Engine next(0, owner_server_.get(), owners_, 2 * kBytes);
  ASSERT_EQ(next.server->worker(), first->server->worker());
  ASSERT_NE(next.server->incarnation(), former);
  next.Await(WeightEvent::Kind::kPrepare, 5);
  absl::Status fetched = next.Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  owner_.reset();
  EXPECT_TRUE(owner_server_->Stop(absl::Seconds(5)).ok());
  fetched = asker->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(next.sent_on(), kHalf);
}

// A process that has spoken to nobody of the set, and has no log: nobody leads.
TEST_F(StandInsTest, WhoStartsAnewWhenTheFirstOwnerIsGoneFindsTheNewest) {
  Engine* const first = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  Activate(5);
  owner_.reset();
  EXPECT_TRUE(owner_server_->Stop(absl::Seconds(5)).ok());
  for (const bool observes : {false, true}) {
    Engine late(1 + observes, second_server_.get(), owners_, 0);
    if (observes) {
      late.options.observes = true;
      late.member.reset();
      late.Open();
    }
    const auto newest = late.member->Newer(0, kLong);
    ASSERT_TRUE(newest.ok()) << newest.status();
    EXPECT_EQ(newest->name.number, 5u);
    const absl::Status fetched = late.Fetch(5);
    EXPECT_TRUE(fetched.ok()) << fetched;
    // There is none, and the second owner is there to say so.
    const absl::Time begun = absl::Now();
    const absl::Status none = late.member->Newer(5, absl::Seconds(5)).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(none)) << none;
    EXPECT_GT(absl::Now() - begun, absl::Seconds(4));
  }
}

// More than are asked at once, and the last ones alone have it whole.
TEST_F(StandInsTest, ManyHoldersAreAskedOneAfterTheOther) {
  constexpr int64_t kSecond = kRows / 2;
  for (int i = 0; i < 10; ++i) AddEngine();
  Engine* const late = AddEngine(0);
  Seal(5);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(engines_[i]->FetchColumns(5, i, 3, kSecond, 3).ok());
  EXPECT_TRUE(engines_[9]->Fetch(5).ok());
  AwaitHolders(10);
  SecondDies();
  absl::Status fetched = late->Fetch(5);
  EXPECT_TRUE(fetched.ok()) << fetched;
  // Where nobody has it whole, each has some of what is wanted.
  engines_[9]->member.reset();
  fetched = late->FetchColumns(5, 0, 11, kSecond, 3);
  EXPECT_TRUE(fetched.ok()) << fetched;
}

// As many as are asked at first have lost it, and the one behind them has it.
TEST_F(StandInsTest, WhoHasLostABoxIsNotAskedForItAgain) {
  constexpr size_t kAskedAtFirst = 8;
  for (size_t i = 0; i < kAskedAtFirst + 1; ++i) AddEngine();
  Engine* const late = AddEngine(0);
  Seal(5);
  std::vector<Engine*> holders;
  for (size_t i = 0; i < kAskedAtFirst + 1; ++i) {
    holders.push_back(engines_[i].get());
    EXPECT_TRUE(holders.back()->Fetch(5).ok());
  }
  AwaitHolders(holders.size());
  // Who asks begins with the next incarnation after its own.
  std::sort(holders.begin(), holders.end(), [late](const Engine* a, const Engine* b) {
    return IncarnationOf(*a) - IncarnationOf(*late) < IncarnationOf(*b) - IncarnationOf(*late);
  });
  const HeldParts held = Held(*holders[0]);
  const auto lost = std::make_shared<Forgetful>(held, std::set<Box>{SecondBox()});
  for (size_t i = 0; i < kAskedAtFirst; ++i) {
    holders[i]->server->steps()->SetAnswerer(WeightsPrefix("policy"), lost);
  }
  SecondDies();
  const absl::Status fetched = late->Fetch(5, kRows / 2, kRows / 2);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(lost->has_not, static_cast<int>(kAskedAtFirst));
  EXPECT_GE(holders.back()->sent_on(), kHalf);
}

// A box that did not come whole says nothing against those who sent parts of it.
TEST_F(StandInsTest, WhoHadAPartInVainIsNotBlamedForWhatOthersSendLater) {
  Engine* const first = AddEngine();
  Engine* const liar = AddEngine();
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  EXPECT_TRUE(liar->Fetch(5).ok());
  AwaitHolders(2);
  // Large parts are taken first: the whole box, which is lost; the halves, which are wrong; and
  // then the quarters.
  HeldParts held = Held(*first);
  const auto lies = std::make_shared<Liar>();
  lies->held.list = held.list;
  const auto columns = [](int64_t begin, int64_t count) {
    return HeldPart{0, {{kRows / 2, begin}, {kRows / 2, count}}, std::nullopt};
  };
  for (const int64_t half : {0, 1}) lies->held.parts.push_back(columns(half * 32, 32));
  for (const int64_t quarter : {0, 1, 2, 3}) held.parts.push_back(columns(quarter * 16, 16));
  const auto forgetful = std::make_shared<Forgetful>(held, std::set<Box>{SecondBox()});
  first->server->steps()->SetAnswerer(WeightsPrefix("policy"), forgetful);
  liar->server->steps()->SetAnswerer(WeightsPrefix("policy"), lies);
  SecondDies();
  const absl::Status fetched = AddLate(0)->Fetch(5, kRows / 2, kRows / 2);
  EXPECT_TRUE(fetched.ok()) << fetched;
  EXPECT_GE(forgetful->has_not, 1);
  EXPECT_GE(lies->asked, 2);
  EXPECT_GE(forgetful->has, 4);
}

TEST_F(StandInsTest, NobodyAnswersForWhatItDoesNotHave) {
  Engine* const first = AddEngine();
  Engine* const none = AddEngine(0);
  Seal(5);
  EXPECT_TRUE(first->Fetch(5).ok());
  EXPECT_TRUE(none->Fetch(5).ok());
  AwaitHolders(1);
  const std::string holder = first->server->worker(), second = second_server_->worker();
  const auto held = Ask(holder, WeightAsk::Kind::kHeld);
  ASSERT_TRUE(held.ok()) << held.status();
  const auto read = DecodeHeld({held->data_as<char>(), held->bytes()});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->list.size(), 1u);
  ASSERT_EQ(read->parts.size(), 1u) << "those of the owner alone";
  EXPECT_EQ(read->parts[0].box, BoxesOf(Layout(2), 1)[0]);
  EXPECT_FALSE(read->parts[0].digest.has_value()) << "it is in the list";
  EXPECT_TRUE(Ask(holder, WeightAsk::Kind::kVersion).ok());
  EXPECT_TRUE(absl::IsNotFound(Ask(holder, WeightAsk::Kind::kVersion, 6).status()));
  EXPECT_TRUE(absl::IsNotFound(Ask(holder, WeightAsk::Kind::kHeld, 6).status()));
  EXPECT_TRUE(absl::IsNotFound(Ask(holder, WeightAsk::Kind::kLayouts).status()));
  EXPECT_TRUE(absl::IsUnavailable(Ask(second, WeightAsk::Kind::kHolders).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(second, WeightAsk::Kind::kHeld).status()));
  ++birth_;
  EXPECT_EQ(HoldersKnown(), 0u) << "of another birth";
  EXPECT_TRUE(absl::IsNotFound(Ask(holder, WeightAsk::Kind::kHeld).status()));
  --birth_;
  // A version that is over is nobody's.
  Activate(5);
  Seal(6);
  Activate(6);
  EXPECT_EQ(HoldersKnown(), 0u);
  EXPECT_TRUE(absl::IsNotFound(Ask(holder, WeightAsk::Kind::kHeld).status()));
  EXPECT_TRUE(absl::IsNotFound(Ask(holder, WeightAsk::Kind::kVersion).status()));
}

TEST(OwnersTest, WhoReachesNoneSaysSoWhenTheTimeIsOver) {
  const auto server = StartTestServer("member", 0, nullptr);
  WeightMemberOptions options;
  options.set = "policy";
  options.owners = {"/job:owner/replica:0/task:0", "/job:owner/replica:0/task:1"};
  options.observes = true;
  const auto member = *WeightMember::Open(server.get(), options);
  // The first one is looked for as long as may be; and then the other one, until the time is over.
  const absl::Duration patience = 2 * StandIns::kReach - absl::Milliseconds(50);
  const absl::Time begun = absl::Now();
  const absl::Status found = member->Find(5, patience).status();
  EXPECT_TRUE(absl::IsUnavailable(found)) << found;
  EXPECT_GT(absl::Now() - begun, StandIns::kReach);
}

// More than one answer has room for, and more of one box than are remembered.
TEST_F(WeightRelayTest, WhatAMemberHasIsToldInSeveralAnswers) {
  constexpr int64_t kElements = 2 * BoxCover::kMaxParts;
  constexpr uint32_t kTensors = kMaxHeldParts / kElements + 1;
  Engine* const asker = AddEngine(0);
  const auto holder = StartTestServer("holder", 0, owner_server_.get());
  const auto relay = std::make_shared<WeightRelay>(holder.get(), "policy", kBytes * 1000);
  relay->Open();
  const WeightVersion version{5, 0xf5};
  relay->Allow(version, {});
  auto layouts = std::make_shared<DeclaredLayouts>();
  layouts->owners = 1;
  for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    TensorLayout layout;
    layout.name = absl::StrCat(tensor);
    layout.dtype = DType::kUint8;
    layout.shape = {kElements};
    layouts->tensors.push_back(std::move(layout));
  }
  const Tensor byte = *Tensor::Allocate(DType::kUint8, {1});
  const auto hold = [&](uint32_t tensor, int64_t at) {
    const PartName part{version, tensor, {{at}, {1}}};
    ASSERT_TRUE(relay->Expect(part, 1));
    relay->Put(part, byte, Digest{tensor, static_cast<uint64_t>(at)});
  };
  for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    const int64_t lacks = tensor == kTensors - 1 ? 1 : 0;
    for (int64_t at = 0; at < kElements - lacks; ++at) hold(tensor, at);
  }
  SealedVersion sealed;
  sealed.name = {Digest{1, 2}, version.number, version.birth};
  sealed.lists.resize(1);
  relay->Prove(sealed, layouts);
  WeightCalls calls(asker->server.get(), "policy");
  const auto notes = std::make_shared<HolderNotes>();
  notes->Add(version, {holder->worker(), holder->incarnation()}, true);
  const StandIns stand_ins({&calls, {}, {}, asker->server->worker(), 1, notes});
  const Box wanted{{kElements - 3}, {2}}, last{{kElements - 1}, {1}};
  const auto anybody = [](uint32_t) { return true; };
  std::vector<StandIns::Lost> lost;
  std::optional<std::vector<BoxCover::Part>> chosen;
  // On a busy machine a long answer may come after its try; one for which there was no room never.
  for (int i = 0; i < 5 && !chosen.has_value(); ++i) {
    lost.clear();
    lost.push_back({kTensors - 1, {0}, BoxCover({{0}, {kElements}})});
    lost[0].wanted = {wanted, last};
    const StandIns::Found found = stand_ins.Find(sealed, *layouts, {}, kLong, &lost);
    ASSERT_EQ(found.holders.size(), 1u);
    chosen = lost[0].cover.Choose(wanted, anybody);
  }
  ASSERT_TRUE(chosen.has_value());
  ASSERT_EQ(chosen->size(), 2u);
  EXPECT_EQ((*chosen)[0].digest, (Digest{kTensors - 1, static_cast<uint64_t>(kElements - 3)}));
  EXPECT_FALSE(lost[0].cover.Choose(last, anybody).has_value());
  relay->Close();
}

// A set whose owners, and members that have parts of it, answer what they are told to.
class TellersTest : public WeightRelayTest {
 protected:
  static constexpr WeightVersion kVersion{5, 0xf5};
  TellersTest() : asker_(AddEngine(0)), calls_(asker_->server.get(), "policy") {}
  std::shared_ptr<Teller> AddTeller() {
    servers_.push_back(StartTestServer("teller", servers_.size(), owner_server_.get()));
    const auto teller = std::make_shared<Teller>();
    servers_.back()->steps()->SetAnswerer(WeightsPrefix("policy"), teller);
    return teller;
  }
  Holder Last() const { return {servers_.back()->worker(), servers_.back()->incarnation()}; }
  StandIns Make(std::vector<std::string> owners, const std::shared_ptr<HolderNotes>& notes) {
    return StandIns({&calls_, {}, std::move(owners), asker_->server->worker(), 1, notes});
  }

  std::vector<std::unique_ptr<Server>> servers_;
  Engine* const asker_;
  WeightCalls calls_;
};

TEST_F(TellersTest, OwnersThatAreGoneHideNobodyWhoIsThere) {
  std::vector<std::string> owners;
  for (int i = 0; i < 4; ++i) {
    const auto gone = StartTestServer("gone", i, owner_server_.get());
    owners.push_back(gone->worker());
    ASSERT_TRUE(asker_->server->calls()->Ping(gone->worker(), kLong).ok());
    EXPECT_TRUE(gone->Stop(absl::Seconds(5)).ok());
  }
  const auto notes = std::make_shared<HolderNotes>();
  AddTeller()->knows = {{"of_a_holder", 1}};
  notes->Add(kVersion, Last(), /*of_itself=*/true);
  AddTeller()->knows = {{"of_an_owner", 1}};
  owners.push_back(Last().worker);
  ASSERT_TRUE(asker_->server->calls()->Ping(Last().worker, kLong).ok());
  std::set<std::string> known;
  const absl::Time begun = absl::Now();
  for (const Holder& holder : Make(owners, notes).HoldersOf(kVersion, kLong)) {
    known.insert(holder.worker);
  }
  EXPECT_EQ(known.count("of_a_holder"), 1u);
  EXPECT_EQ(known.count("of_an_owner"), 1u);
  EXPECT_LT(absl::Now() - begun, StandIns::kTry * 3 / 4) << "some of the time was theirs";
}

// In a process that has just started a try may end before anybody is reached.
TEST_F(TellersTest, WhoCannotBeReachedAtFirstIsAskedAgain) {
  const auto gone = StartTestServer("gone", 0, owner_server_.get());
  EXPECT_TRUE(gone->Stop(absl::Seconds(5)).ok());
  WeightMemberOptions options;
  options.set = "policy";
  options.owners = {gone->worker(), absl::StrReplaceAll(gone->worker(), {{"gone", "late"}})};
  options.observes = true;
  const auto member = *WeightMember::Open(asker_->server.get(), options);
  SealedVersion sealed;
  sealed.name = {DigestOf(*EncodeLayouts({Layout(2)}, 2)), kVersion.number, kVersion.birth};
  sealed.lists.resize(2);
  sealed.root = RootDigest(sealed.name, sealed.lists);
  absl::StatusOr<SealedVersion> newest = absl::UnknownError("");
  absl::Status laid_out;
  std::thread finds([&] { newest = member->Newer(0, kLong); });
  std::thread describes([&] { laid_out = member->Layouts(sealed, kLong).status(); });
  absl::SleepFor(StandIns::kReach + 2 * StandIns::kTry);  // A round of tries is over.
  const auto late = StartTestServer("late", 0, owner_server_.get());
  ASSERT_EQ(late->worker(), options.owners[1]);
  const auto teller = std::make_shared<Teller>();
  teller->sealed = EncodeSealed(sealed);
  teller->layouts = *EncodeLayouts({Layout(2)}, 2);
  late->steps()->SetAnswerer(WeightsPrefix("policy"), teller);
  finds.join();
  describes.join();
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->root, sealed.root);
  EXPECT_TRUE(laid_out.ok()) << laid_out;
}

// A member that has a log, too, waits for its only owner.
TEST_F(TellersTest, AMemberWaitsForAnOwnerThatIsNotUpYet) {
  const auto before = StartTestServer("before", 0, owner_server_.get());
  const std::string late_name = absl::StrReplaceAll(before->worker(), {{"before", "late"}});
  WeightMemberOptions options;
  options.set = "policy";
  options.owners = {late_name};
  options.times = Patient();
  const auto member = *WeightMember::Open(asker_->server.get(), options);
  absl::StatusOr<SealedVersion> newest = absl::UnknownError("");
  std::thread finds([&] { newest = member->Newer(5, kLong); });
  absl::SleepFor(2 * StandIns::kTry);
  const auto late = StartTestServer("late", 0, owner_server_.get());
  ASSERT_EQ(late->worker(), late_name);
  const auto teller = std::make_shared<Teller>();
  SealedVersion sealed;
  sealed.name = {Digest{1, 2}, 6, 0xf6};
  sealed.lists.resize(1);
  sealed.root = RootDigest(sealed.name, sealed.lists);
  teller->sealed = EncodeSealed(sealed);
  late->steps()->SetAnswerer(WeightsPrefix("policy"), teller);
  finds.join();
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->name.number, 6u);
}

TEST_F(TellersTest, NotAllBeginWithTheSameMember) {
  const auto teller = AddTeller();
  for (int i = 0; i < 8; ++i) teller->knows.push_back({absl::StrCat("member", i), 1});
  std::set<std::string> first;
  for (int i = 0; i < 30; ++i) {
    const auto notes = std::make_shared<HolderNotes>();
    const auto holders = Make({Last().worker}, notes).HoldersOf(kVersion, kLong);
    ASSERT_EQ(holders.size(), 8u);
    first.insert(holders[0].worker);
  }
  EXPECT_GT(first.size(), 1u);
}

TEST_F(TellersTest, NobodyIsAskedMoreOfAnOwnerWhoseBoxesAreSettled) {
  DeclaredLayouts layouts;
  layouts.owners = 2;
  layouts.tensors = {Layout(2)};
  SealedVersion sealed;
  sealed.name = {Digest{1, 2}, kVersion.number, kVersion.birth};
  std::vector<std::shared_ptr<Teller>> tellers;
  std::vector<Holder> holders;
  // More than are asked at once. Each has all of the first owner's, and nothing of the second's.
  for (int i = 0; i < 9; ++i) {
    tellers.push_back(AddTeller());
    tellers.back()->held[0].parts = {{0, BoxesOf(Layout(2), 0)[0], Digest{3, 4}}};
    holders.push_back(Last());
  }
  // On a busy machine an answer may come after its try; whoever is asked for nothing always is.
  int of_first = 0, of_second = 0;
  for (int i = 0; i < 5 && (of_first != 8 || of_second != 9); ++i) {
    const auto notes = std::make_shared<HolderNotes>();
    for (const Holder& holder : holders) notes->Add(kVersion, holder, /*of_itself=*/true);
    std::vector<StandIns::Lost> lost;
    for (uint32_t owner = 0; owner < 2; ++owner) {
      const Box box = BoxesOf(Layout(2), owner)[0];
      lost.push_back({0, {owner}, BoxCover(box)});
      lost.back().wanted = {box};
    }
    Make({}, notes).Find(sealed, layouts, {}, kLong, &lost);
    of_first = of_second = 0;
    for (const auto& teller : tellers) {
      of_first += teller->asked[0].exchange(0);
      of_second += teller->asked[1].exchange(0);
    }
  }
  EXPECT_EQ(of_first, 8);
  EXPECT_EQ(of_second, 9);
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
