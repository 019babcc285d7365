// Runs the real LocalRendezvous through every order in which its callers' critical sections can
// follow each other. Each operation is a coroutine that stops wherever another thread could take
// the lock. A run is the list of the coroutine that goes on at each stop, and a depth-first search
// visits all lists.

#include <gtest/gtest.h>
#include <ucontext.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr int kUnbounded = 1 << 20;

// Runs functions as coroutines of this thread, one at a time, in a given order.
class Coroutines {
 public:
  explicit Coroutines(size_t count) : ones_(count) {
    for (One& one : ones_) one.stack.resize(128 << 10);
  }

  void Start(size_t index, std::function<void()> body) {
    One& one = ones_[index];
    one.body = std::move(body);
    one.ended = false;
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.data();
    one.context.uc_stack.ss_size = one.stack.size();
    one.context.uc_link = &scheduler_;
    const uintptr_t self = reinterpret_cast<uintptr_t>(this);
    makecontext(&one.context, reinterpret_cast<void (*)()>(&Coroutines::Enter), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
  }
  // Resumes it until it stops or ends.
  void Resume(size_t index) {
    current_ = index;
    swapcontext(&scheduler_, &ones_[index].context);
    current_ = kNone;
  }
  void Stop() {
    if (current_ != kNone) swapcontext(&ones_[current_].context, &scheduler_);
  }
  bool ended(size_t index) const { return ones_[index].ended; }

 private:
  struct One {
    std::vector<char> stack;
    ucontext_t context;
    std::function<void()> body;
    bool ended = true;
  };
  static void Enter(unsigned low, unsigned high) {
    auto* self = reinterpret_cast<Coroutines*>(uintptr_t{high} << 32 | low);
    One& one = self->ones_[self->current_];
    one.body();
    one.ended = true;
  }

  static constexpr size_t kNone = ~size_t{0};
  std::vector<One> ones_;
  ucontext_t scheduler_;
  size_t current_ = kNone;
};

// One operation, and what a run shows of it.
struct Op {
  std::string name;
  std::function<void()> body;
  int began = -1;  // The number of its first turn, among all turns.
  int ended = -1;
};

// The state of one run.
struct World {
  World() {
    LocalRendezvous::Options options;
    options.shards = 1;
    options.check_immutable = true;
    options.between_locks = [this, alive = alive](const char*, uint64_t) {
      if (stop) stop();
    };
    rendezvous = std::make_unique<LocalRendezvous>(options, &alarms);
    deadline = Deadline::After(alarms, absl::Seconds(1));
  }

  void AddSend(int number) {
    sends.push_back(ops.size());
    accepted.push_back(false);
    ops.push_back({absl::StrCat("send", number), [this, number] {
                     accepted[number] = SendNumber(rendezvous.get(), key, number).ok();
                   }});
  }
  void AddReceive(bool with_cancel, bool with_deadline) {
    receives.push_back(ops.size());
    cancellable.push_back(with_cancel);
    outcomes.push_back(std::make_shared<Outcome>());
    ops.push_back({absl::StrCat("recv", outcomes.size() - 1),
                   [this, with_cancel, with_deadline, outcome = outcomes.back()] {
                     RecvArgs args;
                     if (with_cancel) args.cancellation = &cancellation;
                     if (with_deadline) args.deadline = deadline;
                     rendezvous->RecvAsync(key, args, Into(outcome));
                   }});
  }
  // Takes a tensor and gives it back, whenever and on whichever thread it arrives.
  void AddTaker() {
    takers.push_back({});
    ops.push_back({absl::StrCat("take", takers.size() - 1), [this, taker = &takers.back()] {
                     rendezvous->RecvAsync(key, RecvArgs(), [this, taker](Received&& received) {
                       taker->ended = true;
                       if (!received.status.ok()) return;
                       if (stop) stop();
                       rendezvous->GiveBack(key, std::move(received));
                     });
                   }});
  }
  void AddCancel() {
    cancel = static_cast<int>(ops.size());
    ops.push_back({"cancel", [this] { cancellation.StartCancel(); }});
  }
  void AddDeadline() {
    ops.push_back({"deadline", [this] { alarms.AdvanceTo(deadline.at_ns()); }});
  }
  void AddAbort() {
    abort = static_cast<int>(ops.size());
    ops.push_back({"abort", [this] { rendezvous->StartAbort(absl::InternalError("abort")); }});
  }

