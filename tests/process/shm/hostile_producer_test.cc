// A producer over shared memory that answers what was not asked, played by hand.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/memory_bound.h"
#include "base/reached.h"
#include "channel/ops/farewell.h"
#include "channel/shm/shm_transport.h"
#include "channel/string_codec.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/process/pair/one_step.h"
#include "tests/process/pair/path_listener.h"
#include "tests/process/shm/hostile_link.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";
constexpr uint32_t kNumber = 4711;

uint64_t TimesReached(absl::string_view guard) {
  uint64_t sum = 0;
  ForEachGuard([&](absl::string_view name, uint64_t times) {
    if (name == guard) sum += times;
  });
  return sum;
}

// While it lives, the process has one descriptor left, or none.
class LastDescriptor {
 public:
  explicit LastDescriptor(bool any_left) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest = dup(0);
    close(lowest);
    const rlimit now = {static_cast<rlim_t>(lowest) + any_left, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~LastDescriptor() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

class HostileProducerTest : public ::testing::Test {
 protected:
  // `is_alone`: there is no other path.
  explicit HostileProducerTest(bool is_alone = true) : step_(&alarms_), poller_(&alarms_) {
    TransportContext context;
    context.poller = &poller_;
    context.bootstrap = &hellos_;
    context.source = &step_;
    context.self = kConsumer;
    context.incarnation = 1;
    ShmOptions shm;
    shm.sizes = SmallLinkSizes();
    shm.parts_room_bytes = 128 << 10;
    ArenaOptions arena;
    arena.cap_bytes = 4 << 20;
    arena.first_segment_bytes = 1 << 20;
    transport_ = std::make_unique<ShmTransport>(context, Arena::Make(arena), shm);
    EXPECT_TRUE(transport_->Open().ok());
    door_ = *LocalSocket::Listen(door_name_);
    segment_ = *SharedMemory::Create(8192, SharedMemory::Writers::kCreator);
    channel_ = transport_->MakeFetchSession(kProducer, &user_, !is_alone);
  }
  ~HostileProducerTest() override {
    channel_->Close(absl::CancelledError("the test is over"));
    link_.socket.reset();
    Turn();
    if (hellos_.answer != nullptr) {
      std::exchange(hellos_.answer, nullptr)(absl::UnavailableError("the test is over"));
    }
    Turn();
    EXPECT_TRUE(channel_->Drained()) << channel_->Explain();
    user_.EndAll(absl::CancelledError("the test is over"));
    EXPECT_EQ(ended_, started_);
  }

  void Turn() {
    for (int i = 0; i < 3; ++i) {
      poller_.Turn();
      alarms_.AdvanceBy(absl::Microseconds(200));
    }
  }
  void Open(uint64_t incarnation = 7) {
    link_.Open(&hellos_, door_.get(), door_name_, kProducer, incarnation, *segment_,
               [this] { Turn(); });
    ASSERT_NE(link_.socket, nullptr);
    Turn();
  }
  // It ends the link, and expects another one.
  void HangUp() {
    link_.view.header->producer_left.store(shm_wire::kKept);
    link_.socket.reset();
    for (int i = 0; i < 100 && hellos_.answer == nullptr; ++i) Turn();
    ASSERT_NE(hellos_.answer, nullptr) << channel_->Explain();
  }
  // It ends the link while nothing is out, and the next fetch wants another one.
  void HangUpAndFetch() {
    link_.view.header->producer_left.store(shm_wire::kKept);
    link_.socket.reset();
    for (int i = 0; i < 100 && channel_->open(); ++i) Turn();
    Fetch();
    for (int i = 0; i < 100 && hellos_.answer == nullptr; ++i) Turn();
    ASSERT_NE(hellos_.answer, nullptr) << channel_->Explain();
  }
  // How many packets of this type the consumer has sent over the socket.
  int Heard(shm_wire::PacketType type) {
    int heard = 0;
    shm_wire::Packet packet;
    OwnedFd fd;
    while (link_.socket->Receive(&packet, &fd) == LocalSocket::Received::kPacket) {
      heard += packet.type == type;
    }
    return heard;
  }
  // How many cells the consumer has written, and how many of them are of this type. REQUIRES: it
  // has not written the ring for the second time.
  uint32_t Written() const {
    return Count([](const shm_wire::CellHead&) { return true; });
  }
  uint32_t Written(shm_wire::CellType type) const {
    return Count([type](const shm_wire::CellHead& head) { return head.type == type; });
  }
  template <typename Fn>
  uint32_t Count(Fn counts) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < shm_wire::kMinCells; ++i) {
      shm_wire::CellHead head;
      memcpy(&head, link_.view.requests + size_t{i} * sizeof(shm_wire::RequestCell), sizeof(head));
      count += head.sequence == i + 1 && counts(head);
    }
    return count;
  }
  static TensorKey KeyOf(const std::string& edge) {
    return TensorKeyPrefix::Make(absl::StrCat(kProducer, "/device:CPU:0"), 1,
                                 absl::StrCat(kConsumer, "/device:CPU:0"), edge)
        ->At(0, 0);
  }
  void Fetch(const Tensor& destination = Tensor(), Cancellation* cancellation = nullptr,
             const std::string& edge = "edge") {
    ++started_;
    RecvArgs args;
    args.destination = destination;
    args.cancellation = cancellation;
    channel_->Fetch(1, KeyOf(edge), args, [this](Received&& received) {
      ++ended_;
      status_ = received.status;
      if (!received.status.ok()) return;
      ASSERT_GE(received.tensor.bytes(), sizeof(uint32_t));
      got_.push_back(received.tensor.data_as<uint32_t>()[0]);
    });
    Turn();
  }
  // The request that the consumer has written last.
  shm_wire::CellHead LastRequest() const {
    shm_wire::RequestCell newest{};
    for (uint32_t i = 0; i < shm_wire::kMinCells; ++i) {
      shm_wire::RequestCell cell;
      memcpy(&cell, link_.view.requests + size_t{i} * sizeof(cell), sizeof(cell));
      const bool is_request = cell.head.type == shm_wire::CellType::kRequest;
      if (is_request && cell.head.sequence > newest.head.sequence) newest = cell;
    }
    return newest.head;
  }
  // A tensor of one number, in the cell.
  void Answer(uint16_t slot, uint32_t generation, uint32_t number) {
    shm_wire::ReplyCell cell{};
    cell.head.type = shm_wire::CellType::kInline;
    cell.head.slot = slot;
    cell.head.generation = generation;
    cell.head.number = sizeof(number);
    cell.is_long = 1;
    cell.body[0] = static_cast<uint8_t>(DType::kUint32);
    cell.body[1] = 1;
    const int64_t one = 1;
    memcpy(cell.body + 2, &one, sizeof(one));
    memcpy(cell.body + 2 + sizeof(one), &number, sizeof(number));
    link_.Reply(cell);
    Turn();
  }

