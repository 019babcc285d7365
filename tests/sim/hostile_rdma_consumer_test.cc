// A producer's end of an RDMA channel against a consumer that says whatever it likes.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/farewell.h"
#include "channel/ops/limits.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/serve_link.h"
#include "channel/rdma/serve_source.h"
#include "gtest/gtest.h"
#include "rendezvous/tensor_source.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";
constexpr uint32_t kMostParked = 300;

constexpr uint64_t kTurn = 77;  // Whatever is taken has it.

// Has nothing until the test says so.
class Nothing final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey&, const RecvArgs&, DoneFn done) override {
    waiting_.push_back(std::move(done));
  }
  bool TakeHere(int64_t, TensorKey*, Place*, Received*) override { return false; }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t, const TensorKey& key, Received taken) override {
    back.push_back(taken.turn);
    back_keys.emplace_back(key.text());
  }
  size_t asked() const { return waiting_.size(); }
  void Meet(size_t which, Tensor tensor) {
    Received received{absl::OkStatus(), std::move(tensor)};
    received.turn = kTurn;
    std::move(waiting_[which])(std::move(received));
    waiting_[which] = nullptr;
  }
  void EndAll() {
    for (DoneFn& done : std::exchange(waiting_, {})) {
      if (done) std::move(done)({absl::CancelledError("over")});
    }
  }
  std::vector<uint64_t> back;          // The turns of what was given back,
  std::vector<std::string> back_keys;  // and its keys.

 private:
  std::vector<DoneFn> waiting_;
};

// Says what it is told to say as there is room for it, and counts the tensors that it hears of.
class Liar final : public MessageLink::Owner {
 public:
  absl::Status OnRecord(const wire::Record& record) override {
    tensors += record.type == wire::RecordType::kTensor;
    failures += record.type == wire::RecordType::kFailed;
    if (record.type == wire::RecordType::kGone && on_gone) on_gone();
    if (record.type != wire::RecordType::kLanded) return absl::OkStatus();
    ++landed;
    has_digest = (record.flags & wire::kHasDigest) != 0;
    announced_parts = wire::DecodeMeta(record, nullptr)->stripes;
    return absl::OkStatus();
  }
  absl::Status OnTensorPart(size_t, uint16_t, uint16_t) override {
    ++parts;
    return absl::OkStatus();
  }
  void OnAccepted() override {}
  void OnWritesDone() override {}
  void OnFlush() override {}
  void OnBroken(const absl::Status&) override {}
  void OnDrained() override {}
  int tensors = 0;
  int failures = 0;
  int landed = 0;  // Tensors of which it was told that they were written; of the last of them:
  bool has_digest = false;
  int announced_parts = 0;
  int parts = 0;
  std::function<void()> on_gone;  // The producer has nothing more of what was cancelled.
};

class HostileRdmaConsumerTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kSlots = 4;

  explicit HostileRdmaConsumerTest(uint32_t slots = kSlots,
                                   const SimNicOptions& nic = SimNicOptions(), bool digests = true,
                                   uint32_t queue_pairs = 1)
      : world_(1), poller_(&world_.clock()) {
    SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
    nic_ = world_.OpenNic(0, nic);
    hostile_nic_ = world_.OpenNic(1, nic);
    hub_ = *QueueHub::Create(nic_.get(), &poller_, 512);
    hub_->Attach();
    hostile_hub_ = *QueueHub::Create(hostile_nic_.get(), &poller_, 512);
    hostile_hub_->Attach();
    options_.slots = kSlots;
    options_.ring_slots = 16;
    options_.message_bytes = 8192;
    options_.digests = digests;
    options_.queue_pairs = queue_pairs;
    RdmaOptions rdma;
    rdma.link = options_;
    ServeSessionOptions serve;
    serve.max_parked = kMostParked;
    serve.self = kProducer;
    serve.self_incarnation = 1;
    serve.retain_ms = 1000;
    options_.slots = slots;
    link_ = *MessageLink::Create(hostile_hub_.get(), options_, 1, &liar_);
    kind_ = RdmaServeLink::Kind("rdma", hub_.get(), rdma);
    producer_ = std::make_unique<ServeSession>(&poller_, &source_, serve, HelloOf(1), kSession);
    const absl::Status joined = Join(1);
    TRYST_CHECK(joined.ok()) << joined;
  }

  Hello HelloOf(uint64_t epoch) {
    Hello hello;
    hello.worker = kConsumer;
    hello.incarnation = 2;
    hello.epoch = epoch;
    hello.path = "rdma";
    hello.protocol_newest = kProtocolNewest;
    link_->DescribeTo(&hello, 5);
    return hello;
  }
  absl::Status Join(uint64_t epoch) {
    absl::StatusOr<Hello> answer = absl::UnknownError("none");
    producer_->OnHello(HelloOf(epoch), &kind_,
                       [&](absl::StatusOr<Hello> its) { answer = std::move(its); });
    for (int i = 0; i < 100; ++i) Settle();
    if (!answer.ok()) return answer.status();
    answered_ = *answer;
    const absl::Status connected = link_->Connect(*answer);
    Settle();
    TRYST_CHECK(!connected.ok() || IsServed());
    return connected;
  }
  // The former link breaks, and there is another one.
  void JoinAgain(uint64_t epoch) {
    link_->Break(absl::CancelledError("the next one"));
    for (int i = 0; i < 1000 && !link_->drained(); ++i) Settle();
    link_ =
        *MessageLink::Create(hostile_hub_.get(), options_, static_cast<uint32_t>(epoch), &liar_);
    const absl::Status joined = Join(epoch);
    ASSERT_TRUE(joined.ok()) << joined;
  }

  ~HostileRdmaConsumerTest() override {
    producer_->Close(absl::CancelledError("over"));
    link_->Break(absl::CancelledError("over"));
    source_.EndAll();
    for (int i = 0; i < 1000 && !(producer_->Drained() && link_->drained()); ++i) Settle();
    EXPECT_TRUE(producer_->Drained());
    producer_.reset();
    link_.reset();
    hub_->Detach();
    hostile_hub_->Detach();
    SetLogSink(nullptr);
    for (const std::string& violation : world_.violations()) ADD_FAILURE() << violation;
  }

  void Settle(int64_t ns = 100'000) {
    world_.RunFor(ns);
    while (poller_.Turn()) {
    }
  }
  bool IsServed() const { return producer_->View().health == PathHealth::kWorking; }
  // False: the link has ended.
  bool Say(const wire::Record& record) {
    for (int i = 0; i < 1000; ++i) {
      if (!IsServed() || link_->broken()) return false;
      if (link_->Send(record)) {
        link_->FlushSoon();
        return true;
      }
      link_->FlushSoon();
      Settle();
    }
    return false;
  }
  static std::string KeyOf(uint32_t number, size_t bytes) {
    std::string key = absl::StrCat(kProducer, "/device:CPU:0;0000000000000001;", kConsumer,
                                   "/device:CPU:0;", number, "x");
    return key + std::string(bytes - key.size() - 4, 'x') + ";0:0";
  }
  bool SayRequest(uint16_t slot, uint16_t generation, uint8_t flags = 0,
                  uint64_t destination_bytes = 0, const Region* into = nullptr) {
    wire::Record record;
    record.type = wire::RecordType::kRequest;
    record.flags = flags;
    record.slot = slot;
    record.generation = generation;
    wire::RequestBody body;
    body.step = 1;
    body.destination_bytes = destination_bytes;
    if (into != nullptr) {
      body.destination_address = into->address();
      body.destination_key = into->remote_key();
    }
    const bool said =
        link_->Put([&](wire::MessageWriter* writer) { return writer->AddRequest(record, body); });
    link_->FlushSoon();
    for (int i = 0; i < 10; ++i) Settle();
    return said;
  }
  static Tensor One() { return *Tensor::Allocate(DType::kInt64, {}); }
  // Asks for a tensor of so many bytes, and gets it into its own memory.
  void GetLarge(int64_t bytes) {
    std::vector<uint8_t> memory(static_cast<size_t>(bytes));
    const auto region =
        *hostile_nic_->RegisterRegion(memory.data(), memory.size(), kLocalWrite | kRemoteWrite);
    ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
    ASSERT_TRUE(SayRequest(0, 5, wire::kHasDestination, memory.size(), region.get()));
    Meet(source_.asked() - 1, *Tensor::Allocate(DType::kUint8, {bytes}));
    ASSERT_EQ(liar_.landed, 1);
  }
  void Meet(size_t which, const Tensor& tensor) {
    source_.Meet(which, tensor);
    for (int i = 0; i < 10; ++i) Settle();
  }
  bool SayReplayed() {
    wire::Record record;
    record.type = wire::RecordType::kReplayed;
    const bool said = Say(record);
    for (int i = 0; i < 10; ++i) Settle();
    return said;
  }
  bool SayKey(uint32_t number, const std::string& text) {
    wire::Record record;
    record.type = wire::RecordType::kKey;
    record.number = number;
    record.body = text;
    return Say(record);
  }

  static constexpr uint64_t kSession = 6;
  SimWorld world_;
  Poller poller_;
  LinkOptions options_;  // The consumer's.
  Hello answered_;
  Nothing source_;
  Liar liar_;
  std::unique_ptr<SimNic> nic_;
  std::unique_ptr<SimNic> hostile_nic_;
  std::unique_ptr<QueueHub> hub_;
  std::unique_ptr<QueueHub> hostile_hub_;
  std::unique_ptr<MessageLink> link_;
  ServeKind kind_;
  std::unique_ptr<ServeSession> producer_;
};

