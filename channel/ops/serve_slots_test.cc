#include "channel/ops/serve_slots.h"

#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "channel/poller/poller.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr char kFetcher[] = "/job:c/replica:0/task:0";
constexpr int64_t kStep = 7;
constexpr uint64_t kTurnOfIt = 11;

class FixedTime final : public Clock {
 public:
  int64_t NowNs() const override { return 1000; }
};

// Sends happen when the test says so, or have happened.
class Shelf final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey&, const RecvArgs&, DoneFn done) override {
    asked.push_back(std::move(done));
  }
  bool TakeHere(int64_t step, TensorKey* key, Place*, Received* taken) override {
    if (!is_here) return false;
    EXPECT_EQ(step, kStep);
    const auto tensor = here.find(std::string(key->edge()));
    if (!here.empty() && tensor == here.end()) return false;
    taken->tensor = here.empty() ? *Tensor::Allocate(DType::kUint8, {3}) : tensor->second;
    taken->is_dead = !taken->tensor.valid();
    taken->turn = kTurnOfIt;
    return true;
  }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t step, const TensorKey& key, Received taken) override {
    const uint64_t bytes = taken.tensor.valid() ? taken.tensor.bytes() : 0;
    back.push_back(absl::StrCat(step, " ", key.text(), " ", bytes, " ", taken.turn));
    if (on_back) on_back();
  }
  void Meet(absl::Status status = absl::OkStatus()) {
    Received received{std::move(status), *Tensor::Allocate(DType::kUint8, {3})};
    received.turn = kTurnOfIt;
    std::move(asked.back())(std::move(received));
  }

  bool is_here = false;
  std::map<std::string, Tensor> here;  // By edge; empty: one of each. Not valid: a dead one.
  std::vector<DoneFn> asked;
  std::vector<std::string> back;
  std::function<void()> on_back;
};

class Notes final : public ServeWire {
 public:
  void Answer(ServeOp* op) override { said.push_back(absl::StrCat("answer ", op->slot)); }
  void Forget(ServeOp* op) override {
    said.push_back(absl::StrCat("forget ", op->slot, " ", ServeStateName(op->state)));
  }
  void Retire(StorageRef* storage) override {
    said.push_back(absl::StrCat("retire ", (*storage)->bytes()));
  }
  bool SaysGoneLater(const ServeOp&) override { return gone_later; }
  bool Arrives(const ServeOp&) override { return arrives; }
  size_t tickets_a_word() const override { return 2; }
  bool SayWord(bool is_parked, uint16_t slot, uint32_t generation) override {
    if (!has_room) return false;
    said.push_back(absl::StrCat(is_parked ? "PARKED " : "GONE ", slot, " ", generation));
    return true;
  }
  bool SayHere(absl::Span<const uint64_t> tickets) override {
    if (!has_room) return false;
    for (uint64_t ticket : tickets) said.push_back(absl::StrCat("HERE ", ticket));
    return true;
  }
  void FlushSoon() override { ++flushes; }
  uint64_t most_run_bytes() const override { return most_run; }
  std::vector<std::string> Said() { return std::exchange(said, {}); }

  std::vector<std::string> said;
  uint64_t most_run = kRunBytes;
  bool gone_later = false;
  bool arrives = true;
  bool has_room = true;
  int flushes = 0;
};

class Rows final : public SlotWatch {
 public:
  void OnFetchEvent(const void*, const FetchAsk&, FetchState, FetchEvent) override {}
  void OnSlotFreed(const void*, uint16_t) override {}
  void OnServeEvent(const void*, uint16_t, ServeState from, ServeEvent event) override {
    seen.insert({from, event});
  }
  void OnServeEpoch(const void*) override { ++epochs; }
  void OnServeFarewell(const void*) override {}
  void OnEndGone(const void*) override {}
  std::set<std::pair<ServeState, ServeEvent>> seen;
  int epochs = 0;
};

using Words = std::vector<std::string>;