  // Writes a number into the segment, and answers that it is one part of a tensor of `numbers`.
  void AnswerPart(const shm_wire::CellHead& request, uint64_t position, uint32_t number,
                  int64_t numbers = 2, uint16_t segment = 0) {
    memcpy(static_cast<uint8_t*>(segment_->data()) + position, &number, sizeof(number));
    shm_wire::Placed placed;
    placed.dtype = static_cast<uint8_t>(DType::kUint32);
    placed.rank = 1;
    placed.dims[0] = numbers;
    placed.reference = static_cast<uint16_t>(position / sizeof(number));
    placed.reference_generation = 1;
    placed.offset = position;
    placed.segment = segment;
    placed.bytes = static_cast<uint64_t>(numbers) * sizeof(number);
    placed.piece_bytes = sizeof(number);
    placed.position = position;
    AnswerPlaced(shm_wire::CellType::kChunk, request, placed);
  }
  // Answers that a tensor of so many bytes lies at `address`.
  void AnswerPull(const shm_wire::CellHead& request, int64_t bytes, const void* address) {
    shm_wire::Placed placed;
    placed.dtype = static_cast<uint8_t>(DType::kUint8);
    placed.rank = 1;
    placed.dims[0] = bytes;
    placed.bytes = static_cast<uint64_t>(bytes);
    placed.offset = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address));
    shm_wire::ReplyCell cell{};
    cell.head.type = shm_wire::CellType::kPull;
    cell.head.slot = request.slot;
    cell.head.generation = request.generation;
    shm_wire::WritePlaced(placed, &cell);
    link_.Reply(cell);
    Turn();
  }
  // Answers that the first bytes of the segment are a tensor of one string.
  void AnswerStrings(const shm_wire::CellHead& request, uint64_t bytes) {
    shm_wire::Placed placed;
    placed.dtype = static_cast<uint8_t>(DType::kString);
    placed.rank = 1;
    placed.dims[0] = 1;
    placed.bytes = bytes;
    placed.reference_generation = 1;
    AnswerPlaced(shm_wire::CellType::kReference, request, placed);
  }
  void AnswerPlaced(shm_wire::CellType type, const shm_wire::CellHead& request,
                    const shm_wire::Placed& placed) {
    shm_wire::ReplyCell cell{};
    cell.head.type = type;
    cell.head.slot = request.slot;
    cell.head.generation = request.generation;
    shm_wire::WritePlaced(placed, &cell);
    cell.is_long = 1;
    link_.Reply(cell);
    Turn();
  }
  void Say(shm_wire::CellType type, const shm_wire::CellHead& request) {
    shm_wire::ReplyCell cell{};
    cell.head.type = type;
    cell.head.slot = request.slot;
    cell.head.generation = request.generation;
    link_.Reply(cell);
    Turn();
  }
  void Fail(const shm_wire::CellHead& request) {
    shm_wire::ReplyCell cell{};
    cell.head.type = shm_wire::CellType::kFailed;
    cell.head.slot = request.slot;
    cell.head.generation = request.generation;
    cell.head.number = static_cast<uint32_t>(absl::StatusCode::kInternal);
    link_.Reply(cell);
    Turn();
  }

  VirtualAlarms alarms_;
  OneStep step_;
  KeptHellos hellos_;
  Poller poller_;
  PathListener user_;
  std::unique_ptr<ShmTransport> transport_;
  const std::string door_name_ = absl::StrCat("tryst-hostile-", getpid());
  std::unique_ptr<LocalSocket> door_;
  std::unique_ptr<SharedMemory> segment_;
  std::unique_ptr<FetchSession> channel_;
  HostileLink link_;
  int started_ = 0;
  int ended_ = 0;
  absl::Status status_;  // The fetch that ended last has it.
  std::vector<uint32_t> got_;
};

