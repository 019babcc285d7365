#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/slot_watch.h"
#include "channel/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr char kPeer[] = "/job:p/replica:0/task:0";

TensorKey Key(const std::string& edge, uint64_t incarnation = 1) {
  return TensorKeyPrefix::Make(absl::StrCat(kPeer, "/device:CPU:0"), incarnation,
                               "/job:c/replica:0/task:0/device:CPU:0", edge)
      ->At(0, 0);
}

// Writes down what it is asked to say.
class WrittenLink final : public FetchLink, private FetchWords, private PollerFlush {
 public:
  explicit WrittenLink(FetchSession* session) : session_(session) {}
  ~WrittenLink() override { session_->poller()->ForgetFlush(this); }

  std::vector<std::string> said;
  int room = 100'000;  // How many more words there is room for.
  bool sends_requests = true;
  bool at_once = false;
  bool may_be_written = false;
  bool passes_memory = true;
  absl::Status may_fill;
  int dropped_memory = 0;
  int dropped_asks = 0;
  int links_over = 0;
  int dropped_keys = 0;
  int waits = 0;
  int no_slots = 0;
  std::vector<FetchState> left;

 private:
  bool Say(std::string word) {
    if (room == 0) return false;
    --room;
    said.push_back(std::move(word));
    return true;
  }

  // ---- FetchWords ----
  void FlushSoon() override { session_->poller()->FlushThisTurn(this); }
  bool HasRoom(const FetchAsk&) override { return room > 0; }
  bool SendRequest(FetchAsk* ask, bool may_park) override {
    if (!sends_requests) return false;
    ask->trace_id = 77 + ask->generation;
    return Say(absl::StrCat("ask ", ask->slot, ".", ask->generation, " ", ask->of->key.edge(),
                            may_park ? absl::StrCat(" may park ", ask->ticket) : "",
                            ask->parks == Parks::kOver ? absl::StrCat(" of ", ask->ticket) : ""));
  }
  bool SendCancel(const FetchAsk& ask) override {
    return Say(absl::StrCat("cancel ", ask.slot, ".", ask.generation));
  }
  bool SendPark(const FetchAsk& ask) override {
    return Say(absl::StrCat("park ", ask.slot, " as ", ask.ticket));
  }
  bool SendWaits(FetchAsk* ask) override {
    return Say(absl::StrCat("waits ", ask->ticket, " ", ask->of->key.edge()));
  }
  bool SendReplayed() override { return Say("replayed"); }
  bool SendUnwanted(absl::Span<const uint64_t> tickets) override {
    return Say(absl::StrCat("unwanted ", absl::StrJoin(tickets, " ")));
  }
  size_t most_tickets() const override { return 2; }
  bool AsksAtOnce() const override { return at_once; }
  void Flush() override {
    if (session_->open()) session_->SayAll();
  }

  // ---- FetchLink ----
  FetchWords* words() override { return this; }
  absl::Status Begin(Hello*) override { return absl::OkStatus(); }
  absl::Status UseAnswer(const Hello&) override { return absl::OkStatus(); }
  bool EndAttempt(const absl::Status&) override { return false; }
  void Break(const absl::Status&) override {}
  bool Close(const absl::Status&) override { return false; }
  std::string Explain() const override { return ""; }
  int64_t MostSilentMs() const override { return 0; }
  void AskForSign(bool) override {}
  absl::Status Overdue() override { return absl::OkStatus(); }
  void OnLinkOver(FetchAsk*) override { ++links_over; }
  FetchAsk* MakeAsk() override { return blocks_.emplace_back(std::make_unique<FetchAsk>()).get(); }
  void DropAsks() override {
    ++dropped_asks;
    blocks_.clear();
  }
  void DropKeys() override { ++dropped_keys; }
  absl::Status MayFillDevice(int) const override { return may_fill; }
  void OnWaits(FetchOp*) override {
    ++waits;
    FlushSoon();
  }
  void OnNoSlot() override { ++no_slots; }
  bool MayBeWritten(const FetchAsk&) const override { return may_be_written; }
  void DropMemory(FetchAsk*) override { ++dropped_memory; }
  bool MayPass(const FetchAsk&, const FetchOp&) const override { return passes_memory; }
  void OnLeaves(FetchAsk*, FetchState from) override { left.push_back(from); }
  uint64_t BytesOf(const FetchAsk&) const override { return 64; }

  FetchSession* const session_;
  std::vector<std::unique_ptr<FetchAsk>> blocks_;
};

// Keeps the hellos, which the test answers.
class KeptHellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    asked.push_back(hello);
    answers.push_back(std::move(done));
  }
  std::vector<Hello> asked;
  std::vector<HelloDone> answers;
};

class CountingUser final : public PathUser {
 public:
  bool HasAnother() const override { return true; }
  bool HasForAnySize() const override { return true; }
  void OnRefused() override { ++refused; }
  void OnLeft(std::vector<WaitingFetch>) override {}
  void OnUsable() override { ++usable; }
  void OnTooLarge(std::vector<WaitingFetch>) override {}
  void OnNetworkChange() override {}
  int refused = 0;
  int usable = 0;
};

// Hears what the test says.
class WrittenFetches final : public FetchSession {
 public:
  WrittenFetches(Poller* poller, Bootstrap* bootstrap, const FetchOpsOptions& options)
      : FetchSession(poller, bootstrap, options,
                     [](FetchSession* session) { return std::make_unique<WrittenLink>(session); }) {
  }

  void Open(size_t slots) {
    connector_.Begin(Connector::State::kOpen);
    slots_.Reset(slots);
    words_->FlushSoon();
  }
  // The link breaks and has drained.
  void Unlink() {
    connector_.SetState(Connector::State::kIdle);
    connector_.why = absl::UnavailableError("cut");
    BreakAsks();
    DrainAsks();
  }
  // There is another one, of this life and session.
  void Resume(uint64_t incarnation = 1, uint64_t session = 1) {
    MeetPeer(incarnation, session);
    connector_.Begin(Connector::State::kOpen);
    Replay();
    words_->FlushSoon();
  }
  std::vector<WaitingFetch> TakeAllOut() {
    const std::vector<FetchAsk*> asked = Asked();
    std::for_each(asked.rbegin(), asked.rend(), [this](FetchAsk* ask) { AskAnew(ask); });
    return TakeWaiting();
  }
  void Forget() { ForgetLeaving(); }
  std::string Explain() const override { return ExplainOut(); }

  // ---- What the peer says ----
  void SayTensor(size_t slot, Tensor tensor = Tensor(), When when = When::kNow) {
    FetchAsk* const ask = slots_.at(slot);
    ASSERT_NE(Hear(ask, FetchEvent::kTensor), nullptr);
    const bool is_dead = !tensor.valid();
    Finish(ask, absl::OkStatus(), std::move(tensor), is_dead, when);
  }
  void SayFailed(size_t slot, const absl::Status& why) {
    FetchAsk* const ask = slots_.at(slot);
    ASSERT_NE(Hear(ask, FetchEvent::kFailed), nullptr);
    Finish(ask, absl::Status(why), Tensor(), false, When::kNow);
  }
  void SayGone(size_t slot) {
    FetchAsk* const ask = slots_.at(slot);
    ASSERT_NE(Hear(ask, FetchEvent::kGone), nullptr);
    FinishLeaving(ask);
  }
  void SayParked(size_t slot) { ASSERT_TRUE(OnParked(slots_.at(slot)).ok()); }
  void StartCopy(size_t slot) { Advance(slots_.at(slot), FetchEvent::kCopy); }
  void WaitForRoom(size_t slot) { Advance(slots_.at(slot), FetchEvent::kNoRoom); }
  void RoomCame(size_t slot) {
    Advance(slots_.at(slot), FetchEvent::kRetry);
    SendSoon(slots_.at(slot));
  }
  void Break(size_t slot) { Advance(slots_.at(slot), FetchEvent::kBroken); }
  FetchAsk* At(size_t slot) { return slots_.at(slot); }
  size_t live() const { return asks_.live() + fetches_.live(); }
  size_t made() const { return fetches_.all().size(); }
  size_t asks_made() const { return asks_.all().size(); }
  size_t in_line() const { return lines_.queued.size(); }
  void Noted(absl::Status why) { connector_.why = std::move(why); }

  WrittenLink* written() const { return static_cast<WrittenLink*>(link()); }
  int connected = 0;  // How often it would have said hello.

 private:
  void Connect() override { ++connected; }
};

// How one fetch ended.
struct Ended {
  int times = 0;
  absl::Status status;
  Tensor tensor;
  bool is_dead = false;
};

// Takes work when the test lets it.
class Gate final : public Executor {
 public:
  bool TryRun(Work* work) override {
    if (room == 0) return false;
    --room;
    taken.push_back(std::move(*work));
    return true;
  }
  void Run(Work work) override { std::move(work)(); }
  void RunOne() {
    Work work = std::move(taken.front());
    taken.erase(taken.begin());
    std::move(work)();
  }
  int room = 0;
  std::vector<Work> taken;
};

