#ifndef TRYST_CHANNEL_RDMA_WIRE_H_
#define TRYST_CHANNEL_RDMA_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The wire format of what a channel writes into its peer's memory; docs/WIRE.md describes it. All
// fields are little-endian, of fixed width, and always written. Every length is checked against the
// room before it is used. A message is one slot of the ring: a header and records.
namespace tryst {
namespace wire {

inline constexpr size_t kHeaderBytes = 32;
inline constexpr size_t kRecordBytes = 16;  // The fixed head of every record.
// Each record begins at a multiple of it in the message.
inline constexpr size_t kRecordAlignment = 8;
inline constexpr size_t kMaxRank = 8;
inline constexpr uint32_t kMaxRingSlots = 1u << 10;
inline constexpr uint32_t kMaxMessageBytes = 1u << 20;

// ---- Immediates ----
// The two top bits give the kind.
enum class ImmediateKind : uint32_t {
  kMessage = 0,  // The low 30 bits: the ring message's sequence number.
  kTensor = 1,   // Slot and generation: one part of a tensor is in its destination.
  kAck = 2,      // The ack page was written.
};
struct Immediate {
  ImmediateKind kind = ImmediateKind::kMessage;
  uint32_t sequence = 0;    // kMessage, modulo 2^30.
  uint16_t slot = 0;        // kTensor.
  uint16_t generation = 0;  // kTensor.
};
inline constexpr uint32_t kNoImmediate = ~0u;  // No immediate: it has none of the kinds.
inline constexpr uint32_t kSequenceMask = (1u << 30) - 1;
uint32_t EncodeMessageImmediate(uint32_t sequence);
uint32_t EncodeTensorImmediate(uint16_t slot, uint16_t generation);  // slot < limits::kMaxSlots
uint32_t EncodeAckImmediate();
absl::StatusOr<Immediate> DecodeImmediate(uint32_t immediate);

// ---- Messages ----
struct MessageHeader {
  uint32_t bytes = 0;              // The whole message.
  uint32_t epoch = 0;              // The connection's, its low 32 bits.
  uint32_t sequence = 0;           // This message's in its direction, from 0.
  uint32_t ring_consumed = 0;      // Messages of the other direction that the writer has done with.
  uint32_t tensor_immediates = 0;  // How many were sent before it on the same queue pair; a
                                   // difference means that some are missing.
  uint16_t records = 0;
};

enum class RecordType : uint8_t {
  // Consumer to producer.
  kKey = 1,      // number: key id. Body: the text. Later requests name the id.
  kRequest = 2,  // number: key id. Body: RequestBody.
  kCancel = 3,
  kReplayed = 4,  // After a reconnect: every request still open has been sent again.
  kPing = 5,      // number: echoed.
  // Parking (version 3): a fetch that waits for the producer's Send gives its slot to others.
  kPark = 6,      // Body: the ticket under which the fetch of this slot goes on waiting.
  kWaits = 7,     // number: key id. Body: step, ticket. After a reconnect: this is still parked.
  kUnwanted = 8,  // Body: tickets that nobody waits for any more.
  // Producer to consumer.
  kTensor = 16,           // Body: TensorMeta, then meta.bytes of payload.
  kLanded = 17,           // Body: TensorMeta. The bytes are in the destination.
  kNeedDestination = 18,  // Body: TensorMeta. Answer with a second request.
  kFailed = 19,           // number: absl::StatusCode. Body: text. The last word of the slot.
  kGone = 20,             // The answer to kCancel: the last word of the slot.
  kPong = 21,
  kParked = 22,  // The last word of the slot: its fetch waits under its ticket.
  kHere = 23,    // Body: tickets whose outcome is here. Answer each with a request that names it.
};

enum RecordFlags : uint8_t {
  kHasDestination = 1,  // kRequest.
  kRun = 1,             // kKey: it stands for a run of keys, whose numbers are its body.
  kHasShape = 2,        // kRequest: dtype and shape are what the consumer expects.
  kReplay = 4,          // kRequest: may have been asked in an earlier epoch.
  kRetry = 8,           // kRequest: the digest of what landed was wrong.
  kIsDead = 16,         // On kTensor, kLanded.
  kHasDigest = 32,      // On kTensor, kLanded.
  kMayPark = 16,        // On kRequest: park it, unless the tensor is here. Since version 3.
  kHasTicket = 32,      // On kRequest: the body ends with a ticket. Since version 3.
  kDerived = 64,        // On kFailed: not the first cause.
  kStanding = 128,      // On kRequest: made before anybody has fetched it. Since version 2.
};

struct TensorMeta {
  uint8_t dtype = 0;
  uint8_t rank = 0;
  // On kLanded: the number of tensor immediates that carry it; 0: it came before this record.
  uint16_t stripes = 0;
  uint32_t digest = 0;  // CRC-32C of the payload.
  uint64_t bytes = 0;
  int64_t dims[kMaxRank] = {};
};

struct RequestBody {
  int64_t step = 0;
  uint64_t destination_address = 0;
  uint64_t destination_bytes = 0;
  uint32_t destination_key = 0;
  uint8_t dtype = 0;  // With kHasShape.
  uint8_t rank = 0;
  int64_t dims[kMaxRank] = {};
  uint64_t ticket = 0;  // With kHasTicket, and then never 0.
};

struct Record {
  RecordType type = RecordType::kPing;
  uint8_t flags = 0;
  uint16_t slot = 0;
  uint16_t generation = 0;
  uint32_t number = 0;
  absl::string_view body;  // Points into the message.
};

// The room that a record with this body takes in a message.
constexpr size_t RecordSize(size_t body_bytes) {
  return kRecordBytes + (body_bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}
constexpr size_t MetaSize(size_t rank) { return 16 + 8 * rank; }
constexpr size_t RequestSize(size_t rank) { return 32 + 8 * rank; }
constexpr size_t kTicketBytes = 8;
inline constexpr size_t kMaxTickets = 128;  // In one record.

// The largest payload that travels inside a message of this size, whatever its shape.
constexpr uint64_t EagerBytes(size_t message_bytes) {
  return message_bytes - kHeaderBytes - kRecordBytes - MetaSize(kMaxRank) - kRecordAlignment;
}

// Fills one slot of a ring. Add...() returns false, and adds nothing, when it is full.
class MessageWriter {
 public:
  MessageWriter() = default;
  MessageWriter(uint8_t* slot, size_t capacity) : slot_(slot), capacity_(capacity) {}

  bool Add(const Record& record);  // body: copied.
  bool AddRequest(Record record, const RequestBody& body);
  bool AddMeta(Record record, const TensorMeta& meta);
  // Reserves room for `meta` and `meta.bytes` of payload, which the caller fills. Null: it does not
  // fit.
  uint8_t* AddTensor(Record record, const TensorMeta& meta);

  bool empty() const { return records_ == 0; }
  // Writes the header with the checksum; returns the message's length.
  size_t Finish(uint32_t epoch, uint32_t sequence, uint32_t ring_consumed,
                uint32_t tensor_immediates);

 private:
  uint8_t* Begin(const Record& record, size_t body_bytes);

  uint8_t* slot_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = kHeaderBytes;
  uint16_t records_ = 0;
};

// Reads one message out of a slot that a peer wrote. Every error is kDataLoss.
class MessageReader {
 public:
  MessageReader() = default;
  // Checks the header and the checksum over all of it.
  static absl::StatusOr<MessageReader> Open(const uint8_t* slot, size_t capacity);
  // Like Open(), into this object. REQUIRES: it is new. On an error it must not be used.
  absl::Status Begin(const uint8_t* slot, size_t capacity);
  const MessageHeader& header() const { return header_; }
  // The next record; false after the last one.
  absl::StatusOr<bool> Next(Record* record);
  // Next() in steps: while HasMore(), call Read(); then End() says whether the message ended there.
  bool HasMore() const { return read_ != header_.records; }
  absl::Status Read(Record* record);
  absl::Status End() const;

 private:
  const uint8_t* slot_ = nullptr;
  size_t at_ = kHeaderBytes;
  uint16_t read_ = 0;
  MessageHeader header_;
};

absl::StatusOr<RequestBody> DecodeRequest(const Record& record);
// Like the above into `*body`, whose content is undefined on an error. REQUIRES: `*body` is new.
absl::Status DecodeRequest(const Record& record, RequestBody* body);
// The body of kWaits.
struct WaitsBody {
  int64_t step = 0;
  uint64_t ticket = 0;  // Not 0.
};
std::string EncodeWaits(const WaitsBody& body);
absl::StatusOr<WaitsBody> DecodeWaits(const Record& record);
// The tickets in the body of kPark, kUnwanted, kHere. None of them is 0.
std::string EncodeTickets(absl::Span<const uint64_t> tickets);
absl::StatusOr<std::vector<uint64_t>> DecodeTickets(const Record& record);
// For kTensor, `payload` gets the bytes behind the meta.
absl::StatusOr<TensorMeta> DecodeMeta(const Record& record, absl::string_view* payload);

// ---- The ack page ----
// The peer writes it whole, without a checksum. Each word only grows and is small enough to be
// written in one piece, so the worst that a wrong word can do is to be refused.
struct AckPage {
  uint32_t epoch;
  uint32_t ring_consumed;
  uint16_t accepted[1];  // One for each slot: the generation after the last one accepted.
};
constexpr size_t AckPageBytes(uint32_t slots) { return 8 + 2 * size_t{slots}; }

// ---- What Hello::parameters carries ----
struct ChannelParameters {
  uint32_t slots = 0;
  uint32_t ring_slots = 0;     // How many slots the ring in the sender's memory has.
  uint32_t message_bytes = 0;  // One such slot.
  uint64_t ring_address = 0;
  uint32_t ring_key = 0;
  uint32_t ack_key = 0;
  uint64_t ack_address = 0;
  bool digests = true;  // Either side may ask for them: then payloads carry one.
  // The producer's id for what it remembers of this consumer; 0 from a consumer.
  uint64_t session = 0;
};
inline constexpr size_t kParametersBytes = 56;
void EncodeParameters(const ChannelParameters& parameters, uint8_t* out);
absl::StatusOr<ChannelParameters> DecodeParameters(absl::string_view in);

}  // namespace wire
}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_WIRE_H_