TEST_F(HostileProducerTest, AnAnswerToTheFetchIsItsTensor) {
  Fetch();
  Open();
  const shm_wire::CellHead request = LastRequest();
  ASSERT_EQ(request.type, shm_wire::CellType::kRequest);
  Answer(request.slot, request.generation, kNumber);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
}

// Else the first tensor that it is to read comes in vain.
TEST_F(HostileProducerTest, WhoCannotReadItsMemorySaysSo) {
  Fetch();
  Open();
  int pulls = -1;
  shm_wire::Packet packet;
  OwnedFd fd;
  while (link_.socket->Receive(&packet, &fd) == LocalSocket::Received::kPacket) {
    if (packet.type == shm_wire::PacketType::kReady) pulls = packet.pulls;
  }
  EXPECT_EQ(pulls, 0) << "the producer has not said where its memory is";
}

// The slot is asked for again; the answer is of its first use.
TEST_F(HostileProducerTest, AnAnswerOfAnotherGenerationIsNoTensor) {
  Fetch();
  Open();
  const shm_wire::CellHead first = LastRequest();
  Answer(first.slot, first.generation, kNumber);
  Fetch();
  const shm_wire::CellHead second = LastRequest();
  ASSERT_EQ(second.slot, first.slot);
  ASSERT_NE(second.generation, first.generation);
  Answer(first.slot, first.generation, kNumber + 1);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
  EXPECT_EQ(ended_, 1) << "the fetch is asked for over another link";
}

TEST_F(HostileProducerTest, ATensorMayComeInParts) {
  const Tensor into = *Tensor::Allocate(DType::kUint32, {2});
  Fetch(into);
  Open();
  const shm_wire::CellHead request = LastRequest();
  AnswerPart(request, 0, kNumber);
  EXPECT_EQ(ended_, 0);
  AnswerPart(request, sizeof(uint32_t), kNumber + 1);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
  EXPECT_EQ(into.data_as<uint32_t>()[1], kNumber + 1);
}

// The rest of a tensor comes after its fetch has ended, for the next fetch in the slot.
TEST_F(HostileProducerTest, ThePartsOfATensorThatFailedGoNowhere) {
  const Tensor first = *Tensor::Allocate(DType::kUint32, {2});
  const Tensor second = *Tensor::Allocate(DType::kUint32, {2});
  for (const Tensor& tensor : {first, second}) memset(tensor.mutable_data(), 0, tensor.bytes());
  Fetch(first);
  Open();
  AnswerPart(LastRequest(), 0, kNumber);
  Fail(LastRequest());
  ASSERT_EQ(ended_, 1);
  EXPECT_TRUE(first.storage()->unique()) << "nobody else holds the caller's memory";
  Fetch(second);
  AnswerPart(LastRequest(), sizeof(uint32_t), kNumber);
  EXPECT_EQ(first.data_as<uint32_t>()[1], 0u) << "a byte lands after its fetch has ended";
  EXPECT_TRUE(got_.empty());
}

// The first life had more slots, and one of them was this fetch's.
TEST_F(HostileProducerTest, WhatIsForTheNextLifeIsAskedOfItInAnotherSlot) {
  Fetch();  // Its key names the life 1.
  Open(7);
  ASSERT_EQ(LastRequest().type, shm_wire::CellType::kRequest);
  HangUp();
  link_.says.slots /= 2;
  Open(1);
  const shm_wire::CellHead request = LastRequest();
  ASSERT_EQ(request.type, shm_wire::CellType::kRequest);
  Answer(request.slot, request.generation, kNumber);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
}

// ---- What the consumer says, and when ----

TEST_F(HostileProducerTest, AProducerThatSleepsIsWokenByARequest) {
  Fetch();
  Open();
  Heard(shm_wire::PacketType::kWake);
  Answer(LastRequest().slot, LastRequest().generation, kNumber);
  EXPECT_EQ(Heard(shm_wire::PacketType::kWake), 0) << "it is awake";
  link_.view.header->producer_asleep.store(shm_wire::kForMessages);
  Fetch();
  EXPECT_EQ(Heard(shm_wire::PacketType::kWake), 1);
  EXPECT_EQ(link_.view.header->producer_asleep.load(), uint32_t{shm_wire::kAwake});
}

// The producer lets go of what was accepted, and what is turned down has to go back.
TEST_F(HostileProducerTest, WhatIsTurnedDownIsNotAccepted) {
  Fetch();
  Open();
  const shm_wire::CellHead first = LastRequest();
  Answer(first.slot, first.generation, kNumber);
  EXPECT_EQ(link_.view.slots[first.slot].accepted.load(), first.generation + 1);
  Fetch(*Tensor::Allocate(DType::kUint32, {2}));  // Another shape.
  const shm_wire::CellHead second = LastRequest();
  ASSERT_EQ(second.slot, first.slot);
  Answer(second.slot, second.generation, kNumber);
  EXPECT_EQ(link_.view.slots[second.slot].accepted.load(), first.generation + 1);
  EXPECT_EQ(Written(shm_wire::CellType::kCancel), 1u);
  Say(shm_wire::CellType::kGone, second);
  EXPECT_TRUE(absl::IsInvalidArgument(status_)) << status_;
}

