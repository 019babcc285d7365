// A consumer writes its ring by hand. What it can make a producer hold is bounded; beyond the bound
// the link ends.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/ops/limits.h"
#include "channel/shm/shm_transport.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/process/pair/one_step.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";

class Nobody final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello&, Deadline, HelloDone done) override {
    std::move(done)(absl::UnavailableError("nobody"));
  }
};

// Tells how often it was read: a thread that sleeps reads no clock.
class CountedClock final : public Clock {
 public:
  explicit CountedClock(const Clock* clock) : clock_(clock) {}
  int64_t NowNs() const override {
    ++reads;
    return clock_->NowNs();
  }
  mutable std::atomic<int> reads{0};

 private:
  const Clock* const clock_;
};

class HostileConsumerTest : public ::testing::Test {
 protected:
  explicit HostileConsumerTest(const ShmOptions& options = {})
      : source_(&alarms_), poller_(&clock_, Sleepy()), arena_(Arena::Make({})) {
    SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
    TransportContext context;
    context.poller = &poller_;
    context.bootstrap = &nobody_;
    context.source = &source_;
    context.self = kProducer;
    context.incarnation = 1;
    path_ = std::make_unique<ShmTransport>(context, arena_, options);
    const absl::Status opened = path_->Open();
    TRYST_CHECK(opened.ok()) << opened;
    const absl::Status joined = Join(1);
    TRYST_CHECK(joined.ok()) << joined;
  }
  ~HostileConsumerTest() override {
    socket_.reset();
    path_->Close(absl::CancelledError("over"));
    for (int i = 0; i < 1000 && !path_->Drained(); ++i) Turn();
    EXPECT_TRUE(path_->Drained());
    SetLogSink(nullptr);
  }

  static PollerOptions Sleepy() {
    PollerOptions options;
    options.spin_us = 0;
    return options;
  }
  void Turn() {
    poller_.Turn();
    alarms_.AdvanceBy(absl::Microseconds(200));
  }

