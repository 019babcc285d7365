#ifndef TRYST_CHANNEL_SHM_WIRE_H_
#define TRYST_CHANNEL_SHM_WIRE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "channel/shm/ring.h"
#include "rendezvous/tensor.h"

// The form of what two processes of one host write into their shared memory and say on
// their socket: docs/WIRE.md in prose. Both run on one machine, so words are in its order.
namespace tryst {
namespace shm_wire {

inline constexpr uint32_t kVersion = 1;  // Of the hello's forms and of kJoin.
// Of a link: kWelcome says the newest that the producer speaks, kReady the one that holds.
inline constexpr uint32_t kLinkNewest = 3;
inline constexpr uint32_t kLinkSettles = 2;  // From here on a link's end is settled.
// From here on every CANCEL is answered by kGone, and what waits needs no slot.
inline constexpr uint32_t kLinkParks = 3;
inline constexpr size_t kMaxKeyBytes = 4096;
inline constexpr size_t kMaxErrorBytes = 1024;  // Longer texts are cut.
inline constexpr uint32_t kMaxKeys = 1u << 16;
// Of keys' texts: with so many told since number 0, a consumer begins there again; with more
// than that remembered, a producer ends the link.
inline constexpr uint64_t kKeysLapBytes = 16 << 20;
inline constexpr uint64_t kMaxKeysBytes = 64 << 20;
inline constexpr uint32_t kMinCells = 256;  // A key must fit into a ring.
inline constexpr uint32_t kMaxCells = 1u << 16;
inline constexpr uint32_t kMaxSlots = 1u << 12;
inline constexpr uint32_t kMaxReferences = 1u << 16;
inline constexpr uint32_t kMaxSegments = 1u << 14;
inline constexpr uint64_t kMaxMappedBytes = uint64_t{4} << 40;  // Of one producer's.
inline constexpr uint32_t kMaxParked = 1u << 20;                // Of one consumer at one producer.

// ---- Cells ----
enum class CellType : uint8_t {
  kMore = 1,  // More of the text that the cell before it began.
  // Consumer to producer.
  kKey = 2,  // number: key id; slot: length of the text, which begins in the body.
  kRequest =
      3,  // number: key id. Body: the step, 8 bytes; from version 3 on a ticket or 0, 8 bytes.
  kCancel = 4,
  kPulled = 5,    // The answer to kPull: the producer may let go of the bytes.
  kRefused = 6,   // Of what was answered: nobody gets it here. The producer has it back.
  kPark = 7,      // Body: the ticket under which the fetch of this slot goes on waiting.
  kUnwanted = 8,  // number: how many. Body: tickets that nobody waits for any more.
  kPing = 9,      // To be answered by kPong, or by any other cell.
  // Producer to consumer.
  kInline = 16,       // number: bytes. Body: meta, dimensions, the bytes.
  kReference = 17,    // Body: Placed. The bytes lie in a segment until the reference is returned.
  kPull = 18,         // Body: Placed. The bytes lie in the producer's own memory: read them there.
  kChunk = 19,        // Body: Placed. A part, lying in a segment until the reference is returned.
  kFailed = 20,       // number: absl::StatusCode. Body: length 2, text.
  kGone = 21,         // An answer to kCancel.
  kSegmentGone = 22,  // number: its index. It has no references and gets no more.
  kParked = 23,       // The last word of the slot: its fetch waits under its ticket.
  kHere = 24,         // number: how many. Body: tickets whose outcome is here.
  kPong = 25,         // The producer is there.
};

enum CellFlags : uint8_t {
  kHasDestination = 1,  // kRequest: the caller gave memory to fill.
  kMustCopy = 2,        // kRequest: no reference, please.
  kIsDead = 4,          // kInline.
  kDerived = 8,         // kFailed: not the first cause.
  kPullFailed = 16,     // kPulled: the bytes could not be read; send them another way.
  kHasDigest = 32,      // kReference, kPull, kChunk: the digest is set (of a chunk, of its part).
  kMayPark = 64,        // kRequest: park it, unless the tensor is here. Version 3.
};

struct CellHead {
  uint32_t sequence;  // The ring's.
  CellType type;
  uint8_t flags;
  uint16_t slot;
  uint32_t generation;
  uint32_t number;
};
static_assert(sizeof(CellHead) == 16, "");

inline constexpr size_t kRequestCellBytes = 64;
inline constexpr size_t kReplyCellBytes = 128;

// A copy of a cell, or one to be filled.
struct RequestCell {
  CellHead head;
  uint8_t body[kRequestCellBytes - sizeof(CellHead)];
};
struct ReplyCell {
  CellHead head;
  uint8_t is_long;  // Not 0: more than the first cache line counts.
  uint8_t pad;
  uint8_t body[kReplyCellBytes - sizeof(CellHead) - 2];
};
static_assert(sizeof(RequestCell) == kRequestCellBytes, "");
static_assert(sizeof(ReplyCell) == kReplyCellBytes, "");
// In every cell of a reply ring.
inline constexpr size_t kIsLongAt = offsetof(ReplyCell, is_long);

// The body of kInline: dtype 1, rank 1, rank dimensions of 8, the bytes.
constexpr size_t InlineRoom(int rank) {
  return sizeof(ReplyCell::body) - 2 - 8 * static_cast<size_t>(rank);
}

// One by one: of a number that it does not know the compiler makes a string instruction, which
// takes longer to begin than most shapes to copy.
inline void CopyDims(const void* from, size_t rank, void* to) {
  for (size_t i = 0; i < rank; ++i) {
    memcpy(static_cast<uint8_t*>(to) + 8 * i, static_cast<const uint8_t*>(from) + 8 * i, 8);
  }
}

// Where the bytes of a tensor lie.
struct Placed {
  uint8_t dtype = 0;
  uint8_t rank = 0;
  uint16_t reference = 0;
  uint16_t reference_generation = 0;
  uint16_t segment = 0;      // Its index on this link. Not of kPull.
  uint32_t digest = 0;       // CRC-32C, with kHasDigest.
  uint32_t piece_bytes = 0;  // kChunk: of this part.
  uint64_t offset = 0;       // In the segment; kPull: the address.
  uint64_t bytes = 0;        // Of the whole tensor.
  uint64_t position = 0;     // kChunk: of this part in the tensor.
  int64_t dims[TensorShape::kMaxRank] = {};
};
static_assert(sizeof(Placed) <= sizeof(ReplyCell::body), "");
void WritePlaced(const Placed& placed, ReplyCell* cell);
// kDataLoss: the type, the shape or the number of bytes make no tensor.
absl::StatusOr<Placed> ReadPlaced(const ReplyCell& cell, TensorShape* shape);

// What kUnwanted and kHere carry.
inline constexpr size_t kRequestTickets = sizeof(RequestCell::body) / 8;
inline constexpr size_t kReplyTickets = sizeof(ReplyCell::body) / 8;
// REQUIRES: as many as there is room for, at most.
void WriteTickets(absl::Span<const uint64_t> tickets, RequestCell* cell);
void WriteTickets(absl::Span<const uint64_t> tickets, ReplyCell* cell);
// How many are in `tickets`, at which there is room for as many as the cell has room for.
absl::StatusOr<size_t> ReadTickets(const RequestCell& cell, uint64_t* tickets);
absl::StatusOr<size_t> ReadTickets(const ReplyCell& cell, uint64_t* tickets);

// ---- The shared memory of a link ---- We trust no field that the peer could have changed; the
// sizes come from the handshake.
struct LinkSizes {
  uint32_t cells = 512;        // Of each ring; a power of two.
  uint32_t slots = 256;        // How many fetches can be out.
  uint32_t references = 4096;  // How many tensors the consumer can hold by reference.
};
// kDataLoss unless each is within its bounds.
absl::Status CheckSizes(const LinkSizes& sizes);

// Which events are to wake a sleeper.
enum Asleep : uint32_t { kAwake = 0, kForMessages = 1, kForRoomToo = 2 };

// What becomes of answers that the consumer had not accepted when the link ended. The side that
// stores its value first decides.
enum Settlement : uint32_t {
  kNotSettled = 0,
  kSettled = 1,  // The consumer has written down what it accepted: the rest is asked again.
  kNotKept = 2,  // The producer has let go of it: nobody can have it, here or there.
};

struct LinkHeader {
  uint8_t proof[16];  // The consumer's, by which the producer sees that both see the same.
  alignas(128) std::atomic<uint32_t> consumer_asleep;
  alignas(128) std::atomic<uint32_t> producer_asleep;
  alignas(128) std::atomic<uint32_t> requests_read;
  alignas(128) std::atomic<uint32_t> replies_read;
  // How many cells of the reply ring carry nothing that could still be refused.
  alignas(128) std::atomic<uint32_t> replies_accepted;
  alignas(128) std::atomic<uint32_t> releases_written;
  // From version 2 on, when the link ends.
  alignas(128) std::atomic<uint32_t> producer_left;  // Not 0: on purpose; its process lives on.
  std::atomic<uint32_t> settlement;
  uint8_t accepted[kMaxSlots / 4];  // Two bits for each slot, by SetAccepted().
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

// One reference given back: sequence 4, reference generation 2, reference 2.
using ReleaseEntry = std::atomic<uint64_t>;

constexpr uint64_t kHeaderBytes = 4096;
static_assert(sizeof(LinkHeader) <= kHeaderBytes, "");
inline uint64_t LinkBytes(const LinkSizes& sizes) {
  return kHeaderBytes + uint64_t{sizes.cells} * (kRequestCellBytes + kReplyCellBytes) +
         uint64_t{sizes.references} * sizeof(ReleaseEntry);
}

// The consumer stores here that it has accepted the answer on `slot` in `generation`, the newest
// one that it has finished there.
void SetAccepted(uint16_t slot, uint32_t generation, LinkHeader* header);
bool WasAccepted(const LinkHeader& header, uint16_t slot, uint32_t generation);

// Where the parts of a link's memory begin.
struct LinkView {
  LinkView() = default;
  LinkView(uint8_t* memory, const LinkSizes& sizes)
      : header(reinterpret_cast<LinkHeader*>(memory)),
        requests(memory + kHeaderBytes),
        replies(requests + size_t{sizes.cells} * kRequestCellBytes),
        releases(reinterpret_cast<ReleaseEntry*>(replies + size_t{sizes.cells} * kReplyCellBytes)) {
  }
  LinkHeader* header = nullptr;
  uint8_t* requests = nullptr;
  uint8_t* replies = nullptr;
  ReleaseEntry* releases = nullptr;
};

// ---- Hello ----
using Token = std::array<uint8_t, 32>;

// The consumer's: where it lives and what it would like.
struct Offer {
  std::string boot_id;         // Of the kernel.
  uint64_t network_space = 0;  // The namespace that names of sockets belong to.
  LinkSizes sizes;
  bool digests = false;
};
std::string EncodeOffer(const Offer& offer);
absl::StatusOr<Offer> DecodeOffer(absl::string_view in);

// The producer's: where to knock, and with what.
struct Invitation {
  std::string socket;  // An abstract name.
  Token token{};       // Good for one connection, for a while.
};
std::string EncodeInvitation(const Invitation& invitation);
absl::StatusOr<Invitation> DecodeInvitation(absl::string_view in);

// ---- Socket messages: a packet each ----
enum class PacketType : uint32_t {
  kJoin = 0x314a5954,     // Consumer: the token.
  kWelcome = 0x31575954,  // Producer: sizes and the probe, with the link's memory.
  kReady = 0x31525954,    // Consumer: it has mapped the memory and left its proof there.
  kSegment = 0x31535954,  // Producer: a segment's memory, before the first reference into it.
  kWake = 0x314b5954,     // Look at your ring.
  kLeave = 0x314c5954,    // Consumer: nothing more is asked; some tensors are still held.
};
struct Packet {
  PacketType type = PacketType::kWake;
  uint32_t version = kVersion;  // kWelcome, kReady: of the link.
  Token token{};                // kJoin, kReady (its first 16 bytes).
  LinkSizes sizes;              // kWelcome.
  uint32_t digests = 0;         // kWelcome: placed tensors carry one.
  uint32_t pulls = 0;           // kReady: the producer's own memory can be read.
  uint64_t probe_address = 0;   // kWelcome: in the producer's own memory.
  uint8_t probe[16] = {};       // kWelcome: what is there.
  uint32_t segment = 0;         // kSegment: its index on this link.
  uint64_t segment_id = 0;      // kSegment.
  uint64_t segment_bytes = 0;   // kSegment.
};

}  // namespace shm_wire
}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_WIRE_H_
