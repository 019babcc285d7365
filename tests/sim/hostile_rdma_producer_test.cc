// A consumer's end of an RDMA channel against a producer that says whatever it likes, and says it
// late.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/farewell.h"
#include "channel/rdma/fetch_link.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/message_link.h"
#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"
#include "tests/process/pair/path_listener.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";

uint64_t TimesReached(absl::string_view guard) {
  uint64_t sum = 0;
  ForEachGuard([&](absl::string_view name, uint64_t times) {
    if (name == guard) sum += times;
  });
  return sum;
}

// The hellos of the consumer, which the test answers.
class Hellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    asked.push_back(hello);
    answers.push_back(std::move(done));
  }
  std::vector<Hello> asked;
  std::vector<HelloDone> answers;
};

// Writes down what it is asked, and says what the test says.
class Scripted final : public MessageLink::Owner {
 public:
  struct Asked {
    wire::RecordType type;
    uint16_t slot;
    uint16_t generation;
  };
  absl::Status OnRecord(const wire::Record& record) override {
    asked.push_back({record.type, record.slot, record.generation});
    if (record.type == wire::RecordType::kRequest) {
      lent_bytes = wire::DecodeRequest(record)->destination_bytes;
    }
    pongs_due += record.type == wire::RecordType::kPing && answers_pings;
    return absl::OkStatus();
  }
  absl::Status OnTensorPart(size_t, uint16_t, uint16_t) override { return absl::OkStatus(); }
  void OnAccepted() override { ++accepted; }
  void OnWritesDone() override {}
  void OnFlush() override {}
  void OnBroken(const absl::Status&) override {}
  void OnDrained() override {}

  size_t CountOf(wire::RecordType type) const {
    size_t count = 0;
    for (const Asked& one : asked) count += one.type == type;
    return count;
  }
  Asked LastRequest() const {
    for (size_t i = asked.size(); i-- > 0;) {
      if (asked[i].type == wire::RecordType::kRequest) return asked[i];
    }
    ADD_FAILURE() << "nothing was asked";
    return {};
  }
  std::vector<Asked> asked;
  uint64_t lent_bytes = 0;  // Where a tensor may be written, as the last request says.
  int accepted = 0;
  bool answers_pings = false;
  int pongs_due = 0;
};

class HostileRdmaProducerTest : public ::testing::Test {
 protected:
  // `give_up_ms`: as in ConnectorOptions.
  explicit HostileRdmaProducerTest(int64_t give_up_ms = 0, uint32_t message_bytes = 8192,
                                   uint32_t queue_pairs = 1, size_t standing = 1,
                                   bool ordered = true, uint64_t seed = 1)
      : world_(1), poller_(&world_.clock()) {
    SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
    SimNicOptions nic;
    nic.limits.ordered = ordered;
    nic_ = world_.OpenNic(0, nic);
    hostile_nic_ = world_.OpenNic(1, nic);
    hub_ = *QueueHub::Create(nic_.get(), &poller_, 512);
    hub_->Attach();
    hostile_hub_ = *QueueHub::Create(hostile_nic_.get(), &poller_, 512);
    hostile_hub_->Attach();
    page_ = *hostile_nic_->RegisterRegion(bytes_, sizeof(bytes_), kLocalWrite);
    link_options_.slots = 4;
    link_options_.ring_slots = 16;
    link_options_.message_bytes = message_bytes;
    link_options_.queue_pairs = queue_pairs;
    landings_ = std::make_shared<LandingPool>(nic_, 1 << 20);
    RdmaOptions rdma;
    rdma.link = link_options_;
    rdma.offered_bytes = 4096;
    rdma.standing = standing;
    FetchOpsOptions options;
    options.self = kConsumer;
    options.self_incarnation = 2;
    options.peer = kProducer;
    options.give_up_ms = give_up_ms;
    options.seed = seed;
    kind_ = RdmaFetchLink::Kind("rdma", hub_.get(), landings_.get(), rdma);
    channel_ = std::make_unique<FetchSession>(&poller_, &hellos_, options,
                                              FetchSession::Kinds{&kind_}, &user_);
  }

  ~HostileRdmaProducerTest() override {
    channel_->Close(absl::CancelledError("over"));
    if (link_ != nullptr) link_->Break(absl::CancelledError("over"));
    for (int i = 0; i < 1000 && !channel_->Drained(); ++i) {
      Settle();
      for (HelloDone& done : std::exchange(hellos_.answers, {})) {
        if (done) std::move(done)(absl::UnavailableError("over"));
      }
    }
    EXPECT_TRUE(channel_->Drained()) << channel_->Explain();
    user_.EndAll(absl::CancelledError("over"));
    channel_.reset();
    for (int i = 0; i < 100; ++i) Settle();
    link_.reset();
    hub_->Detach();
    hostile_hub_->Detach();
    SetLogSink(nullptr);
    for (const std::string& violation : world_.violations()) ADD_FAILURE() << violation;
  }