// Its bytes are not looked at.
TEST_F(HostileProducerTest, WhatDoesNotFitIsTurnedDownForThat) {
  Fetch(*Tensor::Allocate(DType::kUint32, {2}));
  Open();
  const shm_wire::CellHead request = LastRequest();
  shm_wire::Placed placed;
  placed.dtype = static_cast<uint8_t>(DType::kUint32);
  placed.rank = 1;
  placed.dims[0] = 4;
  placed.reference_generation = 1;
  placed.bytes = 4 * sizeof(uint32_t);
  placed.digest = Crc32c(0, segment_->data(), placed.bytes) + 1;
  shm_wire::ReplyCell cell{};
  cell.head.type = shm_wire::CellType::kReference;
  cell.head.flags = shm_wire::kHasDigest;
  cell.head.slot = request.slot;
  cell.head.generation = request.generation;
  shm_wire::WritePlaced(placed, &cell);
  cell.is_long = 1;
  link_.Reply(cell);
  Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kCancel), 1u);
  Say(shm_wire::CellType::kGone, request);
  EXPECT_TRUE(absl::IsInvalidArgument(status_)) << status_;
  EXPECT_EQ(channel_->Counted().digests_wrong, 0u);
}

TEST_F(HostileProducerTest, WhoParksAFetchUnaskedBreaksTheLink) {
  Fetch();
  Open();
  const shm_wire::CellHead request = LastRequest();
  shm_wire::ReplyCell cell{};
  cell.head.type = shm_wire::CellType::kParked;
  cell.head.slot = request.slot;
  cell.head.generation = request.generation;
  link_.Reply(cell);
  Turn();
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(channel_->Counted().parked, 0u);
  EXPECT_EQ(ended_, 0) << status_;
}

TEST_F(HostileProducerTest, WhoAnswersASlotThatThereIsNotBreaksTheLink) {
  Fetch();
  Open();
  Answer(UINT16_MAX, LastRequest().generation, kNumber);
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(ended_, 0) << "the fetch is asked for over another link";
}

TEST_F(HostileProducerTest, WhatALifeWasAskedForEndsWithTheNext) {
  Fetch();
  Open();
  HangUp();
  EXPECT_EQ(ended_, 0) << status_;
  Open(8);
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(absl::IsAborted(status_)) << status_;
}

// Unless a part of it lies in memory that is not the next one's.
TEST_F(HostileProducerTest, WhatHasBegunToComeIsNotTakenOver) {
  Cancellation cancellation;
  Fetch(*Tensor::Allocate(DType::kUint32, {2}), &cancellation);
  Fetch(*Tensor::Allocate(DType::kUint32, {2}));
  Open();
  AnswerPart(LastRequest(), 0, kNumber);
  cancellation.StartCancel();
  Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kCancel), 1u);
}

// Its caller hears of it then; the producer hears of it again, and only then the slot is free.
TEST_F(HostileProducerTest, WhatIsGivenUpIsCancelledOverTheNextLinkToo) {
  Cancellation cancellation;
  Fetch(Tensor(), &cancellation);
  Open();
  const shm_wire::CellHead given_up = LastRequest();
  cancellation.StartCancel();
  Turn();
  EXPECT_EQ(Written(shm_wire::CellType::kCancel), 1u);
  EXPECT_EQ(ended_, 0) << "it waits for the last word: " << status_;
  Fetch(Tensor(), nullptr, "other");
  const shm_wire::CellHead asked = LastRequest();
  HangUp();
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(absl::IsCancelled(status_)) << status_;
  Open();
  EXPECT_EQ(Written(shm_wire::CellType::kRequest), 1u) << "only the other is asked for again";
  EXPECT_EQ(Written(shm_wire::CellType::kCancel), 1u);
  EXPECT_EQ(Written(shm_wire::CellType::kReplayed), 1u);
  const shm_wire::CellHead again = LastRequest();
  EXPECT_EQ(again.slot, asked.slot);
  EXPECT_EQ(again.generation, asked.generation) << "by the same name";
  EXPECT_NE(again.flags & shm_wire::kReplay, 0);
  Say(shm_wire::CellType::kGone, given_up);
  Answer(again.slot, again.generation, kNumber);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
}

TEST_F(HostileProducerTest, ASessionThatIsForgottenEndsWhatWasAsked) {
  Fetch();
  Open();
  HangUp();
  EXPECT_EQ(ended_, 0) << status_;
  link_.session = 2;
  Open();
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(absl::IsUnavailable(status_)) << status_;
  Fetch();
  Answer(LastRequest().slot, LastRequest().generation, kNumber);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
}

TEST_F(HostileProducerTest, AnAnswerInASlotWithoutAFetchBreaksTheLink) {
  Fetch();
  Open();
  const uint16_t other = LastRequest().slot == 0 ? 1 : 0;
  Answer(other, 1, kNumber);
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(ended_, 0) << "the fetch is asked for over another link";
}