  absl::StatusOr<Hello> Greet(uint64_t epoch, const std::string& consumer) {
    const HostIdentity host = OwnHost();
    shm_wire::Offer offer;
    offer.boot_id = host.boot_id;
    offer.network_space = host.network_space;
    Hello hello;
    hello.worker = consumer;
    hello.incarnation = 2;
    hello.epoch = epoch;
    hello.path = "shm";
    hello.parameters = shm_wire::EncodeOffer(offer);
    absl::StatusOr<Hello> answer = absl::UnknownError("none");
    path_->OnHello(hello, [&](absl::StatusOr<Hello> its) { answer = std::move(its); });
    return answer;
  }
  // By a new link. An error: the producer turns the hello down.
  absl::Status Join(uint64_t epoch) {
    shm_wire::Packet packet;
    const absl::Status mapped = MapLink(epoch, &packet);
    if (!mapped.ok()) return mapped;
    packet.type = shm_wire::PacketType::kReady;
    memcpy(view_.header->proof, packet.token.data(), sizeof(view_.header->proof));
    socket_->Send(packet);
    Turn();
    TRYST_CHECK(IsServed());
    return absl::OkStatus();
  }
  // The first half of Join(): it has the link's memory, and has not said so. `welcome` is what it
  // was sent with it.
  absl::Status MapLink(uint64_t epoch, shm_wire::Packet* welcome) {
    const absl::StatusOr<Hello> answer = Greet(epoch, kConsumer);
    if (!answer.ok()) return answer.status();
    auto invitation = shm_wire::DecodeInvitation(answer->parameters);
    TRYST_CHECK(invitation.ok());
    auto socket = LocalSocket::Connect(invitation->socket);
    TRYST_CHECK(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
    shm_wire::Packet& packet = *welcome;
    packet.type = shm_wire::PacketType::kJoin;
    packet.token = invitation->token;
    socket_->Send(packet);
    OwnedFd fd;
    for (int i = 0; i < 10 && !fd.valid(); ++i) {
      Turn();
      socket_->Receive(&packet, &fd);
    }
    auto memory = SharedMemory::Map(std::move(fd),
                                    SharedMemory::Rounded(shm_wire::LinkBytes(packet.sizes)), true);
    TRYST_CHECK(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    view_ = shm_wire::LinkView(memory_->data(), packet.sizes);
    cells_ = packet.sizes.cells;
    proof_.assign(packet.probe, packet.probe + sizeof(packet.probe));
    requests_ = RingWriter<shm_wire::kRequestCellBytes>(view_.requests, packet.sizes.cells,
                                                        &view_.header->requests_read);
    return absl::OkStatus();
  }
  // A tensor is sent to it, which it does not give back.
  void GetTensor(uint8_t flags, uint32_t generation) {
    const std::string key = KeyOf(0, 100);
    ASSERT_TRUE(source_.step()
                    ->Send(*TensorKey::Parse(key), SendArgs(),
                           *Tensor::Allocate(DType::kUint8, {200'000}), false)
                    .ok());
    ASSERT_TRUE(SayKey(0, key));
    ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, generation, 0, StepOne(), flags));
    for (int i = 0; i < 3; ++i) Turn();
    ASSERT_TRUE(IsServed());
    ASSERT_GT(Link(0)->references(), 0u);
  }

  // The number of packets that the producer has sent over the socket.
  int Heard() {
    int heard = 0;
    shm_wire::Packet packet;
    OwnedFd fd;
    while (socket_->Receive(&packet, &fd) == LocalSocket::Received::kPacket) ++heard;
    return heard;
  }
  // The number of cells of this type that the producer has written. REQUIRES: it has not written
  // more than twice what the ring has room for.
  uint32_t Written(shm_wire::CellType type) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < cells_; ++i) {
      shm_wire::CellHead head;
      memcpy(&head, view_.replies + size_t{i} * sizeof(shm_wire::ReplyCell), sizeof(head));
      count += head.sequence != 0 && head.type == type;
    }
    return count;
  }
  // The producer's answers fill the ring, and nobody reads them.
  void FillReplies() {
    for (uint32_t i = 0; i < cells_; ++i) {
      ASSERT_TRUE(Say(shm_wire::CellType::kPing, 0, 0, 0, ""));
    }
    for (int i = 0; i < 100; ++i) Turn();
    ASSERT_EQ(Written(shm_wire::CellType::kPong), cells_);
  }
  void Send(const std::string& key, int64_t bytes) {
    ASSERT_TRUE(source_.step()
                    ->Send(*TensorKey::Parse(key), SendArgs(),
                           *Tensor::Allocate(DType::kUint8, {bytes}), false)
                    .ok());
  }

  const ShmServeLink* Link(size_t i) const {
    return static_cast<const ShmServeLink*>(path_->serving()[i]->link());
  }
  bool IsServed() const {
    return path_->serving().size() == 1 &&
           absl::StrContains(path_->serving()[0]->Explain(), "over shm: connected");
  }
  // False: the link has ended.
  bool Say(shm_wire::CellType type, uint16_t slot, uint32_t generation, uint32_t number,
           absl::string_view body, uint8_t flags = 0) {
    while (!requests_.HasRoom(1)) {
      Turn();
      if (!IsServed()) return false;
    }
    shm_wire::RequestCell cell{};
    cell.head.type = type;
    cell.head.flags = flags;
    cell.head.slot = slot;
    cell.head.generation = generation;
    cell.head.number = number;
    memcpy(cell.body, body.data(), std::min(body.size(), sizeof(cell.body)));
    memcpy(requests_.cell() + sizeof(cell.head.sequence),
           reinterpret_cast<const char*>(&cell) + sizeof(cell.head.sequence),
           sizeof(cell) - sizeof(cell.head.sequence));
    requests_.Publish();
    return true;
  }
  bool SayKey(uint32_t number, const std::string& text) {
    constexpr size_t kBody = sizeof(shm_wire::RequestCell::body);
    for (size_t at = 0; at < text.size(); at += kBody) {
      const auto type = at == 0 ? shm_wire::CellType::kKey : shm_wire::CellType::kMore;
      const auto length = static_cast<uint16_t>(text.size());
      if (!Say(type, length, 0, number, absl::string_view(text).substr(at, kBody))) return false;
    }
    return true;
  }
  static std::string StepOne() { return std::string("\1\0\0\0\0\0\0\0", 8); }
  static std::string KeyOf(uint32_t number, size_t bytes) {
    std::string key = absl::StrCat(kProducer, "/device:CPU:0;0000000000000001;", kConsumer,
                                   "/device:CPU:0;", number, "x");
    key += std::string(bytes - key.size() - 4, 'x') + ";0:0";
    return key;
  }

  Nobody nobody_;
  VirtualAlarms alarms_;
  CountedClock clock_{&alarms_};
  OneStep source_;
  Poller poller_;
  const std::shared_ptr<Arena> arena_;
  std::unique_ptr<ShmTransport> path_;
  std::unique_ptr<LocalSocket> socket_;
  std::unique_ptr<SharedMemory> memory_;
  shm_wire::LinkView view_;
  uint32_t cells_ = 0;
  std::string proof_;  // What is to be read in the producer's memory.
  RingWriter<shm_wire::kRequestCellBytes> requests_;
};

TEST_F(HostileConsumerTest, KeysAreRememberedUpToSoManyBytes) {
  uint32_t told = 0;
  while (told < limits::kMaxKeys && SayKey(told, KeyOf(told, limits::kMaxKeyBytes))) ++told;
  EXPECT_FALSE(IsServed());
  EXPECT_LE(uint64_t{told}, limits::kMaxKeysBytes / limits::kMaxKeyBytes + 64);
  EXPECT_GE(uint64_t{told}, limits::kMaxKeysBytes / limits::kMaxKeyBytes);
}

TEST_F(HostileConsumerTest, AKeyToldAnewTakesThePlaceOfTheFormer) {
  for (uint32_t i = 0; i < 40'000; ++i) {
    ASSERT_TRUE(SayKey(i % 4, KeyOf(i, limits::kMaxKeyBytes))) << i;
  }
  EXPECT_TRUE(IsServed());
}

// The rest of its text is not waited for.
TEST_F(HostileConsumerTest, AKeyThatIsTooLongEndsTheLinkAtItsFirstCell) {
  const std::string key = KeyOf(0, limits::kMaxKeyBytes);
  ASSERT_TRUE(SayKey(0, key));
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_TRUE(IsServed());
  ASSERT_TRUE(Say(shm_wire::CellType::kKey, limits::kMaxKeyBytes + 1, 0, 1, key));
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_FALSE(IsServed());
}

TEST_F(HostileConsumerTest, AKeyThatWasNeverToldEndsTheLink) {
  const std::string key = KeyOf(0, 100);
  ASSERT_TRUE(
      source_.step()
          ->Send(*TensorKey::Parse(key), SendArgs(), *Tensor::Allocate(DType::kInt64, {}), false)
          .ok());
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 99, StepOne()));
  for (int i = 0; i < 10 && IsServed(); ++i) Turn();
  EXPECT_FALSE(IsServed());
  EXPECT_EQ(source_.step()->counters().delivered, 0) << "it was given what another key names";
}

