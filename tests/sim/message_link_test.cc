// The message link against an end that says whatever it likes: a bare queue pair, a region,
// and the wire's own encoder.

#include "channel/rdma/message_link.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/reached.h"
#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"
#include "verbs/forwarding_nic.h"

namespace tryst {
namespace {

constexpr uint32_t kEpoch = 7;
constexpr uint32_t kOutBytes = 16384;

LinkOptions SmallLink() {
  LinkOptions options;
  options.slots = 4;
  options.ring_slots = 4;
  options.message_bytes = 4608;
  return options;
}

// Writes down what the link hands on.
class Recorder final : public MessageLink::Owner {
 public:
  absl::Status OnRecord(const wire::Record& record) override {
    records.push_back(record.number);
    return absl::OkStatus();
  }
  absl::Status OnTensorPart(size_t, uint16_t slot, uint16_t generation) override {
    parts.push_back({slot, generation});
    return absl::OkStatus();
  }
  void OnAccepted() override { ++accepted; }
  void OnWritesDone() override {}
  void OnFlush() override {
    for (; to_send > 0; --to_send) {
      wire::Record record;
      record.type = wire::RecordType::kPong;
      if (!link->Send(record) || link->NextMessage() == nullptr) return;
    }
  }
  void OnBroken(const absl::Status& why) override { broken = why; }
  void OnDrained() override { drained = true; }

  MessageLink* link = nullptr;
  int to_send = 0;
  std::vector<uint32_t> records;
  std::vector<std::pair<uint16_t, uint16_t>> parts;
  int accepted = 0;
  absl::Status broken;
  bool drained = false;
};

class MessageLinkTest : public ::testing::Test {
 protected:
  explicit MessageLinkTest(const SimNicOptions& nic = SimNicOptions(),
                           const LinkOptions& link = SmallLink())
      : world_(1), poller_(&world_.clock()) {
    nic_ = world_.OpenNic(0, nic);
    hostile_nic_ = world_.OpenNic(1, nic);
    hub_ = *QueueHub::Create(nic_.get(), &poller_, 512);
    hub_->Attach();
    link_ = *MessageLink::Create(hub_.get(), link, kEpoch, &owner_);
    owner_.link = link_.get();
    completions_ = *hostile_nic_->CreateCompletionQueue(512);
    region_ = *hostile_nic_->RegisterRegion(out_, sizeof(out_), kLocalWrite | kRemoteWrite);
    QueuePairOptions options;
    options.completions = completions_.get();
    queue_pair_ = *hostile_nic_->CreateQueuePair(options);
    const std::vector<ReceiveWork> receives(64);
    EXPECT_TRUE(queue_pair_->PostReceive(receives).ok());
    link_->DescribeTo(&said_, 0);
    link_parameters_ = *wire::DecodeParameters(said_.parameters);
  }

  ~MessageLinkTest() override {
    link_.reset();
    hub_->Detach();
    hub_.reset();
    queue_pair_.reset();
    completions_.reset();
    region_.reset();
    for (const std::string& violation : world_.violations()) ADD_FAILURE() << violation;
  }

  Hello OurHello() {
    wire::ChannelParameters ours = link_parameters_;
    ours.ring_address = region_->address();
    ours.ring_key = region_->remote_key();
    ours.ack_address = region_->address() + sizeof(out_) - 64;
    ours.ack_key = region_->remote_key();
    Hello hello;
    hello.queue_pairs = {queue_pair_->LocalAddress()};
    hello.parameters.resize(wire::kParametersBytes);
    wire::EncodeParameters(ours, reinterpret_cast<uint8_t*>(&hello.parameters[0]));
    return hello;
  }

  void Connect() {
    ASSERT_TRUE(queue_pair_->Connect(said_.queue_pairs[0]).ok());
    ASSERT_TRUE(link_->Connect(OurHello()).ok());
    Settle();
  }