class ServeSlotsTest : public ::testing::Test {
 protected:
  ServeSlotsTest() {
    poller_.Turn();  // From here on this is its thread.
    slots_.UseWire(&notes_, "test");
    slots_.Make(2);
    Connect(1);
  }
  ~ServeSlotsTest() override {
    slots_.DropTakes();
    slots_.EndAll(ServeEvent::kLeft);
    poller_.Turn();
  }
  static ServeSlotsOptions Options(SlotWatch* watch) {
    ServeSlotsOptions options;
    options.consumer = kFetcher;
    options.max_parked = 1;
    options.max_keys = 4;
    options.max_key_bytes = 1000;
    options.max_keys_bytes = 2500;
    options.watch = watch;
    return options;
  }
  static std::string KeyText(int number) {
    return absl::StrCat("/job:p/replica:0/task:0/device:CPU:0;0000000000000001;", kFetcher,
                        "/device:CPU:0;edge", number, ";0:0");
  }
  void Connect(uint64_t epoch) {
    slots_.Connect(epoch);
    for (uint32_t number : {0, 1}) EXPECT_TRUE(slots_.OnKey(number, KeyText(number)).ok());
  }
  absl::Status Request(uint16_t generation, bool again = false, uint64_t ticket = 0,
                       bool may_park = false, uint32_t key = 0) {
    ServeRequest request;
    request.generation = generation;
    request.key = key;
    request.again = again;
    request.may_park = may_park;
    request.step = kStep;
    request.ticket = ticket;
    return slots_.OnRequest(request);
  }
  void Meet() {
    shelf_.Meet();
    poller_.Turn();
  }
  // Brings slot 0, generation `generation`, into `state`.
  void Bring(ServeState state, uint16_t generation = 5) {
    ASSERT_TRUE(Request(generation).ok());
    if (state == ServeState::kTaking) return;
    Meet();
    switch (state) {
      case ServeState::kNeedsDestination:
        return slots_.AskedRoom(op_);
      case ServeState::kStaging:
        return slots_.Stages(op_);
      case ServeState::kInParts:
        return slots_.SendsParts(op_);
      case ServeState::kPulled:
        return slots_.Lent(op_);
      case ServeState::kSent:
        return slots_.Said(op_);
      default:
        return;
    }
  }
  std::string Back() const { return absl::StrCat(kStep, " ", KeyText(0), " 3 ", kTurnOfIt); }
  Words TakeSaid() {
    (void)slots_.SayWords();
    return notes_.Said();
  }

  FixedTime clock_;
  Poller poller_{&clock_};
  Shelf shelf_;
  Notes notes_;
  Rows rows_;
  ServeCounters counters_;
  ServeSlots slots_{&poller_, &shelf_, Options(&rows_), &counters_};
  ServeOp* const op_ = [this] {
    slots_.Make(2);
    return slots_.at(0);
  }();
};

TEST_F(ServeSlotsTest, KeysAreToldAnewOverEachConnection) {
  ASSERT_TRUE(Request(5).ok());
  slots_.Disconnect();
  slots_.Connect(2);
  EXPECT_TRUE(absl::IsDataLoss(Request(5, /*again=*/true)));
  ASSERT_TRUE(slots_.OnKey(0, KeyText(0)).ok());
  EXPECT_TRUE(Request(5, /*again=*/true).ok());
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnWaits(8, kStep, 1))) << "only one was told";
}

const ServeState kHeld[] = {
    ServeState::kTaking,  ServeState::kReady,   ServeState::kNeedsDestination,
    ServeState::kStaging, ServeState::kInParts, ServeState::kPulled,
    ServeState::kSent};

TEST_F(ServeSlotsTest, WhatIsHereIsAnsweredInTheCallThatAsks) {
  shelf_.is_here = true;
  ASSERT_TRUE(Request(1).ok());
  EXPECT_EQ(op_->state, ServeState::kReady);
  EXPECT_EQ(op_->turn, kTurnOfIt);
  EXPECT_EQ(notes_.Said(), Words{"answer 0"});
  EXPECT_EQ(counters_.requests, 1u);
  EXPECT_EQ(slots_.used(), 1u);
  EXPECT_TRUE(shelf_.asked.empty());
}

// ---- Runs of keys ----

class ServeRunTest : public ServeSlotsTest {
 protected:
  ServeRunTest() {
    shelf_.is_here = true;
    EXPECT_TRUE(slots_.OnKey(2, EncodeRun({1, 0}), /*is_run=*/true).ok());
  }
  absl::Status RequestRun(uint32_t generation, bool again = false) {
    return Request(generation, again, 0, false, 2);
  }
  // It says of each key: n not here, d dead, or how many bytes.
  std::string Answered() {
    const Tensor& tensor = op_->tensor;
    RunReader reader(absl::string_view(static_cast<const char*>(tensor.data()), tensor.bytes()));
    std::string text;
    while (!reader.at_end()) {
      RunItemKind kind;
      TensorInside inside;
      if (!reader.Next(&kind, &inside).ok()) return text + "broken";
      text += kind == RunItemKind::kNotHere ? " n"
              : kind == RunItemKind::kDead  ? " d"
                                            : absl::StrCat(" ", inside.payload.size());
    }
    return text;
  }
};

