#include "channel/rdma/serve_answers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "channel/ops/limits.h"
#include "rendezvous/derived_status.h"

namespace tryst {
wire::Record RdmaAnswers::Word(const ServeOp& op, wire::RecordType type) const {
  wire::Record record;
  record.type = type;
  record.slot = op.slot;
  record.generation = static_cast<uint16_t>(op.generation);
  return record;
}

bool RdmaAnswers::PutMeta(const wire::Record& record, const wire::TensorMeta& meta) {
  return link_->Put([&](wire::MessageWriter* writer) { return writer->AddMeta(record, meta); });
}

// Returns false when there is no room now.
bool RdmaAnswers::Send(ServeOp* op) {
  if (!op->status.ok()) return SendFailed(op);
  wire::TensorMeta meta;
  ServePayload payload;
  const Tensor& tensor = op->tensor;
  if (!op->is_dead) {
    if (!tensor.valid())
      return FailTaken(
          op, absl::InternalError("a tensor without a type was sent: this is a bug of Tryst's"));
    if (!tensor.on_host()) {
      const absl::Status reached = hub_->nic()->ReachesDevice(tensor.space().device_ordinal);
      if (!reached.ok()) return FailTaken(op, reached);
    }
    meta.dtype = static_cast<uint8_t>(tensor.dtype());
    meta.rank = static_cast<uint8_t>(tensor.shape().rank());
    for (int i = 0; i < tensor.shape().rank(); ++i) meta.dims[i] = tensor.shape().dim(i);
    payload = PayloadOf(op);
    meta.bytes = payload.bytes;
  }
  const uint64_t inside =
      std::min(options_.eager_bytes, wire::EagerBytes(link_->options().message_bytes));
  const bool in_host = op->is_dead || tensor.on_host();
  if (in_host && meta.bytes <= inside) return SendEager(op, meta, payload.data);
  const ServeSending& sending = *Of(*op);
  if (op->has_destination && sending.body.destination_bytes >= meta.bytes) {
    return SendWrites(op, meta, payload.data);
  }
  return SendNeedDestination(op, meta);
}

// The tensor cannot be sent, so it goes back and the consumer gets an error.
bool RdmaAnswers::FailTaken(ServeOp* op, const absl::Status& why) {
  Of(*op)->source = ServeSource();
  return slots_->FailTaken(op, why) && SendFailed(op);
}

bool RdmaAnswers::SendFailed(ServeOp* op) {
  wire::Record record = Word(*op, wire::RecordType::kFailed);
  record.number = static_cast<uint32_t>(op->status.code());
  record.body = op->status.message().substr(0, limits::kMaxErrorBytes);
  if (IsDerived(op->status)) record.flags |= wire::kDerived;
  if (!link_->Send(record)) return false;
  ++counters_->failed;
  slots_->Said(op);
  return true;
}

bool RdmaAnswers::SendEager(ServeOp* op, const wire::TensorMeta& meta, const void* payload) {
  wire::Record record = Word(*op, wire::RecordType::kTensor);
  if (op->is_dead) record.flags |= wire::kIsDead;
  uint8_t* into = nullptr;
  const bool put = link_->Put([&](wire::MessageWriter* writer) {
    into = writer->AddTensor(record, meta);
    return into != nullptr;
  });
  if (!put) return false;
  // The message's checksum covers the payload, so it needs no digest.
  if (meta.bytes > 0) memcpy(into, payload, meta.bytes);
  ++counters_->in_message;
  counters_->bytes += meta.bytes;
  slots_->Said(op);
  return true;
}

bool RdmaAnswers::SendNeedDestination(ServeOp* op, const wire::TensorMeta& meta) {
  if (!PutMeta(Word(*op, wire::RecordType::kNeedDestination), meta)) return false;
  ++counters_->destinations_asked;
  slots_->AskedRoom(op);
  return true;
}

// Writes as much as there is room for. True when all writes and the message that follows are out.
bool RdmaAnswers::SendWrites(ServeOp* op, wire::TensorMeta meta, const void* payload) {
  const absl::Status prepared = PrepareSource(*op, payload, meta.bytes);
  if (!prepared.ok()) return FailTaken(op, prepared);
  const size_t lanes = meta.bytes >= options_.stripe_bytes ? link_->queue_pairs() : 1;
  // A device tensor without bytes comes here, too. It has no parts; LANDED announces it.
  const uint64_t part_bytes = std::max<uint64_t>(1, (meta.bytes + lanes - 1) / lanes);
  const size_t parts = static_cast<size_t>((meta.bytes + part_bytes - 1) / part_bytes);
  const uint64_t pieces = PiecesOf(meta.bytes, part_bytes, parts);
  if (pieces > UINT16_MAX) {
    return FailTaken(op, absl::UnimplementedError(
                             absl::StrCat("a tensor of ", meta.bytes, " bytes takes ", pieces,
                                          " writes, and over a NIC that does not keep them in "
                                          "order at most 65535 are possible: send it in pieces")));
  }
  const bool bare = parts > 0 && IsBare(*Of(*op), meta);
  bool all = true;
  for (size_t lane = 0; lane < parts; ++lane) {
    const uint64_t begin = lane * part_bytes;
    all &= WritePart(*op, lane, begin, std::min(begin + part_bytes, meta.bytes), bare || parts > 1);
  }
  if (!all) return false;
  if (!bare) {
    wire::Record record = Word(*op, wire::RecordType::kLanded);
    meta.stripes = static_cast<uint16_t>(pieces);
    meta.digest = Of(*op)->digest;
    if (Of(*op)->has_digest) record.flags |= wire::kHasDigest;
    if (!PutMeta(record, meta)) return false;
  }
  ++counters_->direct;
  counters_->bytes += meta.bytes;
  slots_->Said(op);
  return true;
}

absl::Status RdmaAnswers::PrepareSource(const ServeOp& op, const void* payload, uint64_t bytes) {
  ServeSending* sending = Of(op);
  if (!sending->source.region && bytes > 0) {
    SourceRegions* const sources = hub_->sources();
    auto region = op.tensor.dtype() == DType::kString ? sources->UseOnce(payload, bytes)
                                                      : sources->Use(op.tensor);
    if (!region.ok()) return region.status();
    sending->source.region = *std::move(region);
  }
  if (digests_ && op.tensor.on_host() && !sending->has_digest) {
    sending->digest = Crc32c(0, payload, bytes);
    sending->has_digest = true;
  }
  return absl::OkStatus();
}

// How many immediates announce a tensor; 0: the message behind its writes does.
uint64_t RdmaAnswers::PiecesOf(uint64_t bytes, uint64_t part_bytes, size_t parts) const {
  if (link_->ordered()) return parts > 1 ? parts : 0;
  uint64_t pieces = 0;
  for (size_t lane = 0; lane < parts; ++lane) {
    const uint64_t part = std::min(part_bytes, bytes - lane * part_bytes);
    pieces += (part + WorkBytes() - 1) / WorkBytes();
  }
  return pieces;
}

// The most that one work writes. Where the consumer must count each write, as few as possible are
// used.
uint64_t RdmaAnswers::WorkBytes() const {
  const uint64_t largest = hub_->nic()->limits().max_message_bytes;
  return link_->ordered() ? std::min(largest, options_.write_bytes) : largest;
}

// Whether an immediate alone suffices: the consumer knows the shape, and needs nothing else.
bool RdmaAnswers::IsBare(const ServeSending& sending, const wire::TensorMeta& meta) const {
  const wire::RequestBody& body = sending.body;
  return !digests_ && link_->ordered() && link_->queue_pairs() == 1 &&
         (sending.flags & wire::kHasShape) != 0 && body.dtype == meta.dtype &&
         body.rank == meta.rank && body.destination_bytes == meta.bytes &&
         std::equal(meta.dims, meta.dims + meta.rank, body.dims);
}

// Writes [begin, end) of the payload on one queue pair, continuing where it stopped last time.
bool RdmaAnswers::WritePart(const ServeOp& op, size_t lane, uint64_t begin, uint64_t end,
                            bool immediate) {
  const uint64_t work_bytes = WorkBytes();
  ServeSending* sending = Of(op);
  ServeSource& source = sending->source;
  uint64_t& written = sending->written[lane];
  while (begin + written < end) {
    if (link_->WriteRoom(lane) == 0) return false;
    const uint64_t at = begin + written;
    const uint64_t bytes = std::min(work_bytes, end - at);
    source.tickets[lane] =
        link_->Write(lane, Entry{source.region.address() + at, bytes, source.region.local_key()},
                     sending->body.destination_address + at, sending->body.destination_key,
                     !link_->ordered() || (immediate && at + bytes == end), op.slot,
                     static_cast<uint16_t>(op.generation),
                     op.tensor.dtype() == DType::kString ? nullptr : op.tensor.storage().get());
    written += bytes;
  }
  return true;
}

}  // namespace tryst
