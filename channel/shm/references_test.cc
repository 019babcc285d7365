#include "channel/shm/references.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr uint32_t kReferences = 16;

// Both ends of a link, without channels: a producer's list over an arena, and its consumer's views.
class ReferencesTest : public ::testing::Test {
 protected:
  ReferencesTest() {
    sizes_.references = kReferences;
    const std::string name = absl::StrCat("tryst-references-test-", getpid());
    auto listener = *LocalSocket::Listen(name);
    std::shared_ptr<LocalSocket> ours = *LocalSocket::Connect(name);
    std::shared_ptr<LocalSocket> theirs = listener->Accept();
    auto memory =
        *SharedMemory::Create(shm_wire::LinkBytes(sizes_), SharedMemory::Writers::kEverybody);
    auto mapped =
        *SharedMemory::Map(OwnedFd(dup(memory->fd())), memory->bytes(), /*writable=*/true);
    given_ = std::make_unique<GivenReferences>(theirs, std::move(memory), sizes_);
    held_ = new HeldReferences(ours, std::move(mapped), sizes_);
    theirs_ = theirs;
    arena_ = Arena::Make(ArenaOptions());
  }
  ~ReferencesTest() override {
    if (held_ != nullptr) held_->Unref();
  }

  // Gives `storage`; returns what the consumer is told.
  shm_wire::Placed Give(const StorageRef& storage, uint64_t charge = 0) {
    shm_wire::Placed placed;
    placed.offset = storage->space().segment_offset;
    given_->Give(storage, charge, &placed.reference, &placed.reference_generation);
    return placed;
  }
  absl::Status SendSegment(const StorageRef& storage, uint32_t index) {
    const auto memory = arena_->FindSegment(storage->space().segment_id);
    shm_wire::Packet packet;
    packet.type = shm_wire::PacketType::kSegment;
    packet.segment = index;
    packet.segment_id = storage->space().segment_id;
    packet.segment_bytes = memory->bytes();
    return held_->AddSegment(packet, OwnedFd(dup(memory->fd())));
  }

  shm_wire::LinkSizes sizes_;
  std::unique_ptr<GivenReferences> given_;
  HeldReferences* held_ = nullptr;
  std::shared_ptr<LocalSocket> theirs_;
  std::shared_ptr<Arena> arena_;
};

TEST_F(ReferencesTest, AViewIsTheBytesAndItsEndGivesThemBack) {
  StorageRef storage = *arena_->Allocate(1000);
  memset(storage->data(), 0x3c, 1000);
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  const shm_wire::Placed placed = Give(storage, 1024);
  storage = StorageRef();
  EXPECT_EQ(given_->held(), 1u);
  EXPECT_EQ(given_->charged_bytes(), 1024u);
  auto view = held_->View(placed, 1000);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(static_cast<const uint8_t*>((*view)->data())[999], 0x3c);
  EXPECT_EQ((*view)->space().kind, MemorySpace::Kind::kShared);
  EXPECT_FALSE(given_->HasReturned());
  EXPECT_EQ(*given_->TakeReturned(), 0);
  *view = StorageRef();
  EXPECT_TRUE(given_->HasReturned());
  EXPECT_EQ(*given_->TakeReturned(), 1);
  EXPECT_EQ(given_->held(), 0u);
  EXPECT_EQ(given_->charged_bytes(), 0u);
  EXPECT_EQ(arena_->counters().used_bytes, 0u);
}

// The link is over; the consumer holds a tensor of it, and has not returned a part yet.
TEST_F(ReferencesTest, APartThatComesBackAfterTheEndFreesNothingElse) {
  const StorageRef storage = *arena_->Allocate(1000);
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  auto tensor = held_->View(Give(storage), 1000);
  shm_wire::Placed placed;
  placed.offset = storage->space().segment_offset;
  given_->GivePart(storage, &placed.reference, &placed.reference_generation);
  auto part = held_->View(placed, 1000);
  ASSERT_TRUE(tensor.ok() && part.ok());
  given_->DropParts();
  EXPECT_FALSE(given_->Over());
  *part = StorageRef();
  EXPECT_FALSE(given_->Over());
  EXPECT_EQ(given_->held(), 1u) << "the consumer still reads it";
  *tensor = StorageRef();
  EXPECT_TRUE(given_->Over());
}