// What it has not been sent is not let go of, and what it has, is its own.
TEST_F(HostileConsumerTest, WhatWasNotSentCannotBeAccepted) {
  const std::string key = KeyOf(0, 100);
  ASSERT_TRUE(SayKey(0, key));
  for (uint32_t slot = 0; slot < 4; ++slot) view_.slots[slot].accepted.store(4);
  Send(key, 8);
  for (uint32_t generation = 1; generation <= 2; ++generation) {
    ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, generation, 0, StepOne()));
    for (int i = 0; i < 100; ++i) Turn();
    if (generation == 2) view_.slots[0].accepted.store(3);
    for (int i = 0; i < 100; ++i) Turn();
    ASSERT_TRUE(Say(shm_wire::CellType::kCancel, 0, generation, 0, ""));
    for (int i = 0; i < 100; ++i) Turn();
    EXPECT_EQ(source_.step()->counters().given_back, 1) << generation;
  }
  EXPECT_TRUE(IsServed());
}

TEST_F(HostileConsumerTest, CancelsWhoseAnswersNobodyReadsEndTheLink) {
  uint32_t said = 0;
  while (said < 1'000'000 && Say(shm_wire::CellType::kCancel, 0, said, 0, "")) ++said;
  EXPECT_FALSE(IsServed());
  EXPECT_LT(said, 100'000u);
}

TEST_F(HostileConsumerTest, AConsumerThatSleepsIsWokenByAnAnswer) {
  const std::string key = KeyOf(0, 100);
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(Heard(), 0) << "it is awake";
  view_.header->consumer_asleep.store(shm_wire::kForMessages);
  Send(key, 8);
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kInline), 1u);
  EXPECT_EQ(Heard(), 1);
  EXPECT_EQ(view_.header->consumer_asleep.load(), uint32_t{shm_wire::kAwake});
}