class FetchOpsTest : public testing::Test {
 protected:
  FetchOpsTest() {
    options_.peer = kPeer;
    options_.path = "written";
    options_.max_key_bytes = 200;
    options_.max_keys = 8192;
    options_.max_keys_bytes = 1 << 24;
    options_.max_parked = 3;
    options_.patience_ms = 0;
    Make();
    poller_.Turn();
  }
  ~FetchOpsTest() override { End(); }
  void Make() { fetches_ = std::make_unique<WrittenFetches>(&poller_, &hellos_, options_); }
  // Whatever is out ends, and nothing is left.
  void End() {
    if (fetches_ == nullptr) return;
    fetches_->written()->may_be_written = false;
    fetches_->Unlink();
    fetches_->Close(absl::CancelledError("the test is over"));
    fetches_->Forget();
    for (int i = 0; i < 5; ++i) poller_.Turn();
    EXPECT_EQ(fetches_->live(), 0u) << fetches_->Explain();
    EXPECT_TRUE(fetches_->Drained());
    fetches_.reset();
  }

  std::shared_ptr<Ended> Fetch(const std::string& edge, const RecvArgs& args = RecvArgs(),
                               int64_t step = 1) {
    return FetchKeyed(Key(edge), args, step);
  }
  std::shared_ptr<Ended> FetchOf(uint64_t incarnation, const std::string& edge) {
    return FetchKeyed(Key(edge, incarnation), RecvArgs(), 1);
  }
  std::shared_ptr<Ended> FetchKeyed(const TensorKey& key, const RecvArgs& args, int64_t step) {
    auto ended = std::make_shared<Ended>();
    fetches_->Fetch(step, key, args, [ended](Received&& received) {
      ++ended->times;
      ended->status = std::move(received.status);
      ended->tensor = std::move(received.tensor);
      ended->is_dead = received.is_dead;
    });
    return ended;
  }
  // A fetch was asked for; its link is lost, and the peer has no such path any more.
  std::shared_ptr<Ended> RefuseThePathOfOne(CountingUser* user) {
    options_.user = user;
    End();
    Make();
    fetches_->Open(1);
    fetches_->Resume();
    auto ended = Fetch("a");
    (void)Said();
    fetches_->Unlink();
    fetches_->FailAttempt(absl::UnimplementedError("no such path"));
    return ended;
  }
  std::vector<std::string> Said() {
    poller_.Turn();
    return std::exchange(fetches_->written()->said, {});
  }
  void PassTo(int64_t at_ns) {
    alarms_.AdvanceTo(at_ns);
    poller_.Turn();
  }
  void Pass(int64_t ns) { PassTo(alarms_.NowNs() + ns); }
  std::vector<LiveOp> Listed() {
    LiveOps ops(100);
    fetches_->ListOps(&ops);
    return ops.Take();
  }
  // So that those in slots are parked and the rest may be, too.
  void ParkAllOf(size_t slots) {
    Pass(kMs);
    (void)Said();
    for (size_t slot = 0; slot < slots; ++slot) fetches_->SayParked(slot);
  }

  VirtualAlarms alarms_;
  Poller poller_{&alarms_};
  KeptHellos hellos_;
  FetchOpsOptions options_;
  std::unique_ptr<WrittenFetches> fetches_;
};

// ---- Asking ----

TEST_F(FetchOpsTest, WhoWaitsIsAskedForInOrderAsSlotsAreFree) {
  const auto a = Fetch("a"), b = Fetch("b"), c = Fetch("c");
  EXPECT_EQ(fetches_->written()->waits, 3);
  EXPECT_THAT(Said(), IsEmpty()) << "there is no connection";
  fetches_->Open(2);
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a", "ask 1.0 b"));
  EXPECT_EQ(fetches_->in_line(), 1u);
  fetches_->SayTensor(1);
  EXPECT_EQ(b->times, 1);
  EXPECT_TRUE(b->is_dead);
  EXPECT_THAT(Said(), ElementsAre("ask 1.1 c"));
  fetches_->SayFailed(0, absl::NotFoundError("none"));
  EXPECT_EQ(a->status, absl::NotFoundError("none"));
  fetches_->SayTensor(1);
  EXPECT_EQ(c->times, 1);
  EXPECT_EQ(fetches_->counters()->fetches, 3u);
  EXPECT_EQ(fetches_->counters()->ended_ok, 2u);
  EXPECT_EQ(fetches_->counters()->ended_failed, 1u);
  EXPECT_EQ(fetches_->counters()->replays, 0u);
  EXPECT_EQ(fetches_->live(), 0u);
  EXPECT_FALSE(fetches_->Drained()) << "it is open";
  EXPECT_EQ(fetches_->made(), 3u);
  (void)Fetch("d");
  EXPECT_EQ(fetches_->made(), 3u) << "the ops are used again";
}

TEST_F(FetchOpsTest, WithoutRoomARequestWaitsAndIsNotOvertaken) {
  fetches_->Open(3);
  fetches_->written()->room = 1;
  (void)Fetch("a");
  (void)Fetch("b");
  (void)Fetch("c");
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a"));
  EXPECT_EQ(fetches_->in_line(), 2u);
  fetches_->written()->room = 100'000;
  fetches_->written()->sends_requests = false;  // Its key has not been told, say.
  (void)Fetch("d");
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(fetches_->At(1)->state, FetchState::kInSlot);
  fetches_->written()->sends_requests = true;
  (void)Fetch("e");
  EXPECT_THAT(Said(), ElementsAre("ask 1.0 b", "ask 2.0 c"));
}

TEST_F(FetchOpsTest, APlainOneIsAskedForWithinItsCallWhereNothingElseIsToBeSaid) {
  fetches_->written()->at_once = true;
  (void)Fetch("unlinked");
  EXPECT_THAT(fetches_->written()->said, IsEmpty());
  fetches_->Open(3);
  (void)Fetch("a");
  EXPECT_THAT(fetches_->written()->said, IsEmpty()) << "it would overtake";
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 unlinked", "ask 1.0 a"));
  EXPECT_EQ(fetches_->written()->waits, 2);
  (void)Fetch("b");
  EXPECT_THAT(fetches_->written()->said, ElementsAre("ask 2.0 b"));
  EXPECT_EQ(fetches_->written()->waits, 3);
  (void)Said();
  (void)Fetch("c");
  EXPECT_THAT(fetches_->written()->said, IsEmpty()) << "there is no slot";
  EXPECT_EQ(fetches_->in_line(), 1u);
  fetches_->SayTensor(0);
  fetches_->SayTensor(1);
  EXPECT_THAT(Said(), ElementsAre("ask 1.1 c"));

  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  (void)Fetch("d", args);
  EXPECT_THAT(fetches_->written()->said, IsEmpty()) << "it has something to undo";
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 d"));
  fetches_->SayTensor(0);
  args = RecvArgs();
  args.deadline = Deadline::After(alarms_, absl::Hours(1));
  (void)Fetch("e", args);
  EXPECT_THAT(fetches_->written()->said, IsEmpty());
  EXPECT_THAT(Said(), ElementsAre("ask 0.2 e"));
  cancellation.StartCancel();

  fetches_->SayTensor(0);
  fetches_->written()->room = 0;
  (void)Fetch("f");
  EXPECT_THAT(Said(), IsEmpty());
  fetches_->written()->room = 100'000;
  fetches_->written()->sends_requests = false;
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(FetchOpsTest, NothingOvertakesWhatIsToBeSaid) {
  fetches_->written()->at_once = true;
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(2);
  const auto a = Fetch("a", args);
  (void)Said();
  fetches_->written()->room = 0;
  cancellation.StartCancel();
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(a->times, 1) << "nobody writes its memory";
  fetches_->written()->room = 100'000;
  (void)Fetch("b");
  EXPECT_THAT(fetches_->written()->said, IsEmpty()) << "a cancel is to be said first";
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0", "ask 1.0 b"));
  EXPECT_EQ(fetches_->counters()->cancels_sent, 1u);
  fetches_->SayGone(0);
  EXPECT_EQ(a->times, 1);
}

// ---- Refused at once ----

TEST_F(FetchOpsTest, WhatCannotBeAskedForEndsWithItsReason) {
  const std::string fits(201 - Key("e").text().size(), 'e');
  const auto longest = Fetch(fits);
  const auto too_long = Fetch(fits + "e");
  poller_.Turn();
  EXPECT_EQ(longest->times, 0);
  EXPECT_EQ(
      too_long->status,
      absl::InvalidArgumentError(
          "the tensor's key has 201 bytes, and the peer takes at most 200: choose a shorter name"));
  fetches_->written()->may_fill = absl::UnimplementedError("no such memory");
  RecvArgs on_device;
  uint8_t byte = 0;
  on_device.destination = *Tensor::Adopt(&byte, DType::kUint8, {1},
                                         MemorySpace{MemorySpace::Kind::kDevice, 0}, nullptr);
  const auto unfit = Fetch("a", on_device);
  EXPECT_EQ(unfit->times, 0) << "never inside the call";
  poller_.Turn();
  EXPECT_EQ(unfit->status, absl::UnimplementedError("no such memory"));
  fetches_->written()->may_fill = absl::OkStatus();
  Cancellation cancellation;
  cancellation.StartCancel();
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto cancelled = Fetch("a", args);
  poller_.Turn();
  EXPECT_TRUE(absl::IsCancelled(cancelled->status));
  EXPECT_TRUE(IsDerived(cancelled->status));
  EXPECT_EQ(fetches_->written()->waits, 1) << "the longest alone waits";
  fetches_->Close(absl::AbortedError("closed"));
  const auto late = Fetch("a");
  poller_.Turn();
  EXPECT_EQ(longest->status, absl::AbortedError("closed"));
  EXPECT_EQ(late->status, absl::AbortedError("closed"));
  EXPECT_EQ(fetches_->counters()->ended_failed, 5u);
  EXPECT_THAT(fetches_->written()->said, IsEmpty());
}

TEST_F(FetchOpsTest, ATensorMayBeRefusedForItsSizeOrItsPlace) {
  fetches_->Open(1);
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kInt64, {2});
  (void)Fetch("a", args);
  (void)Said();
  const FetchAsk& op = *fetches_->At(0);
  EXPECT_TRUE(fetches_->MayTake(op, DType::kInt64, {2}, 16).ok());
  EXPECT_FALSE(fetches_->MayTake(op, DType::kInt64, {3}, 24).ok());
  EXPECT_FALSE(fetches_->MayTake(op, DType::kInt32, {2}, 8).ok());
  End();
  options_.max_tensor_bytes = 15;
  Make();
  fetches_->Open(1);
  (void)Fetch("a", args);
  (void)Said();
  EXPECT_FALSE(fetches_->MayTake(*fetches_->At(0), DType::kInt64, {2}, 16).ok());
}

