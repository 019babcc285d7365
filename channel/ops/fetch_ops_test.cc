#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "channel/ops/farewell.h"
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
  uint64_t most_run = kRunBytes;
  bool sends_requests = true;
  bool at_once = false;
  bool may_be_written = false;
  bool closes_at_once = false;
  bool passes_memory = true;
  absl::Status may_fill;
  int dropped_memory = 0;
  int dropped_asks = 0;
  int links_over = 0;
  int breaks = 0;
  int dropped_keys = 0;
  int waits = 0;
  int no_slots = 0;
  std::map<uint32_t, std::string> told;  // What the peer knows each number for.
  int misnamed = 0;                      // Keys of runs that it knows for others.
  std::vector<FetchState> left;

 private:
  void NoteMisnamed(const FetchAsk& ask) {
    const std::vector<uint32_t> numbers = *DecodeRun(ask.of->told_text());
    const std::vector<FetchKey*>& keys = ask.front->run->keys;
    ASSERT_EQ(numbers.size(), keys.size());
    for (size_t i = 0; i < keys.size(); ++i) misnamed += told[numbers[i]] != keys[i]->key.edge();
  }
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
    ask->of->told = session_->connector()->epoch();
    told[ask->of->id] = ask->of->is_run() ? "a run" : std::string(ask->of->key.edge());
    if (ask->of->is_run()) {
      NoteMisnamed(*ask);
      return Say(absl::StrCat("ask ", ask->slot, ".", ask->generation, " ",
                              ask->of->told_text().size() / 4, " from ", ask->of->key.edge()));
    }
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
  uint64_t most_run_bytes() const override { return most_run; }
  bool AsksAtOnce() const override { return at_once; }
  void Flush() override {
    if (session_->open()) session_->SayAll();
  }

  // ---- FetchLink ----
  FetchWords* words() override { return this; }
  absl::Status Begin(Hello*) override { return absl::OkStatus(); }
  absl::Status UseAnswer(const Hello&) override { return absl::OkStatus(); }
  bool EndAttempt(const absl::Status&) override { return false; }
  void Break(const absl::Status&) override { ++breaks; }
  bool Close(const absl::Status&) override { return closes_at_once; }
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

// Goes on as the test says, and counts.
class WrittenChooser final : public KindChooser {
 public:
  size_t OnFailed(size_t, bool is_refused, const std::string&) override {
    ++(is_refused ? refused : failed);
    return next;
  }
  void OnGivenUp(std::vector<WaitingFetch> fetches) override { given_up = std::move(fetches); }
  void OnUsable() override { ++usable; }

  size_t next = 0;
  int refused = 0;
  int failed = 0;
  int usable = 0;
  std::vector<WaitingFetch> given_up;
};

// Hears what the test says.
class WrittenFetches final : public FetchSession {
 public:
  WrittenFetches(Poller* poller, Bootstrap* bootstrap, const FetchOpsOptions& options,
                 const Kinds& kinds, KindChooser* chooser)
      : FetchSession(poller, bootstrap, options, kinds, chooser) {}

