#include "channel/shm/wire.h"

#include <cstring>

#include "channel/ops/limits.h"

namespace tryst {
namespace shm_wire {
namespace {

void Put32(uint32_t value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void Put64(uint64_t value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void PutText(absl::string_view text, std::string* out) {
  Put32(static_cast<uint32_t>(text.size()), out);
  out->append(text.data(), text.size());
}

// Reads fields from the front of what a peer sent. False once a field was missing.
class Taker {
 public:
  explicit Taker(absl::string_view in) : in_(in) {}
  template <typename T>
  T Number() {
    T value{};
    if (in_.size() < sizeof(T)) {
      good_ = false;
      return value;
    }
    memcpy(&value, in_.data(), sizeof(T));
    in_.remove_prefix(sizeof(T));
    return value;
  }
  absl::string_view Bytes(size_t count) {
    if (in_.size() < count) {
      good_ = false;
      return "";
    }
    const absl::string_view taken = in_.substr(0, count);
    in_.remove_prefix(count);
    return taken;
  }
  bool AllTaken() const { return good_ && in_.empty(); }

 private:
  absl::string_view in_;
  bool good_ = true;
};

bool IsPowerOfTwo(uint32_t value) { return value != 0 && (value & (value - 1)) == 0; }

}  // namespace

void WritePlaced(const Placed& placed, ReplyCell* cell) {
  cell->is_long = 1;
  memcpy(cell->body, &placed, sizeof(placed));
}

absl::StatusOr<Placed> ReadPlaced(const ReplyCell& cell, TensorShape* shape) {
  Placed placed;
  memcpy(&placed, cell.body, sizeof(placed));
  if (placed.rank > TensorShape::kMaxRank)
    return absl::DataLossError("the producer broke the protocol: a tensor's rank is out of range");
  auto made = TensorShape::Make(absl::MakeConstSpan(placed.dims, placed.rank));
  if (!made.ok()) return absl::DataLossError(made.status().message());
  const DType dtype = static_cast<DType>(placed.dtype);
  if (dtype != DType::kString) {
    auto bytes = TensorBytes(dtype, *made);
    if (!bytes.ok() || *bytes != placed.bytes) {
      return absl::DataLossError(
          "the producer broke the protocol: a tensor's length does not match its type and shape");
    }
  }
  if (cell.head.type == CellType::kChunk &&
      (placed.piece_bytes == 0 || placed.position > placed.bytes ||
       placed.bytes - placed.position < placed.piece_bytes)) {
    return absl::DataLossError(
        "the producer broke the protocol: a part reaches over the end of its tensor");
  }
  *shape = *made;
  return placed;
}

void WriteTickets(absl::Span<const uint64_t> tickets, RequestCell* cell) {
  cell->head.number = static_cast<uint32_t>(tickets.size());
  memcpy(cell->body, tickets.data(), tickets.size() * 8);
}

void WriteTickets(absl::Span<const uint64_t> tickets, ReplyCell* cell) {
  cell->head.number = static_cast<uint32_t>(tickets.size());
  cell->is_long = offsetof(ReplyCell, body) + tickets.size() * 8 > kCacheLine ? 1 : 0;
  memcpy(cell->body, tickets.data(), tickets.size() * 8);
}

namespace {
absl::StatusOr<size_t> ReadTicketsFrom(const uint8_t* body, size_t count, size_t most,
                                       uint64_t* tickets) {
  if (count == 0 || count > most) {
    return absl::DataLossError(
        "the peer broke the protocol: a list of waiting fetches is empty or too long");
  }
  memcpy(tickets, body, count * 8);
  return count;
}
}  // namespace

absl::StatusOr<size_t> ReadTickets(const RequestCell& cell, uint64_t* tickets) {
  return ReadTicketsFrom(cell.body, cell.head.number, kRequestTickets, tickets);
}

absl::StatusOr<size_t> ReadTickets(const ReplyCell& cell, uint64_t* tickets) {
  // The second line of a short cell was not read.
  constexpr size_t kShort = (kCacheLine - offsetof(ReplyCell, body)) / 8;
  return ReadTicketsFrom(cell.body, cell.head.number, cell.is_long != 0 ? kReplyTickets : kShort,
                         tickets);
}

absl::Status CheckSizes(const LinkSizes& sizes) {
  if (!IsPowerOfTwo(sizes.cells) || sizes.cells < kMinCells || sizes.cells > kMaxCells) {
    return absl::DataLossError(
        "the peer broke the protocol: the length of a ring in shared memory is out of range");
  }
  if (sizes.slots == 0 || sizes.slots > limits::kMaxSlots || !IsPowerOfTwo(sizes.references) ||
      sizes.references > kMaxReferences) {
    return absl::DataLossError(
        "the peer broke the protocol: it announced a number of slots or references that is out of "
        "range");
  }
  return absl::OkStatus();
}

std::string EncodeOffer(const Offer& offer) {
  std::string out;
  Put32(kVersion, &out);
  PutText(offer.farewell, &out);
  if (!offer.farewell.empty()) return out;
  PutText(offer.boot_id, &out);
  Put64(offer.network_space, &out);
  Put32(offer.sizes.cells, &out);
  Put32(offer.sizes.slots, &out);
  Put32(offer.sizes.references, &out);
  Put32(offer.digests ? 1 : 0, &out);
  return out;
}

absl::StatusOr<Offer> DecodeOffer(absl::string_view in) {
  Taker taker(in);
  const uint32_t version = taker.Number<uint32_t>();
  if (version != kVersion) {
    // This code makes the consumer take another path.
    return absl::UnimplementedError(
        "the two workers speak different versions of the protocol for shared memory: run the same "
        "release on both");
  }
  Offer offer;
  offer.farewell = std::string(taker.Bytes(taker.Number<uint32_t>()));
  if (!offer.farewell.empty() && taker.AllTaken()) return offer;
  offer.boot_id = std::string(taker.Bytes(taker.Number<uint32_t>()));
  offer.network_space = taker.Number<uint64_t>();
  offer.sizes.cells = taker.Number<uint32_t>();
  offer.sizes.slots = taker.Number<uint32_t>();
  offer.sizes.references = taker.Number<uint32_t>();
  offer.digests = taker.Number<uint32_t>() != 0;
  if (!taker.AllTaken())
    return absl::InvalidArgumentError("the consumer's request for shared memory is malformed");
  absl::Status sizes = CheckSizes(offer.sizes);
  if (!sizes.ok()) return absl::InvalidArgumentError(sizes.message());
  return offer;
}

std::string EncodeInvitation(const Invitation& invitation) {
  std::string out;
  Put32(kVersion, &out);
  PutText(invitation.socket, &out);
  out.append(reinterpret_cast<const char*>(invitation.token.data()), invitation.token.size());
  Put64(invitation.session, &out);
  return out;
}

absl::StatusOr<Invitation> DecodeInvitation(absl::string_view in) {
  Taker taker(in);
  const uint32_t version = taker.Number<uint32_t>();
  Invitation invitation;
  invitation.socket = std::string(taker.Bytes(taker.Number<uint32_t>()));
  const absl::string_view token = taker.Bytes(invitation.token.size());
  invitation.session = taker.Number<uint64_t>();
  if (!taker.AllTaken() || version != kVersion || invitation.socket.empty() ||
      invitation.socket.size() > 100 || invitation.session == 0) {
    return absl::DataLossError("the producer's answer about shared memory is malformed");
  }
  memcpy(invitation.token.data(), token.data(), token.size());
  return invitation;
}

}  // namespace shm_wire
}  // namespace tryst