  void Settle() {
    world_.RunFor(1'000'000);
    while (poller_.Turn()) {
    }
  }
  // Waits for the consumer's next hello.
  void AwaitHello() {
    for (int i = 0; i < 10'000 && hellos_.answers.size() <= answered_; ++i) Settle();
    ASSERT_GT(hellos_.answers.size(), answered_) << channel_->Explain();
  }
  // Answers the hello as an honest producer would, except for what `change` changes.
  void Answer(uint64_t incarnation, uint64_t session,
              const std::function<void(Hello*)>& change = nullptr) {
    AwaitHello();
    const Hello& asked = hellos_.asked.back();
    if (link_ != nullptr) {
      link_->Break(absl::CancelledError("the next one"));
      for (int i = 0; i < 1000 && !link_->drained(); ++i) Settle();
    }
    link_ = *MessageLink::Create(hostile_hub_.get(), link_options_,
                                 static_cast<uint32_t>(asked.epoch), &scripted_);
    const absl::Status connected = link_->Connect(asked);
    ASSERT_TRUE(connected.ok()) << connected;
    Hello answer;
    answer.worker = kProducer;
    answer.incarnation = incarnation;
    answer.epoch = asked.epoch;
    answer.path = "rdma";
    answer.protocol_newest = kProtocolNewest;
    link_->DescribeTo(&answer, session);
    if (change) change(&answer);
    answered_ = hellos_.answers.size();
    std::move(hellos_.answers.back())(std::move(answer));
    hellos_.answers.back() = nullptr;
    for (int i = 0; i < 10; ++i) Settle();
  }
  // Turns the hello down.
  void Refuse(const absl::Status& why) {
    AwaitHello();
    answered_ = hellos_.answers.size();
    std::exchange(hellos_.answers.back(), nullptr)(why);
  }
  void Say(const wire::Record& record) {
    ASSERT_TRUE(link_->Send(record));
    link_->FlushSoon();
    for (int i = 0; i < 10; ++i) Settle();
  }
  // Tells the consumer that all has landed, in `parts` parts.
  void SayLanded(uint16_t parts, uint32_t digest) {
    wire::TensorMeta meta;
    meta.dtype = static_cast<uint8_t>(DType::kUint8);
    meta.rank = 1;
    meta.bytes = kBytes;
    meta.dims[0] = kBytes;
    meta.stripes = parts;
    meta.digest = digest;
    SayMeta(wire::RecordType::kLanded, wire::kHasDigest, meta);
  }
  void SayMeta(wire::RecordType type, uint8_t flags, const wire::TensorMeta& meta) {
    const Scripted::Asked asked = scripted_.LastRequest();
    wire::Record record;
    record.type = type;
    record.flags = flags;
    record.slot = asked.slot;
    record.generation = asked.generation;
    ASSERT_TRUE(
        link_->Put([&](wire::MessageWriter* writer) { return writer->AddMeta(record, meta); }));
    link_->FlushSoon();
    for (int i = 0; i < 10; ++i) Settle();
  }
  // Sends a tensor inside the message, with `bytes` bytes whatever the shape says.
  void SayInside(int64_t elements, uint64_t bytes) {
    const Scripted::Asked asked = scripted_.LastRequest();
    wire::TensorMeta meta;
    meta.dtype = static_cast<uint8_t>(DType::kUint8);
    meta.rank = 1;
    meta.bytes = bytes;
    meta.dims[0] = elements;
    wire::Record record;
    record.type = wire::RecordType::kTensor;
    record.slot = asked.slot;
    record.generation = asked.generation;
    ASSERT_TRUE(link_->Put([&](wire::MessageWriter* writer) {
      uint8_t* const into = writer->AddTensor(record, meta);
      if (into != nullptr) memset(into, 7, bytes);
      return into != nullptr;
    }));
    link_->FlushSoon();
    for (int i = 0; i < 10; ++i) Settle();
  }
  // That there is a tensor, and no room for it was lent.
  void Announce(const Scripted::Asked& asked, uint64_t bytes) {
    wire::Record record;
    record.type = wire::RecordType::kNeedDestination;
    record.slot = asked.slot;
    record.generation = asked.generation;
    wire::TensorMeta meta;
    meta.dtype = static_cast<uint8_t>(DType::kUint8);
    meta.rank = 1;
    meta.bytes = bytes;
    meta.dims[0] = static_cast<int64_t>(bytes);
    EXPECT_TRUE(
        link_->Put([&](wire::MessageWriter* writer) { return writer->AddMeta(record, meta); }));
    link_->FlushSoon();
  }
  // Says that it is there when it is asked, and nothing else, for so long or until the link breaks.
  void AnswerPings(int64_t for_ms) {
    scripted_.answers_pings = true;
    for (int64_t ms = 0; ms < for_ms; ++ms) {
      Settle();
      if (std::exchange(scripted_.pongs_due, 0) == 0 || link_->broken()) continue;
      wire::Record pong;
      pong.type = wire::RecordType::kPong;
      ASSERT_TRUE(link_->Send(pong));
      link_->FlushSoon();
    }
  }
  // That it has nothing more of a request that was given up.
  void SayGone(const Scripted::Asked& asked) {
    wire::Record record;
    record.type = wire::RecordType::kGone;
    record.slot = asked.slot;
    record.generation = asked.generation;
    Say(record);
  }
  // Tells the consumer that a part has come. The write carries no byte.
  void SayPart(uint16_t generation, size_t lane = 0) {
    link_->Write(lane, {page_->address(), 0, page_->local_key()}, 0, 0, true,
                 scripted_.LastRequest().slot, generation);
    link_->FlushSoon();
    for (int i = 0; i < 10; ++i) Settle();
  }
  void SayFailed(uint16_t slot, uint16_t generation) {
    wire::Record record;
    record.type = wire::RecordType::kFailed;
    record.slot = slot;
    record.generation = generation;
    record.number = static_cast<uint32_t>(absl::StatusCode::kNotFound);
    record.body = "no such tensor";
    Say(record);
  }
  struct Fetched {
    int calls = 0;
    absl::Status status;
    Tensor tensor;
  };
  static TensorKey KeyOf(const std::string& edge, uint64_t incarnation = 1) {
    return TensorKeyPrefix::Make(absl::StrCat(kProducer, "/device:CPU:0"), incarnation,
                                 absl::StrCat(kConsumer, "/device:CPU:0"), edge)
        ->At(0, 0);
  }
  Fetched* Fetch(const std::string& edge, const RecvArgs& args = RecvArgs(),
                 uint64_t incarnation = 1) {
    Fetched* const fetched = fetched_.emplace_back(std::make_unique<Fetched>()).get();
    channel_->Fetch(step_, KeyOf(edge, incarnation), args, [out = fetched](Received&& received) {
      ++out->calls;
      out->status = std::move(received.status);
      out->tensor = std::move(received.tensor);
    });
    Settle();
    return fetched;
  }
  void BreakLink() {
    link_->Break(absl::UnavailableError("broken on purpose"));
    for (int i = 0; i < 10; ++i) Settle();
  }

  static constexpr int64_t kBytes = 1 << 16;  // More than a message has room for.
  SimWorld world_;
  Poller poller_;
  uint8_t bytes_[8] = {};
  std::vector<std::unique_ptr<Fetched>> fetched_;  // Whose fetches may end with the channel.
  Hellos hellos_;
  size_t answered_ = 0;
  int64_t step_ = 1;
  FetchKind kind_;
  PathListener user_;
  LinkOptions link_options_;
  Scripted scripted_;
  std::shared_ptr<Nic> nic_;
  std::unique_ptr<SimNic> hostile_nic_;
  std::unique_ptr<Region> page_;
  std::unique_ptr<QueueHub> hub_;
  std::unique_ptr<QueueHub> hostile_hub_;
  std::shared_ptr<LandingPool> landings_;
  std::unique_ptr<FetchSession> channel_;
  std::unique_ptr<MessageLink> link_;
};

TEST_F(HostileRdmaProducerTest, ARecordOfAnotherGenerationEndsNothing) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  const Scripted::Asked asked = scripted_.LastRequest();
  const uint64_t before = TimesReached("rare: a record of another generation");
  SayFailed(asked.slot, static_cast<uint16_t>(asked.generation + 1));
  SayFailed(asked.slot, static_cast<uint16_t>(asked.generation - 1));
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
  EXPECT_EQ(channel_->Counted().ghosts, 2u);
  EXPECT_EQ(TimesReached("rare: a record of another generation"), before + 2);
  SayFailed(asked.slot, asked.generation);
  EXPECT_EQ(fetched->status.code(), absl::StatusCode::kNotFound);
}