TEST_F(ServeRunTest, ItIsAnsweredWithWhatIsHere) {
  shelf_.here = {{"edge0", *Tensor::Allocate(DType::kInt64, {2, 5})}};
  ASSERT_TRUE(RequestRun(1).ok());
  EXPECT_EQ(op_->state, ServeState::kReady);
  EXPECT_EQ(Answered(), " n 80");
  EXPECT_TRUE(shelf_.asked.empty()) << "nothing is waited for";
  slots_.Said(op_);
  shelf_.here["edge1"] = Tensor();
  ASSERT_TRUE(RequestRun(2).ok()) << "which accepts the former";
  EXPECT_EQ(Answered(), " d 80");
  slots_.Said(op_);
  slots_.OnAccepted(op_);
  shelf_.here = {{"another", Tensor()}};
  ASSERT_TRUE(RequestRun(3).ok());
  EXPECT_EQ(Answered(), "") << "nothing is here";
  EXPECT_TRUE(shelf_.back.empty());
  EXPECT_EQ(counters_.given_back, 0u);
}

TEST_F(ServeRunTest, AllThatWasTakenGoesBackInEveryState) {
  uint32_t generation = 0;
  for (const ServeState state : {ServeState::kReady, ServeState::kInParts, ServeState::kSent}) {
    shelf_.back.clear();
    ASSERT_TRUE(RequestRun(++generation).ok());
    if (state == ServeState::kInParts) slots_.SendsParts(op_);
    if (state == ServeState::kSent) slots_.Said(op_);
    ASSERT_TRUE(slots_.OnCancel(0, generation).ok());
    EXPECT_EQ(shelf_.back, (Words{absl::StrCat(kStep, " ", KeyText(1), " 3 ", kTurnOfIt),
                                  absl::StrCat(kStep, " ", KeyText(0), " 3 ", kTurnOfIt)}));
  }
  EXPECT_EQ(counters_.given_back, 6u);
  shelf_.back.clear();
  ASSERT_TRUE(RequestRun(++generation).ok());
  EXPECT_TRUE(slots_.FailTaken(op_, absl::UnimplementedError("no")));
  EXPECT_EQ(shelf_.back.size(), 2u);
}

TEST_F(ServeRunTest, ItIsSentAgainAsItIs) {
  ASSERT_TRUE(RequestRun(1).ok());
  slots_.Said(op_);
  shelf_.here = {{"another", Tensor()}};
  slots_.Disconnect();
  Connect(2);
  ASSERT_TRUE(slots_.OnKey(2, EncodeRun({1, 0}), true).ok());
  ASSERT_TRUE(RequestRun(1, /*again=*/true).ok());
  EXPECT_EQ(Answered(), " 3 3");
  EXPECT_TRUE(shelf_.back.empty());
}

TEST_F(ServeRunTest, WhatIsNoneForARunGoesBackAndIsNotHere) {
  const Tensor strings = *Tensor::FromStrings({"x"}, {1});
  const Tensor large = *Tensor::Allocate(DType::kUint8, {kRunTensorBytes + 1});
  const Tensor largest = *Tensor::Allocate(DType::kUint8, {kRunTensorBytes});
  shelf_.here = {{"edge1", strings}, {"edge0", large}};
  ASSERT_TRUE(RequestRun(1).ok());
  EXPECT_EQ(Answered(), "");
  EXPECT_EQ(shelf_.back.size(), 2u);
  slots_.Said(op_);
  shelf_.here = {{"edge1", largest}, {"edge0", largest}};
  notes_.most_run = RunItemBytes(1, kRunTensorBytes) + kRunItemBytes;
  ASSERT_TRUE(RequestRun(2).ok());
  EXPECT_EQ(Answered(), " 1024 n") << "there is room for one";
  EXPECT_EQ(shelf_.back.size(), 3u);
  slots_.Said(op_);
  notes_.most_run = 2 * kRunItemBytes - 1;
  ASSERT_TRUE(RequestRun(3).ok());
  EXPECT_EQ(Answered(), "") << "there is no room to say what is not here";
}

TEST_F(ServeRunTest, ARunHasKeysThatWereTold) {
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnKey(3, "", true)));
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnKey(3, "abc", true)));
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnKey(3, EncodeRun({0, 7}), true)));
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnKey(3, EncodeRun({0, 2}), true))) << "which is a run";
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnKey(1, EncodeRun({0, 1}), true))) << "itself";
  const std::vector<uint32_t> many(kMostInRun + 1, 0);
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnKey(3, EncodeRun(many), true)));
  EXPECT_TRUE(slots_.OnKey(3, EncodeRun({0, 0}), true).ok());
  // A number that is told anew is the new key's in runs, too.
  ASSERT_TRUE(slots_.OnKey(1, EncodeRun({0, 0}), true).ok());
  ASSERT_TRUE(RequestRun(1).ok());
  EXPECT_EQ(Answered(), " n 3") << "a run has no runs";
}