TEST_F(HostileRdmaConsumerTest, KeysAreRememberedUpToSoManyBytes) {
  uint32_t told = 0;
  while (told < limits::kMaxKeys && SayKey(told, KeyOf(told, limits::kMaxKeyBytes))) ++told;
  EXPECT_FALSE(IsServed());
  // What is under way when the last one is refused was told, too.
  EXPECT_LE(uint64_t{told}, limits::kMaxKeysBytes / limits::kMaxKeyBytes + 64);
  EXPECT_GE(uint64_t{told}, limits::kMaxKeysBytes / limits::kMaxKeyBytes);
}

TEST_F(HostileRdmaConsumerTest, AKeyToldAnewTakesThePlaceOfTheFormer) {
  for (uint32_t i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(SayKey(i % 4, KeyOf(i, limits::kMaxKeyBytes))) << i;
  }
  EXPECT_TRUE(IsServed());
}

TEST_F(HostileRdmaConsumerTest, AListOfTicketsThatIsCutShortBreaksTheLink) {
  uint64_t epoch = 1;
  for (const auto type :
       {wire::RecordType::kUnwanted, wire::RecordType::kPark, wire::RecordType::kWaits}) {
    wire::Record record;
    record.type = type;
    record.body = "short";
    EXPECT_TRUE(Say(record));
    for (int i = 0; i < 20; ++i) Settle();
    EXPECT_FALSE(IsServed());
    JoinAgain(++epoch);
  }
}

TEST_F(HostileRdmaConsumerTest, SoManyRequestsWaitWithoutASlot) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  uint32_t told = 0;
  for (bool served = true; served && told < 10 * kMostParked; told += served) {
    wire::WaitsBody body;
    body.step = 1;
    body.ticket = told + 1;
    const std::string bytes = wire::EncodeWaits(body);
    wire::Record record;
    record.type = wire::RecordType::kWaits;
    record.body = bytes;
    served = Say(record);
    Settle();
  }
  EXPECT_FALSE(IsServed());
  EXPECT_LE(told, kMostParked + 2) << "the one too many, and one under way";
  EXPECT_EQ(source_.asked(), kMostParked);
}

// It would be read as far as one without a fault goes.
TEST_F(HostileRdmaConsumerTest, ARequestThatIsCutShortEndsTheLink) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  wire::Record record;
  record.type = wire::RecordType::kRequest;
  record.body = "short";
  record.generation = 5;
  (void)Say(record);
  for (int i = 0; i < 100; ++i) Settle();
  EXPECT_FALSE(IsServed());
  EXPECT_EQ(source_.asked(), 0u);
}

class FewSlotsTest : public HostileRdmaConsumerTest {
 protected:
  FewSlotsTest() : HostileRdmaConsumerTest(kSlots / 2) {}
};

