#include "channel/rdma/wire.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "channel/ops/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace wire {
namespace {

using ::testing::HasSubstr;

static_assert(kMaxRank == static_cast<size_t>(TensorShape::kMaxRank));
static_assert(limits::kMaxKeyBytes == TensorKey::kMaxBytes);

constexpr size_t kSlotBytes = 8192;

std::vector<uint8_t> Slot() { return std::vector<uint8_t>(kSlotBytes, 0xee); }

void FixChecksum(std::vector<uint8_t>* slot, size_t bytes) {
  const uint32_t crc = Crc32c(0, slot->data() + 4, bytes - 4);
  for (size_t i = 0; i < 4; ++i) (*slot)[i] = static_cast<uint8_t>(crc >> (8 * i));
}

// Opens the message and reads every record; returns the first error.
absl::Status ReadAll(const std::vector<uint8_t>& slot, std::vector<Record>* records = nullptr) {
  auto reader = MessageReader::Open(slot.data(), slot.size());
  if (!reader.ok()) return reader.status();
  Record record;
  for (;;) {
    auto more = reader->Next(&record);
    if (!more.ok()) return more.status();
    if (!*more) return absl::OkStatus();
    if (records != nullptr) records->push_back(record);
  }
}

TEST(ImmediateTest, EveryKindRoundTrips) {
  auto message = DecodeImmediate(EncodeMessageImmediate(kSequenceMask + 5));
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->kind, ImmediateKind::kMessage);
  EXPECT_EQ(message->sequence, 4u);
  auto tensor = DecodeImmediate(EncodeTensorImmediate(limits::kMaxSlots - 1, 0xffff));
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->kind, ImmediateKind::kTensor);
  EXPECT_EQ(tensor->slot, limits::kMaxSlots - 1);
  EXPECT_EQ(tensor->generation, 0xffff);
  auto ack = DecodeImmediate(EncodeAckImmediate());
  ASSERT_TRUE(ack.ok());
  EXPECT_EQ(ack->kind, ImmediateKind::kAck);
}

TEST(ImmediateTest, GarbageIsDataLoss) {
  EXPECT_EQ(DecodeImmediate(0xffffffff).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeImmediate(EncodeAckImmediate() | 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeImmediate(1u << 30 | limits::kMaxSlots << 16).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(MessageTest, RecordsComeBackInOrderWithEveryField) {
  std::vector<uint8_t> slot = Slot();
  MessageWriter writer(slot.data(), slot.size());
  Record key;
  key.type = RecordType::kKey;
  key.number = 77;
  key.body = "the text";
  ASSERT_TRUE(writer.Add(key));
  Record request;
  request.slot = 3;
  request.generation = 65535;
  request.number = 77;
  request.flags = kHasDestination | kHasShape;
  RequestBody body;
  body.step = -5;
  body.destination_address = 0x123456789abcdef0;
  body.destination_bytes = 1 << 20;
  body.destination_key = 0xfedcba98;
  body.dtype = 1;
  body.rank = 2;
  body.dims[0] = 512;
  body.dims[1] = int64_t{1} << 40;
  ASSERT_TRUE(writer.AddRequest(request, body));
  Record cancel;
  cancel.type = RecordType::kCancel;
  cancel.slot = 9;
  ASSERT_TRUE(writer.Add(cancel));
  const size_t bytes = writer.Finish(8, 1234567, 42, 9);
  EXPECT_EQ(bytes % kRecordAlignment, 0u);
  EXPECT_EQ(slot[bytes], 0xee);

  auto reader = MessageReader::Open(slot.data(), slot.size());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->header().bytes, bytes);
  EXPECT_EQ(reader->header().epoch, 8u);
  EXPECT_EQ(reader->header().sequence, 1234567u);
  EXPECT_EQ(reader->header().ring_consumed, 42u);
  EXPECT_EQ(reader->header().tensor_immediates, 9u);
  EXPECT_EQ(reader->header().records, 3u);
  std::vector<Record> records;
  ASSERT_TRUE(ReadAll(slot, &records).ok());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].body, "the text");
  EXPECT_EQ(records[0].number, 77u);
  EXPECT_EQ(records[1].type, RecordType::kRequest);
  EXPECT_EQ(records[1].slot, 3);
  EXPECT_EQ(records[1].generation, 65535);
  EXPECT_EQ(records[1].flags, kHasDestination | kHasShape);
  auto decoded = DecodeRequest(records[1]);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->step, -5);
  EXPECT_EQ(decoded->destination_address, body.destination_address);
  EXPECT_EQ(decoded->destination_bytes, body.destination_bytes);
  EXPECT_EQ(decoded->destination_key, body.destination_key);
  EXPECT_EQ(decoded->dims[1], int64_t{1} << 40);
  EXPECT_EQ(records[2].type, RecordType::kCancel);
  EXPECT_EQ(records[2].slot, 9);
}