  void Open(size_t slots) {
    connector_.Begin(Connector::State::kOpen);
    slots_.Reset(slots, 0);
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
  using FetchSession::TakeWaiting;
  void Forget() { ForgetLeaving(); }
  std::string Explain() const override { return ExplainOut(); }
  // All keys lose their numbers.
  void LoseNumbers() { keys_.ForgetIds(); }

  // ---- What the peer says ----
  void SayTensor(size_t slot, Tensor tensor = Tensor(), When when = When::kNow) {
    FetchAsk* const ask = slots_.at(slot);
    ASSERT_NE(Hear(ask, FetchEvent::kTensor), nullptr);
    const bool is_dead = !tensor.valid();
    Finish(ask, absl::OkStatus(), std::move(tensor), is_dead, when);
  }
  absl::Status SayRun(size_t slot, const std::string& answer) {
    FetchAsk* const ask = slots_.at(slot);
    EXPECT_NE(Hear(ask, FetchEvent::kTensor), nullptr);
    Tensor all;
    const absl::Status taken = TakeRun(ask, answer, &all);
    if (taken.ok() && all.valid()) {
      Finish(ask, absl::OkStatus(), std::move(all), false, When::kNow);
    }
    return taken;
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
    for (FetchKind* kind : {&kind_, &other_}) {
      kind->path = kind == &kind_ ? "written" : "other";
      kind->check_ms = 1000;
      kind->make = [](FetchSession* session) { return std::make_unique<WrittenLink>(session); };
    }
    options_.max_key_bytes = 200;
    options_.max_keys = 8192;
    options_.max_keys_bytes = 1 << 24;
    options_.max_parked = 3;
    options_.patience_ms = 0;
    Make();
    poller_.Turn();
  }
  ~FetchOpsTest() override { End(); }
  void Make() {
    fetches_ = std::make_unique<WrittenFetches>(&poller_, &hellos_, options_,
                                                FetchSession::Kinds{&kind_, &other_}, chooser_);
  }
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
  // The fetch of "a", which `cancellation` cancels; that of "b" may have its slot.
  void ParkOneThatMayBeCancelled(Cancellation* cancellation) {
    fetches_->Open(1);
    RecvArgs args;
    args.cancellation = cancellation;
    (void)Fetch("a", args);
    (void)Fetch("b");
    (void)Said();
    ParkAllOf(1);
  }

  VirtualAlarms alarms_;
  Poller poller_{&alarms_};
  KeptHellos hellos_;
  FetchKind kind_, other_;
  KindChooser* chooser_ = nullptr;
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

TEST_F(FetchOpsTest, WhatEndsAgainAfterThePeersLastWordWaitsForItsParts) {
  fetches_->Open(1);
  const auto a = Fetch("a");
  (void)Said();
  fetches_->written()->may_be_written = true;
  fetches_->AbortStep(1, absl::AbortedError("first"));
  FetchAsk* const ask = fetches_->At(0);
  fetches_->Advance(ask, FetchEvent::kGone);
  EXPECT_EQ(ask->state, FetchState::kLeft);
  fetches_->AbortStep(1, absl::AbortedError("second"));
  poller_.Turn();
  EXPECT_EQ(ask->state, FetchState::kLeft);
  EXPECT_EQ(a->times, 0) << "the NIC may still write its memory";
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
  kind_.leave_ns = 5 * kMs;
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

TEST_F(FetchOpsTest, WhoLeavesAtOnceWaitsForNoLastWord) {
  kind_.leave_ns = 5 * kMs;
  End();
  Make();
  fetches_->Open(2);
  RecvArgs at_once;
  at_once.leaves_at_once = true;
  at_once.deadline = Deadline::After(alarms_, absl::Milliseconds(20));
  const auto a = Fetch("a", at_once), b = Fetch("b", at_once, 2);
  (void)Said();
  fetches_->AbortStep(1, absl::AbortedError("over"));
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0"));
  EXPECT_EQ(a->times, 1);
  Pass(20 * kMs);
  EXPECT_EQ(b->times, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(b->status)) << b->status;
  EXPECT_EQ(fetches_->slots().free(), 0u) << "the peer has them";
  fetches_->SayGone(0);
  fetches_->SayGone(1);
  EXPECT_EQ(fetches_->slots().free(), 2u);
  EXPECT_EQ(a->times, 1);
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

// It may hold a tensor for one, so that what follows must not be asked for by another channel.
TEST_F(FetchOpsTest, AFetchIsOutUntilThePeerHasHeardThatItIsUnwanted) {
  Cancellation cancellation;
  ParkOneThatMayBeCancelled(&cancellation);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b may park 2"));
  const size_t out = fetches_->fetches_out();
  fetches_->written()->room = 0;
  cancellation.StartCancel();
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(fetches_->fetches_out(), out - 1) << "a fetch and its ask less, and what is unwanted";
  fetches_->written()->room = 2;
  fetches_->AskToPark(fetches_->At(0));
  EXPECT_THAT(Said(), ElementsAre("park 0 as 2", "unwanted 1"));
  EXPECT_EQ(fetches_->fetches_out(), out - 2);
}

TEST_F(FetchOpsTest, WhatALinkThatEndedDidNotHearToBeUnwantedTheNextNeedNotHear) {
  Cancellation cancellation;
  ParkOneThatMayBeCancelled(&cancellation);
  (void)Said();
  fetches_->written()->room = 0;
  cancellation.StartCancel();
  EXPECT_THAT(Said(), IsEmpty());
  fetches_->Unlink();
  fetches_->written()->room = 100;
  fetches_->Resume();
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b", "replayed")) << "the peer drops what is not named";
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

// Without a session the producer holds nothing for us.
TEST_F(FetchOpsTest, WhoIsClosedSaysFarewellToASessionAlone) {
  for (const bool has_session : {false, true}) {
    fetches_->Open(1);
    if (has_session) fetches_->Resume();
    const auto a = Fetch("a");
    EXPECT_FALSE(Said().empty());
    fetches_->written()->closes_at_once = true;
    fetches_->Close(absl::CancelledError("enough"));
    EXPECT_EQ(hellos_.asked.size(), has_session ? 1u : 0u);
    for (HelloDone& done : std::exchange(hellos_.answers, {})) {
      std::move(done)(absl::UnavailableError("nobody listens"));
    }
    for (int i = 0; i < 5; ++i) poller_.Turn();
    EXPECT_EQ(a->times, 1);
    EXPECT_TRUE(fetches_->Drained()) << fetches_->Explain();
    fetches_.reset();
    Make();
  }
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

// The former life has its ticket, and the next one does not.
TEST_F(FetchOpsTest, WhatWaitsWithoutASlotForTheNextLifeIsAskedOfIt) {
  fetches_->Open(2);
  fetches_->Resume();
  const auto former = FetchOf(1, "former"), next = FetchOf(2, "next");
  const auto slot = FetchOf(2, "slot"), other = FetchOf(2, "other"), line = FetchOf(2, "line");
  (void)Said();
  ParkAllOf(2);
  EXPECT_THAT(Said(), testing::Contains(testing::HasSubstr("slot")));
  fetches_->Unlink();
  fetches_->Resume(2);
  (void)Said();
  EXPECT_TRUE(absl::IsAborted(former->status)) << former->status;
  EXPECT_EQ(next->times, 0) << next->status;
  fetches_->SayTensor(0);
  EXPECT_THAT(Said(), testing::Contains(testing::EndsWith(" next"))) << "it is before the line";
  fetches_->SayTensor(0);
  EXPECT_EQ(next->times, 1);
  EXPECT_TRUE(next->status.ok()) << next->status;
  EXPECT_EQ(former->times, 1);
  EXPECT_EQ(line->times, 0);
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

// What was asked of the former life ends as at any restart, not with the path's refusal, which
// would say that the receive can never be had; what was not asked goes on elsewhere.
TEST_F(FetchOpsTest, WhoTurnsDownEveryKindOfLinkHasRestarted) {
  WrittenChooser chooser;
  chooser.next = KindChooser::kNone;
  chooser_ = &chooser;
  End();
  Make();
  fetches_->Open(1);
  fetches_->Resume();
  const auto a = Fetch("a"), b = Fetch("b");
  (void)Said();
  fetches_->Unlink();
  fetches_->FailAttempt(absl::UnimplementedError("no such path"));
  poller_.Turn();
  EXPECT_EQ(chooser.refused, 1);
  EXPECT_EQ(a->times, 1);
  EXPECT_TRUE(absl::IsAborted(a->status)) << a->status;
  EXPECT_EQ(b->times, 0);
  EXPECT_TRUE(chooser.given_up.empty()) << "the peer may hold a tensor for a";
  ASSERT_EQ(hellos_.answers.size(), 1u);
  const auto farewell = DecodeFarewell(hellos_.asked[0].parameters);
  ASSERT_TRUE(farewell.ok()) << farewell.status();
  EXPECT_EQ(farewell->wanted.size(), 1u);
  std::move(std::exchange(hellos_.answers, {})[0])(absl::UnimplementedError("no such path"));
  poller_.Turn();
  ASSERT_EQ(chooser.given_up.size(), 1u);
  EXPECT_EQ(chooser.given_up[0].key, Key("b"));
  EXPECT_EQ(fetches_->connector()->state(), Connector::State::kIdle);
  std::move(chooser.given_up[0].done)({absl::OkStatus(), Tensor(), true});
  End();
}

// A fetch may have its slot, and no room for its request.
TEST_F(FetchOpsTest, WhatHasASlotAndWasNotAskedGoesOnElsewhere) {
  WrittenChooser chooser;
  chooser.next = KindChooser::kNone;
  chooser_ = &chooser;
  End();
  Make();
  fetches_->Open(2);
  fetches_->Resume();
  const auto a = Fetch("a");
  (void)Said();
  fetches_->written()->sends_requests = false;
  const auto b = Fetch("b"), c = Fetch("c");
  (void)Said();
  ASSERT_NE(fetches_->At(1), nullptr) << "it has its slot";
  fetches_->Unlink();
  fetches_->FailAttempt(absl::UnimplementedError("no such path"));
  poller_.Turn();
  EXPECT_EQ(a->times, 1);
  ASSERT_EQ(hellos_.answers.size(), 1u);
  std::move(std::exchange(hellos_.answers, {})[0])(absl::UnimplementedError("no such path"));
  poller_.Turn();
  ASSERT_EQ(chooser.given_up.size(), 2u);
  EXPECT_EQ(chooser.given_up[0].key, Key("b"));
  EXPECT_EQ(chooser.given_up[1].key, Key("c"));
  for (WaitingFetch& fetch : chooser.given_up) std::move(fetch.done)({{}, Tensor(), true});
  End();
}

// It names a slot no more, which another may have.
TEST_F(FetchOpsTest, WhoWaitsAnewWhereSlotsAreOthersHasNone) {
  fetches_->Open(1);
  fetches_->written()->sends_requests = false;
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const auto a = Fetch("a", args);
  (void)Said();
  ASSERT_NE(fetches_->At(0), nullptr) << "it has its slot";
  fetches_->Unlink();
  ASSERT_TRUE(fetches_->UseSlots(2));
  EXPECT_EQ(fetches_->slots().free(), 2u);
  cancellation.StartCancel();
  poller_.Turn();
  EXPECT_EQ(a->times, 1);
  EXPECT_EQ(fetches_->slots().free(), 2u);
}

TEST_F(FetchOpsTest, WhoIsToGoByTheLinkThatItHasStays) {
  fetches_->Open(1);
  fetches_->MoveTo(0);
  EXPECT_EQ(fetches_->written()->breaks, 0);
}

TEST_F(FetchOpsTest, WhatWasAskedGoesOnByAnotherKindOfLinkAsItWas) {
  WrittenChooser chooser;
  chooser.next = 1;
  chooser_ = &chooser;
  FetchingBy by_this, by_other;
  kind_.fetching = &by_this;
  other_.fetching = &by_other;
  End();
  Make();
  EXPECT_THAT(by_this.sessions, ElementsAre(fetches_.get()));
  fetches_->Open(3);
  fetches_->Resume();
  const auto a = Fetch("a"), again = Fetch("a"), left = Fetch("left"), parked = Fetch("parked");
  const auto queued = Fetch("queued");
  (void)Said();
  Pass(2 * kMs);
  (void)Said();
  fetches_->SayParked(2);
  EXPECT_THAT(Said(), testing::Contains("ask 2.1 queued may park 4"));
  Cancellation over;
  fetches_->AbortStep(1000, absl::OkStatus());
  fetches_->Unlink();
  fetches_->FailAttempt(absl::UnimplementedError("no such path"));
  EXPECT_EQ(fetches_->kind(), 0u) << "in a turn of its own";
  Pass(1);
  EXPECT_EQ(fetches_->kind(), 1u);
  EXPECT_EQ(fetches_->path(), "other");
  EXPECT_THAT(by_this.sessions, IsEmpty());
  EXPECT_THAT(by_other.sessions, ElementsAre(fetches_.get()));
  EXPECT_EQ(by_this.past.fetches, 5u) << "its counts stay with it";
  EXPECT_EQ(fetches_->connected, 1);
  fetches_->Resume();
  EXPECT_THAT(Said(), ElementsAre("ask 0.0 a", "ask 1.0 left", "waits 3 parked", "ask 2.1 queued",
                                  "replayed"));
  EXPECT_EQ(fetches_->Counted().moved, 4u);
  EXPECT_EQ(fetches_->Counted().replays, 3u);
  fetches_->SayTensor(0);
  EXPECT_EQ(a->times, 1);
  EXPECT_EQ(again->times, 0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 a")) << "the next in its line";
  const std::vector<uint64_t> here = {3};
  fetches_->OnHere(here);
  fetches_->SayTensor(0);
  EXPECT_EQ(again->times, 1);
  EXPECT_THAT(Said(), ElementsAre("ask 0.2 parked of 3"));
  for (size_t slot : {0, 1, 2}) fetches_->SayTensor(slot);
  EXPECT_EQ(left->times + parked->times + queued->times, 3);
  End();
  EXPECT_THAT(by_other.sessions, IsEmpty());
  kind_.fetching = other_.fetching = nullptr;
}

// The peer hears of the end over whichever link comes next.
TEST_F(FetchOpsTest, WhatWasGivenUpIsCancelledOverTheNextKindOfLink) {
  WrittenChooser chooser;
  chooser.next = 1;
  chooser_ = &chooser;
  End();
  Make();
  fetches_->Open(1);
  fetches_->Resume();
  const auto a = Fetch("a");
  (void)Said();
  fetches_->Unlink();
  fetches_->AbortStep(1, absl::AbortedError("over"));
  poller_.Turn();
  EXPECT_EQ(a->times, 1);
  fetches_->MoveTo(1);
  EXPECT_EQ(fetches_->kind(), 1u) << "it has no link, and is idle";
  const auto b = Fetch("b");
  fetches_->Resume();
  EXPECT_THAT(Said(), ElementsAre("cancel 0.0", "replayed"));
  fetches_->SayGone(0);
  EXPECT_THAT(Said(), ElementsAre("ask 0.1 b"));
  End();
}

// The path may work again, or the peer may be down, and another path would not help.
TEST_F(FetchOpsTest, APathThatHasFailedForLongIsLeftWhenThePeerSaysThatItIsUp) {
  WrittenChooser chooser;
  chooser.next = 1;
  chooser_ = &chooser;
  options_.give_up_ms = 1;
  for (const bool answers : {false, true}) {
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
        if (fetches_->kind() == 1) break;
        tried += 'h';
        fetches_->FailAttempt(absl::UnavailableError("cut"));
      } else if (!hellos_.answers.empty()) {
        tried += 'u';
        EXPECT_EQ(std::exchange(hellos_.asked, {})[0].path, "none");
        std::move(std::exchange(hellos_.answers, {})[0])(
            answers ? absl::Status(absl::UnimplementedError("no path none"))
                    : absl::UnavailableError("cut"));
        poller_.Turn();
      }
    }
    EXPECT_EQ(fetches_->kind(), answers ? 1u : 0u) << tried;
    EXPECT_EQ(chooser.failed, answers ? 1 : 0);
    if (answers) continue;
    EXPECT_NE(tried.find("uhuhuh"), std::string::npos) << tried;
    EXPECT_EQ(tried.find("uu"), std::string::npos) << tried;
    // A word over a link that is there again shows that it works.
    fetches_->OnLinkOpen();
    fetches_->OnWord();
    EXPECT_FALSE(fetches_->connector()->Unusable());
  }
  fetches_->Unlink();
  End();
}

TEST_F(FetchOpsTest, AProbeIsOverWithTheFirstSignThatThePathWorks) {
  WrittenChooser chooser;
  chooser_ = &chooser;
  End();
  Make();
  fetches_->Probe();
  fetches_->OnLinkOpen();
  EXPECT_TRUE(fetches_->is_probing());
  for (int i = 0; i < 2; ++i) fetches_->OnWord();
  EXPECT_EQ(chooser.usable, 1);
  EXPECT_FALSE(fetches_->is_probing());
  End();
}

TEST_F(FetchOpsTest, AProbeLeavesAloneALinkThatIsThereOrIsTried) {
  for (const auto state :
       {Connector::State::kHello, Connector::State::kJoining, Connector::State::kOpen,
        Connector::State::kDraining, Connector::State::kBackoff}) {
    fetches_->connector()->SetState(state);
    fetches_->Probe();
    EXPECT_EQ(fetches_->connected, 0) << static_cast<int>(state);
    EXPECT_FALSE(fetches_->is_probing());
  }
  fetches_->connector()->SetState(Connector::State::kIdle);
  fetches_->Probe();
  EXPECT_EQ(fetches_->connected, 1);
  EXPECT_TRUE(fetches_->is_probing());
}

TEST_F(FetchOpsTest, ALinkIsMadeAnewWhenNothingIsUnderWayAndAtTheLatestInASecond) {
  fetches_->Open(1);
  const int& breaks = fetches_->written()->breaks;
  fetches_->Renew(10);
  Pass(10 * kMs - 1);
  EXPECT_EQ(breaks, 0);
  Pass(1);
  EXPECT_EQ(breaks, 1);
  const auto waits = Fetch("a");
  (void)Said();
  fetches_->Renew(10);
  for (int64_t passed_ms = 0; passed_ms < 10 + FetchSession::kRenewMs - 5; passed_ms += 5) {
    Pass(5 * kMs);
    ASSERT_EQ(breaks, 1) << "after " << passed_ms << " ms";
  }
  Pass(5 * kMs);
  EXPECT_EQ(breaks, 2);
  EXPECT_EQ(waits->times, 0) << "it is asked for again";
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
    ManyFetchedFn done = [ended](absl::Status first, absl::Span<Received> results) {
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

// ---- Runs of keys ----

class FetchRunTest : public FetchManyTest {
 protected:
  FetchRunTest() {
    End();
    options_.max_key_bytes = 1000;
    Make();
    fetches_->Open(8);
    const auto first = FetchMany(five_);
    EXPECT_EQ(Said().size(), 5u) << "nobody knows yet that they are small";
    TellFive();
    EXPECT_EQ(first->times, 1);
  }
  static Tensor Small(int64_t value) {
    Tensor tensor = *Tensor::Allocate(DType::kInt64, {1});
    memcpy(tensor.mutable_data(), &value, sizeof(value));
    return tensor;
  }
  static int64_t ValueOf(const Tensor& tensor) {
    int64_t value = -1;
    if (tensor.valid() && tensor.bytes() == sizeof(value)) {
      memcpy(&value, tensor.data(), sizeof(value));
    }
    return value;
  }
  // The peer answers with these tensors; -1: one is not here; -2: it is dead.
  static std::string Answer(const std::vector<int64_t>& values) {
    std::string answer(values.size() * 24, 0);
    uint8_t* const begin = reinterpret_cast<uint8_t*>(&answer[0]);
    uint8_t* to = begin;
    for (int64_t value : values) {
      to = value == -1   ? PutRunItem(RunItemKind::kNotHere, to)
           : value == -2 ? PutRunItem(RunItemKind::kDead, to)
                         : PutRunTensor(Small(value), to);
    }
    answer.resize(static_cast<size_t>(to - begin));
    return answer;
  }
  std::vector<int64_t> ValuesOf(const ManyEnded& many) {
    std::vector<int64_t> values;
    for (const Tensor& tensor : many.tensors) values.push_back(ValueOf(tensor));
    return values;
  }
  // Slot 0 has the run of the five.
  std::shared_ptr<ManyEnded> FetchFive(const RecvArgs& args = RecvArgs()) {
    auto many = FetchMany(five_, args);
    EXPECT_THAT(Said(), ElementsAre(testing::EndsWith("5 from a")));
    slot_ = RunSlot();
    return many;
  }
  size_t LeavingSlot() const {
    size_t slot = 0;
    while (fetches_->At(slot) == nullptr || !fetches_->At(slot)->leaves()) ++slot;
    return slot;
  }
  size_t RunSlot() const {
    for (size_t slot = 0; slot < 8; ++slot) {
      const FetchAsk* const ask = fetches_->At(slot);
      if (ask != nullptr && ask->of->is_run() && !ask->leaves()) return slot;
    }
    ADD_FAILURE() << "no run is asked for";
    return 0;
  }

  // The peer has the tensor of a key that was asked for alone.
  void Tell(const std::string& edge, const Tensor& tensor) {
    fetches_->SayTensor(SlotOf(edge), tensor);
  }
  size_t SlotOf(const std::string& edge) const {
    for (size_t slot = 0; slot < 8; ++slot) {
      const FetchAsk* const ask = fetches_->At(slot);
      if (ask != nullptr && !ask->of->is_run() && ask->of->key.edge() == edge) return slot;
    }
    ADD_FAILURE() << edge << " is not asked for";
    return 0;
  }
  void TellFive() {
    for (size_t i = 0; i < five_.size(); ++i) Tell(five_[i], Small(static_cast<int64_t>(i + 1)));
  }

  const std::vector<std::string> five_ = {"a", "b", "c", "d", "e"};
  size_t slot_ = 0;
};

TEST_F(FetchRunTest, SmallTensorsAreAskedForTogether) {
  for (int64_t round = 1; round < 4; ++round) {
    const auto many = FetchFive();
    EXPECT_EQ(Listed().size(), 1u);
    EXPECT_EQ(Listed()[0].detail, "with 4 other keys");
    ASSERT_TRUE(fetches_->SayRun(slot_, Answer({round, 2, -2, 4, 5})).ok());
    ASSERT_EQ(many->times, 1);
    EXPECT_TRUE(many->first.ok()) << many->first;
    EXPECT_THAT(ValuesOf(*many), ElementsAre(round, 2, -1, 4, 5));
    EXPECT_THAT(many->dead, ElementsAre(false, false, true, false, false));
    EXPECT_THAT(Said(), IsEmpty());
  }
  const auto alive = FetchFive();
  ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, 2, 3, 4, 5})).ok());
  EXPECT_THAT(alive->dead, testing::Each(false)) << "that another was dead is over";
  EXPECT_EQ(fetches_->Counted().fetches, 25u);
  EXPECT_EQ(fetches_->Counted().ended_ok, 25u);
  EXPECT_EQ(fetches_->Counted().runs, 4u);
  EXPECT_EQ(fetches_->Counted().in_runs, 20u);
  const auto four = FetchMany({"e", "b", "c", "d"});
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith("4 from e"))) << "which is another run";
}

TEST_F(FetchRunTest, WhatIsNotHereIsAskedForAlone) {
  const auto many = FetchFive();
  ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, -1, 3, -1, 5})).ok());
  EXPECT_EQ(many->times, 0);
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" b"), testing::EndsWith(" d")));
  Tell("d", Small(4));
  EXPECT_EQ(many->times, 0);
  Tell("b", Small(2));
  ASSERT_EQ(many->times, 1);
  EXPECT_THAT(ValuesOf(*many), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(fetches_->Counted().fetches, 10u);

  const auto none = FetchFive();
  ASSERT_TRUE(fetches_->SayRun(slot_, "").ok()) << "nothing is here";
  EXPECT_EQ(Said().size(), 5u);
}