// Generations begin where half of the range is behind a word that was never written.
class LateGenerationsTest : public HostileRdmaProducerTest {
 protected:
  LateGenerationsTest()
      : HostileRdmaProducerTest(0, 8192, 1, 1, true, /*seed=*/uint64_t{50'000} << 16) {}
};

TEST_F(LateGenerationsTest, EachLinkBeginsWithWhatIsOverOnEachSlot) {
  const Fetched* const first = Fetch("a");
  Answer(1, 5);
  for (int round = 0; round < 3; ++round) {
    const auto over = [this](const Scripted::Asked& asked) {
      return static_cast<int16_t>(link_->accepted(asked.slot) - asked.generation);
    };
    // A cancel that is answered by GONE accepts nothing, and what it was of is over nevertheless.
    for (int i = 0; i < 4; ++i) {
      Cancellation cancellation;
      RecvArgs args;
      args.cancellation = &cancellation;
      const Fetched* const given_up = Fetch("b", args);
      for (int j = 0; j < 10; ++j) Settle();
      const Scripted::Asked asked = scripted_.LastRequest();
      cancellation.StartCancel();
      for (int j = 0; j < 10; ++j) Settle();
      SayGone(asked);
      ASSERT_EQ(given_up->calls, 1);
    }
    const Fetched* const other = Fetch("c");
    for (int j = 0; j < 10; ++j) Settle();
    const Scripted::Asked waits = scripted_.LastRequest();
    // What is accepted on another slot brings the words of all.
    const Fetched* const accepted = Fetch("d");
    for (int j = 0; j < 10; ++j) Settle();
    const Scripted::Asked asked = scripted_.LastRequest();
    SayFailed(asked.slot, asked.generation);
    ASSERT_EQ(accepted->calls, 1);
    for (int j = 0; j < 100; ++j) Settle();
    EXPECT_EQ(over(asked), 1) << "it was accepted";
    EXPECT_EQ(over(waits), 0) << "all before it is over, and it is not";
    SayFailed(waits.slot, waits.generation);
    ASSERT_EQ(other->calls, 1);
    BreakLink();
    Answer(1, 5);
    const Fetched* const next = Fetch("e");
    for (int j = 0; j < 10; ++j) Settle();
    const Scripted::Asked last = scripted_.LastRequest();
    SayFailed(last.slot, last.generation);
    ASSERT_EQ(next->calls, 1);
    for (int j = 0; j < 100; ++j) Settle();
    for (const Scripted::Asked& one : {waits, asked}) {
      const bool again = one.slot == last.slot;
      EXPECT_EQ(over(again ? last : one), 1) << "slot " << one.slot << " of the new link";
    }
  }
  EXPECT_EQ(first->calls, 0);
}

TEST_F(HostileRdmaProducerTest, AnImmediateOfAnotherGenerationIsNoTensor) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  const Scripted::Asked asked = scripted_.LastRequest();
  const uint64_t before = TimesReached("rare: an immediate of another generation");
  SayPart(static_cast<uint16_t>(asked.generation + 1));
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
  EXPECT_EQ(channel_->Counted().ghosts, 1u);
  EXPECT_EQ(TimesReached("rare: an immediate of another generation"), before + 1);
  SayFailed(asked.slot, asked.generation);
  EXPECT_EQ(fetched->status.code(), absl::StatusCode::kNotFound);
}

TEST_F(HostileRdmaProducerTest, ARecordForASlotWithoutAFetchEndsNothing) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  const Scripted::Asked asked = scripted_.LastRequest();
  SayFailed(asked.slot, asked.generation);
  SayFailed(asked.slot, asked.generation);
  SayFailed(static_cast<uint16_t>(link_options_.slots - 1), 0);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_EQ(channel_->Counted().ghosts, 2u);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
}

TEST_F(HostileRdmaProducerTest, ATensorInsideAMessageHasTheBytesOfItsShape) {
  const Fetched* const fetched = Fetch("a");
  uint64_t breaks = 0;
  for (const uint64_t bytes : {3u, 5u, 0u, 200u}) {
    Answer(1, 5);
    SayInside(4, bytes);
    EXPECT_EQ(channel_->Counted().breaks, ++breaks) << bytes;
    EXPECT_EQ(fetched->calls, 0) << bytes;
  }
  for (const int64_t bytes : {4, 127, 128, 129}) {  // As a small tensor, and as one that is not.
    Fetched* const good = bytes == 4 ? fetched_.front().get() : Fetch("b");
    if (bytes == 4) Answer(1, 5);
    for (int i = 0; i < 10; ++i) Settle();
    SayInside(bytes, static_cast<uint64_t>(bytes));
    ASSERT_EQ(good->calls, 1) << bytes;
    EXPECT_TRUE(good->status.ok()) << good->status;
    ASSERT_EQ(good->tensor.bytes(), static_cast<uint64_t>(bytes));
    EXPECT_EQ(good->tensor.shape(), TensorShape({bytes}));
    EXPECT_EQ(std::string(static_cast<const char*>(good->tensor.data()), good->tensor.bytes()),
              std::string(static_cast<size_t>(bytes), 7));
  }
  EXPECT_EQ(channel_->Counted().breaks, breaks);
}

TEST_F(HostileRdmaProducerTest, MoreThanTheDestinationHoldsHasNotLanded) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes - 1});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  SayLanded(0, /*digest=*/0);
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
}

// Behind the caller's memory lies what is not his, and the key would open that, too.
TEST_F(HostileRdmaProducerTest, NoMoreThanTheCallersMemoryIsLent) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  EXPECT_EQ(scripted_.lent_bytes, uint64_t{kBytes});
  wire::TensorMeta meta;  // The shape is the caller's, and the bytes are more.
  meta.dtype = static_cast<uint8_t>(DType::kUint8);
  meta.rank = 1;
  meta.dims[0] = kBytes;
  meta.bytes = 2 * kBytes;
  SayMeta(wire::RecordType::kNeedDestination, 0, meta);
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 2u) << "it is asked for with room";
  EXPECT_EQ(scripted_.lent_bytes, uint64_t{kBytes});
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
}

TEST_F(HostileRdmaProducerTest, AShapeThatNoTensorHasBreaksTheLink) {
  const Fetched* const fetched = Fetch("a");
  wire::TensorMeta meta;
  meta.dtype = static_cast<uint8_t>(DType::kUint8);
  meta.rank = 2;
  meta.dims[0] = meta.dims[1] = int64_t{1} << 40;
  uint64_t breaks = 0;
  for (const auto type : {wire::RecordType::kLanded, wire::RecordType::kNeedDestination}) {
    Answer(1, 5);
    SayMeta(type, 0, meta);
    EXPECT_EQ(channel_->Counted().breaks, ++breaks);
    EXPECT_EQ(fetched->calls, 0) << fetched->status;
  }
}

TEST_F(HostileRdmaProducerTest, ADescriptionThatIsCutShortBreaksTheLink) {
  const Fetched* const fetched = Fetch("a");
  uint64_t breaks = 0;
  for (const auto type : {wire::RecordType::kTensor, wire::RecordType::kLanded,
                          wire::RecordType::kNeedDestination, wire::RecordType::kHere}) {
    Answer(1, 5);
    wire::Record record;
    record.type = type;
    record.slot = scripted_.LastRequest().slot;
    record.generation = scripted_.LastRequest().generation;
    record.body = "short";
    Say(record);
    EXPECT_EQ(channel_->Counted().breaks, ++breaks);
    EXPECT_EQ(fetched->calls, 0) << fetched->status;
  }
}

// Nothing else tells of it, where its shape was known.
TEST_F(HostileRdmaProducerTest, AnImmediateAloneBringsATensor) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  EXPECT_FALSE(channel_->owed()->has_brought());
  SayPart(scripted_.LastRequest().generation);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(fetched->status.ok()) << fetched->status;
  EXPECT_TRUE(channel_->owed()->has_brought());
}

TEST_F(HostileRdmaProducerTest, ARecordForASlotBehindTheLastBreaksTheLink) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  SayFailed(static_cast<uint16_t>(link_options_.slots - 1), 1);
  EXPECT_EQ(channel_->Counted().breaks, 0u) << "the last one is there";
  SayFailed(static_cast<uint16_t>(link_options_.slots), 1);
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
}