TEST(MessageTest, TensorsTravelInside) {
  std::vector<uint8_t> slot = Slot();
  MessageWriter writer(slot.data(), slot.size());
  TensorMeta meta;
  meta.dtype = 1;
  meta.rank = 1;
  meta.dims[0] = 3;
  meta.bytes = 12;
  meta.digest = 99;
  Record record;
  record.flags = kHasDigest;
  uint8_t* payload = writer.AddTensor(record, meta);
  ASSERT_NE(payload, nullptr);
  memcpy(payload, "twelve bytes", 12);
  writer.Finish(1, 0, 0, 9);
  std::vector<Record> records;
  ASSERT_TRUE(ReadAll(slot, &records).ok());
  absl::string_view got;
  auto decoded = DecodeMeta(records[0], &got);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(got, "twelve bytes");
  EXPECT_EQ(decoded->digest, 99u);
  EXPECT_EQ(records[0].flags, kHasDigest);
}

TEST(MessageTest, TheLargestEagerTensorOfTheHighestRankFits) {
  for (size_t message_bytes : {4608, 8192, 65536}) {
    std::vector<uint8_t> slot(message_bytes);
    MessageWriter writer(slot.data(), slot.size());
    TensorMeta meta;
    meta.rank = kMaxRank;
    meta.bytes = EagerBytes(message_bytes);
    EXPECT_NE(writer.AddTensor(Record(), meta), nullptr) << message_bytes;
  }
}

TEST(MessageTest, FullIsNotAnErrorAndChangesNothing) {
  std::vector<uint8_t> slot(kHeaderBytes + 3 * kRecordBytes);
  MessageWriter writer(slot.data(), slot.size());
  Record record;
  EXPECT_TRUE(writer.Add(record));
  EXPECT_TRUE(writer.Add(record));
  record.body = "x";
  EXPECT_FALSE(writer.Add(record));
  record.body = "";
  EXPECT_TRUE(writer.Add(record));
  EXPECT_FALSE(writer.Add(record));
  EXPECT_EQ(writer.Finish(1, 0, 0, 9), slot.size());
  EXPECT_TRUE(ReadAll(slot).ok());
}