TEST_F(ServeSlotsTest, TheNextUseOfASlotAcceptsTheFormerAfterItsAnswer) {
  shelf_.is_here = true;
  ASSERT_TRUE(Request(1).ok());
  slots_.Said(op_);
  notes_.Said();
  ASSERT_TRUE(Request(2).ok());
  EXPECT_EQ(notes_.Said(), (Words{"forget 0 waits to be accepted", "answer 0", "retire 3"}));
  EXPECT_TRUE(shelf_.back.empty());
  EXPECT_EQ(op_->generation, 2u);
}

TEST_F(ServeSlotsTest, ACancelGivesBackInEveryStateAndIsAlwaysAnswered) {
  uint32_t generation = 0;
  for (const ServeState state : kHeld) {
    SCOPED_TRACE(ServeStateName(state));
    shelf_.back.clear();
    Bring(state, ++generation);
    EXPECT_EQ(op_->state, state);
    notes_.Said();
    ASSERT_TRUE(slots_.OnCancel(0, generation - 1).ok());
    EXPECT_EQ(TakeSaid(), Words{absl::StrCat("GONE 0 ", generation - 1)}) << "of a former use";
    EXPECT_EQ(op_->state, state);
    ASSERT_TRUE(slots_.OnCancel(0, generation).ok());
    EXPECT_EQ(op_->state, ServeState::kFree);
    EXPECT_EQ(TakeSaid(), (Words{absl::StrCat("forget 0 ", ServeStateName(state)),
                                 absl::StrCat("GONE 0 ", generation)}));
    if (state == ServeState::kTaking) Meet();  // The take hears too late that nobody wants it.
    EXPECT_EQ(shelf_.back, Words{Back()});
    ASSERT_TRUE(slots_.OnCancel(0, generation).ok());
    EXPECT_EQ(TakeSaid(), Words{absl::StrCat("GONE 0 ", generation)}) << "a second one";
  }
  EXPECT_EQ(counters_.cancelled, 3 * std::size(kHeld));
  EXPECT_EQ(counters_.given_back, std::size(kHeld));
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnCancel(2, 1)));
}

TEST_F(ServeSlotsTest, TheWireMaySayGoneLaterOfItsOwnCancelAlone) {
  Bring(ServeState::kReady);
  notes_.Said();
  notes_.gone_later = true;
  ASSERT_TRUE(slots_.OnCancel(0, 4).ok());
  EXPECT_EQ(TakeSaid(), Words{"GONE 0 4"});
  ASSERT_TRUE(slots_.OnCancel(0, 5).ok());
  EXPECT_EQ(TakeSaid(), Words{"forget 0 waits for room on the wire"});
  slots_.SayGone(0, 5);
  EXPECT_EQ(TakeSaid(), Words{"GONE 0 5"});
}

// A callback that gets the tensor may come back to the channel.
TEST_F(ServeSlotsTest, ASlotIsFreeWhenItsTensorGoesBack) {
  Bring(ServeState::kSent);
  shelf_.on_back = [&] {
    EXPECT_EQ(op_->state, ServeState::kFree);
    shelf_.on_back = nullptr;
    slots_.EndAll(ServeEvent::kLeft);
  };
  ASSERT_TRUE(slots_.OnCancel(0, 5).ok());
  EXPECT_EQ(shelf_.back.size(), 1u);
}

TEST_F(ServeSlotsTest, AfterABreakNothingIsAnsweredBeforeItIsNamed) {
  Bring(ServeState::kTaking);
  slots_.Disconnect();
  Meet();
  EXPECT_TRUE(notes_.Said().empty());
  Connect(2);
  EXPECT_EQ(rows_.epochs, 2);
  EXPECT_TRUE(notes_.Said().empty());
  ASSERT_TRUE(Request(5, /*again=*/true).ok());
  EXPECT_EQ(notes_.Said(), Words{"answer 0"});
  EXPECT_EQ(counters_.resent, 0u);
  slots_.Said(op_);
  ASSERT_TRUE(Request(5, /*again=*/true).ok());
  EXPECT_EQ(notes_.Said(), Words{"answer 0"});
  EXPECT_EQ(counters_.resent, 1u);
  EXPECT_EQ(shelf_.asked.size(), 1u) << "taken once";
}