TEST_F(FewSlotsTest, AConsumerHasTheSlotsThatItAskedFor) {
  EXPECT_EQ(wire::DecodeParameters(answered_.parameters)->slots, kSlots / 2);
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(kSlots / 2 - 1, 5));
  EXPECT_TRUE(IsServed());
  EXPECT_EQ(source_.asked(), 1u);
  (void)SayRequest(kSlots / 2, 5);
  EXPECT_FALSE(IsServed());
  EXPECT_EQ(source_.asked(), 1u);
}

// Its NIC keeps no order: it counts the writes, and has the tensor when all that were announced are
// there.
class UnorderedTest : public HostileRdmaConsumerTest {
 protected:
  static constexpr uint32_t kMostBytes = 64 << 10;
  UnorderedTest() : HostileRdmaConsumerTest(kSlots, Unordered()) {}
  static SimNicOptions Unordered() {
    SimNicOptions options;
    options.limits.ordered = false;
    options.limits.max_message_bytes = kMostBytes;
    return options;
  }
};

TEST_F(UnorderedTest, EachWriteOfATensorIsAnnounced) {
  GetLarge(kMostBytes + 1);
  EXPECT_EQ(liar_.parts, 2);
  EXPECT_EQ(liar_.announced_parts, 2);
}

// Half of the writes are late, and GONE would overtake them.
TEST_F(UnorderedTest, NoByteComesOnceTheProducerSaysThatItIsGone) {
  constexpr int64_t kBytes = 300 * kMostBytes;  // More writes than may be under way.
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  for (uint16_t i = 0; i < 20; ++i) {
    std::vector<uint8_t> memory(kBytes);
    auto region =
        *hostile_nic_->RegisterRegion(memory.data(), memory.size(), kLocalWrite | kRemoteWrite);
    bool is_gone = false;
    liar_.on_gone = [&] {
      region.reset();  // A write that comes now breaks the link.
      is_gone = true;
    };
    ASSERT_TRUE(SayRequest(0, i, wire::kHasDestination, memory.size(), region.get()));
    source_.Meet(i, *Tensor::Allocate(DType::kUint8, {kBytes}));
    wire::Record cancel;
    cancel.type = wire::RecordType::kCancel;
    cancel.generation = i;
    ASSERT_TRUE(link_->Send(cancel));
    link_->FlushSoon();
    for (int turn = 0; turn < 10'000 && !is_gone; ++turn) Settle(1000);
    ASSERT_TRUE(is_gone) << i;
    ASSERT_EQ(liar_.landed, 0) << "it was all written before the producer heard of the cancel";
    for (int turn = 0; turn < 10; ++turn) Settle();
    ASSERT_TRUE(IsServed()) << i;
  }
  liar_.on_gone = nullptr;
}

// A send behind each write tells of it.
class NoImmediatesTest : public HostileRdmaConsumerTest {
 protected:
  NoImmediatesTest() : HostileRdmaConsumerTest(kSlots, NoImmediates()) {}
  static SimNicOptions NoImmediates() {
    SimNicOptions options;
    options.limits.write_with_immediate = false;
    return options;
  }
};

TEST_F(NoImmediatesTest, WhatIsWrittenIsToldAllTheSame) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  for (uint16_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(SayRequest(0, static_cast<uint16_t>(5 + i)));
    Meet(i, One());
    EXPECT_EQ(liar_.tensors, 1 + i);
  }
  EXPECT_TRUE(IsServed());
}

class TwoLanesTest : public HostileRdmaConsumerTest {
 protected:
  TwoLanesTest() : HostileRdmaConsumerTest(kSlots, SimNicOptions(), true, /*queue_pairs=*/2) {}
  void SayCancel(uint16_t generation) {
    wire::Record cancel;
    cancel.type = wire::RecordType::kCancel;
    cancel.generation = generation;
    ASSERT_TRUE(Say(cancel));
  }
};