// Else it would not hear of the room, since it is not told of anything else.
TEST_F(HostileConsumerTest, AProducerThatLacksRoomSleepsForRoom) {
  const std::string key = KeyOf(0, 100);
  ASSERT_TRUE(SayKey(0, key));
  FillReplies();
  if (HasFatalFailure()) return;
  Send(key, 8);
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  poller_.Start();  // A thread of its own has nothing to do, and sleeps.
  uint32_t sleeps_for;
  do {
    std::this_thread::yield();
    sleeps_for = view_.header->producer_asleep.load();
  } while (sleeps_for == shm_wire::kAwake);
  EXPECT_EQ(sleeps_for, uint32_t{shm_wire::kForRoomToo});
  poller_.Stop();
}

// After 1, 2, 4, ... ms: nobody wakes it to say that what it has sent is accepted.
TEST_F(HostileConsumerTest, AProducerAsksEverLessOftenWhetherItsTensorIsAccepted) {
  GetTensor(0, 1);
  if (HasFatalFailure()) return;
  poller_.Start();
  const int before = clock_.reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_LT(clock_.reads - before, 300) << "it reads it some ten times for each look";
  poller_.Stop();
}

// Acceptances are read in turns that have time for it, and here none has.
TEST_F(HostileConsumerTest, WhatIsAcceptedAfterBusyTurnsIsLetGoOf) {
  constexpr uint32_t kTimes = 4;
  const auto slots = static_cast<uint16_t>(shm_wire::LinkSizes().slots);
  const int sent = slots * int{kTimes} + 1;
  const std::string key = KeyOf(0, 100);
  uint8_t bytes[8] = {};
  int let_go = 0;
  for (int i = 0; i < sent; ++i) {
    Tensor tensor =
        *Tensor::Adopt(bytes, DType::kUint8, {8}, MemorySpace(), [&let_go] { ++let_go; });
    ASSERT_TRUE(
        source_.step()->Send(*TensorKey::Parse(key), SendArgs(), std::move(tensor), false).ok());
  }
  RingReader<sizeof(shm_wire::ReplyCell)> replies(view_.replies, cells_,
                                                  &view_.header->replies_read);
  shm_wire::ReplyCell reply;
  ASSERT_TRUE(SayKey(0, key));
  for (uint32_t i = 0; i < static_cast<uint32_t>(sent); ++i) {
    ASSERT_TRUE(Say(shm_wire::CellType::kRequest, static_cast<uint16_t>(i % slots), 1 + i / slots,
                    0, StepOne()));
    while (replies.Ready()) replies.Take(reinterpret_cast<uint8_t*>(&reply), 0);
  }
  for (int i = 0; i < 20; ++i) {
    Turn();
    while (replies.Ready()) replies.Take(reinterpret_cast<uint8_t*>(&reply), 0);
  }
  EXPECT_EQ(let_go, sent - slots) << "a request says that what its slot had is accepted";
  for (uint16_t slot = 0; slot < slots; ++slot) {
    view_.slots[slot].accepted.store((slot == 0 ? kTimes + 1 : kTimes) + 1);
  }
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(let_go, sent);
}