// Its fetch has ended, and no other has its slot.
TEST_F(HostileRdmaProducerTest, AnImmediateForASlotWithoutAFetchIsNoTensor) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  const Scripted::Asked asked = scripted_.LastRequest();
  SayFailed(asked.slot, asked.generation);
  ASSERT_EQ(fetched->calls, 1);
  SayPart(asked.generation);
  EXPECT_EQ(channel_->Counted().ghosts, 1u);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  const Fetched* const next = Fetch("b");
  for (int i = 0; i < 10; ++i) Settle();
  const Scripted::Asked asked_next = scripted_.LastRequest();
  SayFailed(asked_next.slot, asked_next.generation);
  EXPECT_EQ(next->status.code(), absl::StatusCode::kNotFound);
}

TEST_F(HostileRdmaProducerTest, AnAnswerToAnotherHelloIsNotUsed) {
  const std::function<void(Hello*)> changes[] = {
      [](Hello* answer) { answer->epoch += 1; },
      [](Hello* answer) { answer->path = "other"; },
      [](Hello* answer) { answer->incarnation = 0; },
  };
  const Fetched* const fetched = Fetch("a");
  const uint64_t before = TimesReached("rare: the answer to another hello");
  for (const auto& change : changes) {
    Answer(1, 5, change);
    EXPECT_FALSE(channel_->open());
    EXPECT_EQ(fetched->calls, 0);
  }
  EXPECT_EQ(TimesReached("rare: the answer to another hello"), before + 3);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 0u);
  Answer(1, 5);
  EXPECT_TRUE(channel_->open());
}

// What it had been asked for is gone with it, and its user has to hear that.
TEST_F(HostileRdmaProducerTest, WhatALifeWasAskedForEndsWithIt) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 1u);
  const Fetched* const of_next = Fetch("b", RecvArgs(), /*incarnation=*/9);
  BreakLink();
  Answer(9, 5);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_EQ(fetched->status.code(), absl::StatusCode::kAborted) << fetched->status;
  EXPECT_EQ(of_next->calls, 0) << of_next->status;
  EXPECT_EQ(scripted_.LastRequest().type, wire::RecordType::kRequest);
}

// The producer still keeps its take, and hears of the cancel alone.
TEST_F(HostileRdmaProducerTest, WhatIsCancelledBetweenTwoLinksIsNotAskedForAgain) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  const Scripted::Asked asked = scripted_.LastRequest();
  BreakLink();
  AwaitHello();
  cancellation.StartCancel();
  for (int i = 0; i < 10; ++i) Settle();
  Answer(1, 5);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 1u);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kCancel), 1u);
  SayFailed(asked.slot, asked.generation);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(absl::IsCancelled(fetched->status)) << fetched->status;
  EXPECT_EQ(channel_->Counted().breaks, 1u);
}

// It has forgotten what it took: asked again it would take the next tensor of the key.
TEST_F(HostileRdmaProducerTest, WhatASessionWasAskedForEndsWithIt) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  BreakLink();
  Answer(1, 6);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_EQ(fetched->status.code(), absl::StatusCode::kUnavailable) << fetched->status;
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 1u);
}

TEST_F(HostileRdmaProducerTest, WhatASessionKeepsIsAskedForAgain) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  BreakLink();
  Answer(1, 5);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 2u);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kReplayed), 2u);
}

// The producer keeps a tensor until it hears that it was accepted.
TEST_F(HostileRdmaProducerTest, WhatHasComeIsAccepted) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  const Scripted::Asked asked = scripted_.LastRequest();
  SayFailed(asked.slot, asked.generation);
  EXPECT_EQ(fetched->calls, 1);
  for (int i = 0; i < 20; ++i) Settle();
  EXPECT_GT(scripted_.accepted, 0);
  EXPECT_EQ(link_->accepted(asked.slot), static_cast<uint16_t>(asked.generation + 1));
}

// An honest one, that has nothing to say for long but that it is there.
TEST_F(HostileRdmaProducerTest, AFetchMayWaitLongForASendOnOneConnection) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  scripted_.answers_pings = true;
  const int64_t until_ns = poller_.now_ns() + 4 * RdmaOptions().silence_ms * int64_t{1'000'000};
  int pongs = 0;
  while (poller_.now_ns() < until_ns) {
    for (int i = 0; i < 10; ++i) Settle();
    for (; scripted_.pongs_due > 0 && channel_->open(); --scripted_.pongs_due, ++pongs) {
      wire::Record record;
      record.type = wire::RecordType::kPong;
      Say(record);
    }
  }
  EXPECT_TRUE(channel_->open());
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(hellos_.asked.size(), 1u);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
  // Each heartbeat is answered once.
  EXPECT_GE(pongs, 10);
  EXPECT_LE(pongs, 16);
}

// The cancel is on its way to the poller when its fetch ends, and another one begins before it
// arrives.
TEST_F(HostileRdmaProducerTest, ALateCancelEndsNoOtherFetch) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const Fetched* const first = Fetch("a", args);
  Answer(1, 5);
  const Scripted::Asked asked_first = scripted_.LastRequest();
  absl::optional<absl::Status> next;  // How the third ended.
  channel_->Fetch(1, KeyOf("b"), RecvArgs(), [&](Received&&) {
    channel_->Fetch(1, KeyOf("c"), RecvArgs(),
                    [&](Received&& received) { next = std::move(received.status); });
  });
  for (int i = 0; i < 10; ++i) Settle();
  for (const Scripted::Asked& one : {asked_first, scripted_.LastRequest()}) {
    wire::TensorMeta meta;
    meta.dtype = static_cast<uint8_t>(DType::kUint8);
    meta.rank = 1;
    meta.bytes = 8;
    meta.dims[0] = 8;
    wire::Record record;
    record.type = wire::RecordType::kTensor;
    record.slot = one.slot;
    record.generation = one.generation;
    ASSERT_TRUE(link_->Put(
        [&](wire::MessageWriter* writer) { return writer->AddTensor(record, meta) != nullptr; }));
  }
  link_->FlushSoon();
  poller_.Turn();
  world_.RunFor(1'000'000);  // Both have come, and nobody has looked.
  cancellation.StartCancel();
  poller_.Turn();
  EXPECT_TRUE(first->status.ok()) << first->status;
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 3u);
  EXPECT_FALSE(next.has_value()) << *next;
  SayFailed(scripted_.LastRequest().slot, scripted_.LastRequest().generation);
  EXPECT_TRUE(next.has_value());
}

// Nothing else goes out then, by which it could be told.
TEST_F(HostileRdmaProducerTest, AFetchWithoutASlotThatIsGivenUpIsToldOfAtOnce) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const Fetched* const first = Fetch("a", args);
  Answer(1, 5);
  for (const char* const edge : {"b", "c", "d", "e"}) Fetch(edge);
  for (int i = 0; i < 20; ++i) Settle();
  for (const Scripted::Asked& one : std::vector<Scripted::Asked>(scripted_.asked)) {
    if (one.type != wire::RecordType::kPark || one.slot != 0) continue;
    wire::Record record;
    record.type = wire::RecordType::kParked;
    record.slot = one.slot;
    record.generation = one.generation;
    Say(record);
  }
  ASSERT_EQ(channel_->Counted().parked, 1u) << channel_->Explain();
  cancellation.StartCancel();
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_TRUE(absl::IsCancelled(first->status)) << first->status;
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kUnwanted), 1u);
}

// Wrong twice: the consumer gives up, and says so.
TEST_F(HostileRdmaProducerTest, ATensorWhoseDigestIsWrongTwiceIsAnError) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), static_cast<size_t>(i) + 1);
    EXPECT_EQ(fetched->calls, 0);
    SayLanded(0, 12345);
  }
  EXPECT_EQ(channel_->Counted().digests_wrong, 2u);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 2u) << "it was asked for once more";
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kCancel), 1u);
  EXPECT_EQ(TimesReached("rare: a wrong digest for the second time"), 1u);
}