  void Settle() {
    for (int i = 0; i < 50; ++i) {
      world_.RunFor(100'000);
      while (poller_.Turn()) {
      }
    }
  }

  // Writes `bytes` from out_ to `to`, with that immediate.
  void Write(uint64_t to, uint32_t key, size_t bytes, uint32_t immediate) {
    const Entry entry{region_->address(), bytes, region_->local_key()};
    SendWork work;
    work.op = SendOp::kWriteWithImmediate;
    work.entries = absl::MakeConstSpan(&entry, 1);
    work.remote_address = to;
    work.remote_key = key;
    work.immediate = immediate;
    ASSERT_TRUE(queue_pair_->PostSend(absl::MakeConstSpan(&work, 1)).ok());
    Settle();
  }

  // A message of one PING, which carries `number`.
  size_t Compose(uint32_t epoch, uint32_t sequence, uint32_t consumed, uint32_t immediates,
                 uint32_t number) {
    wire::MessageWriter writer(out_, link_parameters_.message_bytes);
    wire::Record record;
    record.type = wire::RecordType::kPing;
    record.number = number;
    EXPECT_TRUE(writer.Add(record));
    return writer.Finish(epoch, sequence, consumed, immediates);
  }
  void SendMessage(size_t bytes, uint32_t ring_sequence, uint32_t immediate) {
    Write(link_parameters_.ring_address + uint64_t{ring_sequence % link_parameters_.ring_slots} *
                                              link_parameters_.message_bytes,
          link_parameters_.ring_key, bytes, immediate);
  }
  void Say(uint32_t epoch, uint32_t sequence, uint32_t consumed, uint32_t immediates) {
    SendMessage(Compose(epoch, sequence, consumed, immediates, 100 + sequence), sequence,
                wire::EncodeMessageImmediate(sequence));
  }

  void WriteAckPage(uint32_t epoch, uint32_t consumed, size_t bytes) {
    memset(out_, 0, wire::AckPageBytes(4));
    memcpy(out_, &epoch, 4);
    memcpy(out_ + 4, &consumed, 4);
    const uint16_t accepted = 9;
    memcpy(out_ + 8, &accepted, 2);
    Write(link_parameters_.ack_address, link_parameters_.ack_key, bytes,
          wire::EncodeAckImmediate());
  }

  // It broke with DATA_LOSS that says so, drained, and hands nothing on any more.
  void ExpectBroken(absl::string_view words) {
    EXPECT_TRUE(link_->broken());
    EXPECT_EQ(owner_.broken.code(), absl::StatusCode::kDataLoss) << owner_.broken;
    EXPECT_TRUE(absl::StrContains(owner_.broken.message(), words)) << owner_.broken;
    Settle();
    EXPECT_TRUE(owner_.drained);
  }

  SimWorld world_;
  Poller poller_;
  std::unique_ptr<SimNic> nic_;
  std::unique_ptr<SimNic> hostile_nic_;
  std::unique_ptr<QueueHub> hub_;
  Recorder owner_;
  std::unique_ptr<MessageLink> link_;
  Hello said_;
  wire::ChannelParameters link_parameters_;
  alignas(4096) uint8_t out_[kOutBytes] = {};
  std::unique_ptr<CompletionQueue> completions_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<QueuePair> queue_pair_;
};

TEST_F(MessageLinkTest, TakesMessagesInTurnManyTimesRoundTheRing) {
  Connect();
  for (uint32_t i = 0; i < 20; ++i) Say(kEpoch, i, 0, 0);
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  ASSERT_EQ(owner_.records.size(), 20u);
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(owner_.records[i], 100 + i);
}

// What a lost NIC had under way never comes back, and is not waited for.
TEST_F(MessageLinkTest, IsDrainedAtOnceWhereTheNicIsLost) {
  Connect();
  owner_.to_send = 3;
  link_->FlushSoon();
  poller_.Turn();
  world_.DeviceFatal(0);
  Settle();
  EXPECT_TRUE(absl::IsUnavailable(owner_.broken)) << owner_.broken;
  EXPECT_TRUE(owner_.drained);
}

TEST_F(MessageLinkTest, IsDrainedAtOnceWhereTheNicIsLostBehindTheLink) {
  Connect();
  owner_.to_send = 3;
  link_->FlushSoon();
  poller_.Turn();
  link_->Break(absl::UnavailableError("silent"));
  poller_.Turn();
  EXPECT_FALSE(owner_.drained);
  world_.DeviceFatal(0);
  Settle();
  EXPECT_TRUE(owner_.drained);
}

// The NIC may still read and write what the link has until its works have come back.
TEST_F(MessageLinkTest, IsDrainedWhenItsWorksHaveComeBack) {
  Connect();
  owner_.to_send = 1;
  link_->FlushSoon();
  poller_.Turn();
  link_->Break(absl::CancelledError("on purpose"));
  poller_.Turn();
  EXPECT_FALSE(owner_.drained) << "no time has passed: the NIC has given nothing back";
  Settle();
  EXPECT_TRUE(owner_.drained);
}

// The peer would read a page of which a part is newer.
TEST_F(MessageLinkTest, AnAckPageIsNotWrittenWhileOneIsUnderWay) {
  Connect();
  LinkModel slow;
  slow.latency_ns = 30'000'000;
  world_.SetLink(0, 1, slow);
  const auto pages = [this] {
    int count = 0;
    Completion done[16];
    for (size_t got = 1; got > 0;) {
      got = *completions_->Poll(absl::MakeSpan(done));
      for (size_t i = 0; i < got; ++i) count += done[i].op == CompletionOp::kReceiveWriteImmediate;
    }
    return count;
  };
  for (uint32_t i = 0; i < 3; ++i) Say(kEpoch, i, 0, 0);
  for (int i = 0; i < 5; ++i) Settle();
  EXPECT_EQ(pages(), 1) << "the first is there, and its completion is under way";
  for (int i = 0; i < 20; ++i) Settle();
  EXPECT_EQ(pages(), 1) << "the next tells of all that came meanwhile";
}

// A message leaves without a report, and so nobody knows whether it has come.
TEST_F(MessageLinkTest, ReportsAllThatWasSentWhenItIsAskedTo) {
  Connect();
  const uint64_t before = link_->last_ticket(0);
  owner_.to_send = 1;
  link_->FlushSoon();
  Settle();
  const uint64_t sent = link_->last_ticket(0);
  EXPECT_GT(sent, before);
  EXPECT_FALSE(link_->WriteDone(0, sent));
  link_->ReportWorks();
  Settle();
  EXPECT_TRUE(link_->WriteDone(0, sent));
  const uint64_t reported = link_->last_ticket(0);
  link_->ReportWorks();
  Settle();
  EXPECT_EQ(link_->last_ticket(0), reported) << "there was nothing to report";
}

LinkOptions StallsSoon() {
  LinkOptions options = SmallLink();
  options.stall_ms = 2;
  return options;
}

class StallingLinkTest : public MessageLinkTest {
 protected:
  StallingLinkTest() : MessageLinkTest(SimNicOptions(), StallsSoon()) {}
  // A write of no bytes, whose completion the link hears.
  void WriteNothing() {
    PostNothing();
    Settle();
  }
  void PostNothing() {
    link_->Write(0, {memory_->address(), 0, memory_->local_key()}, 0, 0, true, 0, 0);
    link_->FlushSoon();
  }
  void RunForUs(int64_t us) {
    for (const int64_t until_ns = world_.NowNs() + us * 1000; world_.NowNs() < until_ns;) {
      world_.RunFor(10'000);
      while (poller_.Turn()) {
      }
    }
  }

  uint8_t bytes_[8] = {};
  const std::unique_ptr<Region> memory_ =
      *nic_->RegisterRegion(bytes_, sizeof(bytes_), kLocalWrite);
};

TEST_F(StallingLinkTest, WhatIsPostedAfterAPauseHasTheWholeTime) {
  Connect();
  Settle();
  PostNothing();
  RunForUs(1950);
  LinkModel slow;
  slow.latency_ns = 500'000;
  world_.SetLink(0, 1, slow);
  PostNothing();  // The first was done long ago, and its time is nearly over.
  RunForUs(300);
  EXPECT_FALSE(link_->broken()) << owner_.broken;
  slow.latency_ns = 30'000'000;
  world_.SetLink(0, 1, slow);
  RunForUs(1500);
  PostNothing();
  RunForUs(1900);
  EXPECT_FALSE(link_->broken()) << owner_.broken;
  RunForUs(300);
  EXPECT_TRUE(link_->broken());
}

TEST_F(StallingLinkTest, BreaksWhenNoWorkCompletesForSoLong) {
  Connect();
  WriteNothing();
  Settle();
  EXPECT_FALSE(link_->broken()) << "it came back in time, and an idle link does not stall";
  LinkModel slow;
  slow.latency_ns = 30'000'000;
  world_.SetLink(0, 1, slow);
  WriteNothing();
  EXPECT_TRUE(absl::StrContains(owner_.broken.message(), "has completed nothing")) << owner_.broken;
  for (int i = 0; i < 20; ++i) Settle();
}

SimNicOptions Promising(bool ordered, bool immediates) {
  SimNicOptions options;
  options.limits.ordered = ordered;
  options.limits.write_with_immediate = immediates;
  return options;
}

class UnorderedLinkTest : public MessageLinkTest {
 protected:
  UnorderedLinkTest() : MessageLinkTest(Promising(false, true)) {}
};

TEST_F(UnorderedLinkTest, MessagesThatOvertakeWaitForThoseBeforeThem) {
  Connect();
  for (uint32_t i : {2, 0, 3, 1, 5, 4}) Say(kEpoch, i, 0, 0);
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  EXPECT_EQ(owner_.records, (std::vector<uint32_t>{100, 101, 102, 103, 104, 105}));
}

TEST_F(UnorderedLinkTest, AMessageThatComesTwiceIsNotTaken) {
  Connect();
  Say(kEpoch, 1, 0, 0);
  Say(kEpoch, 1, 0, 0);
  ExpectBroken("message 1 of the peer arrived where one of 4 messages from 0 on was due");
  EXPECT_TRUE(owner_.records.empty());
}

TEST_F(UnorderedLinkTest, AMessageThatNeverComesIsMissedInTime) {
  Connect();
  Say(kEpoch, 1, 0, 0);
  Say(kEpoch, 2, 0, 0);
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  for (int i = 0; i < 6; ++i) {
    world_.RunFor(100'000'000);
    Settle();
  }
  ExpectBroken("message 0 of the peer got lost");
  EXPECT_TRUE(owner_.records.empty());
}

TEST_F(UnorderedLinkTest, AMessageBeyondTheRingIsNotTaken) {
  Connect();
  Say(kEpoch, 4, 0, 0);
  ExpectBroken("message 4 of the peer arrived where");
}

TEST_F(UnorderedLinkTest, ATensorImmediateMayBeOnItsWayStill) {
  Connect();
  Say(kEpoch, 0, 0, 1);
  Write(0, 0, 0, wire::EncodeTensorImmediate(2, 3));
  Write(0, 0, 0, wire::EncodeTensorImmediate(2, 3));
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  EXPECT_EQ(owner_.parts.size(), 2u);
}

class NoImmediatesLinkTest : public MessageLinkTest {
 protected:
  NoImmediatesLinkTest() : MessageLinkTest(Promising(true, false)) {}
  // Says that something was written, as a peer of ours does.
  void SendWord(uint32_t word, size_t bytes) {
    memcpy(out_, &word, sizeof(word));
    const Entry entry{region_->address(), bytes, region_->local_key()};
    SendWork work;
    work.op = SendOp::kSend;
    work.entries = absl::MakeConstSpan(&entry, 1);
    ASSERT_TRUE(queue_pair_->PostSend(absl::MakeConstSpan(&work, 1)).ok());
    Settle();
  }
};

TEST_F(NoImmediatesLinkTest, ASendBehindAWriteTellsOfIt) {
  Connect();
  for (uint32_t i = 0; i < 100; ++i) SendWord(wire::EncodeTensorImmediate(1, 7), 4);
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  ASSERT_EQ(owner_.parts.size(), 100u);
  EXPECT_EQ(owner_.parts[99], std::make_pair(uint16_t{1}, uint16_t{7}));
}

TEST_F(NoImmediatesLinkTest, ASendOfAnotherLengthIsNotTaken) {
  Connect();
  SendWord(wire::EncodeTensorImmediate(1, 7), 3);
  ExpectBroken("of no known kind");
}

TEST(MessageLinkLimitsTest, ANicWithNeitherOrderNorImmediatesIsRefused) {
  SimWorld world(1);
  Poller poller(&world.clock());
  const auto nic = world.OpenNic(0, Promising(false, false));
  const auto hub = *QueueHub::Create(nic.get(), &poller, 512);
  Recorder owner;
  const auto link = MessageLink::Create(hub.get(), SmallLink(), kEpoch, &owner);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kUnimplemented);
}

TEST(MessageLinkLimitsTest, ANicThatRegistersNoMemoryForWordsIsRefused) {
  SimWorld world(1);
  Poller poller(&world.clock());
  SimNicOptions options = Promising(true, false);
  options.max_regions = 2;  // For what comes in, and for what goes out.
  const auto nic = world.OpenNic(0, options);
  const auto hub = *QueueHub::Create(nic.get(), &poller, 512);
  Recorder owner;
  EXPECT_FALSE(MessageLink::Create(hub.get(), SmallLink(), kEpoch, &owner).ok());
  EXPECT_EQ(nic->regions(), 0u);
}

// Takes no works from some moment on, and completes none.
class RefusingNic final : public ForwardingNic {
 public:
  explicit RefusingNic(std::unique_ptr<Nic> nic) : ForwardingNic(std::move(nic)) {}
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    auto made = nic()->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    return std::unique_ptr<QueuePair>(new Refusing(this, *std::move(made)));
  }
  bool refuses_sends = false;
  bool refuses_receives = false;