// Else a consumer could have it hold as many copies of one tensor of strings as it asks for.
TEST_F(TwoLanesTest, WhatIsStuckOnOneLaneKeepsNothingOfTheOther) {
  WorkFault lost;
  lost.action = FaultAction::kLose;
  lost.point = FaultPoint::kCompleted;
  world_.Inject(nic_->queue_pair(1), 0, lost);
  GetLarge(4 << 20);
  SayCancel(5);
  for (int i = 0; i < 10; ++i) Settle();
  std::vector<uint8_t> memory(64 << 10);
  const auto region =
      *hostile_nic_->RegisterRegion(memory.data(), memory.size(), kLocalWrite | kRemoteWrite);
  Tensor strings = *Tensor::Allocate(DType::kString, {1});
  strings.mutable_strings()[0] = std::string(32 << 10, 's');
  const size_t regions = nic_->regions();
  for (uint16_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(SayRequest(0, static_cast<uint16_t>(6 + i), wire::kHasDestination, memory.size(),
                           region.get()));
    source_.Meet(source_.asked() - 1, strings);
    // It still writes, or has written.
    if (i % 2 == 1) Settle();
    SayCancel(static_cast<uint16_t>(6 + i));
    for (int turn = 0; turn < 10; ++turn) Settle();
    ASSERT_TRUE(IsServed()) << i;
  }
  EXPECT_GE(liar_.landed, 50);
  EXPECT_LE(nic_->regions(), regions + 1);
}

class DigestsTest : public HostileRdmaConsumerTest {
 protected:
  explicit DigestsTest(bool digests = true)
      : HostileRdmaConsumerTest(kSlots, SimNicOptions(), digests) {}
};

TEST_F(DigestsTest, AreThereWhereTheyAreAskedFor) {
  GetLarge(1 << 20);
  EXPECT_TRUE(liar_.has_digest);
}

class NoDigestsTest : public DigestsTest {
 protected:
  NoDigestsTest() : DigestsTest(false) {}
};

TEST_F(NoDigestsTest, AreNotReckonedWhereNobodyAsks) {
  GetLarge(1 << 20);
  EXPECT_FALSE(liar_.has_digest);
}

TEST_F(HostileRdmaConsumerTest, AHelloOfAnEpochThatIsOverOpensNothing) {
  for (const uint64_t epoch : {0, 1}) {
    absl::Status answered;
    producer_->OnHello(HelloOf(epoch), &kind_,
                       [&](absl::StatusOr<Hello> answer) { answered = answer.status(); });
    EXPECT_EQ(answered.code(), absl::StatusCode::kAborted) << answered;
  }
  Settle();
  EXPECT_TRUE(IsServed()) << "it has ended the link in use";
}

TEST_F(HostileRdmaConsumerTest, ARequestOfAGenerationThatIsOverTakesNothing) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5));
  ASSERT_EQ(source_.asked(), 1u);
  SayRequest(0, 4);
  EXPECT_EQ(source_.asked(), 1u);
  EXPECT_FALSE(IsServed());
}

TEST_F(HostileRdmaConsumerTest, WhatIsAcceptedIsLetGoOf) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5));
  const Tensor tensor = One();
  Meet(0, tensor);
  EXPECT_EQ(liar_.tensors, 1);
  EXPECT_FALSE(tensor.storage()->unique()) << "it is let go of before it was accepted";
  link_->Accept(0, 5);  // All before this one.
  for (int i = 0; i < 100; ++i) Settle();
  EXPECT_FALSE(tensor.storage()->unique());
  link_->Accept(0, 6);
  for (int i = 0; i < 100; ++i) Settle();
  EXPECT_TRUE(tensor.storage()->unique());
  EXPECT_TRUE(source_.back.empty());
}

// Nobody gets it by this path. Another path, or a later fetch, may.
TEST_F(HostileRdmaConsumerTest, WhatCannotBeSentGoesBackInItsTurn) {
  constexpr int64_t kLarge = 1 << 20;  // Too large to go without a registration.
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5, wire::kHasDestination, kLarge));
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, {kLarge});
  nic_->FailRegistrations(100);
  Meet(0, tensor);
  EXPECT_LT(nic_->EndFailRegistrations(), 100u);
  EXPECT_EQ(liar_.failures, 1);
  EXPECT_EQ(source_.back, std::vector<uint64_t>{kTurn});
  ASSERT_TRUE(SayRequest(1, 5));
  Meet(1, Tensor());
  EXPECT_EQ(liar_.failures, 2) << "a tensor of no type";
  EXPECT_EQ(source_.back, (std::vector<uint64_t>{kTurn, kTurn}));
  EXPECT_TRUE(tensor.storage()->unique());
  EXPECT_TRUE(IsServed());
}