// ---- Ending early ----

TEST_F(FetchOpsTest, ADeadlineEndsAFetchWhereverItIsAndSaysWhere) {
  RecvArgs args;
  args.deadline = Deadline::After(alarms_, absl::Milliseconds(20));
  const int64_t at_ns = alarms_.NowNs() + 20 * kMs;
  fetches_->Noted(absl::UnavailableError("no answer"));
  const auto queued = Fetch("queued", args);
  fetches_->Open(1);
  fetches_->Noted(absl::OkStatus());
  const auto asked = Fetch("asked", args);
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 queued"));
  EXPECT_EQ(poller_.NextTimerNs(), alarms_.NowNs() + kMs) << "to park it";
  PassTo(at_ns - 1);
  EXPECT_EQ(queued->times + asked->times, 0);
  (void)Said();
  EXPECT_EQ(poller_.NextTimerNs(), at_ns);
  PassTo(at_ns);
  EXPECT_EQ(queued->status, absl::DeadlineExceededError(absl::StrCat(
                                "not received in time: waits for the peer's Send of ", kPeer)));
  EXPECT_EQ(asked->status,
            absl::DeadlineExceededError(
                absl::StrCat("not received in time: waits for a slot or a connection of ", kPeer)));
  fetches_->Unlink();
  args.deadline = Deadline::After(alarms_, absl::Milliseconds(20));
  const auto late = Fetch("late", args);
  Pass(20 * kMs);
  EXPECT_EQ(late->status,
            absl::DeadlineExceededError(absl::StrCat(
                "not received in time: waits for a slot or a connection of ", kPeer, " (cut)")));
}

TEST_F(FetchOpsTest, TheTimerOfADeadlineEndsWithItsFetch) {
  RecvArgs args;
  args.deadline = Deadline::After(alarms_, absl::Milliseconds(20));
  fetches_->Open(1);
  const auto a = Fetch("a", args);
  (void)Said();
  fetches_->SayTensor(0);
  EXPECT_EQ(a->times, 1);
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
}

// The caller hears of it at once where nobody writes its memory, else with the peer's last word.
TEST_F(FetchOpsTest, ACancelIsSaidAndTheSlotWaitsForItsAnswer) {
  for (const bool may_be_written : {false, true}) {
    fetches_->written()->may_be_written = may_be_written;
    auto cancellation = std::make_unique<Cancellation>();
    RecvArgs args;
    args.cancellation = cancellation.get();
    fetches_->Open(1);
    const int64_t began_ns = alarms_.NowNs();
    const auto a = Fetch("a", args);
    const auto next = Fetch("next");
    EXPECT_THAT(Said(), ElementsAre("ask 0.0 a"));
    Pass(1000);
    cancellation->StartCancel();
    EXPECT_EQ(a->times, 0) << "it may be on any thread";
    EXPECT_THAT(Said(), ElementsAre("cancel 0.0"));
    EXPECT_EQ(a->times, may_be_written ? 0 : 1);
    EXPECT_THAT(fetches_->written()->left, ElementsAre(FetchState::kAsked));
    fetches_->written()->left.clear();
    ASSERT_EQ(Listed().size(), 2u);
    for (const LiveOp& one : Listed()) {
      const bool is_a = one.key == Key("a");
      EXPECT_EQ(one.detail, is_a && !may_be_written ? "its caller has been answered" : "");
      EXPECT_EQ(one.span.waits_for(), is_a ? WaitsFor::kLastWord : WaitsFor::kSlot);
      EXPECT_EQ(one.span.began_ns(), began_ns) << "also of what its caller has left";
    }
    poller_.Turn();
    EXPECT_EQ(fetches_->in_line(), 1u) << "the slot is not free";
    fetches_->AbortStep(1, absl::AbortedError("too late for a"));
    fetches_->SayGone(0);
    poller_.Turn();
    EXPECT_EQ(a->times, 1);
    EXPECT_TRUE(absl::IsCancelled(a->status)) << a->status;
    EXPECT_TRUE(IsDerived(a->status));
    EXPECT_FALSE(a->is_dead);
    EXPECT_TRUE(absl::IsAborted(next->status));
    EXPECT_EQ(fetches_->live(), 0u);
    fetches_->Unlink();
    (void)Said();
  }
  EXPECT_EQ(fetches_->counters()->cancels_sent, 2u);
}

TEST_F(FetchOpsTest, OfOneThatWasNotAskedForThePeerHearsNothing) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(1);
  fetches_->written()->sends_requests = false;
  const auto in_slot = Fetch("a", args);
  const auto queued = Fetch("b", args);
  poller_.Turn();
  EXPECT_EQ(fetches_->At(0)->state, FetchState::kInSlot);
  cancellation.StartCancel();
  fetches_->written()->sends_requests = true;
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(in_slot->times, 1);
  EXPECT_EQ(queued->times, 1);
  EXPECT_EQ(fetches_->live(), 0u);
  EXPECT_EQ(fetches_->slots().free(), 1u);
}

TEST_F(FetchOpsTest, WhatIsOutEndsAsItsStateSays) {
  fetches_->Open(2);
  const auto copied = Fetch("copied");
  const auto waiting = Fetch("waiting");
  (void)Said();
  fetches_->StartCopy(0);
  fetches_->WaitForRoom(1);
  fetches_->written()->dropped_memory = 0;
  fetches_->AbortStep(2, absl::AbortedError("another step"));
  poller_.Turn();
  EXPECT_EQ(copied->times + waiting->times, 0);
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_EQ(copied->times, 0) << "it walks through a list";
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0", "cancel 1.0"));
  EXPECT_EQ(copied->status, MarkDerived(absl::AbortedError("over")));
  EXPECT_EQ(waiting->status, MarkDerived(absl::AbortedError("over")));
  EXPECT_THAT(fetches_->written()->left,
              ElementsAre(FetchState::kCopying, FetchState::kWaitingRoom));
  EXPECT_EQ(fetches_->slots().free(), 0u);
  fetches_->SayGone(0);
  fetches_->SayGone(1);
}

TEST_F(FetchOpsTest, WhatEndsWhileItsQueuePairDrainsIsRememberedOnce) {
  fetches_->Open(1);
  const auto a = Fetch("a");
  (void)Said();
  fetches_->Break(0);
  fetches_->written()->may_be_written = true;
  fetches_->AbortStep(1, absl::AbortedError("first"));
  fetches_->AbortStep(1, absl::AbortedError("second"));
  poller_.Turn();
  EXPECT_EQ(a->times, 0) << "the NIC may still write its memory";
  FetchAsk* const ask = fetches_->At(0);
  EXPECT_EQ(ask->state, FetchState::kFencedLeaving);
  EXPECT_EQ(ask->front->end_status, MarkDerived(absl::AbortedError("first")));
  fetches_->Advance(ask, FetchEvent::kDrained);
  fetches_->FinishLeaving(ask);
  poller_.Turn();
  EXPECT_EQ(a->status, MarkDerived(absl::AbortedError("first")));
}

// Nobody writes it any more, whatever the peer has to say of it over the next link.
TEST_F(FetchOpsTest, WhatHasEndedLetsGoOfItsMemoryWithTheDrain) {
  fetches_->Open(1);
  const auto a = Fetch("a");
  (void)Said();
  fetches_->Break(0);
  fetches_->written()->may_be_written = true;
  fetches_->AbortStep(1, absl::AbortedError("over"));
  const int before = fetches_->written()->dropped_memory;
  fetches_->DrainAsks();
  poller_.Turn();
  EXPECT_EQ(fetches_->written()->dropped_memory, before + 1);
  EXPECT_EQ(a->times, 1);
}

// A peer that is slow to answer a cancel keeps its slot, not its caller.
TEST_F(FetchOpsTest, ACallerWaitsLeaveNsForTheLastWordAtMost) {
  options_.leave_ns = 5 * kMs;
  End();
  Make();
  fetches_->Open(2);
  const auto a = Fetch("a"), b = Fetch("b");
  (void)Said();
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0", "cancel 1.0"));
  const int64_t at_ns = alarms_.NowNs() + 5 * kMs;
  EXPECT_EQ(poller_.NextTimerNs(), at_ns);
  fetches_->SayGone(0);
  poller_.Turn();
  EXPECT_EQ(a->times, 1);
  PassTo(at_ns - 1);
  EXPECT_EQ(b->times, 0);
  PassTo(at_ns);
  EXPECT_EQ(b->status, MarkDerived(absl::AbortedError("over")));
  EXPECT_EQ(fetches_->slots().free(), 1u);
  fetches_->SayGone(1);
  EXPECT_EQ(b->times, 1);
  EXPECT_EQ(fetches_->slots().free(), 2u);
}