 private:
  class Refusing final : public ForwardingQueuePair {
   public:
    Refusing(const RefusingNic* nic, std::unique_ptr<QueuePair> queue_pair)
        : ForwardingQueuePair(std::move(queue_pair)), nic_(nic) {}
    absl::Status PostSend(absl::Span<const SendWork> works) override {
      if (nic_->refuses_sends) return absl::ResourceExhaustedError("it is full");
      return ForwardingQueuePair::PostSend(works);
    }
    absl::Status PostReceive(absl::Span<const ReceiveWork> works) override {
      if (nic_->refuses_receives) return absl::ResourceExhaustedError("it is full");
      return ForwardingQueuePair::PostReceive(works);
    }

   private:
    const RefusingNic* const nic_;
  };
};

TEST(MessageLinkLimitsTest, ANicThatTakesNoReceivesIsRefused) {
  SimWorld world(1);
  Poller poller(&world.clock());
  RefusingNic nic(world.OpenNic(0, SimNicOptions()));
  nic.refuses_receives = true;
  const auto hub = *QueueHub::Create(&nic, &poller, 512);
  Recorder owner;
  const auto link = MessageLink::Create(hub.get(), SmallLink(), kEpoch, &owner);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kResourceExhausted);
}

class RefusingNicTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(AllWorks, RefusingNicTest, testing::Bool());

// What it was to send or to receive would be missing for ever.
TEST_P(RefusingNicTest, BreaksTheLink) {
  SimWorld world(1);
  Poller poller(&world.clock());
  RefusingNic nic(world.OpenNic(0, SimNicOptions()));
  const auto peer_nic = world.OpenNic(1, SimNicOptions());
  const auto hub = *QueueHub::Create(&nic, &poller, 512);
  const auto peer_hub = *QueueHub::Create(peer_nic.get(), &poller, 512);
  hub->Attach();
  peer_hub->Attach();
  Recorder owner, peer_owner;
  {
    const auto link = *MessageLink::Create(hub.get(), SmallLink(), kEpoch, &owner);
    const auto peer = *MessageLink::Create(peer_hub.get(), SmallLink(), kEpoch, &peer_owner);
    owner.link = link.get();
    peer_owner.link = peer.get();
    Hello ours, theirs;
    link->DescribeTo(&ours, 0);
    peer->DescribeTo(&theirs, 0);
    ASSERT_TRUE(link->Connect(theirs).ok());
    ASSERT_TRUE(peer->Connect(ours).ok());
    const auto settle = [&] {
      for (int i = 0; i < 50; ++i) {
        world.RunFor(100'000);
        while (poller.Turn()) {
        }
      }
    };
    settle();
    (GetParam() ? nic.refuses_sends : nic.refuses_receives) = true;
    for (int i = 0; i < 20 && owner.broken.ok(); ++i) {
      owner.to_send = 1;
      link->FlushSoon();
      peer_owner.to_send = 1;
      peer->FlushSoon();
      settle();
    }
    EXPECT_TRUE(absl::StrContains(owner.broken.message(), "refuses a work: it is full"))
        << owner.broken;
    peer->Break(absl::CancelledError("over"));
    settle();
    EXPECT_TRUE(owner.drained && peer_owner.drained);
  }
  hub->Detach();
  peer_hub->Detach();
}

TEST_F(MessageLinkTest, AMessageOfAnOlderEpochIsNotTaken) {
  Connect();
  Say(kEpoch, 0, 0, 0);
  Say(kEpoch - 1, 1, 0, 0);
  ExpectBroken("connection 6 on connection 7");
  EXPECT_EQ(owner_.records.size(), 1u);
}

TEST_F(MessageLinkTest, AMessageOutOfTurnIsNotTaken) {
  Connect();
  Say(kEpoch, 1, 0, 0);
  ExpectBroken("message 1 of the peer arrived where message 0 was due");
  EXPECT_TRUE(owner_.records.empty());
}

TEST_F(MessageLinkTest, AMessageThatComesAgainIsNotTaken) {
  Connect();
  Say(kEpoch, 0, 0, 0);
  Say(kEpoch, 0, 0, 0);
  ExpectBroken("message 0 of the peer arrived where message 1 was due");
  EXPECT_EQ(owner_.records.size(), 1u);
}

// The immediate is right, and the slot still holds what it held a round before.
TEST_F(MessageLinkTest, AMessageOfAnEarlierTurnOfTheRingIsNotTaken) {
  Connect();
  for (uint32_t i = 0; i < 4; ++i) Say(kEpoch, i, 0, 0);
  SendMessage(Compose(kEpoch, 0, 0, 0, 100), 4, wire::EncodeMessageImmediate(4));
  ExpectBroken("a message has the wrong number");
  EXPECT_EQ(owner_.records.size(), 4u);
}

TEST_F(MessageLinkTest, ATensorImmediateThatGotLostIsMissed) {
  Connect();
  Write(0, 0, 0, wire::EncodeTensorImmediate(2, 3));
  Say(kEpoch, 0, 0, 1);
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  ASSERT_EQ(owner_.parts.size(), 1u);
  EXPECT_EQ(owner_.parts[0], std::make_pair(uint16_t{2}, uint16_t{3}));
  Say(kEpoch, 1, 0, 2);
  ExpectBroken("its mark (immediate) has not arrived");
  EXPECT_EQ(owner_.records.size(), 1u);
}

TEST_F(MessageLinkTest, ATensorImmediateThatIsNotCountedIsOneTooMany) {
  Connect();
  Write(0, 0, 0, wire::EncodeTensorImmediate(2, 3));
  Say(kEpoch, 0, 0, 0);
  ExpectBroken("its mark (immediate) has not arrived");
}

TEST_F(MessageLinkTest, ATensorImmediateForNoSlot) {
  Connect();
  Write(0, 0, 0, wire::EncodeTensorImmediate(4, 0));
  ExpectBroken("a slot that does not exist");
  EXPECT_TRUE(owner_.parts.empty());
}

TEST_F(MessageLinkTest, AnImmediateOfNoKind) {
  Connect();
  Write(0, 0, 0, 3u << 30);
  ExpectBroken("of no known kind");
}

TEST_F(MessageLinkTest, AnAckPageOfAnOlderEpoch) {
  Connect();
  WriteAckPage(kEpoch - 1, 0, wire::AckPageBytes(4));
  ExpectBroken("acknowledgement is of another connection");
  EXPECT_EQ(owner_.accepted, 0);
}

// The epoch has been written, and the count is the one of somebody else's memory.
TEST_F(MessageLinkTest, ATornAckPageThatClaimsTooMuch) {
  Connect();
  WriteAckPage(kEpoch, 0x5a5a0001, wire::AckPageBytes(4));
  ExpectBroken("never sent");
  EXPECT_EQ(owner_.accepted, 0);
}

// The end of the page is not written yet, so it still has the older counters, which say nothing
// new.
TEST_F(MessageLinkTest, ATornAckPageThatLacksItsEnd) {
  Connect();
  owner_.to_send = 2;
  link_->FlushSoon();
  Settle();
  ASSERT_EQ(link_->messages_sent(), 2u);
  WriteAckPage(kEpoch, 2, 8);
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  EXPECT_EQ(link_->accepted(0), 0);
  WriteAckPage(kEpoch, 1, wire::AckPageBytes(4));  // An older count, and the rest.
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  EXPECT_EQ(link_->accepted(0), 9);
  EXPECT_EQ(owner_.accepted, 2);
}

// An older count must not take back room, nor give some that is not there.
TEST_F(MessageLinkTest, CountsOfMessagesConsumedNeverGoBack) {
  Connect();
  owner_.to_send = 4;
  link_->FlushSoon();
  Settle();
  ASSERT_EQ(link_->messages_sent(), 4u);
  EXPECT_EQ(link_->message(), nullptr);
  Say(kEpoch, 0, 3, 0);
  Say(kEpoch, 1, 1, 0);
  EXPECT_TRUE(owner_.broken.ok()) << owner_.broken;
  owner_.to_send = 4;
  link_->FlushSoon();
  Settle();
  EXPECT_EQ(link_->messages_sent(), 7u);
}

TEST_F(MessageLinkTest, AHeaderThatClaimsMoreThanWasSent) {
  Connect();
  Say(kEpoch, 0, 1, 0);
  ExpectBroken("never sent");
  EXPECT_TRUE(owner_.records.empty());
}

TEST_F(MessageLinkTest, ARecordOfNoType) {
  Connect();
  wire::MessageWriter writer(out_, link_parameters_.message_bytes);
  wire::Record record;
  record.type = static_cast<wire::RecordType>(99);
  ASSERT_TRUE(writer.Add(record));
  SendMessage(writer.Finish(kEpoch, 0, 0, 0), 0, wire::EncodeMessageImmediate(0));
  ExpectBroken("a record is of no known type: 99");
}

TEST_F(MessageLinkTest, NothingBehindABreakIsTaken) {
  Connect();
  Say(kEpoch - 1, 0, 0, 0);
  const std::string first(owner_.broken.message());
  const Entry entry{region_->address(), Compose(kEpoch, 0, 0, 0, 1), region_->local_key()};
  SendWork work;
  work.op = SendOp::kWriteWithImmediate;
  work.entries = absl::MakeConstSpan(&entry, 1);
  work.remote_address = link_parameters_.ring_address;
  work.remote_key = link_parameters_.ring_key;
  (void)queue_pair_->PostSend(absl::MakeConstSpan(&work, 1));  // It may know that it is broken.
  Settle();
  EXPECT_TRUE(owner_.records.empty());
  EXPECT_EQ(owner_.broken.message(), first);
}

TEST_F(MessageLinkTest, HellosOfAnotherShapeAreRefused) {
  Hello hello = OurHello();
  hello.queue_pairs.push_back(hello.queue_pairs[0]);
  EXPECT_EQ(link_->Connect(hello).code(), absl::StatusCode::kInvalidArgument);
  wire::ChannelParameters other = link_parameters_;
  other.slots = 5;
  hello = OurHello();
  wire::EncodeParameters(other, reinterpret_cast<uint8_t*>(&hello.parameters[0]));
  EXPECT_EQ(link_->Connect(hello).code(), absl::StatusCode::kInvalidArgument);
}

// One bit of a message flipped on its way, at every byte of it.
class FlippedByteTest : public MessageLinkTest, public ::testing::WithParamInterface<size_t> {};

TEST_P(FlippedByteTest, IsNotTaken) {
  Connect();
  const size_t bytes = Compose(kEpoch, 0, 0, 0, 100);
  ASSERT_EQ(bytes, 48u);
  out_[GetParam()] ^= static_cast<uint8_t>(1 << GetParam() % 8);
  SendMessage(bytes, 0, wire::EncodeMessageImmediate(0));
  ExpectBroken("malformed message");
  EXPECT_TRUE(owner_.records.empty());
}

INSTANTIATE_TEST_SUITE_P(Bytes, FlippedByteTest, ::testing::Range<size_t>(0, 48));

// At the end: whatever only a hostile end can reach has been reached.
class EveryGuardIsReached : public ::testing::Environment {
 public:
  void TearDown() override {
    if (::testing::UnitTest::GetInstance()->test_to_run_count() !=
        ::testing::UnitTest::GetInstance()->total_test_count()) {
      return;
    }
    size_t guards = 0;
    ForEachGuard([&guards](absl::string_view name, uint64_t times) {
      if (!absl::StartsWith(name, "hostile: ")) return;
      ++guards;
      EXPECT_GT(times, 0u) << "no test reaches the guard \"" << name << "\"";
    });
    EXPECT_GE(guards, 12u);
  }
};
const auto* const kReached = ::testing::AddGlobalTestEnvironment(new EveryGuardIsReached);

}  // namespace
}  // namespace tryst