TEST_F(ServeSlotsTest, ARepeatNamesTheKeyAndStepThatItHad) {
  for (const ServeState state : {ServeState::kTaking, ServeState::kReady, ServeState::kSent}) {
    Bring(state);
    EXPECT_TRUE(absl::IsDataLoss(Request(5, /*again=*/true, 0, false, /*key=*/1)));
    ServeRequest other;
    other.generation = 5;
    other.again = true;
    other.step = kStep + 1;
    EXPECT_TRUE(absl::IsDataLoss(slots_.OnRequest(other)));
    EXPECT_EQ(op_->key.text(), KeyText(0));
    ASSERT_TRUE(slots_.OnCancel(0, 5).ok());
    if (state == ServeState::kTaking) Meet();
  }
}

// The consumer has nothing of what was not sent whole; what was sent it may have accepted, unless
// its link has said that it did not.
TEST_F(ServeSlotsTest, WhatIsNotNamedAfterABreakGoesBackUnlessItMayHaveBeenAccepted) {
  uint64_t epoch = 1;
  for (const ServeEvent unnamed : {ServeEvent::kUnnamed, ServeEvent::kNotAccepted}) {
    for (const ServeState state : {ServeState::kTaking, ServeState::kReady,
                                   ServeState::kNeedsDestination, ServeState::kSent}) {
      SCOPED_TRACE(ServeStateName(state));
      shelf_.back.clear();
      Bring(state, static_cast<uint32_t>(epoch));
      slots_.OnReplayed(unnamed);
      EXPECT_EQ(op_->state, state) << "it was asked for in this epoch";
      slots_.Disconnect();
      Connect(++epoch);
      slots_.OnReplayed(unnamed);
      EXPECT_EQ(op_->state, ServeState::kFree);
      if (state == ServeState::kTaking) Meet();
      const bool may_have_it = state == ServeState::kSent && unnamed == ServeEvent::kUnnamed;
      EXPECT_EQ(shelf_.back.size(), may_have_it ? 0u : 1u);
    }
  }
}

TEST_F(ServeSlotsTest, WhatAConsumerLeavesGoesBackUnlessItWasSent) {
  uint32_t generation = 0;
  for (const ServeState state : {ServeState::kReady, ServeState::kNeedsDestination,
                                 ServeState::kStaging, ServeState::kInParts, ServeState::kSent}) {
    SCOPED_TRACE(ServeStateName(state));
    shelf_.back.clear();
    Connect(generation + 1);
    Bring(state, ++generation);
    slots_.Disconnect();
    slots_.EndAll(ServeEvent::kLeft);
    EXPECT_EQ(op_->state, ServeState::kFree);
    EXPECT_EQ(shelf_.back.size(), state == ServeState::kSent ? 0u : 1u);
  }
}

TEST_F(ServeSlotsTest, ASlotThatIsUsedAnewAfterABreakGivesBackWhatItHad) {
  for (const ServeState state :
       {ServeState::kTaking, ServeState::kReady, ServeState::kNeedsDestination}) {
    SCOPED_TRACE(ServeStateName(state));
    shelf_.back.clear();
    Bring(state, 5);
    EXPECT_TRUE(absl::IsDataLoss(Request(6))) << "not in one epoch";
    slots_.Disconnect();
    Connect(slots_.at(0)->asked_epoch + 1);
    const size_t asked = shelf_.asked.size();
    ASSERT_TRUE(Request(6).ok());
    if (state == ServeState::kTaking) Meet();  // The former take; the next waits for its end.
    EXPECT_EQ(shelf_.back, Words{Back()});
    EXPECT_EQ(shelf_.asked.size(), asked + 1);
    EXPECT_EQ(op_->state, ServeState::kTaking);
    ASSERT_TRUE(slots_.OnCancel(0, 6).ok());
    Meet();
    op_->generation = 0;
  }
}

