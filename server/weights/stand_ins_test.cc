// How long members that are asked for what owners had are waited for, and which of their lives is
// asked.
#include "server/weights/stand_ins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "rendezvous/answerer.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/step_registry.h"
#include "server/members/peer_calls.h"
#include "tests/doubles/server/testing.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30), kShort = absl::Milliseconds(300);
constexpr WeightVersion kVersion{5, 0xf5};
using Kind = WeightAsk::Kind;

TensorLayout Layout() {
  TensorLayout layout;
  layout.name = "w";
  layout.dtype = DType::kInt32;
  layout.shape = {4, 4};
  return layout;
}

// A leader, an owner or a member of the set that says what it is told to, or nothing.
class Told final : public Answerer {
 public:
  // Nobody asks any more.
  void EndAll() {
    MutexLock lock(&mu_);
    for (DoneFn& done : kept_) std::move(done)({absl::AbortedError("it is over")});
    kept_.clear();
  }
  void Answer(const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    const auto ask = ParseEdge("policy", key.edge());
    if (silent.count(ask->kind) > 0) {
      MutexLock lock(&mu_);
      kept_.push_back(std::move(done));
      return;
    }
    Received received;
    if (ask->kind == Kind::kHeld && held.parts.empty()) {
      received.status = absl::NotFoundError("it has nothing of the version");
    } else {
      const std::string text = ask->kind == Kind::kHeld ? EncodeHeld(held) : EncodeHolders(knows);
      received.tensor = *Tensor::Allocate(DType::kUint8, {static_cast<int64_t>(text.size())});
      memcpy(received.tensor.mutable_data(), text.data(), text.size());
    }
    EndReceive(args.executor, std::move(received), std::move(done));
  }
  std::set<Kind> silent;
  std::vector<Holder> knows;
  HeldParts held;

 private:
  Mutex mu_;
  std::vector<DoneFn> kept_ ABSL_GUARDED_BY(mu_);
};

