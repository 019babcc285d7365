#include "channel/rdma/queue_hub.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"
#include "verbs/forwarding_nic.h"

namespace tryst {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// What the completion queues of a NIC do, and how often they were asked to.
struct Queues {
  std::deque<Completion> completions;
  absl::Status poll, arm, create;
  int polls = 0;
  int arms = 0;
  int made = 0;
};

class ScriptedQueue final : public CompletionQueue {
 public:
  explicit ScriptedQueue(Queues* queues) : queues_(queues) {}
  absl::StatusOr<size_t> Poll(absl::Span<Completion> out) override {
    ++queues_->polls;
    if (!queues_->poll.ok()) return queues_->poll;
    size_t count = 0;
    for (; count < out.size() && !queues_->completions.empty(); ++count) {
      out[count] = queues_->completions.front();
      queues_->completions.pop_front();
    }
    return count;
  }
  absl::Status Arm() override {
    ++queues_->arms;
    return queues_->arm;
  }
  bool ArmTellsAll() const override { return true; }
  int event_fd() const override { return -1; }

 private:
  Queues* const queues_;
};

class ScriptedNic final : public ForwardingNic {
 public:
  ScriptedNic(std::unique_ptr<Nic> nic, Queues* queues)
      : ForwardingNic(std::move(nic)), queues_(queues) {}
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t) override {
    if (!queues_->create.ok()) return queues_->create;
    ++queues_->made;
    return std::unique_ptr<CompletionQueue>(new ScriptedQueue(queues_));
  }

 private:
  Queues* const queues_;
};

class Noted final : public QueuePairUser {
 public:
  Noted(uint32_t number, std::vector<std::string>* heard) : number_(number), heard_(heard) {}
  void OnCompletion(const Completion& completion) override {
    heard_->push_back(absl::StrCat(number_, " completes ", completion.id));
    if (removes != nullptr) removes->RemoveUser(removed);
  }
  void OnNicLost(const absl::Status& why) override {
    heard_->push_back(absl::StrCat(number_, " loses its NIC: ", why.message()));
    if (removes != nullptr) removes->RemoveUser(removed);
  }
  void OnQueuePairFatal(const absl::Status& why) override {
    heard_->push_back(absl::StrCat(number_, ": ", why.message()));
  }
  QueueHub* removes = nullptr;  // With each call, this user.
  uint32_t removed = 0;

 private:
  const uint32_t number_;
  std::vector<std::string>* const heard_;
};

class QueueHubTest : public testing::Test {
 protected:
  QueueHubTest() : world_(1), poller_(&world_.clock()) {
    nic_ = std::make_unique<ScriptedNic>(world_.OpenNic(0, SimNicOptions()), &queues_);
    hub_ = *QueueHub::Create(nic_.get(), &poller_, 16);
    hub_->Attach();
    for (uint32_t number : {9u, 3u, 7u}) {
      users_.push_back(std::make_unique<Noted>(number, &heard_));
      hub_->AddUser(number, users_.back().get());
    }
  }
  ~QueueHubTest() override {
    RemoveAll();
    hub_->Detach();
  }
  void RemoveAll() {
    for (uint32_t number : {9u, 3u, 7u}) hub_->RemoveUser(number);
  }
  void Complete(uint32_t queue_pair, uint64_t id) {
    Completion completion;
    completion.queue_pair = queue_pair;
    completion.id = id;
    queues_.completions.push_back(completion);
  }
  std::vector<std::string> Heard() { return std::exchange(heard_, {}); }

  SimWorld world_;
  Poller poller_;
  Queues queues_;
  std::vector<std::string> heard_;
  std::unique_ptr<Nic> nic_;
  std::unique_ptr<QueueHub> hub_;
  std::vector<std::unique_ptr<Noted>> users_;  // 9, 3 and 7.
};

TEST_F(QueueHubTest, EachCompletionGoesToTheUserOfItsQueuePair) {
  EXPECT_FALSE(hub_->Poll());
  Complete(3, 1);
  Complete(3, 2);
  Complete(7, 3);
  Complete(5, 4);  // Nobody waits for it.
  Complete(3, 5);
  EXPECT_TRUE(hub_->Poll());
  EXPECT_THAT(Heard(),
              ElementsAre("3 completes 1", "3 completes 2", "7 completes 3", "3 completes 5"));
  EXPECT_FALSE(hub_->Poll());
  for (uint64_t id = 0; id < 65; ++id) Complete(9, id);
  EXPECT_TRUE(hub_->Poll());
  EXPECT_EQ(Heard().size(), 64u) << "a bounded amount of work";
  EXPECT_TRUE(hub_->Poll());
  EXPECT_THAT(Heard(), ElementsAre("9 completes 64"));
}

TEST_F(QueueHubTest, WhoGoesHearsNothingMore) {
  users_[1]->removes = hub_.get();
  users_[1]->removed = 3;
  Complete(3, 1);
  Complete(3, 2);
  Complete(7, 3);
  EXPECT_TRUE(hub_->Poll());
  EXPECT_THAT(Heard(), ElementsAre("3 completes 1", "7 completes 3"));
}