TEST_F(HostileConsumerTest, WhatIsGivenUpWhileItWaitsForRoomIsNotAnswered) {
  const std::string key = KeyOf(0, 100);
  ASSERT_TRUE(SayKey(0, key));
  FillReplies();
  if (HasFatalFailure()) return;
  Send(key, 8);
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(source_.step()->counters().waiting_sends, 0);
  ASSERT_TRUE(Say(shm_wire::CellType::kCancel, 0, 1, 0, ""));
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(source_.step()->counters().waiting_sends, 1);
  view_.header->replies_read.store(cells_);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kGone), 1u);
  EXPECT_EQ(Written(shm_wire::CellType::kPong), cells_ - 1) << "one cell is new";
  EXPECT_TRUE(IsServed());
}

// Others have their turn, too.
TEST_F(HostileConsumerTest, ManyWordsAreHeardOverSeveralTurns) {
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Say(shm_wire::CellType::kPing, 0, 0, 0, ""));
  poller_.Turn();
  EXPECT_GT(Written(shm_wire::CellType::kPong), 0u);
  EXPECT_LT(Written(shm_wire::CellType::kPong), 100u);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kPong), 200u);
}

// Whoever gets a tensor back may end the link that is being read.
TEST_F(HostileConsumerTest, WhatComesBehindTheEndIsNotHeard) {
  const std::string key = KeyOf(0, 100);
  Send(key, 8);
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  source_.step()->RecvAsync(*TensorKey::Parse(key), RecvArgs(), [this](Received&& received) {
    EXPECT_TRUE(received.status.ok()) << received.status;
    path_->Close(absl::CancelledError("enough"));
  });
  ASSERT_TRUE(Say(shm_wire::CellType::kCancel, 0, 1, 0, ""));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 1, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(path_->serving().size(), 0u);
  Send(key, 8);
  EXPECT_EQ(source_.step()->counters().waiting_sends, 1) << "nobody waits for it";
}

TEST_F(HostileConsumerTest, WhatComesBehindNonsenseIsNotHeard) {
  const std::string key = KeyOf(0, 100);
  Send(key, 8);
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kInline, 0, 1, 0, ""));  // Only producers say so.
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_FALSE(IsServed());
  EXPECT_EQ(source_.step()->counters().delivered, 0);
}

TEST_F(HostileConsumerTest, WhoLeavesIsSentNothingMore) {
  const std::string key = KeyOf(0, 100);
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  view_.header->consumer_left.store(shm_wire::kKept);
  ASSERT_TRUE(socket_->Send(shm_wire::Packet()));
  for (int i = 0; i < 3; ++i) Turn();
  ASSERT_EQ(path_->serving().size(), 1u) << "its session is there";
  EXPECT_FALSE(IsServed());
  Send(key, 8);
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(source_.step()->counters().waiting_sends, 0);
  EXPECT_EQ(Written(shm_wire::CellType::kInline), 0u);
  // The next link goes on with it, and the tensor is sent once it is asked for there.
  ASSERT_TRUE(Join(2).ok());
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kInline), 0u);
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne(), shm_wire::kReplay));
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kInline), 1u);
  // A goodbye ends the session: what was not accepted goes back.
  view_.header->consumer_left.store(shm_wire::kNotKept);
  ASSERT_TRUE(socket_->Send(shm_wire::Packet()));
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(path_->serving().size(), 0u);
  EXPECT_EQ(source_.step()->counters().waiting_sends, 1);
}

// It holds a tensor, so that its socket stays open.
TEST_F(HostileConsumerTest, ThatItLeavesIsHeardThroughAFullSocket) {
  GetTensor(0, 1);
  while (socket_->Send(shm_wire::Packet())) {
  }
  view_.header->consumer_left.store(shm_wire::kKept);
  for (int i = 0; i < 100; ++i) Turn();
  EXPECT_FALSE(IsServed());
}

