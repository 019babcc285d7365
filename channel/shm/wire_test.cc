#include "channel/shm/wire.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "channel/ops/limits.h"
#include "gtest/gtest.h"

namespace tryst {
namespace shm_wire {
namespace {

Offer SomeOffer() {
  Offer offer;
  offer.boot_id = "0a1b2c3d";
  offer.network_space = 4026531840;
  offer.sizes.cells = 1024;
  offer.sizes.slots = 77;
  offer.sizes.references = 512;
  offer.digests = true;
  return offer;
}

TEST(ShmWireTest, OffersComeBackAsTheyWere) {
  const Offer offer = SomeOffer();
  auto decoded = DecodeOffer(EncodeOffer(offer));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->boot_id, offer.boot_id);
  EXPECT_EQ(decoded->network_space, offer.network_space);
  EXPECT_EQ(decoded->sizes.cells, 1024u);
  EXPECT_EQ(decoded->sizes.slots, 77u);
  EXPECT_EQ(decoded->sizes.references, 512u);
  EXPECT_TRUE(decoded->digests);
}

TEST(ShmWireTest, AnOfferThatIsCutOrPaddedIsNone) {
  const std::string whole = EncodeOffer(SomeOffer());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(DecodeOffer(whole.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeOffer(whole + "x").status()));
  // Another version means that the path is refused; it is not an error.
  std::string newer = whole;
  ++newer[0];
  EXPECT_TRUE(absl::IsUnimplemented(DecodeOffer(newer).status()));
}

TEST(ShmWireTest, SizesHaveBounds) {
  EXPECT_TRUE(CheckSizes(LinkSizes()).ok());
  const auto with = [](uint32_t cells, uint32_t slots, uint32_t references) {
    LinkSizes sizes;
    sizes.cells = cells;
    sizes.slots = slots;
    sizes.references = references;
    return CheckSizes(sizes);
  };
  EXPECT_TRUE(with(kMinCells, 1, 1).ok());
  EXPECT_TRUE(with(kMaxCells, limits::kMaxSlots, kMaxReferences).ok());
  EXPECT_FALSE(with(0, 1, 1).ok());
  EXPECT_FALSE(with(kMinCells / 2, 1, 1).ok());
  EXPECT_FALSE(with(kMaxCells * 2, 1, 1).ok());
  EXPECT_FALSE(with(kMinCells + 1, 1, 1).ok());
  EXPECT_FALSE(with(kMinCells, 0, 1).ok());
  EXPECT_FALSE(with(kMinCells, limits::kMaxSlots + 1, 1).ok());
  EXPECT_FALSE(with(kMinCells, 1, 0).ok());
  EXPECT_FALSE(with(kMinCells, 1, 3).ok());
  EXPECT_FALSE(with(kMinCells, 1, kMaxReferences * 2).ok());
}

// The parts of a link's memory follow each other, and the last one ends where the memory ends.
TEST(ShmWireTest, TheViewFillsTheMemory) {
  LinkSizes sizes;
  sizes.cells = 256;
  sizes.references = 64;
  const LinkView view(nullptr, sizes);
  const auto at = [](const void* part) { return reinterpret_cast<uintptr_t>(part); };
  EXPECT_EQ(at(view.requests), kHeaderBytes);
  EXPECT_EQ(at(view.replies), kHeaderBytes + 256 * kRequestCellBytes);
  EXPECT_EQ(at(view.releases), kHeaderBytes + 256 * (kRequestCellBytes + kReplyCellBytes));
  EXPECT_EQ(at(view.slots), at(view.releases + 64));
  EXPECT_EQ(at(view.slots + sizes.slots), LinkBytes(sizes));
}

TEST(ShmWireTest, InvitationsComeBackAndNothingElseDoes) {
  Invitation invitation;
  invitation.session = 1;
  invitation.socket = "tryst-0123";
  for (size_t i = 0; i < invitation.token.size(); ++i) {
    invitation.token[i] = static_cast<uint8_t>(i * 7);
  }
  const std::string whole = EncodeInvitation(invitation);
  auto decoded = DecodeInvitation(whole);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->socket, invitation.socket);
  EXPECT_EQ(decoded->token, invitation.token);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeInvitation(whole.substr(0, bytes)).status())) << bytes;
  }
  EXPECT_FALSE(DecodeInvitation(whole + "x").ok());
  invitation.socket.clear();
  EXPECT_FALSE(DecodeInvitation(EncodeInvitation(invitation)).ok());
  invitation.socket.assign(101, 'x');
  EXPECT_FALSE(DecodeInvitation(EncodeInvitation(invitation)).ok());
}