// Each run that brings little costs a message. So many fetches of many then go without one.
TEST_F(FetchRunTest, WhereLittleIsHereThereAreNoRunsForAWhile) {
  int without = 0;
  for (int round = 0; round < 2; ++round) {
    const auto many = FetchFive();
    ASSERT_TRUE(fetches_->SayRun(slot_, Answer({-1, -1, -1, 4, 5})).ok());
    EXPECT_EQ(Said().size(), 3u);
    for (const char* edge : {"a", "b", "c"}) Tell(edge, Small(1));
    EXPECT_EQ(many->times, 1);
    for (without = 0;; ++without) {
      const auto next = FetchMany(five_);
      if (Said().size() == 5) {
        TellFive();
        continue;
      }
      ASSERT_TRUE(fetches_->SayRun(RunSlot(), Answer({1, 2, 3, 4, 5})).ok());
      break;
    }
    EXPECT_EQ(without, 16) << "a good one lets the next pause be short again";
  }
}

TEST_F(FetchRunTest, WhatIsFetchedMeanwhileWaitsForTheRun) {
  const auto many = FetchFive();
  const auto held = Fetch("b");
  const auto other_step = Fetch("c", RecvArgs(), 2);
  const auto also_held = Fetch("d");
  EXPECT_THAT(Said(), IsEmpty());
  fetches_->AbortStep(2, absl::AbortedError("the step"));
  (void)Said();
  EXPECT_EQ(other_step->times, 1);
  ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, -1, 3, 4, 5})).ok());
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" b"), testing::EndsWith(" d")));
  Tell("b", Small(2));
  EXPECT_THAT(ValuesOf(*many), ElementsAre(1, 2, 3, 4, 5)) << "the run was first";
  EXPECT_EQ(held->times, 0);
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" b")));
  Tell("b", Small(7));
  EXPECT_EQ(ValueOf(held->tensor), 7);
  Tell("d", Small(8));
  EXPECT_EQ(ValueOf(also_held->tensor), 8);
}