TEST_F(HostileRdmaConsumerTest, WhatIsNotAskedForAgainGoesBackInItsTurn) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5));
  ASSERT_TRUE(SayRequest(1, 5));
  JoinAgain(2);
  // Met while nobody has asked for it in this epoch: it may have been given up.
  Meet(0, One());
  EXPECT_EQ(liar_.tensors, 0);
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(1, 5, wire::kReplay));
  ASSERT_TRUE(SayReplayed());
  EXPECT_EQ(source_.back, std::vector<uint64_t>{kTurn});
  Meet(1, One());
  EXPECT_EQ(liar_.tensors, 1);
  EXPECT_EQ(source_.asked(), 2u);
}

// Else the producer would give back a tensor under a key that it was not sent under.
TEST_F(HostileRdmaConsumerTest, ARequestIsRepeatedWithTheSameKeyAlone) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5));
  JoinAgain(2);
  Meet(0, One());
  ASSERT_TRUE(SayKey(0, KeyOf(1, 200)));
  (void)SayRequest(0, 5, wire::kReplay);
  EXPECT_FALSE(IsServed());
  JoinAgain(3);
  ASSERT_TRUE(SayReplayed());
  EXPECT_EQ(source_.back_keys, std::vector<std::string>{KeyOf(0, 200)});
}

TEST_F(HostileRdmaConsumerTest, AFarewellOfAnotherSessionWantsNothingBack) {
  for (const uint64_t session : {kSession + 1, kSession}) {
    const uint64_t epoch = session == kSession ? 3 : 1;
    if (epoch != 1) JoinAgain(epoch);
    ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
    ASSERT_TRUE(SayRequest(0, 5));
    Meet(source_.asked() - 1, One());
    Farewell farewell;
    farewell.session = session;
    farewell.wanted.push_back({0, 5});
    absl::Status answered = absl::UnknownError("none");
    producer_->OnFarewell(HelloOf(epoch + 1), farewell,
                          [&](absl::StatusOr<Hello> answer) { answered = answer.status(); });
    EXPECT_TRUE(answered.ok()) << answered;
    EXPECT_EQ(source_.back.size(), session == kSession ? 1u : 0u) << "it may have been accepted";
    for (int i = 0; i < 100; ++i) Settle();
  }
}

// What the take meets has to be back before the other path is asked.
TEST_F(HostileRdmaConsumerTest, AFarewellIsAnsweredWhenItsTakesAreOver) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5));
  bool answered = false;
  producer_->OnFarewell(HelloOf(2), Farewell{kSession, {}},
                        [&](const absl::StatusOr<Hello>&) { answered = true; });
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_FALSE(answered);
  Meet(0, One());
  EXPECT_TRUE(answered);
  EXPECT_EQ(source_.back, std::vector<uint64_t>{kTurn});
}

TEST_F(HostileRdmaConsumerTest, AHelloEndsAFarewellThatWaits) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5));
  absl::Status answered;
  producer_->OnFarewell(HelloOf(2), Farewell{kSession, {}},
                        [&](const absl::StatusOr<Hello>& answer) { answered = answer.status(); });
  JoinAgain(3);
  EXPECT_EQ(answered.code(), absl::StatusCode::kAborted) << answered;
}

// It was given up in words that the break took with it.
TEST_F(HostileRdmaConsumerTest, ASlotThatIsUsedAnewGivesBackWhatItHad) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 5));
  JoinAgain(2);
  Meet(0, One());
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  ASSERT_TRUE(SayRequest(0, 6));
  EXPECT_EQ(source_.back, std::vector<uint64_t>{kTurn});
  EXPECT_EQ(source_.asked(), 2u);
}

