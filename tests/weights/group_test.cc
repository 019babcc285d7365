// Who decides which version a fleet serves, with each owner and member in a process of its own.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/process/e2e/process.h"

namespace tryst {
namespace {

constexpr char kWorker[] = "tests/weights/group_worker";
constexpr int kOwners = 3;
constexpr absl::Duration kPatience = absl::Seconds(60);

// A worker, and the pipe by which it is told what to do.
class Worker {
 public:
  Worker(const std::string& role, int task, const std::string& protocol, const std::string& seed,
         bool waits = false) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    std::vector<std::string> args = {role, absl::StrCat(task), absl::StrCat(kOwners), protocol,
                                     seed};
    if (waits) args.push_back("waits");
    process_ = std::make_unique<Process>(kWorker, args, ends[0]);
    close(ends[0]);
    orders_ = ends[1];
  }
  ~Worker() { close(orders_); }
  void Tell(const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(write(orders_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // The rest of the first line after the `from`th that begins with `begin`.
  std::string Await(const std::string& begin, size_t from = 0) {
    const absl::Time until = absl::Now() + kPatience;
    do {
      const std::vector<std::string> lines = Lines();
      for (size_t i = from; i < lines.size(); ++i) {
        if (absl::StartsWith(lines[i], begin)) return lines[i].substr(begin.size());
      }
      absl::SleepFor(absl::Milliseconds(10));
    } while (absl::Now() < until && process_->Running());
    ADD_FAILURE() << "no \"" << begin << "\" after line " << from << " of\n"
                  << process_->out() << process_->err();
    return "";
  }
  // The answer of an owner to an order.
  std::string Done(const std::string& line) { return Await(absl::StrCat("done ", line, ": ")); }
  std::string Order(const std::string& line) {
    Tell(line);
    return Done(line);
  }
  std::vector<std::string> Lines() const { return absl::StrSplit(process_->out(), '\n'); }
  size_t Now() const { return Lines().size() - 1; }
  Process* process() { return process_.get(); }

 private:
  std::unique_ptr<Process> process_;
  int orders_ = -1;
};

// What a member says of what it serves, in order.
struct Served {
  uint64_t number;
  int64_t since_ns;
};
std::vector<Served> ServedBy(const Worker& member) {
  std::vector<Served> all;
  for (const std::string& line : member.Lines()) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    Served served;
    if (words.size() == 3 && words[0] == "serves" && absl::SimpleAtoi(words[1], &served.number) &&
        absl::SimpleAtoi(words[2], &served.since_ns)) {
      all.push_back(served);
    }
  }
  return all;
}

class GroupTest : public testing::TestWithParam<const char*> {
 protected:
  // Three owners.
  void StartOwners() {
    owners_.push_back(std::make_unique<Worker>("owner", 0, GetParam(), "-"));
    seed_ = absl::StrCat("/job:owner/replica:0/task:0@", owners_[0]->process()->Address());
    for (int rank = 1; rank < kOwners; ++rank) {
      owners_.push_back(std::make_unique<Worker>("owner", rank, GetParam(), seed_));
    }
  }
  Worker* StartMember(bool waits = false) {
    const int task = members_.size();
    members_.push_back(std::make_unique<Worker>("member", task, GetParam(), seed_, waits));
    return members_.back().get();
  }
  // Published and sealed by all. False: it was dropped.
  bool TrySeal(uint64_t number) {
    for (const auto& owner : owners_) owner->Tell(absl::StrCat("publish ", number));
    for (const auto& owner : owners_) owner->Tell(absl::StrCat("seal ", number, " 30"));
    bool sealed = true;
    for (const auto& owner : owners_) {
      const std::string ended = owner->Done(absl::StrCat("seal ", number, " 30"));
      sealed = sealed && ended == "OK";
      // It may be dropped before an owner that is late publishes it; and an owner that comes with a
      // new term waits for the others, whose seals have ended with the former one.
      EXPECT_TRUE(ended == "OK" || absl::StartsWith(ended, "ABORTED") ||
                  absl::StartsWith(ended, "ALREADY_EXISTS") ||
                  absl::StartsWith(ended, "DEADLINE_EXCEEDED"))
          << ended;
    }
    return sealed;
  }
  void Seal(uint64_t number) { EXPECT_TRUE(TrySeal(number)); }
  // Version 1 is served by `members`.
  void Begin(int members, bool waits = false) {
    StartOwners();
    for (int i = 0; i < members; ++i) StartMember(waits);
    Seal(1);
    // An activation needs a member; who comes later stages what is active by itself.
    for (const auto& member : members_) member->Await("sealed 1");
    owners_[0]->Tell("activate 1 rolling 30");
    for (const auto& member : members_) {
      member->Await("staged 1: OK");
      if (waits) member->Tell("vote");
    }
    EXPECT_EQ(owners_[0]->Done("activate 1 rolling 30"), "OK");
    for (const auto& member : members_) member->Await("serves 1 ");
  }
  void EndsServing(Worker* member, uint64_t number) {
    const std::vector<Served> served = ServedBy(*member);
    ASSERT_FALSE(served.empty());
    EXPECT_EQ(served.back().number, number) << member->process()->out();
  }

  std::string seed_;
  std::vector<std::unique_ptr<Worker>> owners_, members_;
};
INSTANTIATE_TEST_SUITE_P(, GroupTest, testing::Values("grpc", "verbs", "shm"));

TEST_P(GroupTest, AFleetSwitchesRollingAndAtABarrier) {
  Begin(2);
  Seal(2);
  EXPECT_EQ(owners_[1]->Order("activate 2 rolling 30"), "OK");
  for (const auto& member : members_) member->Await("serves 2 ");
  Seal(3);
  EXPECT_EQ(owners_[2]->Order("activate 3 barrier 30"), "OK");
  for (const auto& member : members_) member->Await("serves 3 ");
  // Nobody served version 3 before all had stopped serving version 2.
  int64_t last_of_2 = 0, first_of_3 = INT64_MAX;
  for (const auto& member : members_) {
    const std::vector<Served> served = ServedBy(*member);
    for (size_t i = 0; i + 1 < served.size(); ++i) {
      if (served[i].number == 2) last_of_2 = std::max(last_of_2, served[i + 1].since_ns);
      if (served[i + 1].number == 3) first_of_3 = std::min(first_of_3, served[i + 1].since_ns);
    }
  }
  // What is seen is up to a turn of the one who looks later than what is, on a busy machine more.
  EXPECT_LT(last_of_2, first_of_3 + 100'000'000);
  // What comes later is a member of the version that is active.
  Worker* const late = StartMember();
  late->Await("staged 3: OK");
  late->Await("serves 3 ");
  // The first barrier of a leader waits for the permits that another one may have given.
  Seal(4);
  EXPECT_EQ(owners_[0]->Order("activate 4 barrier 30"), "OK");
  printf("activation with members that fetch 0.7 MB, %s: 2, rolling, %s; 3, at a barrier, %s\n",
         GetParam(), owners_[1]->Await("took activate 2 rolling 30: ").c_str(),
         owners_[0]->Await("took activate 4 barrier 30: ").c_str());
  // A number is activated once.
  EXPECT_TRUE(absl::StrContains(owners_[0]->Order("activate 2 rolling 5"), "ABORTED"));
}

TEST_P(GroupTest, AMemberThatDiesBeforeItsVoteIsPutOut) {
  Begin(2, /*waits=*/true);
  Seal(2);
  owners_[0]->Tell("activate 2 rolling 40");
  for (const auto& member : members_) member->Await("staged 2: OK");
  members_[0]->process()->Signal(SIGKILL);
  members_[1]->Tell("vote");
  members_[1]->Await("serves 2 ");
  EXPECT_EQ(owners_[0]->Done("activate 2 rolling 40"), "OK");
}

TEST_P(GroupTest, AMemberThatDiesAfterItsVoteChangesNothing) {
  Begin(3, /*waits=*/true);
  Seal(2);
  owners_[0]->Tell("activate 2 barrier 40");
  for (const auto& member : members_) member->Await("staged 2: OK");
  members_[0]->Tell("vote");
  members_[0]->Await("voted 2");
  members_[0]->process()->Signal(SIGKILL);
  members_[1]->Tell("vote");
  members_[2]->Tell("vote");
  for (int i = 1; i < 3; ++i) members_[i]->Await("serves 2 ");
  EXPECT_EQ(owners_[0]->Done("activate 2 barrier 40"), "OK");
}

TEST_P(GroupTest, AnOwnerThatDiesBeforeItSealsDropsTheVersion) {
  Begin(2);
  for (const auto& owner : owners_) EXPECT_EQ(owner->Order("publish 2"), "OK");
  owners_[0]->Tell("seal 2 5");
  owners_[1]->Tell("seal 2 30");
  owners_[2]->process()->Signal(SIGKILL);
  for (const std::string& ended : {owners_[0]->Done("seal 2 5"), owners_[1]->Done("seal 2 30")}) {
    EXPECT_TRUE(absl::StartsWith(ended, "ABORTED")) << ended;
  }
  for (const auto& member : members_) EndsServing(member.get(), 1);
  // Its next life begins another term, in which versions are sealed again.
  owners_[2] = std::make_unique<Worker>("owner", 2, GetParam(), seed_);
  // One that the others begin before that term does is dropped.
  uint64_t number = 3;
  while (number < 6 && !TrySeal(number)) ++number;
  EXPECT_EQ(owners_[0]->Order(absl::StrCat("activate ", number, " rolling 30")), "OK");
  for (const auto& member : members_) member->Await(absl::StrCat("serves ", number, " "));
}

TEST_P(GroupTest, WhoComesWhenAnOwnerIsGoneIsServedByAMember) {
  Begin(1);
  // The leader hears by the next question what the member has for others.
  absl::SleepFor(absl::Seconds(1));
  owners_[2]->process()->Signal(SIGSTOP);
  Worker* const late = StartMember();
  late->Await("prepare 1");
  absl::SleepFor(absl::Milliseconds(500));
  owners_[2]->process()->Signal(SIGKILL);  // In the middle of its fetch.
  late->Await("staged 1: OK");
  late->Await("serves 1 ");
  Worker* const later = StartMember();
  later->Await("staged 1: OK");
  later->Await("serves 1 ");
  // Its next life has nothing of the version, and begins another term.
  owners_[2] = std::make_unique<Worker>("owner", 2, GetParam(), seed_);
  Worker* const last = StartMember();
  last->Await("staged 1: OK");
  last->Await("serves 1 ");
}

// No log names a version to whoever comes now, and the first owner's boxes are a member's alone.
TEST_P(GroupTest, WhoStartsWhenTheFirstOwnerIsGoneFindsWhatTheOthersHave) {
  Begin(1);
  owners_[0]->process()->Signal(SIGKILL);
  const std::string seed =
      absl::StrCat("/job:owner/replica:0/task:1@", owners_[1]->process()->Address());
  // It fetches the newest version in several shapes, and checks each element.
  Process late("tests/weights/weights_worker",
               {"member", "1", absl::StrCat(kOwners), GetParam(), seed, "1"});
  EXPECT_EQ(late.Wait(2 * kPatience), 0) << late.out() << late.err();
  EXPECT_TRUE(absl::StrContains(late.out(), "fetched 1 ")) << late.out();
}

TEST_P(GroupTest, WhoeverHearsNothingOfTheLeaderServesNothing) {
  Begin(2);
  std::vector<size_t> from;
  for (const auto& member : members_) from.push_back(member->Now());
  owners_[0]->process()->Signal(SIGSTOP);
  const absl::Time stopped = absl::Now();
  for (size_t i = 0; i < members_.size(); ++i) members_[i]->Await("serves 0 ", from[i]);
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(10));
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i]->Await("headless 1", from[i]);
    from[i] = members_[i]->Now();
  }
  absl::SleepFor(absl::Seconds(2));
  for (const auto& member : members_) EndsServing(member.get(), 0);
  owners_[0]->process()->Signal(SIGCONT);
  for (size_t i = 0; i < members_.size(); ++i) members_[i]->Await("serves 1 ", from[i]);
  // A member that stands still finds its permit over when it wakes.
  from[0] = members_[0]->Now();
  members_[0]->process()->Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(2));
  members_[0]->process()->Signal(SIGCONT);
  members_[0]->Await("serves 0 ", from[0]);
  members_[0]->Await("serves 1 ", from[0]);
}

}  // namespace
}  // namespace tryst