// Another link may bring a right one, but not for ever.
TEST_F(HostileProducerTest, AFetchThatIsAnsweredWronglyAgainAndAgainEnds) {
  Fetch();
  int links = 0;
  for (; links < 20 && ended_ == 0; ++links) {
    for (int i = 0; i < 10'000 && hellos_.answer == nullptr; ++i) Turn();
    Open();
    Say(shm_wire::CellType::kMore, LastRequest());
    EXPECT_EQ(channel_->Counted().breaks, static_cast<uint64_t>(links) + 1);
  }
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(links, 3);
  EXPECT_TRUE(absl::IsDataLoss(status_)) << status_;
}

// Its memory cannot be read where it says: it is told so, and answers otherwise.
TEST_F(HostileProducerTest, WhatCannotBeReadIsAskedForOtherwise) {
  link_.lends = true;
  for (const int64_t bytes : {int64_t{4}, int64_t{8 << 20}}) {
    Fetch(*Tensor::Allocate(DType::kUint8, {bytes}));
    if (!channel_->open()) Open(1);
    const shm_wire::CellHead request = LastRequest();
    link_.view.slots[request.slot].loan.store(shm_wire::kLent);
    AnswerPull(request, bytes, reinterpret_cast<const void*>(uintptr_t{1} << 46));
    for (int i = 0; i < 20; ++i) Turn();
    EXPECT_EQ(Count([](const shm_wire::CellHead& head) {
                return head.type == shm_wire::CellType::kPulled &&
                       head.flags == shm_wire::kPullFailed;
              }),
              bytes == 4 ? 1u : 2u);
    EXPECT_EQ(link_.view.slots[request.slot].loan.load(), uint32_t{shm_wire::kLent});
    EXPECT_EQ(ended_, bytes == 4 ? 0 : 1) << status_;
    Fail(request);
    EXPECT_TRUE(absl::IsInternal(status_)) << status_;
  }
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(channel_->Counted().pulled, 0u);
}

// A path is tried before anybody needs it: only an answer shows that it works.
TEST_F(HostileProducerTest, WhoIsTriedIsAskedForASignAtOnce) {
  channel_->Probe();
  Turn();
  Open();
  EXPECT_EQ(Written(shm_wire::CellType::kPing), 1u);
  EXPECT_EQ(user_.usable, 0);
  shm_wire::ReplyCell pong{};
  pong.head.type = shm_wire::CellType::kPong;
  link_.Reply(pong);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(user_.usable, 1);
}

// It was reached before, so that it has ended since its hello, and its path is good.
TEST_F(HostileProducerTest, ADoorThatIsShutIsNoReasonToLeaveAPathThatWorked) {
  Fetch();
  Open();
  Answer(LastRequest().slot, LastRequest().generation, kNumber);
  HangUpAndFetch();
  HostileLink::Invite(&hellos_, "tryst-nobody-listens", kProducer, 7);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(user_.refused, 0);
  EXPECT_EQ(ended_, 1) << status_;
}

// The memory may hold anything by the time at which it was read.
TEST_F(HostileProducerTest, WhatIsReadWithoutALoanIsNotBelieved) {
  const uint32_t theirs[2] = {kNumber, kNumber};
  link_.lends = true;
  uint64_t breaks = 0;
  for (const uint32_t loan : {shm_wire::kNoLoan, shm_wire::kLoanEnded, shm_wire::kLent}) {
    Fetch(*Tensor::Allocate(DType::kUint8, {sizeof(theirs)}));
    Open(1);  // The life that the key names.
    const shm_wire::CellHead request = LastRequest();
    link_.view.slots[request.slot].loan.store(loan);
    AnswerPull(request, sizeof(theirs), theirs);
    const bool good = loan == shm_wire::kLent;
    EXPECT_EQ(got_.size(), good ? 1u : 0u) << loan;
    EXPECT_EQ(channel_->Counted().breaks, good ? breaks : ++breaks) << loan;
    if (good) {
      EXPECT_EQ(link_.view.slots[request.slot].loan.load(), uint32_t{shm_wire::kTaken});
      EXPECT_EQ(Written(shm_wire::CellType::kPulled), 1u);
      break;
    }
    EXPECT_TRUE(absl::IsUnavailable(status_)) << status_;
    link_.socket.reset();
  }
}

TEST_F(HostileProducerTest, ATensorThatNoMemoryHoldsEndsItsFetchAlone) {
  Fetch();
  Open();
  const shm_wire::CellHead request = LastRequest();
  AnswerPull(request, int64_t{1} << 50, nullptr);
  EXPECT_EQ(Written(shm_wire::CellType::kCancel), 1u);
  Say(shm_wire::CellType::kGone, request);
  EXPECT_TRUE(absl::IsResourceExhausted(status_)) << status_;
  EXPECT_EQ(channel_->Counted().breaks, 0u);
}

// Strings are copied out of the memory that they came in.
TEST_F(HostileProducerTest, StringsThatNoMemoryHoldsEndTheirFetchAlone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends a process that has no more memory";
#endif
  constexpr uint64_t kBytes = 32 << 20;
  segment_ = *SharedMemory::Create(kBytes, SharedMemory::Writers::kCreator);
  Fetch();
  Open();
  const shm_wire::CellHead request = LastRequest();
  {
    const MemoryBound bound(kBytes / 2);
    AnswerStrings(request, kBytes);
  }
  EXPECT_EQ(Written(shm_wire::CellType::kCancel), 1u);
  Say(shm_wire::CellType::kGone, request);
  EXPECT_TRUE(absl::IsResourceExhausted(status_)) << status_;
  EXPECT_EQ(channel_->Counted().breaks, 0u);
}

// What a run is answered with is read as bytes, and a tensor of strings has none in a row.
TEST_F(HostileProducerTest, StringsAreNoAnswerOfARun) {
  const std::vector<std::string> edges = {"a", "b", "c", "d", "e"};
  std::vector<TensorKey> keys;
  for (const std::string& edge : edges) {
    Fetch(Tensor(), nullptr, edge);
    if (edge == "a") Open();
    const shm_wire::CellHead request = LastRequest();
    Answer(request.slot, request.generation, kNumber);
    keys.push_back(KeyOf(edge));
  }
  ASSERT_EQ(ended_, 5) << status_;
  // A number of characters that is more than a string object takes.
  const std::string text(100, '\x01');
  const Tensor strings = *Tensor::FromStrings({text}, {1});
  const std::string encoded = EncodeStrings(strings);
  memcpy(segment_->data(), encoded.data(), encoded.size());
  int ends = 0;
  absl::Status first;
  ManyFetchedFn done = [&](absl::Status status, absl::Span<Received>) {
    ++ends;
    first = std::move(status);
  };
  ASSERT_TRUE(channel_->FetchMany(1, keys, RecvArgs(), &done));
  Turn();
  const shm_wire::CellHead run = LastRequest();
  ASSERT_EQ(Written(shm_wire::CellType::kRequest), 6u) << "all of them are one run";
  AnswerStrings(run, encoded.size());
  Say(shm_wire::CellType::kGone, run);
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(absl::IsDataLoss(first)) << first;
  EXPECT_TRUE(absl::StrContains(first.message(), "a run of keys with a tensor of string")) << first;
}

// ---- How a link opens ----

TEST_F(HostileProducerTest, AHelloOffersTheSizesOfItsOptions) {
  Fetch();
  const auto offer = shm_wire::DecodeOffer(hellos_.asked.parameters);
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->sizes.cells, SmallLinkSizes().cells);
  EXPECT_EQ(offer->sizes.slots, SmallLinkSizes().slots);
  EXPECT_EQ(offer->sizes.references, SmallLinkSizes().references);
}