TEST(MessageTest, OneWithoutRecordsIsItsHeader) {
  std::vector<uint8_t> slot(kHeaderBytes);
  EXPECT_EQ(MessageWriter(slot.data(), slot.size()).Finish(1, 0, 0, 9), slot.size());
  EXPECT_TRUE(ReadAll(slot).ok());
  EXPECT_EQ(MessageReader::Open(slot.data(), slot.size() - 1).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(MessageTest, NothingOfAnEarlierMessageGoesOutAgain) {
  std::vector<uint8_t> slot = Slot();
  MessageWriter writer(slot.data(), slot.size());
  Record record;
  record.type = RecordType::kKey;
  record.body = "odd";
  writer.Add(record);
  const size_t bytes = writer.Finish(1, 0, 0, 9);
  for (size_t i = 0; i < bytes; ++i) EXPECT_NE(slot[i], 0xee) << i;
}

TEST(MessageTest, EveryFlippedBitIsNoticed) {
  std::vector<uint8_t> slot = Slot();
  MessageWriter writer(slot.data(), slot.size());
  Record record;
  record.type = RecordType::kKey;
  record.body = "some text of a key";
  writer.Add(record);
  const size_t bytes = writer.Finish(1, 2, 3, 9);
  for (size_t bit = 0; bit < 8 * bytes; ++bit) {
    slot[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_EQ(ReadAll(slot).code(), absl::StatusCode::kDataLoss) << bit;
    slot[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  EXPECT_TRUE(ReadAll(slot).ok());
}

// Messages of a lying peer: the checksum is right, but nothing else.
class LyingMessageTest : public ::testing::Test {
 protected:
  LyingMessageTest() : slot_(Slot()) {
    MessageWriter writer(slot_.data(), slot_.size());
    Record record;
    record.type = RecordType::kPing;
    record.body = "12345678";
    writer.Add(record);
    bytes_ = writer.Finish(1, 0, 0, 9);
  }
  absl::Status With(size_t at, uint32_t value, size_t width) {
    std::vector<uint8_t> slot = slot_;
    for (size_t i = 0; i < width; ++i) slot[at + i] = static_cast<uint8_t>(value >> (8 * i));
    FixChecksum(&slot, bytes_);
    return ReadAll(slot);
  }
  std::vector<uint8_t> slot_;
  size_t bytes_;
};

TEST_F(LyingMessageTest, IsRefused) {
  EXPECT_TRUE(With(8, 1, 4).ok());
  EXPECT_THAT(std::string(With(20, 0, 2).message()), HasSubstr("behind the last record"));
  EXPECT_THAT(std::string(With(20, 2, 2).message()), HasSubstr("cut short"));
  EXPECT_THAT(std::string(With(22, 1, 2).message()), HasSubstr("reserved"));
  EXPECT_THAT(std::string(With(kHeaderBytes, 0, 1).message()), HasSubstr("no known type: "));
  EXPECT_THAT(std::string(With(kHeaderBytes, 200, 1).message()), HasSubstr("no known type: "));
  EXPECT_THAT(std::string(With(kHeaderBytes + 6, 1, 2).message()), HasSubstr("reserved"));
  EXPECT_THAT(std::string(With(kHeaderBytes + 8, 9, 4).message()),
              HasSubstr("reaches over the end"));
  EXPECT_THAT(std::string(With(kHeaderBytes + 8, 0xffffffff, 4).message()),
              HasSubstr("reaches over the end"));
}

TEST_F(LyingMessageTest, LengthOutsideTheSlotIsRefusedBeforeTheChecksumIsRead) {
  for (uint32_t bytes : {0u, 8u, 31u, 33u, 0x7fffffffu, 0xffffffffu, 8200u}) {
    std::vector<uint8_t> slot = slot_;
    for (size_t i = 0; i < 4; ++i) slot[4 + i] = static_cast<uint8_t>(bytes >> (8 * i));
    EXPECT_EQ(ReadAll(slot).code(), absl::StatusCode::kDataLoss) << bytes;
  }
  EXPECT_EQ(MessageReader::Open(slot_.data(), 8).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RecordTest, TicketsOfRequestsAreThereWhereTheirFlagSaysSo) {
  uint8_t slot[4096];
  MessageWriter writer(slot, sizeof(slot));
  Record record;
  record.flags = kHasTicket | kMayPark;
  RequestBody body;
  body.step = 7;
  body.rank = 2;
  body.dims[0] = 3;
  body.dims[1] = 5;
  body.ticket = 0x1122334455667788;
  ASSERT_TRUE(writer.AddRequest(record, body));
  writer.Finish(1, 0, 0, 0);
  auto reader = MessageReader::Open(slot, sizeof(slot));
  ASSERT_TRUE(reader.ok()) << reader.status();
  Record read;
  ASSERT_TRUE(*reader->Next(&read));
  auto decoded = DecodeRequest(read);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->ticket, body.ticket);
  EXPECT_EQ(decoded->dims[1], 5);
  read.flags = 0;  // Without this flag the request is too long by a ticket.
  EXPECT_FALSE(DecodeRequest(read).ok());
  read.flags = kHasTicket;
  read.body = read.body.substr(0, RequestSize(2));
  EXPECT_FALSE(DecodeRequest(read).ok());
  std::string zero(RequestSize(0) + kTicketBytes, '\0');
  read.body = zero;
  EXPECT_FALSE(DecodeRequest(read).ok());  // A ticket must not be 0.
  read.flags = kMayPark;
  read.body = absl::string_view(zero).substr(kTicketBytes);
  EXPECT_FALSE(DecodeRequest(read).ok());  // A request must not be parked under no ticket.
}

TEST(RecordTest, TicketsAreReadBack) {
  std::vector<uint64_t> tickets;
  for (uint64_t i = 0; i < kMaxTickets; ++i) tickets.push_back(UINT64_MAX - i);
  Record record;
  record.type = RecordType::kHere;
  std::string body = EncodeTickets(tickets);
  record.body = body;
  ASSERT_TRUE(DecodeTickets(record).ok());
  EXPECT_EQ(*DecodeTickets(record), tickets);
  record.body = absl::string_view(body).substr(1);
  EXPECT_FALSE(DecodeTickets(record).ok());
  record.body = "";
  EXPECT_FALSE(DecodeTickets(record).ok());
  tickets.push_back(1);
  body = EncodeTickets(tickets);
  record.body = body;
  EXPECT_FALSE(DecodeTickets(record).ok());  // There is one ticket too many.
  body = EncodeTickets({1, 0});
  record.body = body;
  EXPECT_FALSE(DecodeTickets(record).ok());

  body = EncodeWaits({-3, 9});
  record.body = body;
  ASSERT_TRUE(DecodeWaits(record).ok());
  EXPECT_EQ(DecodeWaits(record)->step, -3);
  EXPECT_EQ(DecodeWaits(record)->ticket, 9u);
  record.body = absl::string_view(body).substr(0, 8);
  EXPECT_FALSE(DecodeWaits(record).ok());
  body = EncodeWaits({-3, 0});
  record.body = body;
  EXPECT_FALSE(DecodeWaits(record).ok());
}

TEST(RecordTest, BodiesThatLieAreRefused) {
  Record record;
  record.type = RecordType::kRequest;
  std::string body(RequestSize(0), '\0');
  record.body = body;
  EXPECT_TRUE(DecodeRequest(record).ok());
  for (const size_t rank : {kMaxRank, kMaxRank + 1, 2 * kMaxRank}) {
    std::string longer(RequestSize(rank), '\0');
    longer[29] = static_cast<char>(rank);
    record.body = longer;
    EXPECT_EQ(DecodeRequest(record).ok(), rank == kMaxRank) << rank;
  }
  body[29] = 1;
  record.body = body;
  EXPECT_FALSE(DecodeRequest(record).ok());
  body[29] = 0;
  memset(&body[8], 0xff, 16);  // Address and length overflow.
  record.body = body;
  EXPECT_FALSE(DecodeRequest(record).ok());
  record.body = absl::string_view(body).substr(1);
  EXPECT_FALSE(DecodeRequest(record).ok());

  record.type = RecordType::kTensor;
  std::string meta(MetaSize(1) + 4, '\0');
  meta[1] = 1;
  meta[8] = 4;
  record.body = meta;
  EXPECT_TRUE(DecodeMeta(record, nullptr).ok());
  record.type = RecordType::kLanded;  // It must have no payload.
  EXPECT_FALSE(DecodeMeta(record, nullptr).ok());
  record.type = RecordType::kTensor;
  meta[8] = 5;
  record.body = meta;
  EXPECT_FALSE(DecodeMeta(record, nullptr).ok());
  meta[8] = 4;
  meta[23] = '\x80';  // A negative dimension.
  record.body = meta;
  EXPECT_FALSE(DecodeMeta(record, nullptr).ok());
  for (const size_t rank : {kMaxRank, kMaxRank + 1, 2 * kMaxRank}) {
    std::string longer(MetaSize(rank), '\0');
    longer[1] = static_cast<char>(rank);
    record.body = longer;
    EXPECT_EQ(DecodeMeta(record, nullptr).ok(), rank == kMaxRank) << rank;
  }
}

TEST(ParametersTest, RoundTripAndBounds) {
  ChannelParameters parameters;
  parameters.slots = 128;
  parameters.ring_slots = 16;
  parameters.message_bytes = 8192;
  parameters.ring_address = 0xabcdef0123456789;
  parameters.ring_key = 7;
  parameters.ack_key = 8;
  parameters.ack_address = 9;
  parameters.digests = false;
  parameters.session = 0x1122334455667788;
  std::string bytes(kParametersBytes, 'x');  // Each byte is written.
  EncodeParameters(parameters, reinterpret_cast<uint8_t*>(&bytes[0]));
  auto decoded = DecodeParameters(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->ring_address, parameters.ring_address);
  EXPECT_EQ(decoded->session, parameters.session);
  EXPECT_FALSE(decoded->digests);
  EXPECT_FALSE(DecodeParameters(bytes + "x").ok());
  // A key has to fit.
  const uint32_t least = kHeaderBytes + RecordSize(limits::kMaxKeyBytes);
  for (const uint32_t message_bytes : {least - uint32_t{kRecordAlignment}, least}) {
    ChannelParameters small = parameters;
    small.message_bytes = message_bytes;
    EncodeParameters(small, reinterpret_cast<uint8_t*>(&bytes[0]));
    EXPECT_EQ(DecodeParameters(bytes).ok(), message_bytes == least);
  }
  for (auto spoil : std::vector<void (*)(ChannelParameters*)>{
           [](ChannelParameters* p) { p->slots = 0; },
           [](ChannelParameters* p) { p->slots = limits::kMaxSlots + 1; },
           [](ChannelParameters* p) { p->ring_slots = 1; },
           [](ChannelParameters* p) { p->ring_slots = kMaxRingSlots + 1; },
           [](ChannelParameters* p) { p->message_bytes = 64; },
           [](ChannelParameters* p) { p->message_bytes = 8191; },
           [](ChannelParameters* p) { p->message_bytes = kMaxMessageBytes * 2; },
       }) {
    ChannelParameters spoiled = parameters;
    spoil(&spoiled);
    EncodeParameters(spoiled, reinterpret_cast<uint8_t*>(&bytes[0]));
    EXPECT_EQ(DecodeParameters(bytes).status().code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace wire
}  // namespace tryst