Placed SomePlaced() {
  Placed placed;
  placed.dtype = static_cast<uint8_t>(DType::kFloat);
  placed.rank = 2;
  placed.dims[0] = 3;
  placed.dims[1] = 5;
  placed.bytes = 60;
  placed.segment = 4;
  placed.offset = 4096;
  placed.reference = 9;
  placed.reference_generation = 1000;
  placed.digest = 0xabcdef;
  return placed;
}

ReplyCell CellOf(CellType type, const Placed& placed) {
  ReplyCell cell{};
  cell.head.type = type;
  WritePlaced(placed, &cell);
  return cell;
}

TEST(ShmWireTest, WhereATensorLiesComesBackAsItWas) {
  TensorShape shape;
  auto placed = ReadPlaced(CellOf(CellType::kReference, SomePlaced()), &shape);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(shape, TensorShape({3, 5}));
  EXPECT_EQ(placed->bytes, 60u);
  EXPECT_EQ(placed->segment, 4);
  EXPECT_EQ(placed->offset, 4096u);
  EXPECT_EQ(placed->reference, 9);
  EXPECT_EQ(placed->reference_generation, 1000);
  EXPECT_EQ(placed->digest, 0xabcdefu);
}

TEST(ShmWireTest, WhatMakesNoTensorIsRefused) {
  TensorShape shape;
  const auto refused = [&shape](CellType type, const Placed& placed) {
    return absl::IsDataLoss(ReadPlaced(CellOf(type, placed), &shape).status());
  };
  Placed placed = SomePlaced();
  placed.bytes = 61;
  EXPECT_TRUE(refused(CellType::kReference, placed));
  placed = SomePlaced();
  placed.rank = TensorShape::kMaxRank + 1;
  EXPECT_TRUE(refused(CellType::kReference, placed));
  placed = SomePlaced();
  placed.dims[0] = -3;
  EXPECT_TRUE(refused(CellType::kReference, placed));
  placed = SomePlaced();
  placed.dims[0] = INT64_MAX;
  EXPECT_TRUE(refused(CellType::kReference, placed));
  placed = SomePlaced();
  placed.dtype = 255;
  EXPECT_TRUE(refused(CellType::kReference, placed));
  // A part must lie inside its tensor.
  placed = SomePlaced();
  placed.position = 40;
  placed.piece_bytes = 20;
  EXPECT_FALSE(refused(CellType::kChunk, placed));
  placed.piece_bytes = 21;
  EXPECT_TRUE(refused(CellType::kChunk, placed));
  placed.piece_bytes = 0;
  EXPECT_TRUE(refused(CellType::kChunk, placed));
  placed.piece_bytes = 1;
  placed.position = UINT64_MAX;
  EXPECT_TRUE(refused(CellType::kChunk, placed));
}

// Whatever a peer writes, the result is a tensor that fits its bytes, or kDataLoss.
TEST(ShmWireTest, RandomCellsAreJudged) {
  std::mt19937_64 random(1);
  int good = 0;
  for (int i = 0; i < 200'000; ++i) {
    ReplyCell cell = CellOf(i % 2 == 0 ? CellType::kChunk : CellType::kReference, SomePlaced());
    uint8_t* bytes = cell.body;
    for (int changes = 0; changes < 3; ++changes) {
      bytes[random() % sizeof(Placed)] = static_cast<uint8_t>(random());
    }
    TensorShape shape;
    auto placed = ReadPlaced(cell, &shape);
    if (!placed.ok()) continue;
    ++good;
    const DType dtype = static_cast<DType>(placed->dtype);
    if (dtype != DType::kString) {
      ASSERT_EQ(*TensorBytes(dtype, shape), placed->bytes);
    }
    if (cell.head.type == CellType::kChunk) {
      ASSERT_LE(placed->position + placed->piece_bytes, placed->bytes);
    }
  }
  EXPECT_GT(good, 100);
}