// Without that time a deadline does not give back memory that the peer may still write.
TEST_F(FetchOpsTest, ADeadlineAfterACancelDoesNotEndTheWaitForTheLastWord) {
  fetches_->written()->may_be_written = true;
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.deadline = Deadline::After(alarms_, absl::Milliseconds(20));
  fetches_->Open(1);
  const auto a = Fetch("a", args);
  (void)Said();
  cancellation.StartCancel();
  Pass(21 * kMs);
  EXPECT_EQ(a->times, 0);
  fetches_->SayGone(0);
  poller_.Turn();
  EXPECT_EQ(a->times, 1);
  EXPECT_TRUE(absl::IsCancelled(a->status)) << a->status;
}

TEST_F(FetchOpsTest, AnAbortEndsWhatWasAskedForAheadOfItsOwnStepAlone) {
  fetches_->Open(2);
  for (const int64_t step : {1, 2}) {
    FetchAsk* const ahead = fetches_->TakeAsk(fetches_->keys()->Intern(Key("a")), step);
    fetches_->TakeSlot(ahead);
    fetches_->SendSoon(ahead);
  }
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a", "ask 1.0 a"));
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0"));
  fetches_->SayGone(0);
  fetches_->AbortStep(2, absl::AbortedError("over"));
  EXPECT_THAT(Said(), ElementsAre("cancel 1.0"));
  fetches_->SayGone(1);
}

// ---- The order of a key ----

TEST_F(FetchOpsTest, OfAKeyAndStepOneIsAskedForAtATimeAndTheNextGoesFirst) {
  fetches_->Open(2);
  const auto first = Fetch("a"), second = Fetch("a");
  const auto of_another_step = Fetch("a", RecvArgs(), 2);
  const auto other = Fetch("b");
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a", "ask 1.0 a"));
  fetches_->SayTensor(0);
  EXPECT_EQ(first->times, 1);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 a")) << "before what has waited in line";
  fetches_->SayTensor(1);
  EXPECT_EQ(of_another_step->times, 1);
  EXPECT_THAT(Said(), ElementsAre("ask 1.1 b"));
  fetches_->SayTensor(0);
  EXPECT_EQ(second->times, 1);
}

TEST_F(FetchOpsTest, WhoEndsHandsOverWhatItHasAskedFor) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(2);
  const auto first = Fetch("a", args), second = Fetch("a"), third = Fetch("a");
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a"));
  const uint64_t id = fetches_->At(0)->front->span.id;
  const uint64_t order = fetches_->At(0)->order;
  Pass(10);
  cancellation.StartCancel();
  EXPECT_THAT(Said(), IsEmpty()) << "nothing changes for the peer";
  EXPECT_TRUE(absl::IsCancelled(first->status));
  EXPECT_FALSE(first->is_dead);
  EXPECT_EQ(second->times, 0);
  FetchAsk* const ask = fetches_->At(0);
  EXPECT_EQ(ask->state, FetchState::kAsked);
  EXPECT_EQ(ask->front->span.id, id);
  EXPECT_EQ(ask->front->span.waits_for(), WaitsFor::kPeerSend);
  EXPECT_EQ(ask->order, order);
  EXPECT_EQ(ask->generation, 0u);
  fetches_->SayTensor(0);
  EXPECT_EQ(second->times, 1);
  EXPECT_TRUE(second->status.ok());
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 a")) << "the third has followed";
  fetches_->SayTensor(0);
  EXPECT_EQ(third->times, 1);
  EXPECT_EQ(fetches_->live(), 0u);
}

TEST_F(FetchOpsTest, WhatCannotBePassedIsCancelled) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(2);
  const auto first = Fetch("a", args), second = Fetch("a");
  (void)Said();
  fetches_->written()->passes_memory = false;
  cancellation.StartCancel();
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0"));
  EXPECT_EQ(first->times, 1);
  fetches_->SayGone(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 a"));
  EXPECT_EQ(second->times, 0);
  // One that already leaves has nothing to hand over.
  fetches_->written()->passes_memory = true;
  const auto third = Fetch("a");
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_THAT(Said(), ElementsAre("cancel 0.1"));
  EXPECT_EQ(second->times + third->times, 2);
}

// All that a request is goes with it: what is to be said of it, and what is parked.
TEST_F(FetchOpsTest, ATicketIsHandedOverToo) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(1);
  const auto first = Fetch("a", args), second = Fetch("a");
  (void)Fetch("b");
  (void)Said();
  ParkAllOf(1);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b may park 2"));
  cancellation.StartCancel();
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(first->times, 1);
  fetches_->OnHere({1});
  EXPECT_THAT(Said(), IsEmpty()) << "the slot is not free";
  fetches_->SayTensor(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.2 a of 1"));
  fetches_->SayTensor(0);
  EXPECT_EQ(second->times, 1);
}

TEST_F(FetchOpsTest, ARequestThatWasNotSaidIsHandedOverToo) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(2);
  (void)Fetch("a", args);
  const auto next = Fetch("a");
  fetches_->written()->sends_requests = false;
  EXPECT_THAT(Said(), IsEmpty());
  ASSERT_EQ(fetches_->At(0)->state, FetchState::kInSlot);
  cancellation.StartCancel();
  fetches_->written()->sends_requests = true;
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a"));
  fetches_->SayTensor(0);
  EXPECT_EQ(next->times, 1);
}

// ---- Parking ----

TEST_F(FetchOpsTest, ThoseThatHoldAllSlotsForAMillisecondAreParkedWhereOthersWait) {
  fetches_->Open(2);
  (void)Fetch("a");
  (void)Fetch("b");
  (void)Said();
  EXPECT_EQ(poller_.NextTimerNs(), kNever) << "nobody waits";
  EXPECT_EQ(fetches_->written()->no_slots, 0);
  (void)Fetch("c");
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(fetches_->written()->no_slots, 1);
  const int64_t since_ns = alarms_.NowNs();
  EXPECT_EQ(poller_.NextTimerNs(), since_ns + kMs);
  PassTo(since_ns + kMs - 1);
  EXPECT_THAT(Said(), IsEmpty());
  PassTo(since_ns + kMs);
  EXPECT_THAT(Said(), ElementsAre("park 0 as 1", "park 1 as 2"));
  EXPECT_EQ(poller_.NextTimerNs(), since_ns + 2 * kMs) << "it goes on looking";
  PassTo(since_ns + 2 * kMs);
  EXPECT_THAT(Said(), IsEmpty()) << "that was said already";
  fetches_->written()->dropped_memory = 0;
  fetches_->SayParked(1);
  EXPECT_EQ(fetches_->written()->dropped_memory, 1);
  EXPECT_EQ(fetches_->counters()->parked, 1u);
  EXPECT_THAT(Said(), ElementsAre("ask 1.1 c may park 3"));
  fetches_->SayParked(1);
  fetches_->OnHere({2, 99});
  EXPECT_THAT(Said(), ElementsAre("ask 1.2 b of 2")) << "it may not be parked once more";
  fetches_->SayTensor(1);
  EXPECT_EQ(fetches_->counters()->ended_ok, 1u);
}

TEST_F(FetchOpsTest, ATensorThatComesMeanwhileIsNotParked) {
  fetches_->Open(2);
  (void)Fetch("a");
  const auto b = Fetch("b");
  (void)Said();
  (void)Fetch("c");
  (void)Said();
  PassTo(alarms_.NowNs() + kMs / 2);
  fetches_->SayTensor(1);
  EXPECT_THAT(Said(), ElementsAre("ask 1.1 c"));
  (void)Fetch("d");
  (void)Said();
  Pass(kMs / 2);
  EXPECT_THAT(Said(), ElementsAre("park 0 as 1")) << "the other has waited for less";
  Pass(kMs);
  EXPECT_THAT(Said(), ElementsAre("park 1 as 2"));
}

TEST_F(FetchOpsTest, WhatMayBeParkedOverOneLinkMayNotOverTheNext) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(1);
  (void)Fetch("a", args);
  (void)Fetch("b");
  (void)Said();
  Pass(kMs);
  ASSERT_THAT(Said(), ElementsAre("park 0 as 1"));
  cancellation.StartCancel();
  ASSERT_THAT(Said(), ElementsAre("cancel 0.0"));
  fetches_->Resume();
  fetches_->Unlink();
  fetches_->Resume();
  ASSERT_THAT(Said(), testing::Contains("cancel 0.0"));
  EXPECT_TRUE(absl::IsDataLoss(fetches_->OnParked(fetches_->At(0))));
  fetches_->SayGone(0);
}

TEST_F(FetchOpsTest, WhatIsBeingCopiedCannotBeParked) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Fetch("b");
  (void)Said();
  Pass(kMs);
  ASSERT_THAT(Said(), ElementsAre("park 0 as 1"));
  fetches_->StartCopy(0);
  EXPECT_TRUE(absl::IsDataLoss(fetches_->OnParked(fetches_->At(0))));
  EXPECT_EQ(fetches_->counters()->parked, 0u);
}

