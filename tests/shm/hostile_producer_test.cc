// A producer over shared memory that answers what was not asked, played by hand.
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "channel/shm/shm_transport.h"
#include "gtest/gtest.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/pair/one_step.h"
#include "tests/shm/hostile_link.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";
constexpr uint32_t kNumber = 4711;

class HostileProducerTest : public ::testing::Test {
 protected:
  HostileProducerTest() : step_(&alarms_), poller_(&alarms_) {
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
    channel_ = transport_->MakeFetchChannel(kProducer, nullptr);
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
    EXPECT_EQ(ended_, started_);
  }

  void Turn() {
    for (int i = 0; i < 3; ++i) {
      poller_.Turn();
      alarms_.AdvanceBy(absl::Microseconds(200));
    }
  }
  void Open() {
    link_.Open(&hellos_, door_.get(), door_name_, kProducer, 7, shm_wire::kLinkNewest, *segment_,
               [this] { Turn(); });
    ASSERT_NE(link_.socket, nullptr);
    Turn();
  }
  void Fetch(const Tensor& destination = Tensor()) {
    ++started_;
    Args args;
    args.destination = destination;
    const TensorKey key = TensorKeyPrefix::Make(absl::StrCat(kProducer, "/device:CPU:0"), 1,
                                                absl::StrCat(kConsumer, "/device:CPU:0"), "edge")
                              ->At(0, 0);
    channel_->Fetch(1, key, args,
                    [this](absl::Status status, const Args&, const Args&, Tensor tensor, bool) {
                      ++ended_;
                      if (!status.ok()) return;
                      ASSERT_GE(tensor.bytes(), sizeof(uint32_t));
                      got_.push_back(tensor.data_as<uint32_t>()[0]);
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

  // Half of a tensor of two numbers, in the segment.
  void AnswerPart(const shm_wire::CellHead& request, uint64_t position, uint32_t number) {
    memcpy(static_cast<uint8_t*>(segment_->data()) + position, &number, sizeof(number));
    shm_wire::Placed placed;
    placed.dtype = static_cast<uint8_t>(DType::kUint32);
    placed.rank = 1;
    placed.dims[0] = 2;
    placed.reference = static_cast<uint16_t>(position / sizeof(number));
    placed.reference_generation = 1;
    placed.offset = position;
    placed.bytes = 2 * sizeof(number);
    placed.piece_bytes = sizeof(number);
    placed.position = position;
    shm_wire::ReplyCell cell{};
    cell.head.type = shm_wire::CellType::kChunk;
    cell.head.slot = request.slot;
    cell.head.generation = request.generation;
    shm_wire::WritePlaced(placed, &cell);
    cell.is_long = 1;
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
  std::unique_ptr<ShmTransport> transport_;
  const std::string door_name_ = absl::StrCat("tryst-hostile-", getpid());
  std::unique_ptr<LocalSocket> door_;
  std::unique_ptr<SharedMemory> segment_;
  std::unique_ptr<ShmFetchChannel> channel_;
  HostileLink link_;
  int started_ = 0;
  int ended_ = 0;
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

}  // namespace
}  // namespace tryst
