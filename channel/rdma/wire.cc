#include "channel/rdma/wire.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/log.h"
#include "channel/ops/limits.h"

namespace tryst {
namespace wire {
namespace {

const uint8_t* Bytes(absl::string_view body) {
  return reinterpret_cast<const uint8_t*>(body.data());
}

// Not inline, so that the buffers for its text take no room on the stack of its callers.
[[gnu::noinline, gnu::cold]] absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the peer sent a malformed message: ", what));
}
[[gnu::noinline, gnu::cold]] absl::Status Malformed(absl::string_view what, uint32_t number) {
  return Malformed(absl::StrCat(what, " ", number));
}

bool KnownType(uint8_t type) {
  return (type >= static_cast<uint8_t>(RecordType::kKey) &&
          type <= static_cast<uint8_t>(RecordType::kUnwanted)) ||
         (type >= static_cast<uint8_t>(RecordType::kTensor) &&
          type <= static_cast<uint8_t>(RecordType::kHere));
}

void StoreMeta(uint8_t* at, const TensorMeta& meta) {
  StoreLittle(at, meta.dtype);
  StoreLittle(at + 1, meta.rank);
  StoreLittle(at + 2, meta.stripes);
  StoreLittle(at + 4, meta.digest);
  StoreLittle(at + 8, meta.bytes);
  for (size_t i = 0; i < meta.rank; ++i) StoreLittle(at + 16 + 8 * i, meta.dims[i]);
}

}  // namespace

uint32_t EncodeMessageImmediate(uint32_t sequence) { return sequence & kSequenceMask; }

uint32_t EncodeTensorImmediate(uint16_t slot, uint16_t generation) {
  TRYST_DCHECK(slot < limits::kMaxSlots);
  return static_cast<uint32_t>(ImmediateKind::kTensor) << 30 | uint32_t{slot} << 16 | generation;
}

uint32_t EncodeAckImmediate() { return static_cast<uint32_t>(ImmediateKind::kAck) << 30; }

absl::StatusOr<Immediate> DecodeImmediate(uint32_t immediate) {
  Immediate out;
  switch (immediate >> 30) {
    case static_cast<uint32_t>(ImmediateKind::kMessage):
      out.sequence = immediate & kSequenceMask;
      return out;
    case static_cast<uint32_t>(ImmediateKind::kTensor):
      out.kind = ImmediateKind::kTensor;
      out.slot = static_cast<uint16_t>(immediate >> 16 & 0x3fff);
      out.generation = static_cast<uint16_t>(immediate);
      if (out.slot >= limits::kMaxSlots) return Malformed("an immediate's slot is out of range");
      return out;
    case static_cast<uint32_t>(ImmediateKind::kAck):
      if ((immediate & kSequenceMask) != 0)
        return Malformed("an acknowledgement's immediate has bits that must be 0");
      out.kind = ImmediateKind::kAck;
      return out;
    default:
      return Malformed("an immediate is of no known kind");
  }
}

uint8_t* MessageWriter::Begin(const Record& record, size_t body_bytes) {
  const size_t size = RecordSize(body_bytes);
  if (size > capacity_ - used_ || records_ == UINT16_MAX) return nullptr;
  uint8_t* at = slot_ + used_;
  StoreLittle(at, static_cast<uint8_t>(record.type));
  StoreLittle(at + 1, record.flags);
  StoreLittle(at + 2, record.slot);
  StoreLittle(at + 4, record.generation);
  StoreLittle(at + 6, uint16_t{0});
  StoreLittle(at + 8, static_cast<uint32_t>(body_bytes));
  StoreLittle(at + 12, record.number);
  // The gap behind the body, so that no byte of an earlier message goes out again.
  if (size > kRecordBytes + body_bytes) {
    memset(at + kRecordBytes + body_bytes, 0, size - kRecordBytes - body_bytes);
  }
  used_ += size;
  ++records_;
  return at + kRecordBytes;
}

bool MessageWriter::Add(const Record& record) {
  uint8_t* body = Begin(record, record.body.size());
  if (body == nullptr) return false;
  if (!record.body.empty()) memcpy(body, record.body.data(), record.body.size());
  return true;
}

bool MessageWriter::AddRequest(Record record, const RequestBody& request) {
  record.type = RecordType::kRequest;
  const bool has_ticket = (record.flags & kHasTicket) != 0;
  const size_t size = RequestSize(request.rank);
  uint8_t* body = Begin(record, size + (has_ticket ? kTicketBytes : 0));
  if (body == nullptr) return false;
  StoreLittle(body, request.step);
  StoreLittle(body + 8, request.destination_address);
  StoreLittle(body + 16, request.destination_bytes);
  StoreLittle(body + 24, request.destination_key);
  StoreLittle(body + 28, request.dtype);
  StoreLittle(body + 29, request.rank);
  StoreLittle(body + 30, uint16_t{0});
  for (size_t i = 0; i < request.rank; ++i) StoreLittle(body + 32 + 8 * i, request.dims[i]);
  if (has_ticket) StoreLittle(body + size, request.ticket);
  return true;
}

bool MessageWriter::AddMeta(Record record, const TensorMeta& meta) {
  uint8_t* body = Begin(record, MetaSize(meta.rank));
  if (body == nullptr) return false;
  StoreMeta(body, meta);
  return true;
}

uint8_t* MessageWriter::AddTensor(Record record, const TensorMeta& meta) {
  record.type = RecordType::kTensor;
  if (meta.bytes > capacity_) return nullptr;
  uint8_t* body = Begin(record, MetaSize(meta.rank) + meta.bytes);
  if (body == nullptr) return nullptr;
  StoreMeta(body, meta);
  return body + MetaSize(meta.rank);
}

size_t MessageWriter::Finish(uint32_t epoch, uint32_t sequence, uint32_t ring_consumed,
                             uint32_t tensor_immediates) {
  StoreLittle(slot_ + 4, static_cast<uint32_t>(used_));
  StoreLittle(slot_ + 8, epoch);
  StoreLittle(slot_ + 12, sequence);
  StoreLittle(slot_ + 16, ring_consumed);
  StoreLittle(slot_ + 20, records_);
  StoreLittle(slot_ + 22, uint16_t{0});
  StoreLittle(slot_ + 24, tensor_immediates);
  StoreLittle(slot_ + 28, uint32_t{0});
  StoreLittle(slot_, Crc32c(0, slot_ + 4, used_ - 4));
  return used_;
}

absl::StatusOr<MessageReader> MessageReader::Open(const uint8_t* slot, size_t capacity) {
  absl::StatusOr<MessageReader> reader(absl::in_place);
  absl::Status begun = reader->Begin(slot, capacity);
  if (!begun.ok()) return begun;
  return reader;
}

absl::Status MessageReader::Begin(const uint8_t* slot, size_t capacity) {
  if (capacity < kHeaderBytes) return Malformed("it is shorter than its header");
  slot_ = slot;
  MessageHeader& header = header_;
  header.bytes = LoadLittle<uint32_t>(slot + 4);
  if (header.bytes < kHeaderBytes || header.bytes > capacity ||
      header.bytes % kRecordAlignment != 0) {
    return Malformed("its length is out of range:", header.bytes);
  }
  if (LoadLittle<uint32_t>(slot) != Crc32c(0, slot + 4, header.bytes - 4))
    return Malformed("its checksum is wrong");
  header.epoch = LoadLittle<uint32_t>(slot + 8);
  header.sequence = LoadLittle<uint32_t>(slot + 12);
  header.ring_consumed = LoadLittle<uint32_t>(slot + 16);
  header.records = LoadLittle<uint16_t>(slot + 20);
  header.tensor_immediates = LoadLittle<uint32_t>(slot + 24);
  if (LoadLittle<uint16_t>(slot + 22) != 0 || LoadLittle<uint32_t>(slot + 28) != 0) {
    return Malformed("reserved bytes of its header are not 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MessageReader::Next(Record* record) {
  const bool more = HasMore();
  absl::Status read = more ? Read(record) : End();
  if (!read.ok()) return read;
  return more;
}

absl::Status MessageReader::End() const {
  return at_ == header_.bytes ? absl::OkStatus()
                              : Malformed("there are bytes behind the last record");
}

absl::Status MessageReader::Read(Record* record) {
  if (header_.bytes - at_ < kRecordBytes) return Malformed("a record is cut short");
  const uint8_t* at = slot_ + at_;
  if (!KnownType(at[0])) return Malformed("a record is of no known type:", at[0]);
  record->type = static_cast<RecordType>(at[0]);
  record->flags = at[1];
  record->slot = LoadLittle<uint16_t>(at + 2);
  record->generation = LoadLittle<uint16_t>(at + 4);
  record->number = LoadLittle<uint32_t>(at + 12);
  if (LoadLittle<uint16_t>(at + 6) != 0) return Malformed("reserved bytes of a record are not 0");
  const size_t body_bytes = LoadLittle<uint32_t>(at + 8);
  if (body_bytes > header_.bytes - at_ - kRecordBytes)
    return Malformed("a record's body reaches over the end");
  const size_t size = RecordSize(body_bytes);
  if (size > header_.bytes - at_) return Malformed("a record's padding reaches over the end");
  record->body = absl::string_view(reinterpret_cast<const char*>(at + kRecordBytes), body_bytes);
  at_ += size;
  ++read_;
  return absl::OkStatus();
}

absl::StatusOr<RequestBody> DecodeRequest(const Record& record) {
  absl::StatusOr<RequestBody> body(absl::in_place);
  absl::Status decoded = DecodeRequest(record, &*body);
  if (!decoded.ok()) return decoded;
  return body;
}

absl::Status DecodeRequest(const Record& record, RequestBody* body) {
  const uint8_t* at = Bytes(record.body);
  if (record.body.size() < RequestSize(0)) return Malformed("a request is cut short");
  RequestBody& out = *body;
  out.step = LoadLittle<int64_t>(at);
  out.destination_address = LoadLittle<uint64_t>(at + 8);
  out.destination_bytes = LoadLittle<uint64_t>(at + 16);
  out.destination_key = LoadLittle<uint32_t>(at + 24);
  out.dtype = at[28];
  out.rank = at[29];
  const bool has_ticket = (record.flags & kHasTicket) != 0;
  const size_t size = RequestSize(out.rank);
  if (out.rank > kMaxRank || record.body.size() != size + (has_ticket ? kTicketBytes : 0)) {
    return Malformed("a request's rank or length is wrong");
  }
  out.ticket = has_ticket ? LoadLittle<uint64_t>(at + size) : 0;
  if (has_ticket != (out.ticket != 0) || (!has_ticket && (record.flags & kMayPark) != 0)) {
    return Malformed("a request's ticket is wrong");
  }
  for (size_t i = 0; i < out.rank; ++i) out.dims[i] = LoadLittle<int64_t>(at + 32 + 8 * i);
  if (out.destination_address + out.destination_bytes < out.destination_address) {
    return Malformed("a request's destination wraps around the end of memory");
  }
  return absl::OkStatus();
}

std::string EncodeWaits(const WaitsBody& body) {
  std::string out(8 + kTicketBytes, '\0');
  uint8_t* at = reinterpret_cast<uint8_t*>(&out[0]);
  StoreLittle(at, body.step);
  StoreLittle(at + 8, body.ticket);
  return out;
}

absl::StatusOr<WaitsBody> DecodeWaits(const Record& record) {
  if (record.body.size() != 8 + kTicketBytes)
    return Malformed("the record that says which fetch still waits (WAITS) has a wrong length");
  WaitsBody out;
  out.step = LoadLittle<int64_t>(Bytes(record.body));
  out.ticket = LoadLittle<uint64_t>(Bytes(record.body) + 8);
  if (out.ticket == 0) return Malformed("a ticket is 0");
  return out;
}

std::string EncodeTickets(absl::Span<const uint64_t> tickets) {
  std::string out(kTicketBytes * tickets.size(), '\0');
  uint8_t* at = reinterpret_cast<uint8_t*>(&out[0]);
  for (size_t i = 0; i < tickets.size(); ++i) StoreLittle(at + kTicketBytes * i, tickets[i]);
  return out;
}

absl::StatusOr<std::vector<uint64_t>> DecodeTickets(const Record& record) {
  const size_t count = record.body.size() / kTicketBytes;
  if (record.body.size() % kTicketBytes != 0 || count == 0 || count > kMaxTickets) {
    return Malformed("a list of tickets has a wrong length");
  }
  std::vector<uint64_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = LoadLittle<uint64_t>(Bytes(record.body) + kTicketBytes * i);
    if (out[i] == 0) return Malformed("a ticket is 0");
  }
  return out;
}

absl::StatusOr<TensorMeta> DecodeMeta(const Record& record, absl::string_view* payload) {
  const uint8_t* at = Bytes(record.body);
  if (record.body.size() < MetaSize(0)) return Malformed("a tensor's description is cut short");
  TensorMeta out;
  out.dtype = at[0];
  out.rank = at[1];
  out.stripes = LoadLittle<uint16_t>(at + 2);
  out.digest = LoadLittle<uint32_t>(at + 4);
  out.bytes = LoadLittle<uint64_t>(at + 8);
  if (out.rank > kMaxRank || record.body.size() < MetaSize(out.rank)) {
    return Malformed("a tensor's rank is out of range");
  }
  for (size_t i = 0; i < out.rank; ++i) {
    out.dims[i] = LoadLittle<int64_t>(at + 16 + 8 * i);
    if (out.dims[i] < 0) return Malformed("a tensor's dimension is negative");
  }
  const size_t rest = record.body.size() - MetaSize(out.rank);
  if (record.type == RecordType::kTensor ? rest != out.bytes : rest != 0) {
    return Malformed("a tensor's bytes are not as many as it says");
  }
  if (payload != nullptr) *payload = record.body.substr(MetaSize(out.rank));
  return out;
}

void EncodeParameters(const ChannelParameters& parameters, uint8_t* out) {
  StoreLittle(out, parameters.slots);
  StoreLittle(out + 4, parameters.ring_slots);
  StoreLittle(out + 8, parameters.message_bytes);
  StoreLittle(out + 12, uint32_t{0});
  StoreLittle(out + 16, parameters.ring_address);
  StoreLittle(out + 24, parameters.ring_key);
  StoreLittle(out + 28, parameters.ack_key);
  StoreLittle(out + 32, parameters.ack_address);
  StoreLittle(out + 40, static_cast<uint64_t>(parameters.digests ? 1 : 0));
  StoreLittle(out + 48, parameters.session);
}

absl::StatusOr<ChannelParameters> DecodeParameters(absl::string_view in) {
  if (in.size() != kParametersBytes)
    return Malformed("the connection's parameters have a wrong length");
  const uint8_t* at = Bytes(in);
  ChannelParameters out;
  out.slots = LoadLittle<uint32_t>(at);
  out.ring_slots = LoadLittle<uint32_t>(at + 4);
  out.message_bytes = LoadLittle<uint32_t>(at + 8);
  out.ring_address = LoadLittle<uint64_t>(at + 16);
  out.ring_key = LoadLittle<uint32_t>(at + 24);
  out.ack_key = LoadLittle<uint32_t>(at + 28);
  out.ack_address = LoadLittle<uint64_t>(at + 32);
  const uint64_t digests = LoadLittle<uint64_t>(at + 40);
  out.digests = digests == 1;
  out.session = LoadLittle<uint64_t>(at + 48);
  if (out.slots == 0 || out.slots > limits::kMaxSlots || out.ring_slots < 2 ||
      out.ring_slots > kMaxRingSlots || out.message_bytes % kRecordAlignment != 0 ||
      out.message_bytes < kHeaderBytes + RecordSize(limits::kMaxKeyBytes) ||
      out.message_bytes > kMaxMessageBytes || digests > 1 || LoadLittle<uint32_t>(at + 12) != 0) {
    return Malformed("the connection's parameters are out of range");
  }
  return out;
}

}  // namespace wire
}  // namespace tryst