TEST_F(HostileConsumerTest, APacketOfAnotherVersionEndsTheLink) {
  shm_wire::Packet packet;
  ++packet.version;
  socket_->Send(packet);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_FALSE(IsServed());
}

// The packet that wakes the producer may be lost with a socket that is closed with something
// unread.
TEST_F(HostileConsumerTest, HowAConsumerLeavesIsInTheMemory) {
  const std::string key = KeyOf(0, 100);
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  for (const shm_wire::LinkEnd end : {shm_wire::kKept, shm_wire::kNotKept}) {
    view_.header->consumer_left.store(end);
    socket_.reset();
    for (int i = 0; i < 3; ++i) Turn();
    EXPECT_EQ(path_->serving().size(), end == shm_wire::kKept ? 1u : 0u);
    if (end == shm_wire::kKept) {
      const absl::Status joined = Join(2);
      ASSERT_TRUE(joined.ok()) << joined;
    }
  }
}

// Its link ends, and its session goes on, which is why it comes again.
TEST_F(HostileConsumerTest, WhoLeavesBeforeItHasJoinedIsWaitedFor) {
  view_.header->consumer_left.store(shm_wire::kNotKept);
  socket_.reset();
  for (int i = 0; i < 3; ++i) Turn();
  ASSERT_EQ(path_->serving().size(), 0u);
  shm_wire::Packet welcome;
  ASSERT_TRUE(MapLink(2, &welcome).ok());
  view_.header->consumer_left.store(shm_wire::kKept);
  socket_.reset();
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(path_->serving().size(), 1u);
  const absl::Status joined = Join(3);
  EXPECT_TRUE(joined.ok()) << joined;
}

// A link begins with the words of the one before it: a goodbye that comes before the replay gives
// nothing back that was accepted.
TEST_F(HostileConsumerTest, WhatWasAcceptedOverTheFormerLinkIsKnown) {
  const std::string key = KeyOf(0, 100);
  for (int i = 0; i < 2; ++i) Send(key, 8);
  ASSERT_TRUE(SayKey(0, key));
  for (uint16_t slot = 0; slot < 2; ++slot) {
    ASSERT_TRUE(Say(shm_wire::CellType::kRequest, slot, 1, 0, StepOne()));
    Turn();
  }
  EXPECT_EQ(source_.step()->counters().waiting_sends, 0);
  view_.slots[0].accepted.store(2);
  view_.header->consumer_left.store(shm_wire::kKept);
  socket_.reset();
  const absl::Status joined = Join(2);
  ASSERT_TRUE(joined.ok()) << joined;
  view_.header->consumer_left.store(shm_wire::kNotKept);
  socket_.reset();
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(source_.step()->counters().waiting_sends, 1) << "one was accepted, and one was not";
}

class WhatWasSentTest : public HostileConsumerTest {
 protected:
  // Two tensors are sent to it, and it has accepted the first.
  void AcceptOneOfTwo() {
    const std::string key = KeyOf(0, 100);
    for (int i = 0; i < 2; ++i) Send(key, 8);
    ASSERT_TRUE(SayKey(0, key));
    for (uint16_t slot = 0; slot < 2; ++slot) {
      ASSERT_TRUE(Say(shm_wire::CellType::kRequest, slot, 1, 0, StepOne()));
      Turn();
    }
    view_.slots[0].accepted.store(2);
    ASSERT_EQ(Back(), 0);
  }
  int64_t Back() { return source_.step()->counters().waiting_sends; }
};

// The words of the former link say that it was not accepted there.
TEST_F(WhatWasSentTest, AndIsNotAskedForAgainGoesBack) {
  AcceptOneOfTwo();
  view_.header->consumer_left.store(shm_wire::kKept);
  socket_.reset();
  ASSERT_TRUE(Join(2).ok());
  EXPECT_EQ(Back(), 0) << "it may be asked for again";
  ASSERT_TRUE(Say(shm_wire::CellType::kReplayed, 0, 0, 0, ""));
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(Back(), 1);
}