// Beside the bound there is one at a time.
TEST_F(HostileRdmaProducerTest, WhatIsLargerThanAllLandingsComesAlone) {
  const auto announce = [&](uint16_t slot) {
    for (const Scripted::Asked& asked : scripted_.asked) {
      if (asked.type != wire::RecordType::kRequest || asked.slot != slot) continue;
      Announce(asked, 2 << 20);
      break;
    }
    for (int i = 0; i < 10; ++i) Settle();
  };
  const auto waits = [&] {
    return static_cast<RdmaFetchLink*>(channel_->link())->waits_for_room();
  };
  const Fetched* const first = Fetch("a");
  const Fetched* const second = Fetch("b");
  Answer(1, 5);
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 2u);
  announce(0);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 3u) << "it is asked for with room";
  EXPECT_TRUE(landings_->large_is_lent());
  EXPECT_FALSE(waits());
  announce(1);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 3u);
  EXPECT_TRUE(waits());
  EXPECT_EQ(first->calls + second->calls, 0);
  EXPECT_EQ(landings_->pinned_bytes(), 0u) << "it is beside the bound";
  SayFailed(0, 0);
  EXPECT_EQ(first->calls, 1);
  static_cast<RdmaFetchLink*>(channel_->link())->TakeRoom();
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_FALSE(waits());
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 4u);
}

// What its tensors take was known when it was asked for.
TEST_F(HostileRdmaProducerTest, ARunForWhichRoomIsAskedBreaksTheLink) {
  std::vector<TensorKey> keys;
  for (const char* const edge : {"a", "b", "c", "d"}) {
    keys.push_back(KeyOf(edge));
    const Fetched* const fetched = Fetch(edge);
    if (hellos_.answers.size() > answered_) Answer(1, 5);
    for (int i = 0; i < 10; ++i) Settle();
    SayInside(4, 4);
    ASSERT_EQ(fetched->calls, 1) << edge;
  }
  int ended = 0;
  ManyFetchedFn done = [&](const absl::Status&, absl::Span<Received>) { ++ended; };
  ASSERT_TRUE(channel_->FetchMany(step_, keys, RecvArgs(), &done));
  for (int i = 0; i < 10; ++i) Settle();
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 5u) << "all are asked for together";
  Announce(scripted_.LastRequest(), kBytes);
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(ended, 0) << "they are asked for over the next link";
  channel_->Close(absl::CancelledError("over"));
  for (int i = 0; i < 100 && ended == 0; ++i) Settle();
}

TEST_F(HostileRdmaProducerTest, WhatTheNicCannotRegisterAtAllIsAnError) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  Announce(scripted_.LastRequest(), uint64_t{1} << 50);
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(fetched->status)) << fetched->status;
  EXPECT_TRUE(channel_->open());
}

// No landing may stand for it: so large a one is lent where the caller has no memory of its own.
TEST_F(HostileRdmaProducerTest, ALargeDestinationThatTheNicCannotRegisterIsAnError) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {2 << 20});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  world_.FailRegistrations(0, 1);
  Announce(scripted_.LastRequest(), 2 << 20);
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_FALSE(landings_->large_is_lent());
  EXPECT_EQ(landings_->in_use_bytes(), 0u);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 1u) << "it is not asked for again";
  SayGone(scripted_.LastRequest());
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(fetched->status)) << fetched->status;
}

// The part of the first attempt must not stand for that of the second.
TEST_F(HostileRdmaProducerTest, ASecondAttemptWaitsForItsOwnParts) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  memset(args.destination.mutable_data(), 7, kBytes);
  const uint32_t right = Crc32c(0, args.destination.data(), kBytes);
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  SayLanded(1, right + 1);
  SayPart(scripted_.LastRequest().generation);
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 2u) << "it was asked for once more";
  SayLanded(1, right);
  EXPECT_EQ(fetched->calls, 0) << "its part has not come";
  SayPart(scripted_.LastRequest().generation);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(fetched->status.ok()) << fetched->status;
}

// There may be no room for the second attempt where there was some for the first.
TEST_F(HostileRdmaProducerTest, ASecondAttemptMayAskForRoomAnew) {
  const Fetched* const fetched = Fetch("a");
  Answer(1, 5);
  for (size_t requests = 1; requests <= 3; requests += 2) {
    ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), requests);
    Announce(scripted_.LastRequest(), kBytes);
    for (int i = 0; i < 10; ++i) Settle();
    ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), requests + 1) << "there is room";
    if (requests == 1) SayLanded(0, /*digest=*/12345);
  }
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
}

TEST_F(HostileRdmaProducerTest, PartsThatStayAwayBreakTheLink) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  SayLanded(1, 1);
  const uint64_t before = TimesReached("rare: parts of a tensor stay away");
  wire::Record pong;
  pong.type = wire::RecordType::kPong;  // Silent it is not.
  for (int i = 0; i < 150 && !link_->broken(); ++i) {
    Say(pong);
    for (int turn = 0; turn < 90; ++turn) Settle();
  }
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(TimesReached("rare: parts of a tensor stay away"), before + 1);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
}

// Its caller's deadline would mean nothing.
TEST_F(HostileRdmaProducerTest, TheLastWordThatStaysAwayBreaksTheLink) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  const uint64_t before = TimesReached("rare: the producer keeps its last word");
  cancellation.StartCancel();
  for (int i = 0; i < 10; ++i) Settle();
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kCancel), 1u);
  AnswerPings(1900);
  EXPECT_EQ(channel_->Counted().breaks, 0u) << "it may still come";
  EXPECT_EQ(fetched->calls, 0) << "its memory may still be written: " << fetched->status;
  AnswerPings(1000);
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(TimesReached("rare: the producer keeps its last word"), before + 1);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(absl::IsCancelled(fetched->status)) << fetched->status;
}

// It says its last word with the first that it says again.
TEST_F(HostileRdmaProducerTest, AProducerThatWasStoppedMaySayItsLastWordLate) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  AnswerPings(1000);
  cancellation.StartCancel();
  for (int ms = 0; ms < 5000; ++ms) Settle();
  EXPECT_EQ(fetched->calls, 0) << "its memory may still be written: " << fetched->status;
  SayGone(scripted_.LastRequest());
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(fetched->calls, 1);
}

// All fetches share the landings.
TEST_F(HostileRdmaProducerTest, ALandingOfWhichTheLastWordStaysAwayIsTakenBack) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  Announce(scripted_.LastRequest(), kBytes);
  for (int i = 0; i < 10; ++i) Settle();
  ASSERT_GE(landings_->in_use_bytes(), static_cast<uint64_t>(kBytes));
  cancellation.StartCancel();
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_EQ(fetched->calls, 1) << "its caller waits for nobody";
  AnswerPings(9900);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_GE(landings_->in_use_bytes(), static_cast<uint64_t>(kBytes)) << "it may be written";
  AnswerPings(1000);
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(landings_->in_use_bytes(), 0u);
}

class TwoLanesTest : public HostileRdmaProducerTest {
 protected:
  TwoLanesTest() : HostileRdmaProducerTest(0, 8192, 2) {}
};