TEST_F(ServeSlotsTest, GenerationsGoRoundAtTheirBits) {
  shelf_.is_here = true;
  for (const uint32_t generation : {40'000u, 65'535u, 0u, 1u}) {
    ASSERT_TRUE(Request(generation).ok()) << generation;
    slots_.Said(op_);
  }
  EXPECT_TRUE(absl::IsDataLoss(Request(65'535))) << "it is over";
  EXPECT_TRUE(absl::IsDataLoss(Request(1 + 32'768))) << "half of the range ahead is behind";
  EXPECT_TRUE(Request(32'768).ok());
}

TEST_F(ServeSlotsTest, AFetchThatWaitsIsParkedAndSaidToBeHere) {
  ASSERT_TRUE(Request(5, false, /*ticket=*/9, /*may_park=*/true).ok());
  EXPECT_EQ(op_->state, ServeState::kFree);
  EXPECT_EQ(TakeSaid(), Words{"PARKED 0 5"});
  EXPECT_EQ(counters_.parked, 1u);
  // One is parked at most here.
  ASSERT_TRUE(Request(6, false, /*ticket=*/10, /*may_park=*/true, /*key=*/1).ok());
  EXPECT_EQ(op_->state, ServeState::kTaking);
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnWaits(11, kStep, 1)));
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnWaits(9, kStep, 3))) << "a key that was never named";
  std::swap(shelf_.asked[0], shelf_.asked[1]);
  Meet();
  EXPECT_TRUE(slots_.has_words());
  notes_.has_room = false;
  EXPECT_FALSE(slots_.SayWords());
  notes_.has_room = true;
  EXPECT_EQ(TakeSaid(), Words{"HERE 9"});
  ASSERT_TRUE(slots_.OnCancel(0, 6).ok());
  notes_.Said();
  ASSERT_TRUE(Request(7, false, /*ticket=*/9).ok());
  EXPECT_EQ(op_->state, ServeState::kReady);
  EXPECT_EQ(notes_.Said(), (Words{"answer 0"}));
}

TEST_F(ServeSlotsTest, ParkChangesNothingWhereAnAnswerIsDue) {
  EXPECT_TRUE(slots_.OnPark(0, 0, 9).ok());
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnPark(2, 0, 9)));
  uint32_t generation = 0;
  for (const ServeState state : kHeld) {
    Bring(state, ++generation);
    (void)TakeSaid();
    ASSERT_TRUE(slots_.OnPark(0, generation - 1, 9).ok());
    EXPECT_EQ(op_->state, state);
    ASSERT_TRUE(slots_.OnPark(0, generation, 9).ok());
    const bool parks = state == ServeState::kTaking;
    EXPECT_EQ(op_->state, parks ? ServeState::kFree : state);
    EXPECT_EQ(TakeSaid().size(), parks ? 1u : 0u);
    const uint64_t tickets[] = {9};
    slots_.OnUnwanted(tickets);
    if (parks) Meet();
    ASSERT_TRUE(slots_.OnCancel(0, generation).ok());
  }
}

TEST_F(ServeSlotsTest, AReadIsHeardWhereItCanBe) {
  uint32_t generation = 0;
  for (const ServeState state : kHeld) {
    SCOPED_TRACE(ServeStateName(state));
    shelf_.back.clear();
    Bring(state, ++generation);
    EXPECT_TRUE(absl::IsDataLoss(slots_.OnRead(0, generation + 1, false)));
    if (state != ServeState::kPulled) {
      EXPECT_TRUE(absl::IsDataLoss(slots_.OnRead(0, generation, true)));
    }
    ASSERT_TRUE(slots_.OnCancel(0, generation).ok());
    if (state == ServeState::kTaking) Meet();
    EXPECT_EQ(shelf_.back.size(), 1u);
  }
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnRead(2, 1, false)));
  shelf_.back.clear();
  Bring(ServeState::kPulled, 50);
  notes_.Said();
  ASSERT_TRUE(slots_.OnRead(0, 50, /*failed=*/true).ok());
  EXPECT_EQ(notes_.Said(), Words{"answer 0"});
  slots_.Lent(op_);
  ASSERT_TRUE(slots_.OnRead(0, 50, /*failed=*/false).ok());
  EXPECT_EQ(op_->state, ServeState::kFree);
  EXPECT_EQ(counters_.pulled, 1u);
  EXPECT_TRUE(shelf_.back.empty());
}

// What is lent stays so: the consumer may read it still.
TEST_F(ServeSlotsTest, TheEndOfALinkKeepsAllAndWhatItSentIsHereAgain) {
  uint32_t generation = 0;
  for (const ServeState state : kHeld) {
    SCOPED_TRACE(ServeStateName(state));
    shelf_.back.clear();
    Bring(state, ++generation);
    slots_.Disconnect();
    const bool was_sent = state == ServeState::kStaging || state == ServeState::kInParts;
    EXPECT_EQ(op_->state, was_sent ? ServeState::kReady : state);
    if (state == ServeState::kPulled) {
      slots_.Unlinked(op_);
      EXPECT_EQ(op_->state, ServeState::kReady);
    }
    EXPECT_TRUE(shelf_.back.empty());
    Connect(generation + 1);
    slots_.OnReplayed(ServeEvent::kUnnamed);
    EXPECT_EQ(op_->state, ServeState::kFree);
    if (state == ServeState::kTaking) Meet();
    EXPECT_EQ(shelf_.back.size(), state == ServeState::kSent ? 0u : 1u);
  }
}