TEST(ShmWireTest, WhatWasAcceptedIsToldForEachSlotByItself) {
  LinkSizes sizes;
  sizes.cells = 256;
  sizes.references = 8;
  sizes.slots = 5;
  std::vector<uint64_t> memory(LinkBytes(sizes) / 8 + 1);
  memory.back() = 4711;
  LinkView view(reinterpret_cast<uint8_t*>(memory.data()), sizes);
  for (const uint16_t generation : {0, 7, UINT16_MAX}) {
    const auto next = static_cast<uint16_t>(generation + 1);
    for (uint16_t slot = 0; slot < 5; ++slot) {
      view.slots[slot].accepted.store(generation);
      EXPECT_FALSE(Accepted(view, slot, generation));
      EXPECT_FALSE(WasAccepted(view, slot, generation));
      view.slots[slot].accepted.store(generation + 1u);
      EXPECT_TRUE(Accepted(view, slot, generation));
      EXPECT_FALSE(Accepted(view, slot, next)) << "which may be out already";
      // As a link begins with it.
      for (const uint16_t over : {next, static_cast<uint16_t>(next + 5)}) {
        view.slots[slot].accepted.store(over);
        EXPECT_TRUE(WasAccepted(view, slot, generation));
      }
    }
  }
  EXPECT_EQ(memory.back(), 4711u) << "behind the link";
}

// docs/WIRE.md lists these offsets.
TEST(ShmWireTest, TheEndOfALinkLiesWhereAnotherBuildLooksForIt) {
  EXPECT_EQ(offsetof(LinkHeader, requests_read), 384u);
  EXPECT_EQ(offsetof(LinkHeader, releases_written), 640u);
  EXPECT_EQ(offsetof(LinkHeader, producer_left), 768u);
  EXPECT_EQ(offsetof(LinkHeader, consumer_left), 772u);
  EXPECT_EQ(sizeof(SlotWord), 8u);
  EXPECT_EQ(offsetof(SlotWord, loan), 4u);
}

TEST(ShmWireTest, AFarewellTakesThePlaceOfAnOffer) {
  Offer offer;
  offer.farewell = "farewell";
  const std::string whole = EncodeOffer(offer);
  const auto decoded = DecodeOffer(whole);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->farewell, "farewell");
  EXPECT_FALSE(DecodeOffer(whole + "x").ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(DecodeOffer(whole.substr(0, bytes)).ok()) << bytes;
  }
}

// What an end of version 4 sends and accepts must not change.
TEST(ShmWireTest, HelloAndInvitationKeepTheirForm) {
  Offer offer;
  offer.boot_id = "b";
  offer.network_space = 2;
  offer.sizes = {256, 4, 8};
  offer.digests = true;
  EXPECT_EQ(absl::BytesToHexString(EncodeOffer(offer)),
            "040000000000000001000000620200000000000000000100000400000008000000"
            "01000000");
  Invitation invitation;
  invitation.socket = "s";
  invitation.token.fill(7);
  invitation.session = 9;
  EXPECT_EQ(absl::BytesToHexString(EncodeInvitation(invitation)),
            "040000000100000073" + absl::BytesToHexString(std::string(32, 7)) + "0900000000000000");
  EXPECT_EQ(sizeof(Packet), 112u);
  EXPECT_EQ(offsetof(Packet, version), 4u);
  EXPECT_EQ(Packet().version, 4u);
  // Where a link ends is in the memory: there is no packet for it.
  EXPECT_EQ(static_cast<uint32_t>(PacketType::kJoin), 0x314a5954u);
  EXPECT_EQ(static_cast<uint32_t>(PacketType::kWelcome), 0x31575954u);
  EXPECT_EQ(static_cast<uint32_t>(PacketType::kReady), 0x31525954u);
  EXPECT_EQ(static_cast<uint32_t>(PacketType::kSegment), 0x31535954u);
  EXPECT_EQ(static_cast<uint32_t>(PacketType::kWake), 0x314b5954u);
}