TEST_F(WhatWasSentTest, ToAProcessThatHasEndedGoesBack) {
  AcceptOneOfTwo();
  socket_.reset();
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(path_->serving().size(), 0u);
  EXPECT_EQ(Back(), 1);
}

// Who can guess it need not read it.
TEST_F(HostileConsumerTest, EachLinkHasAProofOfItsOwn) {
  const std::string first = proof_;
  EXPECT_NE(first, std::string(first.size(), '\0'));
  view_.header->consumer_left.store(shm_wire::kKept);
  socket_.reset();
  ASSERT_TRUE(Join(2).ok());
  EXPECT_NE(proof_, first);
}

// It has accepted all that it was sent, or waits for something.
TEST_F(WhatWasSentTest, OnlyWhoGoesBeforeItHasAllIsLogged) {
  static int lost = 0;
  lost = 0;
  SetLogSink([](LogSeverity, const char*, int, absl::string_view text) {
    lost += absl::StrContains(text, "lost the shm connection");
  });
  AcceptOneOfTwo();
  socket_.reset();
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(lost, 0) << "nothing is under way";
  ASSERT_TRUE(Join(2).ok());
  const std::string key = KeyOf(1, 100);
  ASSERT_TRUE(SayKey(0, key));
  ASSERT_TRUE(Say(shm_wire::CellType::kRequest, 0, 1, 0, StepOne()));
  for (int i = 0; i < 3; ++i) Turn();
  socket_.reset();
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(lost, 1);
}

// It may read its ring later, and accept what is there.
TEST_F(WhatWasSentTest, ToOneThatHasTheLinkStillIsLetGoOf) {
  AcceptOneOfTwo();
  path_->Close(absl::CancelledError("over"));
  EXPECT_EQ(Back(), 0);
}

TEST_F(HostileConsumerTest, AnotherConsumerIsServedBesideThisOne) {
  const absl::StatusOr<Hello> answer = Greet(1, "/job:c/replica:0/task:1");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(path_->serving().size(), 2u);
}

// In our segments it could read what is for others.
TEST_F(HostileConsumerTest, AnotherUserGetsCopiesAlone) {
  constexpr uid_t kNobody = 65534;
  EXPECT_FALSE(Link(0)->apart());
  const absl::StatusOr<Hello> answer = Greet(1, "/job:c/replica:0/task:1");
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto invitation = shm_wire::DecodeInvitation(answer->parameters);
  std::unique_ptr<LocalSocket> guest;
  std::thread([&] {  // Only this thread becomes another user.
    if (syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0) return;
    guest = *LocalSocket::Connect(invitation->socket);
  })
      .join();
  if (guest == nullptr) GTEST_SKIP() << "needs root, to become another user";
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kJoin;
  packet.token = invitation->token;
  ASSERT_TRUE(guest->Send(packet));
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_TRUE(Link(1)->apart());
}