TEST_F(FetchRunTest, ItsDeadlineAlsoEndsWhatWaitsForARun) {
  const auto many = FetchFive();
  RecvArgs soon;
  soon.deadline = Deadline::AtNs(alarms_.NowNs() + kMs);
  const auto held = Fetch("b", soon);
  Pass(2 * kMs);
  EXPECT_TRUE(absl::IsDeadlineExceeded(held->status)) << held->status;
  EXPECT_EQ(many->times, 0);
  ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, 2, 3, 4, 5})).ok());
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(FetchRunTest, SomeKeysAreInNoRun) {
  const auto busy = Fetch("b");
  (void)Said();
  auto many = FetchMany({"a", "b", "c", "d", "e", "new"});
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" new"), testing::EndsWith("4 from a")))
      << "b waits behind the fetch before it";
  ASSERT_TRUE(fetches_->SayRun(RunSlot(), Answer({1, 3, 4, 5})).ok());
  Tell("new", *Tensor::Allocate(DType::kUint8, {kRunTensorBytes + 1}));
  Tell("b", Small(1));
  (void)Said();
  Tell("b", *Tensor::FromStrings({"x"}, {1}));
  EXPECT_EQ(many->times, 1);
  many = FetchMany({"a", "b", "c", "d", "e", "new", "a"});
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" b"), testing::EndsWith(" new"),
                                  testing::EndsWith("4 from a")))
      << "b is one of strings, and new is large; the second a waits for the run";
  ASSERT_TRUE(fetches_->SayRun(RunSlot(), Answer({1, 3, 4, 5})).ok());
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" a")));

  RecvArgs recurring;
  recurring.recurring = true;
  const auto ahead = FetchMany({"c", "d", "e", "f"}, recurring);
  EXPECT_EQ(Said().size(), 4u);
  const auto three = FetchMany({"c", "d", "e"});
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(FetchRunTest, ARunHasNoMoreThanTheLinkCanAnswer) {
  fetches_->written()->most_run = 5 * 24 - 1;
  const auto five = FetchMany(five_);
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith("4 from a"), testing::EndsWith(" e")));
  ASSERT_TRUE(fetches_->SayRun(RunSlot(), Answer({1, 2, 3, 4})).ok());
  Tell("e", Small(5));
  EXPECT_THAT(ValuesOf(*five), ElementsAre(1, 2, 3, 4, 5));
  fetches_->written()->most_run = 4 * 24 - 1;
  const auto again = FetchMany(five_);
  EXPECT_EQ(Said().size(), 5u) << "three and two do not pay";
}