TEST_F(TwoLanesTest, WhatHasLandedInPartWaitsForItsParts) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  Fetch("a", args);
  Answer(1, 5);
  const auto waits_for = [&] {
    LiveOps ops(1);
    channel_->ListOps(&ops);
    return ops.Take().at(0).span.waits_for();
  };
  EXPECT_EQ(waits_for(), WaitsFor::kPeerSend);
  SayPart(scripted_.LastRequest().generation, 0);
  SayLanded(2, /*digest=*/12345);
  EXPECT_EQ(waits_for(), WaitsFor::kParts);
}

// The parts that are still to come are those of a tensor with a digest, whoever gets it.
TEST_F(TwoLanesTest, WhoTakesOverATensorOfWhichPartsAreThereChecksIt) {
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  const Fetched* const first = Fetch("a", args);
  const Fetched* const next = Fetch("a");
  Answer(1, 5);
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 1u);
  Announce(scripted_.LastRequest(), kBytes);
  for (int i = 0; i < 10; ++i) Settle();
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 2u) << "now there is room for it";
  const Scripted::Asked asked = scripted_.LastRequest();
  SayLanded(2, /*digest=*/12345);
  SayPart(asked.generation, 0);
  cancellation.StartCancel();
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_TRUE(absl::IsCancelled(first->status)) << first->status;
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kCancel), 0u) << "the next one takes it over";
  SayPart(asked.generation, 1);
  EXPECT_EQ(next->calls, 0) << next->status;
  EXPECT_EQ(channel_->Counted().digests_wrong, 1u);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 3u) << "it is asked for once more";
}

// How long they may stay away counts from the last word.
TEST_F(HostileRdmaProducerTest, PartsMayBeLateAfterTheLastWord) {
  for (int i = 0; i < 60; ++i) {
    world_.RunFor(1'000'000'000);
    Settle();
  }
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Answer(1, 5);
  scripted_.answers_pings = true;
  const Scripted::Asked asked = scripted_.LastRequest();
  cancellation.StartCancel();
  for (int i = 0; i < 10; ++i) Settle();
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kCancel), 1u);
  SayLanded(1, 1);  // The two have crossed.
  wire::Record record;
  record.type = wire::RecordType::kGone;
  record.slot = asked.slot;
  record.generation = asked.generation;
  Say(record);
  record = wire::Record();
  record.type = wire::RecordType::kPong;
  for (int ms = 0; ms < 1000; ms += 10) {
    for (int i = 0; i < 10; ++i) Settle();
    if (scripted_.pongs_due > 0 && !link_->broken()) Say(record);
    scripted_.pongs_due = 0;
  }
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(fetched->calls, 0) << "its memory may still be written: " << fetched->status;
  SayPart(asked.generation);
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(absl::IsCancelled(fetched->status)) << fetched->status;
}

TEST_F(HostileRdmaProducerTest, NoMoreKeysAreAskedForAheadThanOptionsAllow) {
  RecvArgs args;
  args.recurring = true;
  for (; step_ <= 2; ++step_) {
    for (const char* const edge : {"a", "b"}) {
      const Fetched* const fetched = Fetch(edge, args);
      if (hellos_.answers.size() > answered_) Answer(1, 5);
      for (int i = 0; i < 10; ++i) Settle();
      SayInside(4, 4);
      ASSERT_EQ(fetched->calls, 1) << edge << " in step " << step_;
    }
  }
  EXPECT_EQ(channel_->Counted().standing, 1u);
}

// Else the next tensor of that step would go to whichever of the two was asked first.
TEST_F(HostileRdmaProducerTest, WhatIsFetchedAlreadyIsNotAskedForAhead) {
  RecvArgs args;
  args.recurring = true;
  Fetch("a", args);
  Answer(1, 5);
  SayInside(4, 4);
  step_ = 3;
  const Fetched* const next = Fetch("a");  // Nobody has said that it recurs.
  step_ = 2;
  const Fetched* const fetched = Fetch("a", args);
  for (int i = 0; i < 10; ++i) Settle();
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 3u);
  SayInside(4, 4);
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_EQ(next->calls, 0);
  EXPECT_EQ(channel_->Counted().standing, 0u);
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 3u);
}

class TwoStandingTest : public HostileRdmaProducerTest {
 protected:
  TwoStandingTest() : HostileRdmaProducerTest(0, 8192, 1, 2) {}
};

// One of each key, and each for the time that it has.
TEST_F(TwoStandingTest, EachWaitsForItsFetchAsLongAsOptionsSay) {
  RecvArgs args;
  args.recurring = true;
  for (const char* const edge : {"a", "b"}) {
    for (step_ = 1; step_ <= 2; ++step_) {
      const Fetched* const fetched = Fetch(edge, args);
      if (hellos_.answers.size() > answered_) Answer(1, 5);
      for (int i = 0; i < 10; ++i) Settle();
      SayInside(4, 4);
      ASSERT_EQ(fetched->calls, 1) << edge << " in step " << step_;
    }
    for (int i = 0; i < 500; ++i) Settle();
  }
  ASSERT_EQ(channel_->Counted().standing, 2u);
  const auto run_until = [&](uint64_t dropped) {
    const int64_t began_ns = world_.clock().NowNs();
    for (int i = 0; i < 60'000 && channel_->Counted().standing_dropped < dropped; ++i) Settle();
    EXPECT_EQ(channel_->Counted().standing_dropped, dropped);
    return (world_.clock().NowNs() - began_ns) / 1'000'000;
  };
  EXPECT_GE(run_until(1), RdmaOptions().standing_ms - 1100);
  EXPECT_GE(run_until(2), 400) << "the second has come so much later";
}

// The fetch for which it was asked ahead wants another shape than the ones before.
TEST_F(HostileRdmaProducerTest, WhatCameAheadAndDoesNotFitIsNotDelivered) {
  RecvArgs args;
  args.recurring = true;
  for (; step_ <= 2; ++step_) {
    Fetch("a", args);
    if (hellos_.answers.size() > answered_) Answer(1, 5);
    for (int i = 0; i < 10; ++i) Settle();
    SayInside(4, 4);
  }
  for (int i = 0; i < 10; ++i) Settle();
  ASSERT_EQ(channel_->Counted().standing, 1u);
  SayInside(4, 4);
  args.destination = *Tensor::Allocate(DType::kUint8, {2});
  const Fetched* const fetched = Fetch("a", args);
  for (int i = 0; i < 10; ++i) Settle();
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(fetched->status)) << fetched->status;
  EXPECT_EQ(scripted_.CountOf(wire::RecordType::kCancel), 1u) << "the producer takes it back";
  SayGone(scripted_.LastRequest());
}

// What it asks for in its hello.
class LargeMessagesTest : public HostileRdmaProducerTest {
 protected:
  static constexpr uint32_t kMessageBytes = 32 << 10;
  LargeMessagesTest() : HostileRdmaProducerTest(0, kMessageBytes) {}
  uint32_t AskedBytes() const {
    return wire::DecodeParameters(hellos_.asked.back().parameters)->message_bytes;
  }
};

// An older release, or one with smaller settings, says so.
TEST_F(LargeMessagesTest, LessIsAskedForWhereTheMessagesAreTooLargeAlone) {
  Fetch("a");
  AwaitHello();
  EXPECT_EQ(AskedBytes(), kMessageBytes);
  for (const absl::Status& why :
       {absl::UnavailableError("not up"), absl::ResourceExhaustedError("full")}) {
    Refuse(why);
    AwaitHello();
    EXPECT_EQ(AskedBytes(), kMessageBytes) << why;
  }
  Refuse(absl::InvalidArgumentError("messages are too large"));
  AwaitHello();
  EXPECT_EQ(AskedBytes(), 8192u);
}