TEST_F(ReferencesTest, WhatAForkedChildDropsStaysTheParents) {
  const StorageRef storage = *arena_->Allocate(1000);
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  auto view = held_->View(Give(storage), 1000);
  ASSERT_TRUE(view.ok()) << view.status();
  const pid_t child = fork();
  if (child == 0) {
    *view = StorageRef();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(given_->HasReturned()) << "the parent still reads it";
  *view = StorageRef();
  EXPECT_EQ(*given_->TakeReturned(), 1);
}

TEST_F(ReferencesTest, SomeAreKeptBackForParts) {
  const StorageRef storage = *arena_->Allocate(64);
  for (uint32_t i = 0; i < kReferences - GivenReferences::kForParts; ++i) {
    ASSERT_TRUE(given_->HasFree(false));
    Give(storage);
  }
  EXPECT_FALSE(given_->HasFree(false));
  for (uint32_t i = 0; i < GivenReferences::kForParts; ++i) {
    ASSERT_TRUE(given_->HasFree(true));
    Give(storage);
  }
  EXPECT_FALSE(given_->HasFree(true));
  given_->DropAll();
  EXPECT_EQ(given_->held(), 0u);
  EXPECT_TRUE(given_->HasFree(false));
}

TEST_F(ReferencesTest, ManyThreadsReturnWhatTheyHold) {
  const StorageRef storage = *arena_->Allocate(4096);
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  int returned = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<StorageRef> views;
    for (uint32_t i = 0; i < kReferences; ++i) {
      auto view = held_->View(Give(storage), 4096);
      ASSERT_TRUE(view.ok()) << view.status();
      views.push_back(*std::move(view));
    }
    std::vector<StorageRef> half(std::make_move_iterator(views.begin()),
                                 std::make_move_iterator(views.begin() + kReferences / 2));
    views.erase(views.begin(), views.begin() + kReferences / 2);
    std::thread other([&half] { half.clear(); });
    views.clear();
    other.join();
    while (given_->held() > 0) {
      auto taken = given_->TakeReturned();
      ASSERT_TRUE(taken.ok()) << taken.status();
      returned += *taken;
    }
  }
  EXPECT_EQ(returned, 500 * static_cast<int>(kReferences));
}

// The consumer is hostile.
TEST_F(ReferencesTest, WhatIsNotHeldCannotBeReturned) {
  const StorageRef storage = *arena_->Allocate(64);
  const shm_wire::Placed placed = Give(storage);
  const auto put = [this](uint32_t sequence, uint16_t generation, uint16_t reference) {
    given_->view().releases[(sequence - 1) & (kReferences - 1)].store(
        uint64_t{sequence} << 32 | uint64_t{generation} << 16 | reference);
  };
  put(1, static_cast<uint16_t>(placed.reference_generation + 1), placed.reference);
  EXPECT_TRUE(absl::IsDataLoss(given_->TakeReturned().status()));
  put(2, placed.reference_generation, kReferences);  // Out of range.
  EXPECT_TRUE(absl::IsDataLoss(given_->TakeReturned().status()));
  EXPECT_EQ(given_->held(), 1u);
  put(3, placed.reference_generation, placed.reference);
  EXPECT_EQ(*given_->TakeReturned(), 1);
  put(4, placed.reference_generation, placed.reference);  // The second time.
  EXPECT_TRUE(absl::IsDataLoss(given_->TakeReturned().status()));
}

// Nor a part of a link that is over, under another generation than its own.
TEST_F(ReferencesTest, APartThatWasDroppedIsReturnedByItsName) {
  const StorageRef storage = *arena_->Allocate(64);
  uint16_t reference = 0, generation = 0;
  given_->GivePart(storage, &reference, &generation);
  given_->DropParts();
  for (const uint16_t wrong : {1, 0}) {
    const uint32_t at = wrong == 1 ? 0 : 1;
    const uint64_t named = uint64_t{generation} + wrong;
    given_->view().releases[at].store(uint64_t{at + 1} << 32 | named << 16 | reference);
    EXPECT_EQ(given_->TakeReturned().ok(), wrong == 0);
  }
}

// The producer is hostile.
TEST_F(ReferencesTest, WhatReachesOutOfItsSegmentIsRefused) {
  const StorageRef storage = *arena_->Allocate(4096);
  shm_wire::Placed placed = Give(storage);
  EXPECT_TRUE(absl::IsDataLoss(held_->View(placed, 64).status())) << "no such segment";
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  const uint64_t segment_bytes = arena_->FindSegment(storage->space().segment_id)->bytes();
  for (uint64_t offset : {segment_bytes - 63, segment_bytes, segment_bytes + 1, UINT64_MAX}) {
    placed.offset = offset;
    EXPECT_TRUE(absl::IsDataLoss(held_->View(placed, 64).status())) << offset;
  }
  placed.offset = 0;
  EXPECT_TRUE(absl::IsDataLoss(held_->View(placed, segment_bytes + 1).status()));
  placed.reference = kReferences;
  EXPECT_TRUE(absl::IsDataLoss(held_->View(placed, 64).status()));
  placed.reference = 0;
  auto view = held_->View(placed, 64);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(absl::IsDataLoss(held_->View(placed, 64).status())) << "held already";
  EXPECT_TRUE(absl::IsDataLoss(held_->DropSegment(0))) << "its tensors are held";
  *view = StorageRef();
  EXPECT_TRUE(held_->DropSegment(0).ok());
  EXPECT_TRUE(absl::IsDataLoss(held_->DropSegment(0)));
}