TEST_F(FetchRunTest, TheLimitOfATensorIsNotThatOfARun) {
  End();
  options_.max_tensor_bytes = 100;
  Make();
  fetches_->Open(8);
  const auto first = FetchMany(five_);
  (void)Said();
  TellFive();
  const auto many = FetchFive();
  const FetchAsk& run = *fetches_->At(slot_);
  EXPECT_TRUE(fetches_->MayTake(run, DType::kUint8, {kRunBytes}, kRunBytes).ok());
  EXPECT_TRUE(
      absl::IsDataLoss(fetches_->MayTake(run, DType::kUint8, {kRunBytes + 1}, kRunBytes + 1)));
  EXPECT_TRUE(absl::IsDataLoss(fetches_->MayTake(run, DType::kString, {1}, 8)));
  EXPECT_TRUE(absl::IsDataLoss(fetches_->MayTake(run, DType::kInt8, {8}, 8)));
  EXPECT_TRUE(absl::IsDataLoss(fetches_->MayTake(run, DType::kUint8, {2, 4}, 8)));
  ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, 2, 3, 4, 5})).ok());
  EXPECT_THAT(ValuesOf(*many), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(FetchRunTest, ATensorThatItsCallerCannotHaveFailsAlone) {
  std::vector<Tensor> into;
  for (int i = 0; i < 5; ++i) {
    into.push_back(i == 3 ? *Tensor::Allocate(DType::kFloat, {1}) : Small(-7));
  }
  RecvArgs args;
  args.destinations = into;
  const auto many = FetchFive(args);
  ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, -2, 3, 4, 5})).ok());
  EXPECT_EQ(many->times, 0);
  EXPECT_THAT(Said(), ElementsAre(testing::StartsWith("cancel "), testing::EndsWith(" a"),
                                  testing::EndsWith(" b"), testing::EndsWith(" c"),
                                  testing::EndsWith(" d"), testing::EndsWith(" e")))
      << "all that was taken goes back before it is asked for again";
  fetches_->SayGone(slot_);
  for (const char* edge : {"a", "b", "c", "e"}) Tell(edge, into[0]);
  fetches_->SayFailed(SlotOf("d"), absl::InvalidArgumentError("float"));
  ASSERT_EQ(many->times, 1);
  EXPECT_THAT(many->dead, testing::Each(false));
  EXPECT_TRUE(absl::IsInvalidArgument(many->statuses[3]));
  EXPECT_TRUE(many->statuses[4].ok());

  into[3] = Small(-7);
  args.destinations = into;
  const auto fits = FetchFive(args);
  ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, 2, 3, 4, 5})).ok());
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(fits->tensors[i].SharesBytesWith(into[i]));
    EXPECT_EQ(ValueOf(into[i]), static_cast<int64_t>(i + 1));
  }
}