TEST_F(HostileProducerTest, SizesThatNoLinkHasOpenNone) {
  for (const int wrong : {0, 1, 2}) {
    link_.says = SmallLinkSizes();
    if (wrong == 0) link_.says.cells -= 1;
    if (wrong == 1) link_.says.slots = 0;
    if (wrong == 2) link_.says.references -= 1;
    Fetch();
    for (int i = 0; i < 1000 && hellos_.answer == nullptr; ++i) Turn();
    Open();
    EXPECT_FALSE(channel_->open()) << wrong;
    EXPECT_EQ(channel_->Counted().links, 0u) << wrong;
    EXPECT_TRUE(absl::StrContains(channel_->Explain(), "out of range")) << channel_->Explain();
  }
  EXPECT_EQ(ended_, 0) << status_;
}

// The keys of three fetches fill the ring. The fourth says what it has to when that was read.
TEST_F(HostileProducerTest, WhatTheRingHasNoRoomForIsAskedForLater) {
  for (int i = 0; i < 4; ++i) {
    Fetch(Tensor(), nullptr, absl::StrCat(std::string(3900, 'k'), i));
  }
  for (int link = 0; link < 2; ++link) {
    Open();
    int requests = 0;
    uint32_t heard = 0;
    for (int i = 0; i < 10; ++i, Turn()) {
      for (;; ++heard) {
        shm_wire::CellHead head;
        memcpy(&head,
               link_.view.requests +
                   size_t{heard % shm_wire::kMinCells} * sizeof(shm_wire::RequestCell),
               sizeof(head));
        if (head.sequence != heard + 1) break;
        requests += head.type == shm_wire::CellType::kRequest;
      }
      link_.view.header->requests_read.store(heard);
    }
    EXPECT_EQ(requests, 4);
    if (link == 0) HangUp();
  }
}

// The socket has it, behind what else the producer said. One that talks without end is not heard to
// the end.
TEST_F(HostileProducerTest, ASegmentIsLookedForAmongSoManyPackets) {
  Fetch();
  Open();
  const int room = 8 << 20;
  if (setsockopt(link_.socket->fd(), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) != 0) {
    GTEST_SKIP() << "needs CAP_NET_ADMIN, by which a socket holds more";
  }
  for (const int before : {100, 1100}) {
    shm_wire::Packet packet;
    packet.type = shm_wire::PacketType::kWake;
    for (int i = 0; i < before; ++i) ASSERT_TRUE(link_.socket->Send(packet)) << i;
    packet.type = shm_wire::PacketType::kSegment;
    packet.segment = before == 100 ? 1 : 2;
    packet.segment_id = packet.segment;
    packet.segment_bytes = segment_->bytes();
    ASSERT_TRUE(link_.socket->Send(packet, segment_->fd()));
    AnswerPart(LastRequest(), 0, kNumber, 1, static_cast<uint16_t>(packet.segment));
    EXPECT_EQ(got_.size(), 1u) << "behind " << before;
    EXPECT_EQ(channel_->Counted().breaks, before == 100 ? 0u : 1u);
    if (before == 100) Fetch();
  }
}

// The producer has sent what it should, so that its fetches go on for as long as they may.
TEST_F(HostileProducerTest, WithoutADescriptorForItASegmentIsNoWrongAnswer) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "needs a process without the sanitizer of undefined behaviour, which opens "
                  "descriptors to look at objects";
