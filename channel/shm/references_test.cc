#include "channel/shm/references.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace tryst {
namespace {

// What comes by the socket passes what comes by the ring.
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
  EXPECT_TRUE(absl::IsDataLoss(add(7, 1)));  // No index is left out.
  // Twice over: each in its turn.
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
  // A producer that sends and never says so has a bound.
  int sent = 0;
  while (sent < 1000 && add(1, 1).ok()) ++sent;
  EXPECT_EQ(sent, 64);
  held->Unref();
}

}  // namespace
}  // namespace tryst