TEST_F(HostileRdmaConsumerTest, AConsumerIsGivenUpOnlyIfItStaysAway) {
  const auto pass_retain_ms = [&] {
    world_.RunFor(int64_t{2} * 1000 * 1000 * 1000);
    Settle();
  };
  const auto lose_the_link = [&] {
    wire::Record senseless;
    senseless.type = wire::RecordType::kTensor;
    (void)Say(senseless);
    for (int i = 0; i < 1000 && producer_->View().state != "not connected"; ++i) Settle();
    ASSERT_EQ(producer_->View().state, "not connected");
  };
  lose_the_link();
  JoinAgain(2);
  pass_retain_ms();
  EXPECT_FALSE(producer_->Abandoned()) << "it came back in time";
  lose_the_link();
  pass_retain_ms();
  EXPECT_TRUE(producer_->Abandoned());
}

TEST_F(HostileRdmaConsumerTest, AConsumerWhoseHelloIsRefusedIsGivenUp) {
  absl::Status answered;
  const auto say_badly = [&](ServeSession* producer, Hello hello) {
    hello.parameters = "of no kind";
    answered = absl::UnknownError("not answered");
    producer->OnHello(hello, &kind_,
                      [&answered](absl::StatusOr<Hello> its) { answered = its.status(); });
  };
  // The hello would replace the link that the consumer has already.
  say_badly(producer_.get(), HelloOf(2));
  for (int i = 0; i < 1000 && producer_->View().state != "not connected"; ++i) Settle();
  EXPECT_EQ(answered.code(), absl::StatusCode::kDataLoss) << answered;
  EXPECT_FALSE(producer_->Abandoned());
  world_.RunFor(int64_t{2} * 1000 * 1000 * 1000);
  Settle();
  EXPECT_TRUE(producer_->Abandoned());
  // A producer that has no link yet refuses such a hello as well.
  ServeSessionOptions options;
  options.retain_ms = 1000;
  const auto first =
      std::make_unique<ServeSession>(&poller_, &source_, options, HelloOf(1), kSession);
  say_badly(first.get(), HelloOf(1));
  EXPECT_EQ(answered.code(), absl::StatusCode::kDataLoss) << answered;
  EXPECT_FALSE(first->Abandoned());
  world_.RunFor(int64_t{2} * 1000 * 1000 * 1000);
  Settle();
  EXPECT_TRUE(first->Abandoned());
  first->Close(absl::CancelledError("over"));
}

// There are places for what goes by so many queue pairs, and none behind them.
TEST_F(HostileRdmaConsumerTest, AHelloThatAsksForMoreThanThereIsIsRefused) {
  const Hello good = HelloOf(1);
  Hello many = good;
  many.queue_pairs.assign(kMaxLanes + 1, good.queue_pairs[0]);
  Hello large = good;
  wire::ChannelParameters parameters = *wire::DecodeParameters(good.parameters);
  parameters.message_bytes *= 2;
  wire::EncodeParameters(parameters, reinterpret_cast<uint8_t*>(&large.parameters[0]));
  const auto other =
      std::make_unique<ServeSession>(&poller_, &source_, ServeSessionOptions(), good, kSession);
  for (const Hello& hello : {many, large}) {
    absl::Status answered = absl::UnknownError("not answered");
    other->OnHello(hello, &kind_,
                   [&answered](absl::StatusOr<Hello> its) { answered = its.status(); });
    EXPECT_EQ(answered.code(), absl::StatusCode::kInvalidArgument) << answered;
    EXPECT_EQ(other->View().state, "not connected");
  }
  other->Close(absl::CancelledError("over"));
}

// Simulated honest ends reach these never, or once in thousands of seeds.
class EveryGuardIsReached : public ::testing::Environment {
 public:
  void TearDown() override {
    if (::testing::UnitTest::GetInstance()->test_to_run_count() !=
        ::testing::UnitTest::GetInstance()->total_test_count()) {
      return;
    }
    for (const char* guard :
         {"rare: a request of a generation that is over", "rare: a farewell of another session",
          "rare: a farewell waits for takes",
          "rare: a hello comes while a farewell waits for its takes",
          "rare: a slot is used anew whose request was given up before a break"}) {
      uint64_t sum = 0;
      ForEachGuard([&](absl::string_view name, uint64_t times) {
        if (name == guard) sum += times;
      });
      EXPECT_GT(sum, 0u) << "no test reaches the guard \"" << guard << "\"";
    }
  }
};
const auto* const kReached = ::testing::AddGlobalTestEnvironment(new EveryGuardIsReached);

}  // namespace
}  // namespace tryst