#endif
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kSegment;
  packet.segment = 1;
  packet.segment_id = 1;
  packet.segment_bytes = segment_->bytes();
  shm_wire::Packet wake;
  wake.type = shm_wire::PacketType::kWake;
  Fetch();
  constexpr int kLinks = 4;  // More than wrong answers end a fetch.
  for (int link = 0; link <= kLinks; ++link) {
    for (int i = 0; i < 10'000 && hellos_.answer == nullptr; ++i) Turn();
    Open();
    // It is so far behind that the word that needs it is read first.
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(link_.socket->Send(wake)) << i;
    ASSERT_TRUE(link_.socket->Send(packet, segment_->fd()));
    {
      const LastDescriptor last(/*any_left=*/link == kLinks);
      AnswerPart(LastRequest(), 0, kNumber, 1, /*segment=*/1);
    }
    if (link == kLinks) continue;
    ASSERT_EQ(ended_, 0) << link << ": " << status_;
    EXPECT_EQ(channel_->Counted().breaks, static_cast<uint64_t>(link) + 1);
    EXPECT_TRUE(absl::StrContains(channel_->Explain(), "RESOURCE_EXHAUSTED: the process has no"))
        << channel_->Explain();
  }
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
}

// As where the memory of the link itself finds no room.
TEST_F(HostileProducerTest, WithoutADescriptorForItsMemoryNoLinkOpens) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "needs a process without the sanitizer of undefined behaviour, which opens "
                  "descriptors to look at objects";
#endif
  Fetch();
  link_.Open(&hellos_, door_.get(), door_name_, kProducer, 7, *segment_, [&] {
    const LastDescriptor last(/*any_left=*/link_.socket == nullptr);  // None from the welcome on.
    Turn();
  });
  EXPECT_FALSE(channel_->open());
  EXPECT_EQ(ended_, 0) << status_;
  EXPECT_TRUE(absl::StrContains(channel_->Explain(), "RESOURCE_EXHAUSTED: the process has no"))
      << channel_->Explain();
}

TEST_F(HostileProducerTest, APacketOutOfPlaceBeforeASegmentEndsTheLink) {
  Fetch();
  Open();
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kWake;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(link_.socket->Send(packet)) << i;
  packet.type = shm_wire::PacketType::kWelcome;
  ASSERT_TRUE(link_.socket->Send(packet));
  AnswerPart(LastRequest(), 0, kNumber, 1, /*segment=*/1);
  EXPECT_EQ(channel_->Counted().breaks, 1u);
  EXPECT_EQ(ended_, 0) << status_;
  EXPECT_TRUE(absl::StrContains(channel_->Explain(), "not due now")) << channel_->Explain();
}

// ---- What a producer owes ----

// Answers hellos, and then owes something.
class OwingProducerTest : public HostileProducerTest {
 protected:
  static constexpr int64_t kGiveUpMs = 2000;  // As ShmOptions has it.
  static constexpr int64_t kPatienceMs = 60'000;

  explicit OwingProducerTest(bool is_alone = false) : HostileProducerTest(is_alone) {}

  enum class Does {
    kNeverWelcomes,  // Its door is open, and nobody is there.
    kIsSilent,       // It says nothing over the link.
    kIsStopped,      // It neither reads nor answers anything.
    kHangsUp,        // It welcomes, and ends the link, again and again.
    kAnswers,        // It answers pings.
  };
  // Runs until `is_over` holds or `ms` have passed. Returns how long that took.
  template <typename Fn>
  int64_t Run(Does does, int64_t ms, Fn is_over) {
    const int64_t began_ns = alarms_.clock().NowNs();
    const auto passed_ms = [&] { return (alarms_.clock().NowNs() - began_ns) / 1'000'000; };
    while (passed_ms() < ms && !is_over()) {
      Turn();
      alarms_.AdvanceBy(absl::Milliseconds(5));
      if (hellos_.answer != nullptr) AnswerHello(does);
      if (link_.socket == nullptr || !channel_->open() || does == Does::kIsStopped) continue;
      Hear(does == Does::kAnswers);
    }
    return passed_ms();
  }
  int64_t RunUntilLeft(Does does, int64_t ms = 2 * kPatienceMs) {
    return Run(does, ms, [this] { return user_.failed > 0; });
  }
  void ExpectLeft(int64_t took_ms, int64_t most_ms) {
    EXPECT_EQ(user_.failed, 1) << channel_->Explain();
    EXPECT_EQ(ended_, 0) << "it goes on elsewhere: " << status_;
    EXPECT_GE(took_ms, kGiveUpMs);
    EXPECT_LE(took_ms, most_ms);
  }
  void AnswerHello(Does does) {
    if (hellos_.asked.path != "shm") {
      if (does == Does::kIsStopped) return;
      ++asked_if_up_;
      return std::exchange(hellos_.answer, nullptr)(absl::UnimplementedError("no such path"));
    }
    link_.socket.reset();
    heard_ = 0;
    if (does == Does::kNeverWelcomes) {
      return HostileLink::Invite(&hellos_, door_name_, kProducer, 7);
    }
    link_.Open(&hellos_, door_.get(), door_name_, kProducer, 7, *segment_, [this] { Turn(); });
    Turn();
    if (does != Does::kHangsUp || link_.socket == nullptr) return;
    link_.view.header->producer_left.store(shm_wire::kKept);
    link_.socket.reset();
  }
  // Reads what the consumer says.
  void Hear(bool answers_pings) {
    for (;; ++heard_) {
      shm_wire::RequestCell asked;
      memcpy(&asked, link_.view.requests + size_t{heard_ % shm_wire::kMinCells} * sizeof(asked),
             sizeof(asked));
      if (asked.head.sequence != heard_ + 1) break;
      if (asked.head.type != shm_wire::CellType::kPing || !answers_pings) continue;
      shm_wire::ReplyCell pong{};
      pong.head.type = shm_wire::CellType::kPong;
      link_.Reply(pong);
    }
    link_.view.header->requests_read.store(heard_);
  }