// Armed, a completion wakes the poller; without it a thread would sleep on.
TEST_F(QueueHubTest, ArmArmsTheQueue) {
  EXPECT_TRUE(hub_->ArmTellsAll());
  EXPECT_EQ(hub_->event_fd(), -1);
  hub_->Arm();
  EXPECT_EQ(queues_.arms, 1);
  EXPECT_THAT(Heard(), IsEmpty());
  queues_.arm = absl::InternalError("no interrupt");
  hub_->Arm();
  EXPECT_THAT(Heard(), ElementsAre("3 loses its NIC: no interrupt", "7 loses its NIC: no interrupt",
                                   "9 loses its NIC: no interrupt"));
  hub_->Arm();
  EXPECT_EQ(queues_.arms, 2) << "it is lost";
}

TEST_F(QueueHubTest, ALostNicIsToldToAllOnceInTheOrderOfTheirNumbers) {
  users_[1]->removes = hub_.get();  // In its call another one goes.
  users_[1]->removed = 7;
  queues_.poll = absl::InternalError("gone");
  EXPECT_TRUE(hub_->Poll());
  EXPECT_THAT(Heard(), ElementsAre("3 loses its NIC: gone", "9 loses its NIC: gone"));
  const int polls = queues_.polls;
  EXPECT_FALSE(hub_->Poll());
  EXPECT_EQ(queues_.polls, polls);
  NicEvent event;
  event.kind = NicEvent::Kind::kDeviceFatal;
  hub_->OnEvent(event);
  EXPECT_THAT(Heard(), IsEmpty()) << "they know";
}

// Whatever the table's order of this run.
TEST_F(QueueHubTest, ManyHearOfItInTheOrderOfTheirNumbers) {
  RemoveAll();
  std::vector<std::string> expected;
  for (uint32_t number = 116; number > 100; --number) {
    users_.push_back(std::make_unique<Noted>(number, &heard_));
    hub_->AddUser(number, users_.back().get());
    expected.insert(expected.begin(), absl::StrCat(number, " loses its NIC: gone"));
  }
  queues_.poll = absl::InternalError("gone");
  EXPECT_TRUE(hub_->Poll());
  EXPECT_EQ(Heard(), expected);
  for (uint32_t number = 116; number > 100; --number) hub_->RemoveUser(number);
}

TEST_F(QueueHubTest, AnEventConcernsOneQueuePairOrAll) {
  NicEvent event;
  for (const auto kind :
       {NicEvent::Kind::kPortDown, NicEvent::Kind::kPortUp, NicEvent::Kind::kAddressChanged}) {
    event.kind = kind;
    hub_->OnEvent(event);
  }
  event.kind = NicEvent::Kind::kQueuePairFatal;
  event.id = 5;
  hub_->OnEvent(event);
  EXPECT_THAT(Heard(), IsEmpty());
  event.id = 7;
  hub_->OnEvent(event);
  EXPECT_THAT(Heard(),
              ElementsAre(absl::StrCat(
                  "7: NIC ", nic_->name(),
                  " reports that queue pair 7 is broken: its connection will be opened again")));
  for (const auto kind : {NicEvent::Kind::kCompletionQueueFatal, NicEvent::Kind::kDeviceFatal}) {
    event.kind = kind;
    hub_->OnEvent(event);
    EXPECT_EQ(Heard().size(), kind == NicEvent::Kind::kCompletionQueueFatal ? 3u : 0u);
  }
}

TEST_F(QueueHubTest, ANicIsUsedAgainWhenNobodyIsOnItsFormerQueue) {
  EXPECT_TRUE(hub_->Revive().ok());
  EXPECT_EQ(queues_.made, 1) << "nothing was lost";
  queues_.poll = absl::InternalError("gone");
  (void)hub_->Poll();
  EXPECT_EQ(hub_->Revive(), absl::InternalError("gone"));
  EXPECT_EQ(queues_.made, 1) << "somebody is on it";
  RemoveAll();
  queues_.create = absl::UnavailableError("not yet");
  EXPECT_EQ(hub_->Revive(), absl::UnavailableError("not yet"));
  EXPECT_FALSE(hub_->Poll());
  queues_.create = queues_.poll = absl::OkStatus();
  EXPECT_TRUE(hub_->Revive().ok());
  EXPECT_EQ(queues_.made, 2);
  (void)Heard();
  hub_->AddUser(3, users_[1].get());
  Complete(3, 8);
  EXPECT_TRUE(poller_.Turn()) << "the poller polls it";
  EXPECT_THAT(Heard(), ElementsAre("3 completes 8"));
  hub_->Detach();
  Complete(3, 9);
  poller_.Turn();
  EXPECT_THAT(Heard(), IsEmpty());
}

}  // namespace
}  // namespace tryst