TEST_F(FetchOpsTest, NobodyIsParkedForOneThatHasStoppedWaiting) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Said();
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  (void)Fetch("b", args);
  (void)Said();
  cancellation.StartCancel();
  EXPECT_THAT(Said(), IsEmpty());
  Pass(kMs);
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(FetchOpsTest, SoManyAreParkedAndNoMore) {
  options_.max_parked = 1;
  End();
  Make();
  fetches_->Open(2);
  for (const char* edge : {"a", "b", "c", "d"}) (void)Fetch(edge);
  (void)Said();
  Pass(kMs);
  EXPECT_THAT(Said(), ElementsAre("park 0 as 1", "park 1 as 2")) << "none is parked yet";
  fetches_->SayParked(0);
  EXPECT_TRUE(fetches_->tickets_full());
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 c")) << "and may not be parked";
  Pass(kMs);
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(FetchOpsTest, AfterACrowdNoRequestMayBeParked) {
  fetches_->Open(2);
  for (const char* edge : {"a", "b", "c"}) (void)Fetch(edge);
  (void)Said();
  ParkAllOf(2);
  EXPECT_THAT(Said(), ElementsAre("ask 1.1 c")) << "half of the slots are free";
  fetches_->SayTensor(1);
  (void)Fetch("d");
  (void)Fetch("e");
  EXPECT_THAT(Said(), ElementsAre("ask 1.2 d may park 3", "ask 0.1 e may park 4"))
      << "one waits behind the first, and the other takes the last slot";
  fetches_->OnHere({1, 2});
  fetches_->SayTensor(0);
  fetches_->SayTensor(1);
  EXPECT_THAT(Said(), ElementsAre("ask 1.3 a of 1", "ask 0.2 b of 2"));
  fetches_->SayTensor(0);
  fetches_->SayTensor(1);
  EXPECT_EQ(fetches_->live(), 0u);
  (void)Fetch("f");
  (void)Fetch("g");
  EXPECT_THAT(Said(), ElementsAre("ask 1.4 f", "ask 0.3 g")) << "the crowd has gone";
}

TEST_F(FetchOpsTest, WhoEndsWhileItIsParkedIsUnwanted) {
  fetches_->Open(1);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto parked = Fetch("a", args), here = Fetch("b", args), third = Fetch("c", args);
  (void)Fetch("d");
  (void)Said();
  ParkAllOf(1);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b may park 2"));
  fetches_->SayParked(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.2 c may park 3"));
  fetches_->SayParked(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.3 d"));
  fetches_->OnHere({2});
  cancellation.StartCancel();
  EXPECT_THAT(Said(), ElementsAre("unwanted 2 3", "unwanted 1")) << "two fit into a message";
  EXPECT_EQ(parked->times + here->times + third->times, 3);
  fetches_->SayTensor(0);
  EXPECT_THAT(Said(), IsEmpty()) << "nobody waits for a slot";
  fetches_->OnHere({1});
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(fetches_->live(), 0u);
}

TEST_F(FetchOpsTest, APromiseToParkThatCrossesACancelIsUnwanted) {
  fetches_->Open(1);
  const auto a = Fetch("a");
  (void)Fetch("b", RecvArgs(), 2);
  (void)Said();
  Pass(kMs);
  (void)Said();
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0"));
  EXPECT_EQ(fetches_->At(0)->parks, Parks::kAllowed);
  fetches_->SayParked(0);
  EXPECT_EQ(fetches_->At(0)->parks, Parks::kNo);
  EXPECT_EQ(fetches_->counters()->parked, 0u);
  EXPECT_THAT(Said(), ElementsAre("unwanted 1"));
  EXPECT_EQ(fetches_->slots().free(), 0u) << "the answer to the cancel is still to come";
  fetches_->SayGone(0);
  EXPECT_EQ(a->times, 1);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b may park 2"));
}

TEST_F(FetchOpsTest, WhatHasItsAnswerIsNotAskedToBeParked) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Fetch("b");
  (void)Said();
  fetches_->AskToPark(fetches_->At(0));
  fetches_->WaitForRoom(0);
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_FALSE(fetches_->HasWords());
  fetches_->RoomCame(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a")) << "with room";
}

TEST_F(FetchOpsTest, WhoStillWaitsUnderATicketSaysSo) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Fetch("b");
  (void)Said();
  ParkAllOf(1);
  (void)Said();
  ASSERT_EQ(fetches_->Asked().size(), 2u);
  FetchAsk* const parked = fetches_->Asked()[0];
  EXPECT_EQ(parked->state, FetchState::kParked) << "in the order in which they were asked for";
  fetches_->SendSoon(parked);
  fetches_->SendSoon(parked);
  fetches_->written()->room = 0;
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_TRUE(fetches_->HasWords());
  fetches_->written()->room = 1;
  fetches_->SendSoon(parked);
  EXPECT_THAT(Said(), ElementsAre("waits 1 a"));
  EXPECT_FALSE(fetches_->HasWords());
}

// Heard twice, it is lined up once.
TEST_F(FetchOpsTest, ATicketThatIsHereTwiceIsAskedForOnce) {
  fetches_->Open(1);
  for (const char* edge : {"a", "b", "c"}) (void)Fetch(edge);
  (void)Said();
  ParkAllOf(1);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b may park 2"));
  fetches_->OnHere({1});
  fetches_->OnHere({1});
  fetches_->SayTensor(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.2 a of 1"));
  fetches_->SayTensor(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.3 c may park 3"));
}

TEST_F(FetchOpsTest, OneThatMayBeParkedIsNotAskedToBeParkedAgain) {
  fetches_->Open(1);
  for (const char* edge : {"a", "b", "c"}) (void)Fetch(edge);
  (void)Said();
  ParkAllOf(1);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b may park 2"));
  Pass(2 * kMs);
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(FetchOpsTest, WhatIsParkedMeanwhileNeedsNoWord) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Said();
  fetches_->AskToPark(fetches_->At(0));
  fetches_->SayParked(0);
  EXPECT_FALSE(fetches_->HasWords());
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(FetchOpsTest, WordsThatAreDueAreHandedOver) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  fetches_->Open(2);
  (void)Fetch("a", args);
  (void)Fetch("a");
  (void)Said();
  fetches_->AskToPark(fetches_->At(0));
  EXPECT_THAT(Said(), ElementsAre("park 0 as 1"));
  fetches_->SayParked(0);
  FetchAsk* const parked = fetches_->Asked()[0];
  fetches_->written()->room = 0;
  fetches_->SendSoon(parked);
  cancellation.StartCancel();
  EXPECT_THAT(Said(), IsEmpty());
  fetches_->written()->room = 1;
  fetches_->SendSoon(fetches_->Asked()[0]);
  EXPECT_THAT(Said(), ElementsAre("waits 1 a"));
}

// ---- Another connection, another path ----

TEST_F(FetchOpsTest, ALinkThatEndsIsForgottenAndAllIsAskedAgainInOrder) {
  fetches_->Open(2);
  const auto a = Fetch("a"), b = Fetch("b"), c = Fetch("c"), d = Fetch("d");
  (void)Said();
  ParkAllOf(2);
  EXPECT_THAT(Said(), ElementsAre("ask 1.1 c may park 3", "ask 0.1 d may park 4"));
  fetches_->AskToPark(fetches_->At(0));
  fetches_->Unlink();
  EXPECT_FALSE(fetches_->HasWords()) << "nothing is to be said over the next one";
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
  EXPECT_EQ(fetches_->written()->links_over, 2);
  fetches_->Resume();
  EXPECT_THAT(Said(), ElementsAre("waits 1 a", "waits 2 b", "ask 1.1 c", "ask 0.1 d", "replayed"))
      << "under their slots and tickets, and without a crowd";
  EXPECT_EQ(fetches_->counters()->replays, 2u);
  EXPECT_FALSE(fetches_->At(0)->said);
  for (int turn = 0; turn < 2; ++turn) {
    for (size_t slot = 0; slot < 2; ++slot) fetches_->SayTensor(slot);
    if (turn == 0) fetches_->OnHere({1, 2});
    (void)Said();
  }
  EXPECT_EQ(a->times + b->times + c->times + d->times, 4);
}

TEST_F(FetchOpsTest, WhatEndsWithoutALinkLeavesNoWordForTheNext) {
  fetches_->Open(1);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto a = Fetch("a", args);
  (void)Fetch("b");
  (void)Said();
  ParkAllOf(1);
  (void)Said();
  fetches_->Unlink();
  cancellation.StartCancel();
  poller_.Turn();
  EXPECT_EQ(a->times, 1);
  EXPECT_FALSE(fetches_->HasWords());
  fetches_->Resume();
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b", "replayed")) << "the peer drops what is not named";
}

TEST_F(FetchOpsTest, ACancelThatALinkHasLostIsSaidOverTheNext) {
  fetches_->Open(1);
  fetches_->written()->may_be_written = true;
  const auto a = Fetch("a");
  (void)Said();
  fetches_->written()->room = 0;
  fetches_->AbortStep(1, absl::AbortedError("over"));
  (void)Said();
  EXPECT_EQ(a->times, 0);
  fetches_->Unlink();
  poller_.Turn();
  EXPECT_EQ(a->times, 1) << "no byte lands any more";
  fetches_->written()->room = 100'000;
  fetches_->Resume();
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0", "replayed"));
  fetches_->SayGone(0);
  EXPECT_EQ(fetches_->live(), 0u);
}

// What was asked of a life ends with it; what names another goes on.
TEST_F(FetchOpsTest, AnotherLifeOrSessionEndsWhatWasAsked) {
  for (const bool restarts : {true, false}) {
    fetches_->Open(2);
    fetches_->Resume();
    const auto asked = Fetch("a"), parked = Fetch("b"), line = Fetch("c");
    const auto next = FetchOf(2, "next");
    (void)Said();
    fetches_->AskToPark(fetches_->At(0));
    (void)Said();
    fetches_->SayParked(0);
    (void)Said();
    fetches_->Unlink();
    fetches_->Resume(restarts ? 2 : 1, restarts ? 1 : 2);
    const std::vector<std::string> said = Said();
    for (const auto& one : {asked, parked}) {
      EXPECT_EQ(one->times, 1);
      EXPECT_EQ(one->status.code(),
                restarts ? absl::StatusCode::kAborted : absl::StatusCode::kUnavailable)
          << one->status;
    }
    EXPECT_EQ(line->times, 1) << "it was asked for when a slot was free";
    EXPECT_EQ(next->times, 0);
    EXPECT_THAT(said, testing::Contains(testing::HasSubstr("next")));
    End();
    Make();
  }
}

TEST_F(FetchOpsTest, OneThatIsAskedAgainIsCancelledByWord) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Said();
  fetches_->Unlink();
  fetches_->written()->sends_requests = false;
  fetches_->Resume();
  poller_.Turn();
  ASSERT_EQ(fetches_->At(0)->state, FetchState::kInSlot);
  fetches_->written()->sends_requests = true;
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0", "replayed"))
      << "the peer may still serve the earlier request";
  fetches_->SayGone(0);
}

TEST_F(FetchOpsTest, WhatWaitsMovesToAnotherPathAsItIs) {
  Cancellation cancellation, over;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.deadline = Deadline::After(alarms_, absl::Seconds(1));
  const auto a = Fetch("a", args, 5);
  const auto b = Fetch("b");
  args.cancellation = &over;
  const auto c = Fetch("c", args);
  over.StartCancel();
  std::vector<WaitingFetch> taken = fetches_->TakeWaiting();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].step, 5);
  EXPECT_EQ(taken[0].key, Key("a"));
  EXPECT_EQ(taken[0].args.deadline.at_ns(), args.deadline.at_ns());
  EXPECT_EQ(taken[0].args.cancellation, CancellationRef(&cancellation));
  EXPECT_EQ(taken[1].key, Key("b"));
  EXPECT_EQ(fetches_->counters()->moved, 2u);
  EXPECT_EQ(fetches_->counters()->ended_ok + fetches_->counters()->ended_failed, 1u);
  cancellation.StartCancel();
  poller_.Turn();
  EXPECT_TRUE(absl::IsCancelled(c->status)) << "it was too late to move";
  EXPECT_TRUE(IsDerived(c->status));
  EXPECT_EQ(a->times + b->times, 0);
  EXPECT_EQ(poller_.NextTimerNs(), kNever) << "the deadlines are the other path's";
  EXPECT_EQ(fetches_->live(), 0u);
  std::move(taken[0].done)({absl::OkStatus(), Tensor(), true});
  EXPECT_EQ(a->times, 1);
}

// It says nothing of what the peer has for us.
TEST_F(FetchOpsTest, AnAnswerToAnotherFarewellEndsNothing) {
  CountingUser user;
  const auto a = RefuseThePathOfOne(&user);
  for (const bool belongs : {false, true}) {
    ASSERT_EQ(hellos_.asked.size(), 1u);
    Hello answer = std::exchange(hellos_.asked, {})[0];
    answer.incarnation = 2;
    if (!belongs) --answer.epoch;
    std::move(std::exchange(hellos_.answers, {})[0])(std::move(answer));
    poller_.Turn();
    EXPECT_EQ(a->times, belongs ? 1 : 0);
    EXPECT_EQ(user.refused, belongs ? 1 : 0);
    if (!belongs) fetches_->FailAttempt(absl::UnimplementedError("no such path"));
  }
  EXPECT_TRUE(absl::IsAborted(a->status)) << a->status;
  End();
}

// What was asked of the former life ends as at any restart, not with the path's refusal, which
// would say that the receive can never be had.
TEST_F(FetchOpsTest, WhoTurnsDownThePathAndTheFarewellHasRestarted) {
  CountingUser user;
  const auto a = RefuseThePathOfOne(&user);
  ASSERT_EQ(hellos_.answers.size(), 1u);
  std::move(std::exchange(hellos_.answers, {})[0])(absl::UnimplementedError("no such path"));
  poller_.Turn();
  EXPECT_EQ(a->times, 1);
  EXPECT_TRUE(absl::IsAborted(a->status)) << a->status;
  EXPECT_EQ(user.refused, 1);
  End();
}

// The path may work again, or the peer may be down and answer no farewell.
TEST_F(FetchOpsTest, OverAPathThatHasFailedForLongHellosAndFarewellsAlternate) {
  CountingUser user;
  options_.user = &user;
  options_.give_up_ms = 1;
  End();
  Make();
  fetches_->Open(1);
  fetches_->Resume();
  (void)Fetch("a");
  (void)Said();
  fetches_->Unlink();
  fetches_->FailAttempt(absl::UnavailableError("cut"));
  std::string tried;
  for (int i = 0; i < 1000 && tried.size() < 8; ++i) {
    Pass(10 * kMs);
    if (std::exchange(fetches_->connected, 0) > 0) {
      tried += 'h';
      fetches_->FailAttempt(absl::UnavailableError("cut"));
    } else if (!hellos_.answers.empty()) {
      tried += 'f';
      std::move(std::exchange(hellos_.answers, {})[0])(absl::UnavailableError("cut"));
      poller_.Turn();
    }
  }
  EXPECT_NE(tried.find("fhfhfh"), std::string::npos) << tried;
  EXPECT_EQ(tried.find("ff"), std::string::npos) << tried;
  // A word over a link that is there again shows that it works.
  fetches_->OnLinkOpen();
  fetches_->OnWord();
  EXPECT_FALSE(fetches_->connector()->Unusable());
  fetches_->Unlink();
  End();
}

TEST_F(FetchOpsTest, AProbeIsOverWithTheFirstSignThatThePathWorks) {
  CountingUser user;
  options_.user = &user;
  End();
  Make();
  fetches_->Probe();
  fetches_->OnLinkOpen();
  EXPECT_TRUE(fetches_->is_probing());
  for (int i = 0; i < 2; ++i) fetches_->OnWord();
  EXPECT_EQ(user.usable, 1);
  EXPECT_FALSE(fetches_->is_probing());
  End();
}

// One wrong word is forgiven to who has brought something over that connection.
TEST_F(FetchOpsTest, WhoSaysNonsenseAndHasBroughtNothingHasToBringSomething) {
  options_.give_up_ms = 2000;
  for (const bool brought : {false, true}) {
    End();
    Make();
    fetches_->OnLinkOpen();
    fetches_->OnWord();
    if (brought) fetches_->owed()->NoteBrought();
    fetches_->OnLinkBroken(absl::DataLossError("nonsense"));
    fetches_->OnLinkOpen();
    fetches_->OnWord();
    EXPECT_EQ(fetches_->owed()->works(), brought);
  }
}

// ---- Delivery ----

TEST_F(FetchOpsTest, AnExecutorWithoutRoomGetsTheResultsLaterInOrder) {
  Gate gate;
  RecvArgs args;
  args.executor = &gate;
  fetches_->Open(3);
  const auto a = Fetch("a", args), b = Fetch("b", args), c = Fetch("c");
  (void)Said();
  fetches_->SayTensor(0);
  gate.room = 1;
  fetches_->SayTensor(1);
  fetches_->SayTensor(2);
  EXPECT_TRUE(gate.taken.empty()) << "the first goes first";
  EXPECT_EQ(c->times, 0);
  EXPECT_FALSE(fetches_->Drained());
  poller_.Turn();
  EXPECT_EQ(gate.taken.size(), 1u);
  EXPECT_EQ(c->times, 1);
  gate.RunOne();
  EXPECT_EQ(a->times, 1);
  poller_.Turn();
  EXPECT_TRUE(gate.taken.empty());
  gate.room = 5;
  poller_.Turn();
  ASSERT_EQ(gate.taken.size(), 1u);
  EXPECT_EQ(fetches_->live(), 1u);
  std::thread([&] { gate.RunOne(); }).join();
  EXPECT_EQ(b->times, 1);
  EXPECT_EQ(fetches_->live(), 1u) << "the poller has not heard";
  poller_.Turn();
  EXPECT_EQ(fetches_->live(), 0u);
  EXPECT_EQ(gate.room, 4);
}

TEST_F(FetchOpsTest, AResultIsGivenInPlaceUnlessOthersWaitBeforeIt) {
  fetches_->Open(3);
  const auto a = Fetch("a"), b = Fetch("b");
  (void)Said();
  fetches_->SayTensor(0, Tensor(), FetchOps::When::kAtEndOfTurn);
  EXPECT_EQ(a->times, 0);
  fetches_->SayTensor(1);
  EXPECT_EQ(b->times, 0) << "it would overtake";
  poller_.Turn();
  EXPECT_EQ(a->times + b->times, 2);
}

struct ManyEnded {
  int times = 0;
  absl::Status first;
  std::vector<absl::Status> statuses;
  std::vector<bool> dead;
  std::vector<Tensor> tensors;
};

class FetchManyTest : public FetchOpsTest {
 protected:
  std::shared_ptr<ManyEnded> FetchMany(const std::vector<std::string>& edges,
                                       const RecvArgs& args = RecvArgs()) {
    auto ended = std::make_shared<ManyEnded>();
    std::vector<TensorKey> keys;
    for (const std::string& edge : edges) keys.push_back(Key(edge));
    ManyDoneFn done = [ended](absl::Status first, absl::Span<Received> results) {
      ++ended->times;
      ended->first = std::move(first);
      for (Received& result : results) {
        ended->statuses.push_back(result.status);
        ended->dead.push_back(result.is_dead);
        ended->tensors.push_back(result.tensor);
      }
    };
    EXPECT_TRUE(fetches_->FetchMany(1, keys, args, &done));
    return ended;
  }
};

TEST_F(FetchManyTest, AllOfThemEndWithOneCall) {
  const Tensor tensor = *Tensor::Allocate(DType::kInt64, {});
  fetches_->Open(3);
  for (int turn = 0; turn < 2; ++turn) {  // What they need is used again, and begins anew.
    const auto many = FetchMany({"a", "b", "c"});
    (void)Said();
    fetches_->SayTensor(2, tensor);
    fetches_->SayFailed(1, absl::NotFoundError("no b"));
    EXPECT_EQ(many->times, 0);
    EXPECT_FALSE(fetches_->Drained());
    turn == 0 ? fetches_->SayFailed(0, absl::NotFoundError("no a")) : fetches_->SayTensor(0);
    ASSERT_EQ(many->times, 1);
    EXPECT_EQ(many->first, absl::NotFoundError(turn == 0 ? "no a" : "no b"));
    EXPECT_EQ(many->statuses[1], absl::NotFoundError("no b"));
    EXPECT_TRUE(many->statuses[2].ok());
    EXPECT_TRUE(many->tensors[2].SharesBytesWith(tensor));
    EXPECT_FALSE(many->tensors[1].valid());
    EXPECT_FALSE(many->tensors[0].valid());
    EXPECT_THAT(many->dead, ElementsAre(turn == 1, false, false));
    const auto fine = FetchMany({"a"});
    (void)Said();
    fetches_->SayTensor(0);
    EXPECT_TRUE(fine->first.ok()) << fine->first;
    EXPECT_TRUE(fine->statuses[0].ok());
    (void)Said();
    fetches_->Unlink();
    fetches_->Open(3);
  }
}

TEST_F(FetchManyTest, AnOpOfManyIsOneOfItsOwnAgain) {
  fetches_->Open(1);
  const auto many = FetchMany({"a"});
  (void)Said();
  fetches_->SayTensor(0);
  EXPECT_EQ(many->times, 1);
  const auto alone = Fetch("b");
  (void)Said();
  fetches_->SayTensor(0);
  EXPECT_EQ(alone->times, 1);
  EXPECT_EQ(fetches_->made(), 1u);
}

TEST_F(FetchManyTest, WhoEndsThemIsNotCalledBackInside) {
  const auto many = FetchMany({"a", "b"});
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_EQ(many->times, 0) << "it walks through a list";
  poller_.Turn();
  EXPECT_EQ(many->times, 1);
  EXPECT_THAT(many->dead, ElementsAre(false, false));
}

TEST_F(FetchManyTest, NoneEndsAtOnceAndOnItsOwn) {
  const auto none = FetchMany({});
  EXPECT_EQ(none->times, 0) << "never inside the call";
  poller_.Turn();
  EXPECT_EQ(none->times, 1);
  EXPECT_TRUE(none->first.ok());
}

TEST_F(FetchManyTest, EachHasItsDestination) {
  std::vector<Tensor> into = {*Tensor::Allocate(DType::kInt64, {}), Tensor()};
  RecvArgs args;
  args.destinations = into;
  fetches_->Open(2);
  (void)FetchMany({"a", "b"}, args);
  (void)Said();
  EXPECT_TRUE(fetches_->At(0)->destination().SharesBytesWith(into[0]));
  EXPECT_FALSE(fetches_->At(1)->destination().valid());
  EXPECT_TRUE(fetches_->At(0)->wants().destinations.empty());
  fetches_->SayTensor(0);
  fetches_->SayTensor(1);
  EXPECT_EQ(fetches_->live(), 0u);
}

TEST_F(FetchManyTest, ADestinationIsLetGoOfWithItsResult) {
  int64_t memory = 0;
  bool is_free = false;
  RecvArgs args;
  std::vector<Tensor> into = {
      *Tensor::Adopt(&memory, DType::kInt64, {}, MemorySpace(), [&is_free] { is_free = true; })};
  args.destinations = into;
  fetches_->Open(1);
  (void)FetchMany({"a"}, args);
  (void)Said();
  into.clear();
  EXPECT_FALSE(is_free);
  fetches_->SayTensor(0);
  EXPECT_TRUE(is_free);
}

TEST_F(FetchManyTest, OneCallGoesToTheExecutorWhenItHasRoom) {
  Gate gate;
  RecvArgs args;
  args.executor = &gate;
  fetches_->Open(2);
  const auto many = FetchMany({"a", "b"}, args);
  (void)Said();
  fetches_->SayTensor(0);
  fetches_->SayTensor(1);
  poller_.Turn();
  EXPECT_TRUE(gate.taken.empty());
  gate.room = 1;
  poller_.Turn();
  ASSERT_EQ(gate.taken.size(), 1u);
  fetches_->Close(absl::CancelledError("over"));
  EXPECT_FALSE(fetches_->Drained()) << "its callback has not run";
  std::thread([&] { gate.RunOne(); }).join();
  EXPECT_EQ(many->times, 1);
  EXPECT_FALSE(fetches_->Drained()) << "the poller has not heard";
  poller_.Turn();
  EXPECT_TRUE(fetches_->Drained());
}

TEST_F(FetchManyTest, WhatMovesComesBackToItsCall) {
  Cancellation cancellation;
  Gate gate;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.executor = &gate;
  std::vector<Tensor> into = {*Tensor::Allocate(DType::kInt64, {}), Tensor()};
  args.destinations = into;
  const auto many = FetchMany({"a", "b"}, args);
  std::vector<WaitingFetch> taken = fetches_->TakeWaiting();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].args.executor, nullptr) << "all of them go to it together";
  EXPECT_TRUE(taken[0].args.destination.SharesBytesWith(into[0]));
  EXPECT_FALSE(taken[1].args.destination.valid());
  std::move(taken[1].done)({absl::DataLossError("b")});
  std::move(taken[0].done)({absl::OkStatus(), into[0], true});
  gate.room = 1;
  EXPECT_EQ(gate.taken.size(), 0u);
  poller_.Turn();
  ASSERT_EQ(gate.taken.size(), 1u);
  gate.RunOne();
  EXPECT_EQ(many->first, absl::DataLossError("b"));
  EXPECT_TRUE(many->tensors[0].SharesBytesWith(into[0]));
  EXPECT_THAT(many->dead, ElementsAre(true, false));
}