  uint32_t heard_ = 0;
  int asked_if_up_ = 0;
};

TEST_F(OwingProducerTest, WhoNeverWelcomesIsLeft) {
  Fetch();
  ExpectLeft(RunUntilLeft(Does::kNeverWelcomes), 6000);
}

TEST_F(OwingProducerTest, WhoWelcomesAndIsSilentAboutTheAskIsLeft) {
  Fetch();
  ExpectLeft(RunUntilLeft(Does::kIsSilent), 3 * kGiveUpMs + 1500);
  EXPECT_EQ(asked_if_up_, 2) << "once for its link, and once before another path is tried";
  EXPECT_EQ(channel_->Counted().breaks, 1u);
}

// It works for a while, as the last one for which anybody asked.
TEST_F(OwingProducerTest, WhoFallsSilentIsLeft) {
  Fetch();
  RunUntilLeft(Does::kAnswers, 3 * kGiveUpMs);
  EXPECT_EQ(user_.failed, 0);
  const int64_t took_ms = RunUntilLeft(Does::kIsSilent);
  ExpectLeft(took_ms, kPatienceMs / 2);
}

TEST_F(OwingProducerTest, WhoWelcomesAndHangsUpIsLeft) {
  Fetch();
  ExpectLeft(RunUntilLeft(Does::kHangsUp), kGiveUpMs + 2000);
}

TEST_F(OwingProducerTest, WhoBeginsALargeTensorAndStopsIsLeft) {
  const uint64_t before = TimesReached("rare: parts of a tensor in shared memory stay away");
  Fetch();
  Open();
  AnswerPart(LastRequest(), 0, kNumber, 16 << 20);
  ExpectLeft(RunUntilLeft(Does::kAnswers), kGiveUpMs + 2000);
  EXPECT_EQ(TimesReached("rare: parts of a tensor in shared memory stay away"), before + 1);
}

// Its process was stopped, and goes on later: the link is as it was.
TEST_F(OwingProducerTest, WhoIsStoppedForAWhileIsNotLeft) {
  Fetch();
  Open();
  RunUntilLeft(Does::kIsStopped, 10 * kGiveUpMs);
  if (hellos_.answer != nullptr) {
    std::exchange(hellos_.answer, nullptr)(absl::DeadlineExceededError("nobody"));
  }
  RunUntilLeft(Does::kAnswers, 3 * kGiveUpMs);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(user_.failed, 0);
  Answer(LastRequest().slot, LastRequest().generation, kNumber);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
}

// An honest producer answers, and its program has not called Send yet.
TEST_F(OwingProducerTest, WhoAnswersMayTakeLongForItsSend) {
  Fetch();
  RunUntilLeft(Does::kAnswers, 3 * kGiveUpMs);
  RunUntilLeft(Does::kAnswers, kPatienceMs);
  EXPECT_EQ(channel_->Counted().breaks, 0u);
  EXPECT_EQ(user_.failed, 0);
  EXPECT_EQ(asked_if_up_, 0);
  Answer(LastRequest().slot, LastRequest().generation, kNumber);
  EXPECT_EQ(got_, std::vector<uint32_t>{kNumber});
}

// Here there is no other path: the fetches end with the patience.
class OwingAloneProducerTest : public OwingProducerTest {
 protected:
  OwingAloneProducerTest() : OwingProducerTest(true) {}

  void ExpectEnds(Does does) {
    const int64_t took_ms = Run(does, 3 * kPatienceMs, [this] { return ended_ > 0; });
    EXPECT_TRUE(absl::IsUnavailable(status_)) << status_;
    EXPECT_GE(took_ms, kPatienceMs);
    EXPECT_LE(took_ms, kPatienceMs + 20'000);
  }
};

TEST_F(OwingAloneProducerTest, WhoNeverWelcomesEndsWhatWaits) {
  Fetch();
  ExpectEnds(Does::kNeverWelcomes);
}

TEST_F(OwingAloneProducerTest, WhoWelcomesAndIsSilentAboutTheAskEndsWhatWaits) {
  Fetch();
  ExpectEnds(Does::kIsSilent);
}

TEST_F(OwingAloneProducerTest, WhoWelcomesAndHangsUpEndsWhatWaits) {
  Fetch();
  ExpectEnds(Does::kHangsUp);
}

TEST_F(OwingAloneProducerTest, WhoBeginsALargeTensorAndStopsEndsWhatWaits) {
  Fetch();
  Open();
  AnswerPart(LastRequest(), 0, kNumber, 16 << 20);
  ExpectEnds(Does::kAnswers);
  EXPECT_TRUE(absl::StrContains(status_.message(), "has brought nothing")) << status_;
}

}  // namespace
}  // namespace tryst