TEST_F(FetchRunTest, AllOfItEndsWithItsCaller) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  auto many = FetchFive(args);
  const auto held = Fetch("b");
  cancellation.StartCancel();
  EXPECT_THAT(Said(), ElementsAre(testing::StartsWith("cancel "), testing::EndsWith(" b")));
  ASSERT_EQ(many->times, 1);
  for (const absl::Status& status : many->statuses) EXPECT_TRUE(absl::IsCancelled(status));
  fetches_->SayGone(slot_);
  Tell("b", Small(1));

  args = RecvArgs();
  args.deadline = Deadline::AtNs(alarms_.NowNs() + kMs);
  many = FetchFive(args);
  Pass(2 * kMs);
  ASSERT_EQ(many->times, 1);
  for (const absl::Status& status : many->statuses) EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  fetches_->SayGone(slot_);
  (void)Said();

  many = FetchFive();
  fetches_->AbortStep(1, absl::InternalError("the step failed"));
  poller_.Turn();
  ASSERT_EQ(many->times, 1);
  for (const absl::Status& status : many->statuses) EXPECT_TRUE(IsDerived(status)) << status;
}

// What was to be asked for alone once its run has been given up ends with its step instead.
TEST_F(FetchRunTest, ARunThatIsGivenUpEndsWithItsStep) {
  std::vector<Tensor> into;
  for (int i = 0; i < 5; ++i) {
    into.push_back(i == 3 ? *Tensor::Allocate(DType::kFloat, {1}) : Small(-7));
  }
  RecvArgs args;
  args.destinations = into;
  kind_.leave_ns = 1'000 * kMs;
  for (const bool breaks : {false, true}) {
    const auto many = FetchFive(args);
    fetches_->written()->may_be_written = true;
    if (breaks) {
      fetches_->Unlink();
    } else {
      ASSERT_TRUE(fetches_->SayRun(slot_, Answer({1, 2, 3, 4, 5})).ok());
    }
    EXPECT_EQ(many->times, 0);
    fetches_->AbortStep(1, absl::InternalError("the step failed"));
    if (breaks) fetches_->Resume();
    EXPECT_THAT(Said(), testing::Contains(testing::StartsWith("cancel ")));
    fetches_->SayGone(slot_);
    EXPECT_THAT(Said(), IsEmpty()) << "nothing is asked for of a step that is over";
    ASSERT_EQ(many->times, 1);
    for (const absl::Status& status : many->statuses) EXPECT_TRUE(IsDerived(status)) << status;
    for (const Tensor& tensor : many->tensors) EXPECT_FALSE(tensor.valid());
  }
}

TEST_F(FetchRunTest, ARunEndsWithItsConnection) {
  const auto many = FetchFive();
  const auto held = Fetch("b");
  fetches_->Unlink();
  EXPECT_EQ(many->times, 0);
  fetches_->Resume();
  EXPECT_THAT(Said(),
              ElementsAre(testing::StartsWith("cancel "), "replayed", testing::EndsWith(" a"),
                          testing::EndsWith(" b"), testing::EndsWith(" c"), testing::EndsWith(" d"),
                          testing::EndsWith(" e")));
  fetches_->SayGone(slot_);
  TellFive();
  EXPECT_EQ(many->times, 1);
  EXPECT_EQ(held->times, 0);
  (void)Said();
  Tell("b", Small(1));
  const auto again = FetchFive();
  EXPECT_EQ(again->times, 0);
}