TEST_F(FetchManyTest, ACancelEndsAllOfThem) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.deadline = Deadline::After(alarms_, absl::Seconds(9));
  const auto many = FetchMany({"a", "b"}, args);
  cancellation.StartCancel();
  poller_.Turn();
  EXPECT_EQ(many->times, 1);
  EXPECT_TRUE(absl::IsCancelled(many->statuses[1]));
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
}

// ---- Views, traces, memory ----

TEST_F(FetchOpsTest, TheListSaysWhatEachWaitsForAndSinceWhen) {
  const int64_t began_ns = alarms_.NowNs();
  (void)Fetch("a", RecvArgs(), 7);
  Pass(10);
  fetches_->Noted(absl::UnavailableError("no answer"));
  std::vector<LiveOp> listed = Listed();
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].peer, kPeer);
  EXPECT_EQ(listed[0].path, "written");
  EXPECT_EQ(listed[0].step, 7);
  EXPECT_EQ(listed[0].key, Key("a"));
  EXPECT_EQ(listed[0].bytes, 64u);
  EXPECT_EQ(listed[0].detail, "no answer");
  EXPECT_EQ(listed[0].span.waits_for(), WaitsFor::kConnection);
  EXPECT_EQ(listed[0].span.began_ns(), began_ns);

  fetches_->Open(1);
  const int64_t open_ns = alarms_.NowNs();
  fetches_->written()->room = 0;
  Pass(10);
  listed = Listed();
  EXPECT_EQ(listed[0].span.waits_for(), WaitsFor::kSlot);
  EXPECT_EQ(listed[0].span.since_ns(), open_ns) << "not since it began";
  EXPECT_EQ(listed[0].detail, "");
  (void)Fetch("b");
  EXPECT_EQ(Listed()[1].span.waits_for(), WaitsFor::kSlot);
  fetches_->written()->room = 100'000;
  (void)Fetch("c");
  (void)Said();
  listed = Listed();
  EXPECT_EQ(listed[0].span.waits_for(), WaitsFor::kPeerSend);
  EXPECT_EQ(listed[0].span.since_ns(), alarms_.NowNs());
  ParkAllOf(1);
  (void)Said();
  Pass(10);
  fetches_->OnHere({1});
  fetches_->OnHere({1});
  for (const LiveOp& one : Listed()) {
    if (one.key != Key("a")) continue;
    EXPECT_EQ(one.span.waits_for(), WaitsFor::kSlot);
    EXPECT_EQ(one.span.since_ns(), alarms_.NowNs());
  }
  fetches_->SayTensor(0);
  EXPECT_EQ(Listed().size(), 2u);
}