  bool Before(size_t a, size_t b) const { return ops[a].ended < ops[b].began; }
  void Check();

  const TensorKey key = LocalKey("e");
  std::function<void()> stop;
  std::shared_ptr<int> alive = std::make_shared<int>();  // The table itself holds it, too.
  Cancellation cancellation;
  VirtualAlarms alarms;
  Deadline deadline;
  std::unique_ptr<LocalRendezvous> rendezvous;
  std::vector<Op> ops;
  struct Taker {
    bool ended = false;
  };
  std::deque<Taker> takers;
  std::vector<size_t> sends, receives;
  std::vector<bool> accepted, cancellable;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  int cancel = -1;
  int abort = -1;
};

// Checks what must hold whatever the order.
void World::Check() {
  stop = nullptr;
  alarms.AdvanceBy(absl::ZeroDuration());  // Runs an alarm that was set for a moment in the past.
  const RendezvousCounters before = rendezvous->counters();
  if (receives.empty()) {
    // The tensors that are left are in the order of their sends, even if some were taken and given
    // back.
    int64_t last = -1;
    for (int64_t left = before.waiting_sends; left > 0; --left) {
      auto outcome = std::make_shared<Outcome>();
      rendezvous->RecvAsync(key, RecvArgs(), Into(outcome));
      ASSERT_TRUE(outcome->ok());
      if (sends.size() == 2 && Before(sends[0], sends[1])) {
        ASSERT_GT(outcome->number(), last);
      }
      last = outcome->number();
    }
  }
  rendezvous->StartAbort(absl::UnknownError("end of the run"));
  std::vector<int> delivered(sends.size(), 0);
  int64_t ok = 0;
  for (size_t i = 0; i < receives.size(); ++i) {
    const Outcome& outcome = *outcomes[i];
    ASSERT_EQ(outcome.calls, 1) << "done exactly once";
    if (outcome.status.ok()) {
      ++ok;
      ASSERT_GE(outcome.number(), 0);
      ++delivered[outcome.number()];
    } else {
      ASSERT_FALSE(outcome.tensor.valid());
    }
    if (absl::IsCancelled(outcome.status)) {
      ASSERT_TRUE(cancellable[i]) << "a neighbour's cancellation";
    }
    if (abort >= 0 && Before(abort, receives[i])) {
      ASSERT_EQ(outcome.code(), absl::StatusCode::kInternal) << "late registrations are aborted";
    } else if (cancellable[i] && cancel >= 0 && Before(cancel, receives[i])) {
      if (outcome.status.ok()) {  // It got only a tensor that was here, because it never waits.
        ASSERT_LT(ops[sends[outcome.number()]].began, ops[receives[i]].ended);
      } else {
        ASSERT_TRUE(absl::IsCancelled(outcome.status) || absl::IsInternal(outcome.status));
      }
    }
  }
  int64_t sent = 0;
  for (size_t i = 0; i < sends.size(); ++i) {
    sent += accepted[i];
    ASSERT_LE(delivered[i], accepted[i]) << "each send meets one receive at most";
    const bool late = abort >= 0 && Before(abort, sends[i]);
    ASSERT_FALSE(late && accepted[i]);
    ASSERT_TRUE(abort >= 0 || accepted[i]);
  }
  for (const Taker& taker : takers) ASSERT_TRUE(taker.ended);
  ASSERT_EQ(before.delivered, ok + before.given_back);
  ASSERT_EQ(before.sends, sent);
  ASSERT_EQ(before.waiting_sends == 0 || before.waiting_receives == 0, true)
      << "a tensor and a receive of it both wait";
  ASSERT_TRUE(abort >= 0 || before.waiting_sends == sent - ok) << "nothing is lost";
  const RendezvousCounters after = rendezvous->counters();
  ASSERT_EQ(after.waiting_receives, 0);
  ASSERT_EQ(after.held_bytes, 0);
  ASSERT_EQ(after.changed_after_send, 0);
  ASSERT_EQ(alarms.size(), 0u) << "no alarm is forgotten";
  rendezvous.reset();
  ASSERT_EQ(alive.use_count(), 1) << "a hold was not dropped: the table lives on";
  if (takers.empty() && sends.size() == 2 && Before(sends[0], sends[1]) && delivered[1] != 0) {
    ASSERT_EQ(delivered[0], 1) << "first sent, first received";
  }
  if (takers.empty() && receives.size() == 2 && ok == 2 && Before(sends[0], sends[1]) &&
      Before(receives[0], receives[1])) {
    ASSERT_LT(outcomes[0]->number(), outcomes[1]->number()) << "first come, first served";
  }
}

// A choice among `of` operations.
struct Choice {
  size_t chosen;
  size_t of;
};

// Explores all orders with at most `max_preemptions` switches away from an operation that could
// have gone on.
class Search {
 public:
  Search(std::function<void(World*)> build, int max_preemptions)
      : build_(std::move(build)), max_preemptions_(max_preemptions) {}