class HearsayTest : public testing::Test {
 protected:
  struct Worker {
    Holder self() const { return {server->worker(), server->incarnation()}; }
    std::unique_ptr<Server> server;
    std::shared_ptr<Told> told = std::make_shared<Told>();
  };
  HearsayTest() : asker_(StartTestServer("asker", 0, nullptr)), calls_(asker_.get(), "policy") {
    layouts_.owners = 1;
    layouts_.tensors = {Layout()};
    sealed_.name = {Digest{1, 2}, kVersion.number, kVersion.birth};
    sealed_.lists.resize(1);
  }
  ~HearsayTest() override {
    for (const auto& worker : workers_) worker->told->EndAll();
  }
  Worker* Start(const std::string& job) {
    workers_.push_back(std::make_unique<Worker>());
    Worker* const worker = workers_.back().get();
    worker->server = StartTestServer(job, 0, asker_.get());
    worker->server->steps()->SetAnswerer(WeightsPrefix("policy"), worker->told);
    // The asker reaches this life of it.
    for (int i = 0; i < 1000; ++i) {
      const auto heard = asker_->calls()->Ping(worker->server->worker(), kLong);
      EXPECT_TRUE(heard.ok()) << heard.status();
      if (!heard.ok() || heard->self.incarnation == worker->server->incarnation()) break;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return worker;
  }
  void Stop(Worker* worker) { EXPECT_TRUE(worker->server->Stop(absl::Seconds(5)).ok()); }
  StandIns Make(const std::vector<const Worker*>& leaders,
                const std::vector<const Worker*>& owners) const {
    StandIns::Parts parts{const_cast<WeightCalls*>(&calls_), {}, {}, asker_->worker(), 1, notes_};
    for (const Worker* const leader : leaders) parts.leaders.push_back(leader->server->worker());
    for (const Worker* const owner : owners) parts.owners.push_back(owner->server->worker());
    return StandIns(std::move(parts));
  }
  // Finds who has the only box. Returns whether anybody has.
  bool Find(const StandIns& stand_ins, const Patience& patience,
            std::vector<Holder>* holders = nullptr) const {
    const Box box = Box::Whole(Layout().shape);
    std::vector<StandIns::Lost> lost;
    lost.push_back({0, {0}, BoxCover(box)});
    lost[0].wanted = {box};
    StandIns::Found found = stand_ins.Find(sealed_, layouts_, {}, patience, &lost);
    if (holders != nullptr) *holders = std::move(found.holders);
    return lost[0].cover.Choose(box, [](uint32_t) { return true; }).has_value();
  }
  // A busy machine may let nobody run for as long as a try.
  template <typename Function>
  static absl::Duration Quickest(Function function) {
    absl::Duration quickest = absl::InfiniteDuration();
    for (int i = 0; i < 5 && quickest >= StandIns::kTry; ++i) {
      const absl::Time begun = absl::Now();
      function();
      quickest = std::min(quickest, absl::Now() - begun);
    }
    return quickest;
  }
  static HeldParts HasAll() { return {{}, {{0, Box::Whole(Layout().shape), Digest{3, 4}}}}; }

  const std::unique_ptr<Server> asker_;
  WeightCalls calls_;
  std::vector<std::unique_ptr<Worker>> workers_;
  const std::shared_ptr<HolderNotes> notes_ = std::make_shared<HolderNotes>();
  DeclaredLayouts layouts_;
  SealedVersion sealed_;
};

// A leader, an owner and two members that say nothing are waited for, each for a try, while others
// have long answered.
TEST_F(HearsayTest, WhoSaysNothingCostsATry) {
  Worker* const leader = Start("leader");
  Worker* const silent = Start("silent");
  Worker* const owner = Start("owner");
  Worker* const holder = Start("holder");
  for (Worker* const one : {leader, silent}) one->told->silent = {Kind::kHolders, Kind::kHeld};
  holder->told->held = HasAll();
  owner->told->knows = {holder->self()};
  notes_->Add(kVersion, silent->self(), /*of_itself=*/true);
  const StandIns stand_ins = Make({leader}, {silent, owner});
  const absl::Time begun = absl::Now();
  std::vector<Holder> holders;
  EXPECT_TRUE(Find(stand_ins, kLong, &holders));
  EXPECT_EQ(holders.size(), 2u);
  EXPECT_LT(absl::Now() - begun, kLong / 2) << "three tries";
  // It may only be slow.
  EXPECT_EQ(notes_->Of(kVersion).size(), 2u);
}

// Whoever of them it is that says nothing.
TEST_F(HearsayTest, NobodyIsWaitedForWhenTheCallersTimeIsOver) {
  Worker* const leader = Start("leader");
  Worker* const owner = Start("owner");
  Worker* const holder = Start("holder");
  holder->told->held = HasAll();
  notes_->Add(kVersion, holder->self(), /*of_itself=*/true);
  const StandIns stand_ins = Make({leader}, {owner});
  EXPECT_TRUE(Find(stand_ins, kLong));
  const std::vector<std::pair<Worker*, Kind>> silent = {
      {leader, Kind::kHolders}, {owner, Kind::kHolders}, {holder, Kind::kHeld}};
  for (const auto& [worker, kind] : silent) {
    worker->told->silent = {kind};
    EXPECT_LT(Quickest([&] { Find(stand_ins, kShort); }), StandIns::kTry)
        << worker->server->worker();
    EXPECT_LT(Quickest([&] {
                Cancellation cancellation;
                std::thread cancels([&] {
                  absl::SleepFor(kShort);
                  cancellation.StartCancel();
                });
                Find(stand_ins, Patience(kLong, &cancellation));
                cancels.join();
              }),
              StandIns::kTry)
        << worker->server->worker();
    EXPECT_EQ(notes_->Of(kVersion).size(), 1u) << "it may have all the same";
    worker->told->silent.clear();
    worker->told->EndAll();
  }
  EXPECT_TRUE(Find(stand_ins, kLong));
}

TEST_F(HearsayTest, WhoHasNothingIsNotAskedAgain) {
  Worker* const holder = Start("holder");
  notes_->Add(kVersion, holder->self(), /*of_itself=*/true);
  EXPECT_FALSE(Find(Make({}, {}), kLong));
  EXPECT_TRUE(notes_->Of(kVersion).empty());
}

// What an owner says of a member that has another life by now counts when the former one is known
// to be over.
TEST_F(HearsayTest, TheNextLifeOfAMemberIsAskedAfterTheFormerOne) {
  Worker* const owner = Start("owner");
  Worker* const former = Start("holder");
  notes_->Add(kVersion, former->self(), /*of_itself=*/true);
  Stop(former);
  Worker* const next = Start("holder");
  ASSERT_EQ(next->self().worker, former->self().worker);
  next->told->held = HasAll();
  owner->told->knows = {next->self()};
  const StandIns stand_ins = Make({}, {owner});
  std::vector<Holder> holders;
  EXPECT_FALSE(Find(stand_ins, kLong, &holders));
  EXPECT_EQ(holders, std::vector<Holder>{former->self()});
  EXPECT_TRUE(Find(stand_ins, kLong, &holders));
  EXPECT_EQ(holders, std::vector<Holder>{next->self()});
  // And nobody's word brings the former one back.
  owner->told->knows = {former->self()};
  EXPECT_TRUE(Find(stand_ins, kLong, &holders));
  EXPECT_EQ(holders, std::vector<Holder>{next->self()});
}

// It hears them itself.
TEST_F(HearsayTest, ALeaderKnowsWhichLifeAMemberHas) {
  Worker* const leader = Start("leader");
  notes_->Add(kVersion, {"member", 1}, /*of_itself=*/true);
  leader->told->knows = {{"member", 2}};
  EXPECT_EQ(Make({leader}, {}).HoldersOf(kVersion, kLong), (std::vector<Holder>{{"member", 2}}));
}

// The next life of a leader has a log that does not know the version.
TEST_F(HearsayTest, WhereALeaderKnowsNobodyOthersAreAsked) {
  Worker* const leader = Start("leader");
  Worker* const owner = Start("owner");
  owner->told->knows = {{"member", 2}};
  EXPECT_EQ(Make({leader}, {owner}).HoldersOf(kVersion, kLong),
            (std::vector<Holder>{{"member", 2}}));
}

}  // namespace
}  // namespace tryst