TEST_F(ReferencesTest, SegmentsComeInTurn) {
  const StorageRef storage = *arena_->Allocate(4096);
  EXPECT_TRUE(absl::IsDataLoss(SendSegment(storage, 1))) << "0 has not come";
  EXPECT_TRUE(SendSegment(storage, 0).ok());
  EXPECT_TRUE(absl::IsDataLoss(SendSegment(storage, shm_wire::kMaxSegments)));
  for (uint32_t i = 1; i < shm_wire::kMaxSegments; ++i) {
    ASSERT_TRUE(SendSegment(storage, i).ok()) << i;
  }
  EXPECT_TRUE(absl::IsDataLoss(SendSegment(storage, shm_wire::kMaxSegments)))
      << "as many as there may be have come";
}

// The refusal must come before the mapping, because all producers share our address space.
TEST_F(ReferencesTest, MoreThanAMachineHasIsNotMapped) {
  const StorageRef storage = *arena_->Allocate(4096);
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  const auto memory = arena_->FindSegment(storage->space().segment_id);
  shm_wire::Packet packet;
  packet.type = shm_wire::PacketType::kSegment;
  packet.segment = 1;
  packet.segment_bytes = shm_wire::kMaxMappedBytes - memory->bytes() + 1;
  const absl::Status refused = held_->AddSegment(packet, OwnedFd(dup(memory->fd())));
  EXPECT_NE(refused.message().find("more shared memory than may be mapped"), std::string::npos)
      << refused;
}

// A packet on the socket may overtake a cell in the ring.
TEST(HeldReferences, ASegmentMayComeBeforeTheWordThatItsIndexIsFree) {
  shm_wire::LinkSizes sizes;
  auto link = SharedMemory::Create(shm_wire::LinkBytes(sizes), SharedMemory::Writers::kEverybody);
  ASSERT_TRUE(link.ok()) << link.status();
  auto* held = new HeldReferences(nullptr, *std::move(link), sizes);
  const auto add = [held](uint16_t index, uint64_t pages) {
    auto memory = SharedMemory::Create(pages << 12, SharedMemory::Writers::kCreator);
    shm_wire::Packet packet;
    packet.type = shm_wire::PacketType::kSegment;
    packet.segment = index;
    packet.segment_id = pages;
    packet.segment_bytes = (*memory)->bytes();
    return held->AddSegment(packet, OwnedFd(dup((*memory)->fd())));
  };
  EXPECT_TRUE(add(0, 1).ok());
  EXPECT_TRUE(add(1, 2).ok());
  EXPECT_TRUE(absl::IsDataLoss(add(7, 1)));  // No index may be skipped.
  // Two segments wait for the same index; each gets it in turn.
  EXPECT_TRUE(add(0, 4).ok());
  EXPECT_TRUE(add(0, 8).ok());
  EXPECT_EQ(held->mapped_bytes(), 3u << 12);
  EXPECT_TRUE(held->DropSegment(0).ok());
  EXPECT_EQ(held->mapped_bytes(), 6u << 12);
  EXPECT_TRUE(held->DropSegment(0).ok());
  EXPECT_EQ(held->mapped_bytes(), 10u << 12);
  EXPECT_TRUE(held->DropSegment(0).ok());
  EXPECT_FALSE(held->has_segment(0));
  EXPECT_TRUE(absl::IsDataLoss(held->DropSegment(0)));
  // A producer that sends segments and never frees an index meets a bound.
  int sent = 0;
  while (sent < 1000 && add(1, 1).ok()) ++sent;
  EXPECT_EQ(sent, 64);
  held->Unref();
}

// A view's bytes outlive the producer's list, its arena and the link.
TEST_F(ReferencesTest, AViewOutlivesItsProducer) {
  StorageRef storage = *arena_->Allocate(1000);
  memset(storage->data(), 0x77, 1000);
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  StorageRef view = *held_->View(Give(storage), 1000);
  storage = StorageRef();
  given_.reset();
  arena_.reset();
  std::exchange(held_, nullptr)->Unref();
  EXPECT_EQ(static_cast<const uint8_t*>(view->data())[999], 0x77);
}

// What a producer keeps for a consumer after its channel has ended is released when the socket
// ends.
TEST_F(ReferencesTest, IsOverWhenTheConsumerHasGone) {
  StorageRef storage = *arena_->Allocate(1000);
  ASSERT_TRUE(SendSegment(storage, 0).ok());
  StorageRef view = *held_->View(Give(storage), 1000);
  EXPECT_FALSE(given_->Over());
  std::exchange(held_, nullptr)->Unref();
  EXPECT_FALSE(given_->Over()) << "a view is left";
  view = StorageRef();
  EXPECT_TRUE(given_->Over());
  EXPECT_EQ(given_->held(), 0u);
}

}  // namespace
}  // namespace tryst