  void Run() {
    do {
      RunOnce();
      ++runs_;
      if (testing::Test::HasFatalFailure()) {
        ADD_FAILURE() << "in the order " << order_;
        return;
      }
    } while (NextChoices());
  }

  int64_t runs() const { return runs_; }
  const std::set<std::string>& endings() const { return endings_; }

 private:
  void RunOnce() {
    World world;
    build_(&world);
    if (coroutines_ == nullptr) coroutines_ = std::make_unique<Coroutines>(world.ops.size());
    for (size_t i = 0; i < world.ops.size(); ++i) coroutines_->Start(i, world.ops[i].body);
    world.stop = [this] { coroutines_->Stop(); };
    order_.clear();
    size_t at = 0;
    int preemptions = 0;
    size_t running = world.ops.size();
    for (int turn = 0;; ++turn) {
      std::vector<size_t> ready;
      const bool may_go_on = running < world.ops.size() && !coroutines_->ended(running);
      if (may_go_on) ready.push_back(running);
      for (size_t i = 0; i < world.ops.size(); ++i) {
        if (i == running || coroutines_->ended(i)) continue;
        if (!may_go_on || preemptions < max_preemptions_) ready.push_back(i);
      }
      if (ready.empty()) break;
      if (at == choices_.size()) choices_.push_back({0, ready.size()});
      ASSERT_EQ(choices_[at].of, ready.size()) << "the run does not repeat";
      const size_t next = ready[choices_[at++].chosen];
      preemptions += may_go_on && next != running;
      running = next;
      Op& op = world.ops[running];
      if (op.began < 0) op.began = turn;
      absl::StrAppend(&order_, op.name, " ");
      coroutines_->Resume(running);
      if (coroutines_->ended(running)) op.ended = turn;
    }
    world.Check();
    std::vector<std::string> ending;
    for (const auto& outcome : world.outcomes) {
      ending.push_back(outcome->status.ok() ? absl::StrCat(outcome->number())
                                            : absl::StatusCodeToString(outcome->code()));
    }
    endings_.insert(absl::StrJoin(ending, " "));
  }

  bool NextChoices() {
    while (!choices_.empty() && choices_.back().chosen + 1 == choices_.back().of) {
      choices_.pop_back();
    }
    if (choices_.empty()) return false;
    ++choices_.back().chosen;
    return true;
  }