TEST_F(FetchOpsTest, ATraceHasWhatCameOfEach) {
  TraceOptions keep_all;
  keep_all.sample_every = 1;
  Trace trace(keep_all);
  options_.trace = &trace;
  End();
  Make();
  fetches_->Open(3);
  (void)Fetch("a", RecvArgs(), 3);
  (void)Fetch("b");
  (void)Fetch("moves");
  (void)Said();
  Pass(100);
  fetches_->SayTensor(0, *Tensor::Allocate(DType::kInt64, {4}));
  fetches_->SayFailed(1, absl::NotFoundError("none"));
  fetches_->Unlink();
  std::vector<WaitingFetch> taken = fetches_->TakeAllOut();
  ASSERT_EQ(taken.size(), 1u);
  std::vector<TraceRecord> records = trace.Records();
  ASSERT_EQ(records.size(), 2u) << "what moves is the other path's";
  EXPECT_EQ(records[0].step, 3);
  EXPECT_EQ(records[0].key, Key("a").text());
  EXPECT_EQ(records[0].bytes, 32u);
  EXPECT_EQ(records[0].code, absl::StatusCode::kOk);
  EXPECT_EQ(records[0].span.waits_for(), WaitsFor::kExecutor);
  EXPECT_EQ(records[0].end_ns, alarms_.NowNs());
  EXPECT_EQ(records[1].code, absl::StatusCode::kNotFound);
  EXPECT_EQ(records[1].bytes, 0u);
  EXPECT_EQ(trace.Tracks().back()->peer, kPeer);
  EXPECT_EQ(trace.Tracks().back()->path, "written");
  End();
}