TEST_F(FetchRunTest, ItIsAskedForApartIfAKeyHasLostItsNumber) {
  const auto many = FetchMany(five_);
  fetches_->LoseNumbers();  // Before its question has left.
  EXPECT_EQ(Said().size(), 5u);
  TellFive();
  EXPECT_EQ(many->times, 1);
  EXPECT_EQ(FetchFive()->times, 0) << "under a new name";
}

// A key of a run may lose its number while the run is put together, and get another one by being
// fetched again. The peer knows it by neither.
TEST_F(FetchRunTest, ARunNamesNoKeyByANumberThatThePeerWasNotTold) {
  End();
  options_.max_keys = 8;
  Make();
  fetches_->Open(8);
  (void)FetchMany(five_);
  EXPECT_EQ(Said().size(), 5u);
  TellFive();
  for (int round = 0; round < 40; ++round) {
    const std::string next = absl::StrCat("new", round);
    const auto many = FetchMany({"a", "b", "c", "d", next, "a"});
    for (int turn = 0; many->times == 0 && turn < 8; ++turn) {
      (void)Said();
      for (size_t slot = 0; slot < 8; ++slot) {
        const FetchAsk* const ask = fetches_->At(slot);
        if (ask == nullptr) continue;
        if (ask->of->is_run()) {
          const size_t keys = ask->front->run->keys.size();
          ASSERT_TRUE(fetches_->SayRun(slot, Answer(std::vector<int64_t>(keys, 3))).ok());
        } else {
          fetches_->SayTensor(slot, Small(3));
        }
      }
    }
    ASSERT_EQ(many->times, 1) << round;
    EXPECT_EQ(fetches_->written()->misnamed, 0) << round;
  }
}

// Where numbers are used up, each key of a run that goes apart may get the number of the next one,
// and that of the key behind a full run.
TEST_F(FetchRunTest, ItsKeysLastAsLongAsItGoesApart) {
  for (const uint64_t most_run : {5 * 24, 4 * 24}) {
    End();
    options_.max_keys = 8;
    Make();
    fetches_->Open(8);
    const auto first = FetchMany(five_);
    const auto others = FetchMany({"x", "y", "z"});
    EXPECT_EQ(Said().size(), 8u);
    TellFive();
    for (const char* edge : {"x", "y", "z"}) Tell(edge, Small(9));
    fetches_->written()->most_run = most_run;
    int apart = 0;
    for (int round = 1; round < 20; ++round) {
      const auto many = FetchMany(five_);
      if (Said().size() == 5) {
        ++apart;
        TellFive();
      } else {
        const bool all = most_run == 5 * 24;
        const std::string answer = all ? Answer({1, 2, 3, 4, 5}) : Answer({1, 2, 3, 4});
        ASSERT_TRUE(fetches_->SayRun(RunSlot(), answer).ok());
        if (!all) Tell("e", Small(5));
      }
      ASSERT_EQ(many->times, 1);
      EXPECT_THAT(ValuesOf(*many), ElementsAre(1, 2, 3, 4, 5));
    }
    EXPECT_GT(apart, 0) << "no run's name has taken a key's number";
  }
}

// ---- Runs of several fetches ----

// The first of a turn leaves at once, or waits in line; those behind it are asked for together.
TEST_F(FetchRunTest, SmallTensorsThatAreFetchedInOneTurnAreAskedForTogether) {
  fetches_->written()->at_once = true;
  for (int round = 1; round < 4; ++round) {
    std::vector<std::shared_ptr<Ended>> ended;
    for (const std::string& edge : five_) ended.push_back(Fetch(edge));
    EXPECT_EQ(fetches_->written()->said.size(), 1u);
    EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" a"), testing::EndsWith("4 from b")));
    EXPECT_EQ(Listed().size(), 5u) << "each of the fetches, and not the run";
    ASSERT_TRUE(fetches_->SayRun(RunSlot(), Answer({round, -2, -1, 4})).ok());
    EXPECT_EQ(ValueOf(ended[1]->tensor), round);
    EXPECT_TRUE(ended[2]->is_dead);
    EXPECT_EQ(ended[3]->times, 0);
    EXPECT_EQ(ValueOf(ended[4]->tensor), 4);
    EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" d")));
    Tell("d", Small(3));
    Tell("a", Small(1));
    for (const auto& one : ended) {
      EXPECT_EQ(one->times, 1);
      EXPECT_TRUE(one->status.ok()) << one->status;
    }
  }
  EXPECT_EQ(fetches_->Counted().ended_ok, 20u);
  EXPECT_EQ(fetches_->Counted().in_runs, 9u);
}

// It is named in the room that a key has.
TEST_F(FetchRunTest, WhereTheNameOfARunWouldBeTooLongThereIsNone) {
  for (const bool fits : {false, true}) {
    End();
    options_.max_key_bytes = kMostInRun * sizeof(uint32_t) - (fits ? 0 : 1);
    Make();
    fetches_->Open(8);
    fetches_->written()->at_once = true;
    const auto first = FetchMany(five_);
    EXPECT_EQ(Said().size(), 5u) << "nobody knows yet that they are small";
    TellFive();
    const auto many = FetchMany(five_);
    EXPECT_EQ(Said().size(), fits ? 1u : 5u);
    fits ? (void)fetches_->SayRun(RunSlot(), Answer({1, 2, 3, 4, 5})) : TellFive();
    EXPECT_EQ(many->times, 1);
    std::vector<std::shared_ptr<Ended>> ended;
    for (const std::string& edge : five_) ended.push_back(Fetch(edge));
    EXPECT_EQ(Said().size(), fits ? 2u : 5u) << "one that is asked for at once, and the others";
  }
}

// Four would be a run.
TEST_F(FetchRunTest, FetchesOfTwoStepsOrWithADeadlineAreAskedForApart) {
  fetches_->written()->at_once = true;
  RecvArgs soon;
  soon.deadline = Deadline::AtNs(alarms_.NowNs() + kMs);
  for (const int64_t step : {2, 1}) {
    const auto first = Fetch("a");
    const auto odd = Fetch("b", step == 1 ? soon : RecvArgs(), step);
    const auto c = Fetch("c");
    const auto d = Fetch("d");
    const auto e = Fetch("e");
    EXPECT_EQ(Said().size(), 5u) << step;
    TellFive();
    EXPECT_EQ(odd->times, 1);
  }
}