  const std::function<void(World*)> build_;
  const int max_preemptions_;
  std::unique_ptr<Coroutines> coroutines_;
  std::vector<Choice> choices_;
  std::string order_;
  int64_t runs_ = 0;
  std::set<std::string> endings_;
};

std::set<std::string> Explore(std::function<void(World*)> build, int max_preemptions,
                              int64_t min_runs) {
  Search search(std::move(build), max_preemptions);
  search.Run();
  printf("%lld orders, endings: %s\n", static_cast<long long>(search.runs()),
         absl::StrJoin(search.endings(), ", ").c_str());
  EXPECT_GE(search.runs(), min_runs) << "the search has become smaller";
  return search.endings();
}

TEST(Interleaving, SendReceiveCancelDeadline) {
  const auto endings = Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddReceive(true, true);
        world->AddCancel();
        world->AddDeadline();
      },
      kUnbounded, 1000);
  EXPECT_EQ(endings, (std::set<std::string>{"0", "CANCELLED", "DEADLINE_EXCEEDED"}));
}

TEST(Interleaving, SendReceiveCancelAbort) {
  const auto endings = Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddReceive(true, false);
        world->AddCancel();
        world->AddAbort();
      },
      kUnbounded, 1000);
  EXPECT_EQ(endings, (std::set<std::string>{"0", "CANCELLED", "INTERNAL"}));
}

TEST(Interleaving, SendReceiveDeadlineAbort) {
  const auto endings = Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddReceive(false, true);
        world->AddDeadline();
        world->AddAbort();
      },
      kUnbounded, 1000);
  EXPECT_EQ(endings, (std::set<std::string>{"0", "DEADLINE_EXCEEDED", "INTERNAL"}));
}

TEST(Interleaving, TwoSendsTwoReceives) {
  Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddSend(1);
        world->AddReceive(true, false);
        world->AddReceive(false, false);
      },
      kUnbounded, 1000);
}

TEST(Interleaving, SendTwoReceivesCancel) {
  Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddReceive(true, false);
        world->AddReceive(false, false);
        world->AddCancel();
      },
      kUnbounded, 1000);
}

TEST(Interleaving, TwoSendsTwoTakersThatGiveBack) {
  Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddSend(1);
        world->AddTaker();
        world->AddTaker();
      },
      kUnbounded, 300);
}

TEST(Interleaving, ATakerThatGivesBackTakesNothingFromAReceive) {
  const auto endings = Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddTaker();
        world->AddReceive(true, false);
        world->AddCancel();
      },
      kUnbounded, 1000);
  EXPECT_EQ(endings, (std::set<std::string>{"0", "CANCELLED"}));
}

TEST(Interleaving, AnAbortEndsWhatIsGivenBack) {
  const auto endings = Explore(
      [](World* world) {
        world->AddSend(0);
        world->AddTaker();
        world->AddReceive(false, false);
        world->AddAbort();
      },
      kUnbounded, 100);
  EXPECT_EQ(endings, (std::set<std::string>{"0", "INTERNAL"}));
}

void AddAll(World* world) {
  world->AddSend(0);
  world->AddSend(1);
  world->AddReceive(true, true);
  world->AddReceive(false, true);
  world->AddCancel();
  world->AddDeadline();
  world->AddAbort();
}

TEST(Interleaving, TwoSendsTwoReceivesCancelDeadlineAbortInEveryOrder) {
  Explore(AddAll, 0, 5040);  // The 7! orders of whole operations.
}

// TRYST_PREEMPTIONS=2 takes minutes.
TEST(Interleaving, TwoSendsTwoReceivesCancelDeadlineAbortWithAPreemption) {
  const char* wanted = getenv("TRYST_PREEMPTIONS");
  const auto endings = Explore(AddAll, wanted != nullptr ? atoi(wanted) : 1, 50'000);
  for (const char* ending : {"0 1", "1 0", "CANCELLED 0", "0 DEADLINE_EXCEEDED",
                             "INTERNAL INTERNAL", "CANCELLED INTERNAL"}) {
    EXPECT_EQ(endings.count(ending), 1u) << ending;
  }
}

}  // namespace
}  // namespace tryst