TEST_F(HostileConsumerTest, WhoIsInvitedAndDoesNotJoinIsForgotten) {
  ASSERT_TRUE(Greet(1, "/job:c/replica:0/task:1").ok());
  const absl::StatusOr<Hello> answer = Greet(1, "/job:c/replica:0/task:2");
  ASSERT_TRUE(answer.ok());
  const auto invitation = shm_wire::DecodeInvitation(answer->parameters);
  const auto guest = *LocalSocket::Connect(invitation->socket);
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kJoin;
  packet.token = invitation->token;
  ASSERT_TRUE(guest->Send(packet));  // And says nothing when it is welcomed.
  for (int i = 0; i < 10; ++i) Turn();
  alarms_.AdvanceBy(absl::Milliseconds(14'900));
  Turn();
  path_->Maintain();
  EXPECT_EQ(path_->serving().size(), 3u);
  alarms_.AdvanceBy(absl::Milliseconds(200));
  Turn();
  path_->Maintain();
  EXPECT_EQ(path_->serving().size(), 1u);
  EXPECT_TRUE(IsServed());
}

TEST_F(HostileConsumerTest, WithoutADescriptorForItsMemoryALinkIsRefused) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "needs a process without the sanitizer of undefined behaviour, which opens "
                  "descriptors to look at objects";
#endif
  const absl::StatusOr<Hello> answer = Greet(1, "/job:c/replica:0/task:1");
  ASSERT_TRUE(answer.ok());
  const auto invitation = shm_wire::DecodeInvitation(answer->parameters);
  const auto guest = *LocalSocket::Connect(invitation->socket);
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kJoin;
  packet.token = invitation->token;
  ASSERT_TRUE(guest->Send(packet));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int lowest = dup(0);
  close(lowest);
  const rlimit one_more = {static_cast<rlim_t>(lowest) + 1, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  for (int i = 0; i < 10; ++i) Turn();  // It accepts the guest, and has none for the memory.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  OwnedFd fd;
  EXPECT_EQ(guest->Receive(&packet, &fd), LocalSocket::Received::kEnd);
  ASSERT_EQ(path_->serving().size(), 2u);
  EXPECT_TRUE(absl::StrContains(path_->serving()[1]->Explain(), "not connected"));
}

TEST_F(HostileConsumerTest, AHelloAfterTheEndIsTurnedDown) {
  path_->Close(absl::CancelledError("it stops"));
  EXPECT_EQ(Join(2).message(), "it stops");
  EXPECT_TRUE(path_->Drained());
}

// It holds a part of a tensor of each link, and every socket.
TEST_F(HostileConsumerTest, NothingIsKeptForPartsOfALinkThatIsOver) {
  std::vector<std::unique_ptr<LocalSocket>> sockets;
  for (uint64_t epoch = 2; epoch < 2 * ShmTransport::kMostKept; ++epoch) {
    GetTensor(shm_wire::kHasDestination, static_cast<uint32_t>(epoch));
    if (HasFatalFailure()) return;
    sockets.push_back(std::move(socket_));
    const absl::Status joined = Join(epoch);
    ASSERT_TRUE(joined.ok()) << joined;
  }
  EXPECT_EQ(arena_->counters().used_bytes, 0u);
}

// The consumer holds a tensor of each link.
TEST_F(HostileConsumerTest, SoManyLinksAreKeptForWhatIsHeldOfThem) {
  std::vector<std::unique_ptr<LocalSocket>> sockets;
  uint64_t epoch = 2;
  absl::Status joined;
  for (; epoch < 4 * ShmTransport::kMostKept && joined.ok(); ++epoch) {
    GetTensor(0, static_cast<uint32_t>(epoch));
    if (HasFatalFailure()) return;
    sockets.push_back(std::move(socket_));
    joined = Join(epoch);
  }
  EXPECT_EQ(sockets.size(), ShmTransport::kMostKept);
  EXPECT_EQ(joined.code(), absl::StatusCode::kResourceExhausted) << joined;
  EXPECT_GT(arena_->counters().used_bytes, 0u);
  sockets.clear();  // Its process ends.
  joined = Join(epoch);
  EXPECT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(arena_->counters().used_bytes, 0u);
}

class FewConsumersTest : public HostileConsumerTest {
 protected:
  FewConsumersTest() : HostileConsumerTest(Few()) {}
  static ShmOptions Few() {
    ShmOptions options;
    options.max_consumers = 2;
    return options;
  }
};

TEST_F(FewConsumersTest, NoMoreLinksAreKeptThanThereMayBeConsumers) {
  std::vector<std::unique_ptr<LocalSocket>> sockets;
  absl::Status joined;
  for (uint64_t epoch = 2; epoch < 6 && joined.ok(); ++epoch) {
    GetTensor(0, static_cast<uint32_t>(epoch));
    if (HasFatalFailure()) return;
    sockets.push_back(std::move(socket_));
    joined = Join(epoch);
  }
  EXPECT_EQ(sockets.size(), 2u);
  EXPECT_EQ(joined.code(), absl::StatusCode::kResourceExhausted) << joined;
}

}  // namespace
}  // namespace tryst