TEST_F(ServeSlotsTest, WhatCannotBeSentGoesBackAndTheErrorStays) {
  Bring(ServeState::kReady);
  EXPECT_TRUE(slots_.FailTaken(op_, absl::UnimplementedError("not here")));
  EXPECT_EQ(shelf_.back, Words{Back()});
  EXPECT_TRUE(absl::IsUnimplemented(op_->status));
  EXPECT_EQ(op_->state, ServeState::kReady);
  slots_.Said(op_);
  EXPECT_EQ(op_->state, ServeState::kSent);
  slots_.OnAccepted(op_);
  EXPECT_EQ(op_->state, ServeState::kFree);
  EXPECT_TRUE(op_->status.ok());
  EXPECT_EQ(shelf_.back.size(), 1u);
}

TEST_F(ServeSlotsTest, WhoGetsWhatCannotBeSentMayEndTheChannel) {
  Bring(ServeState::kReady);
  shelf_.on_back = [&] {
    shelf_.on_back = nullptr;
    slots_.DropTakes();
    slots_.EndAll(ServeEvent::kLeft);
  };
  EXPECT_FALSE(slots_.FailTaken(op_, absl::UnimplementedError("not here")));
  EXPECT_EQ(op_->state, ServeState::kFree);
  EXPECT_EQ(shelf_.back.size(), 1u);
}

TEST_F(ServeSlotsTest, NothingIsTakenOnceAGiveBackHasEndedTheChannel) {
  Bring(ServeState::kReady);
  slots_.Disconnect();
  Connect(2);
  shelf_.on_back = [&] {
    shelf_.on_back = nullptr;
    slots_.DropTakes();
    slots_.EndAll(ServeEvent::kLeft);
  };
  EXPECT_TRUE(Request(6).ok());
  EXPECT_EQ(op_->state, ServeState::kFree);
  EXPECT_EQ(shelf_.asked.size(), 1u);
}

TEST_F(ServeSlotsTest, AnErrorGoesBackToNobody) {
  ASSERT_TRUE(Request(5).ok());
  shelf_.Meet(absl::NotFoundError("none"));
  poller_.Turn();
  EXPECT_TRUE(absl::IsNotFound(op_->status));
  ASSERT_TRUE(slots_.OnCancel(0, 5).ok());
  EXPECT_TRUE(shelf_.back.empty());
  EXPECT_EQ(counters_.given_back, 0u);
}

TEST_F(ServeSlotsTest, OnlyWhatWasNamedIsTaken) {
  EXPECT_TRUE(absl::IsDataLoss(Request(1, false, 0, false, /*key=*/3)));
  ServeRequest far;
  far.slot = 2;
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnRequest(far)));
  EXPECT_EQ(slots_.used(), 0u);
  EXPECT_TRUE(slots_.OnKey(2, KeyText(2)).ok());
  EXPECT_TRUE(Request(1, false, 0, false, /*key=*/2).ok());
  EXPECT_EQ(slots_.told_keys(), 3u);
}

// A consumer tells its keys anew over each link, and all of them are one consumer's.
TEST_F(ServeSlotsTest, KeysThatWereToldOverAnEarlierLinkTakeNoRoom) {
  for (uint64_t epoch = 2; epoch < 100; ++epoch) {
    slots_.Disconnect();
    Connect(epoch);
    ASSERT_FALSE(HasFailure()) << "link " << epoch;
  }
  EXPECT_EQ(slots_.told_keys(), 2u);
  EXPECT_TRUE(Request(5).ok());
}

// The consumer counts it so, too: else its link would end although it keeps to the bound.
TEST_F(ServeSlotsTest, ARunCountsForItsListAndNotForAKeysText) {
  const auto longest = [](int number) {
    return absl::StrReplaceAll(KeyText(number), {{"edge", std::string(850, 'e')}});
  };
  for (uint32_t number : {0, 1}) {
    ASSERT_TRUE(slots_.OnKey(number, longest(static_cast<int>(number)), false).ok());
  }
  for (uint32_t number : {2, 3, 2, 3}) {
    ASSERT_TRUE(slots_.OnKey(number, EncodeRun({0, 1}), /*is_run=*/true).ok());
  }
  EXPECT_TRUE(absl::IsDataLoss(slots_.OnKey(2, longest(2), false))) << "there is no room for it";
}

TEST_F(ServeSlotsTest, ViewsSayWhatSlotsWaitFor) {
  Bring(ServeState::kTaking);
  EXPECT_EQ(slots_.Explain(": ", "; "), ": 1 waits for the local Send");
  LiveOps ops(8);
  slots_.ListOps(&ops);
  const std::vector<LiveOp> live = ops.Take();
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].peer, kFetcher);
  EXPECT_EQ(live[0].step, kStep);
  // One without a slot is listed beside it, as of the same consumer and path.
  ASSERT_TRUE(slots_.OnWaits(9, kStep, 1).ok());
  slots_.ListOps(&ops);
  const std::vector<LiveOp> both = ops.Take();
  ASSERT_EQ(both.size(), 2u);
  for (const LiveOp& op : both) {
    EXPECT_EQ(op.peer, kFetcher);
    EXPECT_EQ(op.path, "test");
  }
}