// Every producer grants messages of this size, so that cannot be why.
TEST_F(HostileRdmaProducerTest, TheSmallestMessagesAreAskedForOnce) {
  const Fetched* const fetched = Fetch("a");
  Refuse(absl::InvalidArgumentError("messages are too large"));
  for (int i = 0; i < 3; ++i) Settle();
  EXPECT_EQ(hellos_.asked.size(), 1u);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
}

// Says hello whenever it is greeted, and nothing else: it never connects the queue pairs.
TEST_F(HostileRdmaProducerTest, AProducerThatOnlyAnswersHellosEndsWhatWaits) {
  const Fetched* const fetched = Fetch("a");
  const int64_t began_ns = world_.clock().NowNs();
  const auto waited_s = [&] { return (world_.clock().NowNs() - began_ns) / 1'000'000'000; };
  std::unique_ptr<MessageLink> unconnected;
  const auto drop = [&] {
    if (unconnected == nullptr) return;
    unconnected->Break(absl::CancelledError("the next one"));
    for (int i = 0; !unconnected->drained() && i < 1000; ++i) Settle();
  };
  while (fetched->calls == 0 && waited_s() < 150) {
    world_.RunFor(100'000'000);
    Settle();
    if (hellos_.answers.size() == answered_) continue;
    drop();
    const Hello& asked = hellos_.asked.back();
    unconnected = *MessageLink::Create(hostile_hub_.get(), link_options_,
                                       static_cast<uint32_t>(asked.epoch), &scripted_);
    Hello answer;
    answer.worker = kProducer;
    answer.incarnation = 1;
    answer.epoch = asked.epoch;
    answer.path = "rdma";
    answer.protocol_newest = kProtocolNewest;
    unconnected->DescribeTo(&answer, 5);
    answered_ = hellos_.answers.size();
    std::move(hellos_.answers.back())(std::move(answer));
    hellos_.answers.back() = nullptr;
  }
  EXPECT_EQ(fetched->calls, 1);
  EXPECT_EQ(fetched->status.code(), absl::StatusCode::kUnavailable) << fetched->status;
  EXPECT_GE(waited_s(), 55);
  EXPECT_LE(waited_s(), 90);
  EXPECT_GT(TimesReached("rare: the producer answers hellos and brings nothing"), 0u);
  drop();
}

// Whether it was there before or not.
TEST_F(HostileRdmaProducerTest, AProducerThatNeverAnswersEndsWhatWaits) {
  for (const bool was_there : {false, true}) {
    const uint64_t before = TimesReached("rare: the producer is without a word for too long");
    const Fetched* const fetched = Fetch("a");
    if (was_there) {
      Answer(1, 5);
      BreakLink();
    }
    AwaitHello();
    for (int i = 0; i < 70 && fetched->calls == 0; ++i) {
      world_.RunFor(1'000'000'000);
      Settle();
      for (HelloDone& done : hellos_.answers) {
        if (done && !was_there) std::exchange(done, nullptr)(absl::UnavailableError("nobody"));
      }
    }
    answered_ = hellos_.answers.size();
    EXPECT_EQ(fetched->calls, 1);
    EXPECT_EQ(fetched->status.code(), absl::StatusCode::kUnavailable) << fetched->status;
    EXPECT_EQ(TimesReached("rare: the producer is without a word for too long"), before + 1)
        << was_there << " " << fetched->status;
    Settle();
  }
}

// ---- What a producer owes ----

// Answers every hello, and then owes something.
class OwingRdmaProducerTest : public HostileRdmaProducerTest {
 protected:
  static constexpr int64_t kGiveUpMs = 2000;
  static constexpr uint64_t kSession = 5;

  explicit OwingRdmaProducerTest(int64_t give_up_ms = kGiveUpMs, bool ordered = true)
      : HostileRdmaProducerTest(give_up_ms, 8192, 1, 1, ordered) {}

  enum class Does {
    kNeverDials,    // Its queue pairs are never connected.
    kIsSilent,      // It reads what is asked, and says nothing at all.
    kAcknowledges,  // It says that it has read what it was asked, and nothing else.
    kAnswers,       // It answers pings, too.
  };
  // Hellos are answered as they come, also a farewell, until it is over or `ms` have passed.
  // Returns how long that took.
  int64_t Run(Does does, int64_t ms, const std::function<bool()>& is_over) {
    const int64_t began_ns = world_.clock().NowNs();
    const auto passed_ms = [&] { return (world_.clock().NowNs() - began_ns) / 1'000'000; };
    while (passed_ms() < ms && !is_over()) {
      for (int i = 0; i < 5; ++i) Settle();
      if (hellos_.answers.size() > answered_) AnswerHello(does);
      for (; does == Does::kAnswers && scripted_.pongs_due > 0 && channel_->open();
           --scripted_.pongs_due) {
        wire::Record record;
        record.type = wire::RecordType::kPong;
        if (link_->Send(record)) link_->FlushSoon();
      }
      for (; announces_bytes_ > 0 && announced_ < scripted_.asked.size(); ++announced_) {
        const Scripted::Asked& asked = scripted_.asked[announced_];
        const bool is_first = asked.type == wire::RecordType::kRequest &&
                              (again_ || asked.generation != announced_generation_);
        if (!is_first || !channel_->open()) continue;
        announced_generation_ = asked.generation;
        Announce(asked, announces_bytes_);
      }
    }
    return passed_ms();
  }
  int64_t RunUntilLeft(Does does, int64_t ms = 60'000) {
    return Run(does, ms, [this] { return user_.failed > 0; });
  }
  void ExpectLeft(const Fetched& fetched, int64_t took_ms) {
    EXPECT_EQ(user_.failed, 1) << channel_->Explain();
    EXPECT_EQ(fetched.calls, 0) << "it goes on elsewhere: " << fetched.status;
    EXPECT_GE(took_ms, kGiveUpMs);
    EXPECT_LE(took_ms, kGiveUpMs + 2000) << channel_->Explain();
  }
  void AnswerHello(Does does) {
    const Hello& asked = hellos_.asked.back();
    if (asked.path == "none") {
      answered_ = hellos_.answers.size();
      return std::exchange(hellos_.answers.back(),
                           nullptr)(absl::UnimplementedError("no path none"));
    }
    Hello answer;
    answer.worker = kProducer;
    answer.incarnation = 1;
    answer.epoch = asked.epoch;
    answer.path = "rdma";
    answer.protocol_newest = kProtocolNewest;
    if (link_ != nullptr) {
      link_->Break(absl::CancelledError("the next one"));
      for (int i = 0; i < 1000 && !link_->drained(); ++i) Settle();
      link_.reset();
    }
    scripted_.pongs_due = 0;
    scripted_.answers_pings = true;
    scripted_.asked.clear();
    announced_ = 0;
    announced_generation_ = -1;
    LinkOptions options = link_options_;
    if (does == Does::kIsSilent) {
      options.ack_delay_us = int64_t{3600} * 1'000'000;
      options.ring_slots = 128;  // So many need not be acknowledged.
    }
    link_ = *MessageLink::Create(hostile_hub_.get(), options, static_cast<uint32_t>(asked.epoch),
                                 &scripted_);
    if (does != Does::kNeverDials) {
      const absl::Status connected = link_->Connect(asked);
      ASSERT_TRUE(connected.ok()) << connected;
    }
    link_->DescribeTo(&answer, kSession);
    answered_ = hellos_.answers.size();
    std::exchange(hellos_.answers.back(), nullptr)(std::move(answer));
  }

  uint64_t announces_bytes_ = 0;  // Not 0: what is asked for is announced, once on a link,
  bool again_ = false;            // or as often as it is asked for.
  size_t announced_ = 0;
  int announced_generation_ = -1;
};

TEST_F(OwingRdmaProducerTest, WhoNeverDialsIsLeft) {
  const Fetched* const fetched = Fetch("a");
  ExpectLeft(*fetched, RunUntilLeft(Does::kNeverDials));
}

TEST_F(OwingRdmaProducerTest, WhoDialsAndIsSilentIsLeft) {
  const Fetched* const fetched = Fetch("a");
  ExpectLeft(*fetched, RunUntilLeft(Does::kIsSilent));
  EXPECT_EQ(scripted_.accepted, 0);
}

TEST_F(OwingRdmaProducerTest, WhoTakesTheAskAndIsSilentAboutItIsLeft) {
  const Fetched* const fetched = Fetch("a");
  const int64_t took_ms = RunUntilLeft(Does::kAcknowledges);
  ExpectLeft(*fetched, took_ms);
}

TEST_F(OwingRdmaProducerTest, WhoAnnouncesATensorAndBringsNothingIsLeft) {
  announces_bytes_ = 512 << 10;
  const uint64_t before = TimesReached("rare: the producer announces a tensor and brings nothing");
  const Fetched* const fetched = Fetch("a");
  ExpectLeft(*fetched, RunUntilLeft(Does::kAnswers));
  EXPECT_EQ(TimesReached("rare: the producer announces a tensor and brings nothing"), before + 1);
}

// It has room for what it said that it has, and says it once more.
TEST_F(OwingRdmaProducerTest, WhoAnnouncesATensorAgainAndAgainIsLeft) {
  announces_bytes_ = 512 << 10;
  again_ = true;
  const uint64_t before = TimesReached("rare: a tensor is announced twice");
  const Fetched* const fetched = Fetch("a");
  ExpectLeft(*fetched, RunUntilLeft(Does::kAnswers));
  EXPECT_GT(TimesReached("rare: a tensor is announced twice"), before);
}

// What has landed is not what it says. Asked for it once more, it brings nothing.
TEST_F(OwingRdmaProducerTest, WhoBringsAWrongTensorAndNoOtherIsLeft) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
  const Fetched* const fetched = Fetch("a", args);
  Run(Does::kAnswers, 1000, [this] { return scripted_.CountOf(wire::RecordType::kRequest) == 1; });
  SayLanded(0, 12345);
  ExpectLeft(*fetched, RunUntilLeft(Does::kAnswers));
}

// An honest producer answers, and its program has not called Send yet.
TEST_F(OwingRdmaProducerTest, WhoAnswersMayTakeLongForItsSend) {
  const Fetched* const fetched = Fetch("a");
  RunUntilLeft(Does::kAnswers, 3 * kGiveUpMs);
  EXPECT_TRUE(channel_->open()) << channel_->Explain();
  EXPECT_EQ(user_.failed, 0);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(hellos_.asked.size(), 1u);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
  SayFailed(scripted_.LastRequest().slot, scripted_.LastRequest().generation);
  EXPECT_EQ(fetched->calls, 1);
}

// An honest one on a slow wire: what it writes goes before what it says.
TEST_F(OwingRdmaProducerTest, WhoMayWriteMuchMayBeSilentForLonger) {
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kUint8, {500'000});
  Fetch("a", args);
  RunUntilLeft(Does::kIsSilent, kGiveUpMs + 450);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_LE(RunUntilLeft(Does::kIsSilent), 1000);
  EXPECT_EQ(user_.failed, 1);
}

// An honest one on a slow wire: it answers no ping before the bytes that it has queued have landed.
TEST_F(OwingRdmaProducerTest, WhoHasAnnouncedATensorIsNotLateBeforeItAnswers) {
  announces_bytes_ = 512 << 10;
  const Fetched* const fetched = Fetch("a");
  Run(Does::kAnswers, 1000, [this] { return scripted_.CountOf(wire::RecordType::kRequest) == 2; });
  ASSERT_EQ(scripted_.CountOf(wire::RecordType::kRequest), 2u);
  RunUntilLeft(Does::kAcknowledges, 3 * kGiveUpMs);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
}

// Here there is no other path: the fetches end with the patience.
class UnorderedOwingTest : public OwingRdmaProducerTest {
 protected:
  static constexpr int64_t kSoonMs = 300;
  UnorderedOwingTest() : OwingRdmaProducerTest(kSoonMs, /*ordered=*/false) {}
};

// Its answers overtake what it writes: a slow wire may have it still.
TEST_F(UnorderedOwingTest, WhoMayWriteMuchHasTheTimeThatASlowWireTakes) {
  announces_bytes_ = 1 << 20;
  const Fetched* const fetched = Fetch("a");
  const int64_t took_ms = RunUntilLeft(Does::kAnswers);
  EXPECT_EQ(user_.failed, 1) << channel_->Explain();
  EXPECT_EQ(fetched->calls, 0) << fetched->status;
  EXPECT_GE(took_ms, 1049);  // 1 MiB, of which a millisecond brings 1000 bytes.
  EXPECT_LE(took_ms, 3000) << channel_->Explain();
}

class OwingAloneRdmaProducerTest : public OwingRdmaProducerTest {
 protected:
  OwingAloneRdmaProducerTest() : OwingRdmaProducerTest(0) {}

  void ExpectEnds(Does does, const std::string& why) {
    const Fetched* const fetched = Fetch("a");
    const int64_t took_ms = Run(does, 200'000, [&] { return fetched->calls > 0; });
    EXPECT_EQ(fetched->status.code(), absl::StatusCode::kUnavailable) << fetched->status;
    EXPECT_TRUE(absl::StrContains(fetched->status.message(), why)) << fetched->status;
    const int64_t patience_ms = RdmaOptions().patience_ms;
    EXPECT_GE(took_ms, patience_ms);
    EXPECT_LE(took_ms, patience_ms + 15'000);
  }
};

TEST_F(OwingAloneRdmaProducerTest, WhoNeverDialsEndsWhatWaits) {
  ExpectEnds(Does::kNeverDials, "though it may answer when a connection is opened");
}

TEST_F(OwingAloneRdmaProducerTest, WhoDialsAndIsSilentEndsWhatWaits) {
  ExpectEnds(Does::kIsSilent, "has confirmed none of the requests");
}

TEST_F(OwingAloneRdmaProducerTest, WhoTakesTheAskAndIsSilentAboutItEndsWhatWaits) {
  ExpectEnds(Does::kAcknowledges, "has confirmed none of the requests");
}

TEST_F(OwingAloneRdmaProducerTest, WhoAnnouncesATensorAndBringsNothingEndsWhatWaits) {
  announces_bytes_ = 512 << 10;
  ExpectEnds(Does::kAnswers, "has announced a tensor there and has brought nothing");
}

}  // namespace
}  // namespace tryst