// Every event of the table, and every slot that is free again, until it is closed.
class WrittenWatch final : public SlotWatch {
 public:
  void OnFetchEvent(const void*, const FetchAsk& ask, FetchState from, FetchEvent event) override {
    EXPECT_NE(FindFetchRow(from, event), nullptr);
    EXPECT_EQ(FindFetchRow(from, event)->next, ask.state);
    events.push_back(event);
  }
  void OnSlotFreed(const void*, uint16_t slot) override { freed.push_back(slot); }
  void OnServeEvent(const void*, uint16_t, ServeState, ServeEvent) override {}
  void OnServeEpoch(const void*) override {}
  void OnServeFarewell(const void*) override {}
  void OnEndGone(const void*) override { ++gone; }
  std::vector<FetchEvent> events;
  std::vector<uint16_t> freed;
  int gone = 0;
};

TEST_F(FetchOpsTest, AWatchHearsOfAllUntilItIsClosed) {
  WrittenWatch watch;
  options_.watch = &watch;
  End();
  Make();
  fetches_->Open(2);
  (void)Fetch("a");
  (void)Fetch("b");
  (void)Said();
  fetches_->SayTensor(1);
  EXPECT_THAT(watch.events,
              ElementsAre(FetchEvent::kSlot, FetchEvent::kAsk, FetchEvent::kSlot, FetchEvent::kAsk,
                          FetchEvent::kTensor, FetchEvent::kComplete));
  EXPECT_THAT(watch.freed, ElementsAre(1));
  watch.events.clear();
  fetches_->Close(absl::CancelledError("over"));
  fetches_->SayGone(0);
  EXPECT_THAT(watch.events, IsEmpty());
  EXPECT_THAT(watch.freed, ElementsAre(1));
  End();
  EXPECT_EQ(watch.gone, 1);
}

TEST_F(FetchOpsTest, WhatHasNoRowIsOurOwnMistake) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Said();
  EXPECT_DEATH(fetches_->Advance(fetches_->At(0), FetchEvent::kOutcome),
               "HERE of a fetch that waits for the peer's Send");
  EXPECT_EQ(fetches_->Hear(fetches_->At(0), FetchEvent::kOutcome), nullptr);
  EXPECT_EQ(fetches_->At(0)->state, FetchState::kAsked);
}

TEST_F(FetchOpsTest, TheMemoryOfABurstGoesASecondLaterAndItsKeysStayTen) {
  fetches_->Open(8192);
  for (int i = 0; i < 4097; ++i) (void)Fetch(absl::StrCat(i));
  (void)Said();
  EXPECT_EQ(fetches_->made(), 4097u);
  for (size_t slot = 0; slot < 4096; ++slot) fetches_->SayTensor(slot);
  EXPECT_EQ(poller_.NextTimerNs(), kNever) << "one is out";
  fetches_->SayTensor(4096);
  const int64_t idle_ns = alarms_.NowNs();
  EXPECT_EQ(poller_.NextTimerNs(), idle_ns + kIdleForNs);
  PassTo(idle_ns + kIdleForNs - 1);
  EXPECT_EQ(fetches_->written()->dropped_asks, 0);
  PassTo(idle_ns + kIdleForNs);
  EXPECT_EQ(fetches_->written()->dropped_asks, 1);
  EXPECT_EQ(fetches_->made(), 0u);
  EXPECT_NE(fetches_->keys()->Find(Key("0")), nullptr);
  EXPECT_EQ(poller_.NextTimerNs(), idle_ns + kIdleForNs + kKeysIdleForNs);
  // A fetch in between lets them stay for longer.
  (void)Fetch("0");
  (void)Said();
  fetches_->SayTensor(4096);
  PassTo(idle_ns + kIdleForNs + kKeysIdleForNs);
  EXPECT_EQ(fetches_->written()->dropped_keys, 0);
  const uint64_t bursts = poller_.bursts_over();
  PassTo(idle_ns + kIdleForNs + 2 * kKeysIdleForNs);
  EXPECT_EQ(fetches_->written()->dropped_keys, 1);
  EXPECT_EQ(fetches_->keys()->Find(Key("0")), nullptr);
  EXPECT_EQ(poller_.bursts_over(), bursts + 1);
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
  EXPECT_EQ(fetches_->written()->dropped_asks, 1) << "one op is not many";
}

TEST_F(FetchOpsTest, ABurstThatBeginsMeanwhileKeepsItsMemory) {
  fetches_->Open(8192);
  for (int i = 0; i < 1025; ++i) (void)Fetch(absl::StrCat(i));
  (void)Said();
  for (size_t slot = 0; slot < 1025; ++slot) fetches_->SayTensor(slot);
  const auto next = Fetch("next");
  (void)Said();
  Pass(kIdleForNs);
  EXPECT_EQ(fetches_->made(), 1025u);
  EXPECT_EQ(fetches_->asks_made(), 1025u);
  fetches_->SayTensor(1024);
  EXPECT_EQ(next->times, 1);
}

// However often something is fetched in between.
TEST_F(FetchOpsTest, TheMemoryOfABurstGoesWhileOneIsFetchedNowAndThen) {
  fetches_->Open(8192);
  for (int i = 0; i < 1025; ++i) (void)Fetch(absl::StrCat(i));
  (void)Said();
  for (size_t slot = 0; slot < 1025; ++slot) fetches_->SayTensor(slot);
  const int64_t idle_ns = alarms_.NowNs();
  PassTo(idle_ns + kIdleForNs / 2);
  (void)Fetch("one");
  (void)Said();
  fetches_->SayTensor(1024);
  EXPECT_EQ(poller_.NextTimerNs(), idle_ns + kIdleForNs);
  PassTo(idle_ns + kIdleForNs);
  EXPECT_EQ(fetches_->made(), 0u);
}

// Their callers have their answers long before.
TEST_F(FetchOpsTest, TheMemoryOfWhatWasGivenUpGoesASecondAfterTheLastAnswer) {
  fetches_->Open(8192);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  for (int i = 0; i < 1025; ++i) (void)Fetch(absl::StrCat(i), args);
  (void)Said();
  cancellation.StartCancel();
  (void)Said();
  Pass(3 * kIdleForNs);
  EXPECT_EQ(fetches_->written()->dropped_asks, 0) << "the peer has not answered";
  for (size_t slot = 0; slot < 1025; ++slot) fetches_->SayGone(slot);
  Pass(kIdleForNs);
  EXPECT_EQ(fetches_->written()->dropped_asks, 1);
  EXPECT_EQ(fetches_->asks_made(), 0u);
}

// The network is better: whoever pauses tries at once, and nobody else.
TEST_F(FetchOpsTest, OnlyWhoPausesIsTriedNow) {
  fetches_->Open(1);
  (void)Fetch("a");
  (void)Said();
  fetches_->RetryNow();
  EXPECT_EQ(fetches_->connected, 0) << "it is connected";
  fetches_->Unlink();
  fetches_->RetryNow();
  EXPECT_EQ(fetches_->connected, 0) << "nothing is to be tried";
  fetches_->FailAttempt(absl::UnavailableError("nobody is there"));
  fetches_->RetryNow();
  EXPECT_EQ(fetches_->connected, 1);
}

TEST_F(FetchOpsTest, FewAreKept) {
  fetches_->Open(1024);
  for (int i = 0; i < 1024; ++i) (void)Fetch(absl::StrCat(i));
  (void)Said();
  for (size_t slot = 0; slot < 1024; ++slot) fetches_->SayTensor(slot);
  EXPECT_EQ(poller_.NextTimerNs(), kNever);
  EXPECT_EQ(fetches_->made(), 1024u);
}

}  // namespace
}  // namespace tryst