TEST_F(ServeSlotsTest, WhatIsHeldWithoutALinkWaitsForItsConsumer) {
  Bring(ServeState::kTaking);
  Meet();
  ASSERT_NE(op_->state, ServeState::kTaking);
  slots_.Disconnect();
  EXPECT_EQ(op_->span.waits_for(), WaitsFor::kConsumer);
}

TEST_F(ServeSlotsTest, ATensorIsOnItsWayFromItsSendUntilItArrives) {
  uint16_t generation = 0;
  for (const ServeState state : kHeld) {
    Bring(state, ++generation);
    const bool goes = state != ServeState::kTaking && state != ServeState::kSent;
    EXPECT_EQ(slots_.Coming(), goes ? 1u : 0u) << ServeStateName(state);
    if (state == ServeState::kTaking) Meet();
    notes_.arrives = false;
    EXPECT_EQ(slots_.Coming(), 1u) << ServeStateName(state);
    notes_.arrives = true;
    ASSERT_TRUE(slots_.OnCancel(0, generation).ok());
    EXPECT_EQ(slots_.Coming(), 0u);
  }
}

TEST_F(ServeSlotsTest, AFailureIsNotOnItsWay) {
  ASSERT_TRUE(Request(1).ok());
  shelf_.Meet(absl::AbortedError("the step is over"));
  poller_.Turn();
  EXPECT_EQ(op_->state, ServeState::kReady);
  EXPECT_EQ(slots_.Coming(), 0u);
  notes_.arrives = false;
  slots_.Said(op_);
  EXPECT_EQ(slots_.Coming(), 0u);
}

TEST_F(ServeSlotsTest, WhatWasSentBeforeABreakIsOnItsWayUntilTheConsumerSpeaksOfIt) {
  Bring(ServeState::kSent);
  slots_.Disconnect();
  EXPECT_EQ(slots_.Coming(), 0u) << "nobody may come for it";
  Connect(2);
  EXPECT_EQ(slots_.Coming(), 1u) << "it may be asked for again";
  ASSERT_TRUE(Request(5, /*again=*/true).ok());
  EXPECT_EQ(slots_.Coming(), 1u);
  slots_.Said(op_);
  EXPECT_EQ(slots_.Coming(), 0u);
}

TEST_F(ServeSlotsTest, WhatIsHereForATicketIsOnItsWay) {
  ASSERT_TRUE(Request(5, false, /*ticket=*/9, /*may_park=*/true).ok());
  EXPECT_EQ(slots_.Coming(), 0u) << "it waits for its Send";
  Meet();
  EXPECT_EQ(slots_.Coming(), 1u);
  slots_.OnUnwanted({9});
  EXPECT_EQ(slots_.Coming(), 0u);
  ASSERT_TRUE(slots_.OnWaits(10, kStep, 1).ok());
  shelf_.Meet(absl::AbortedError("the step is over"));
  poller_.Turn();
  EXPECT_EQ(slots_.Coming(), 0u) << "a failure";
}

// Each row that the code can take by itself was taken above, or is named here.
TEST(ServeTableTest, EachStateIsLeftByItsRows) {
  for (size_t s = 0; s < kServeStateCount; ++s) {
    const auto state = static_cast<ServeState>(s);
    const bool held = state != ServeState::kFree;
    // Whoever leaves ends what is held, and a cancel does. What a link was sending, or had lent,
    // ends with the link, before that.
    const bool of_link = state == ServeState::kStaging || state == ServeState::kInParts ||
                         state == ServeState::kPulled;
    EXPECT_EQ(FindServeRow(state, ServeEvent::kLeft) != nullptr, held && !of_link)
        << ServeStateName(state);
    EXPECT_EQ(FindServeRow(state, ServeEvent::kCancel) != nullptr, held) << ServeStateName(state);
    EXPECT_NE(FindServeRow(state, ServeEvent::kLateCancel), nullptr);
    EXPECT_NE(FindServeRow(state, ServeEvent::kPark), nullptr);
    for (size_t e = 0; e < kServeEventCount; ++e) {
      const auto event = static_cast<ServeEvent>(e);
      const ServeRow* row = FindServeRow(state, event);
      if (row == nullptr) continue;
      const bool ends = row->action == ServeAction::kGiveBack || row->action == ServeAction::kLetGo;
      EXPECT_EQ(ends, held && row->next == ServeState::kFree && event != ServeEvent::kParked);
    }
  }
}

}  // namespace
}  // namespace tryst