TEST_F(FetchRunTest, AFetchOfARunThatEndsEarlyEndsAlone) {
  fetches_->written()->at_once = true;
  std::vector<std::shared_ptr<Ended>> ended;
  for (const std::string& edge : five_) ended.push_back(Fetch(edge));
  fetches_->AbortStep(1, absl::InternalError("the step failed"));  // Before they are asked for.
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" a"), testing::StartsWith("cancel ")));
  for (const auto& one : ended) EXPECT_EQ(one->times, 1);
  fetches_->SayGone(LeavingSlot());

  ended.clear();
  for (const std::string& edge : five_) ended.push_back(Fetch(edge));
  (void)Said();
  fetches_->EndFetchesOf(1, absl::AbortedError("its life is over"));
  EXPECT_THAT(Said(), ElementsAre(testing::StartsWith("cancel "), testing::StartsWith("cancel ")));
  for (const auto& one : ended) {
    EXPECT_EQ(one->times, 1);
    EXPECT_TRUE(absl::IsAborted(one->status)) << one->status;
  }
}

TEST_F(FetchRunTest, WhatWaitsForAKeyThatLeavesItsRunStaysBeforeLaterFetches) {
  fetches_->written()->at_once = true;
  const auto at_once = Fetch("a");
  const auto gathered = Fetch("b");
  const auto with_it = Fetch("c");
  const auto held = Fetch("b", RecvArgs(), 2);
  const auto other_key = Fetch("c", RecvArgs(), 2);
  fetches_->AbortStep(1, absl::AbortedError("over"));
  RecvArgs soon;  // Which no run gathers.
  soon.deadline = Deadline::AtNs(alarms_.NowNs() + kMs);
  const auto later = Fetch("b", soon, 2);
  (void)Said();
  Tell("b", Small(7));
  EXPECT_EQ(held->times, 1);
  EXPECT_EQ(later->times, 0);
  EXPECT_EQ(ValueOf(held->tensor), 7);
  (void)Said();
  Tell("b", Small(8));
  EXPECT_EQ(ValueOf(later->tensor), 8);
  Tell("c", Small(9));
  EXPECT_EQ(ValueOf(other_key->tensor), 9);
}

TEST_F(FetchRunTest, WhatWasGatheredGoesOnOverTheNextConnection) {
  fetches_->written()->at_once = true;
  std::vector<std::shared_ptr<Ended>> ended;
  for (const std::string& edge : five_) ended.push_back(Fetch(edge));
  fetches_->written()->at_once = false;
  fetches_->written()->said.clear();
  fetches_->Unlink();
  fetches_->Resume();
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" a"), "replayed", testing::EndsWith(" b"),
                                  testing::EndsWith(" c"), testing::EndsWith(" d"),
                                  testing::EndsWith(" e")));
  TellFive();
  for (const auto& one : ended) EXPECT_EQ(one->times, 1);
}

// Their callbacks fetch again, while others of the same run have not been told.
TEST_F(FetchRunTest, ACallbackMayFetchOfTheRunThatBroughtIt) {
  fetches_->written()->at_once = true;
  std::vector<std::string> order;
  const auto first = Fetch("a");
  std::shared_ptr<Ended> again;
  for (const char* edge : {"b", "c", "d", "e"}) {
    fetches_->Fetch(1, Key(edge), RecvArgs(), [&, edge](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      order.push_back(edge);
      if (order.size() == 1) again = Fetch("c");
    });
  }
  const auto held = Fetch("c");
  EXPECT_THAT(Said(), ElementsAre(testing::EndsWith(" a"), testing::EndsWith("4 from b")));
  ASSERT_TRUE(fetches_->SayRun(RunSlot(), Answer({2, 3, 4, 5})).ok());
  EXPECT_THAT(order, ElementsAre("b", "c", "d", "e"));
  (void)Said();
  Tell("c", Small(7));
  EXPECT_EQ(ValueOf(held->tensor), 7);
  (void)Said();
  Tell("c", Small(8));
  EXPECT_EQ(ValueOf(again->tensor), 8) << "it was made later";
  Tell("a", Small(1));
}

TEST_F(FetchRunTest, ACallbackMayEndAllOthersOfItsRun) {
  fetches_->written()->at_once = true;
  int ended = 0;
  const auto first = Fetch("a");
  for (const char* edge : {"b", "c", "d", "e"}) {
    fetches_->Fetch(1, Key(edge), RecvArgs(), [&](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << "it has come";
      if (++ended == 1) fetches_->AbortStep(1, absl::InternalError("the step failed"));
    });
  }
  (void)Said();
  ASSERT_TRUE(fetches_->SayRun(RunSlot(), Answer({2, 3, 4, 5})).ok());
  poller_.Turn();
  EXPECT_EQ(ended, 4);
  EXPECT_EQ(first->times, 1);
}

TEST_F(FetchRunTest, AnAnswerThatIsNoneIsRefused) {
  const std::string good = Answer({1, 2, 3, 4, 5});
  std::string kind = good, rank = good, bytes = good;
  kind[0] = 3;
  rank[24 + 2] = TensorShape::kMaxRank + 1;
  bytes[48 + 4] = 9;  // As its type and shape do not say.
  std::string more = good;
  more[96 + 5] = 127;
  for (const std::string& bad :
       {good.substr(0, good.size() - 1), good + "12345678", kind, rank, bytes, more}) {
    const auto many = FetchFive();
    EXPECT_TRUE(absl::IsDataLoss(fetches_->SayRun(slot_, bad)));
    EXPECT_EQ(many->times, 0);
    fetches_->Unlink();
    fetches_->Resume();
    (void)Said();
    fetches_->SayGone(slot_);
    TellFive();
    ASSERT_EQ(many->times, 1);
    EXPECT_THAT(ValuesOf(*many), ElementsAre(1, 2, 3, 4, 5)) << "and nothing of the bad answer";
  }
  const auto many = FetchFive();
  fetches_->SayTensor(slot_, Small(1));
  ASSERT_EQ(many->times, 1);
  for (const absl::Status& status : many->statuses) EXPECT_TRUE(absl::IsDataLoss(status)) << status;
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