TEST(ShmWireTest, WhatGoesIntoACellHasRoomForItsDimensions) {
  EXPECT_EQ(InlineRoom(0), sizeof(ReplyCell::body) - 2);
  EXPECT_GE(InlineRoom(TensorShape::kMaxRank), 8u);
}

// A cell, and whether anything behind it was written: the next cell of the ring is there.
template <typename Cell>
struct Guarded {
  Guarded() { memset(behind, 0xee, sizeof(behind)); }
  bool IsWhole() const {
    return std::all_of(std::begin(behind), std::end(behind), [](uint8_t b) { return b == 0xee; });
  }
  Cell cell{};
  uint8_t behind[2 * sizeof(Cell)];
};

TEST(ShmWireTest, TicketsArriveAsTheyWere) {
  uint64_t tickets[kReplyTickets + 1];
  for (size_t i = 0; i <= kReplyTickets; ++i) tickets[i] = i << 40 | i;
  for (size_t count = 1; count <= kReplyTickets; ++count) {
    Guarded<ReplyCell> guarded_reply;
    ReplyCell& reply = guarded_reply.cell;
    WriteTickets(absl::MakeConstSpan(tickets, count), &reply);
    EXPECT_TRUE(guarded_reply.IsWhole()) << count;
    // The ring copies a cell's second line only if the cell says that it has one.
    if (reply.is_long == 0) memset(reinterpret_cast<uint8_t*>(&reply) + kCacheLine, 0xee, 64);
    uint64_t read[kReplyTickets];
    const auto got = ReadTickets(reply, read);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(*got, count);
    EXPECT_EQ(memcmp(read, tickets, count * 8), 0);
    if (count > kRequestTickets) continue;
    Guarded<RequestCell> guarded_request;
    RequestCell& request = guarded_request.cell;
    WriteTickets(absl::MakeConstSpan(tickets, count), &request);
    EXPECT_TRUE(guarded_request.IsWhole()) << count;
    const auto asked = ReadTickets(request, read);
    ASSERT_TRUE(asked.ok()) << asked.status();
    ASSERT_EQ(*asked, count);
    EXPECT_EQ(memcmp(read, tickets, count * 8), 0);
  }
}

TEST(ShmWireTest, TicketsThatDoNotFitTheirCell) {
  uint64_t read[kReplyTickets];
  ReplyCell reply{};
  RequestCell request{};
  EXPECT_FALSE(ReadTickets(reply, read).ok());
  EXPECT_FALSE(ReadTickets(request, read).ok());
  reply.is_long = 1;
  reply.head.number = kReplyTickets + 1;
  request.head.number = kRequestTickets + 1;
  EXPECT_FALSE(ReadTickets(reply, read).ok());
  EXPECT_FALSE(ReadTickets(request, read).ok());
  reply.head.number = kReplyTickets;
  EXPECT_TRUE(ReadTickets(reply, read).ok());
  reply.is_long = 0;  // Its second line was not read.
  EXPECT_FALSE(ReadTickets(reply, read).ok());
  const size_t in_first_line = (kCacheLine - offsetof(ReplyCell, body)) / 8;
  for (size_t count = in_first_line; count <= kReplyTickets; ++count) {
    reply.head.number = static_cast<uint32_t>(count);
    EXPECT_EQ(ReadTickets(reply, read).ok(), count == in_first_line) << count;
  }
}

}  // namespace
}  // namespace shm_wire
}  // namespace tryst
