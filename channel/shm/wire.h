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
#include "channel/ops/limits.h"
#include "channel/shm/ring.h"
#include "rendezvous/tensor.h"

// What two processes of one host write into their shared memory and send on their socket;
// docs/WIRE.md explains it. Both run on one machine, so words are in its byte order.
namespace tryst {
namespace shm_wire {

// The only one that is spoken. The hello's messages have it, and so has every packet.
inline constexpr uint32_t kVersion = 4;
inline constexpr uint32_t kMinCells = 256;  // A key must fit into a ring.
inline constexpr uint32_t kMaxCells = 1u << 16;
inline constexpr uint32_t kMaxReferences = 1u << 15;  // 16 bits also name one that does not exist.
inline constexpr uint32_t kMaxSegments = 1u << 14;
inline constexpr uint64_t kMaxMappedBytes = uint64_t{4} << 40;  // One producer's.
inline constexpr uint32_t kMaxParked = 1u << 20;                // One consumer's, at one producer.

// ---- Cells ----
enum class CellType : uint8_t {
  kMore = 1,  // Continues the text of the cell before it.
  // Consumer to producer.
  kKey = 2,      // number: key id; slot: the length of the text, which begins in the body.
  kRequest = 3,  // number: key id. Body: the step, 8 bytes; a ticket or 0, 8 bytes.
  kCancel = 4,
  kPulled = 5,     // Answers kPull: the producer may release the bytes.
  kPark = 7,       // Body: the ticket under which this slot's fetch goes on waiting.
  kUnwanted = 8,   // number: how many. Body: tickets that are no longer wanted.
  kPing = 9,       // Must be answered with kPong, or any other cell.
  kReplayed = 10,  // What was asked over an earlier link, and is still wanted, was said again.
  kWaits = 11,     // number: key id. Body: the step and the ticket of a fetch that is parked.
  // From producer to consumer.
  kInline = 16,       // number: bytes. Body: meta, dimensions, the bytes.
  kReference = 17,    // Body: Placed. The bytes are in a segment until the reference is returned.
  kPull = 18,         // Body: Placed. The bytes are in the producer's own memory: read them there.
  kChunk = 19,        // Body: Placed. One part, in a segment until the reference is returned.
  kFailed = 20,       // number: absl::StatusCode. Body: length 2, text.
  kGone = 21,         // Answers kCancel.
  kSegmentGone = 22,  // number: its index. No references point into it, and none will.
  kParked = 23,       // The slot's last word: its fetch waits under its ticket.
  kHere = 24,         // number: how many. Body: tickets whose outcome is known.
  kPong = 25,         // The producer is alive.
};

enum CellFlags : uint8_t {
  kHasDestination = 1,  // kRequest: the caller gave memory to fill.
  kReplay = 2,          // kRequest: it was asked for over an earlier link.
  kIsDead = 4,          // kInline.
  kDerived = 8,         // kFailed: the failure is a consequence of another.
  kPullFailed = 16,     // kPulled: the bytes could not be read; send them in another way.
  // kReference, kPull, kChunk: the digest is set (in kChunk, that of the part).
  kHasDigest = 32,
  kMayPark = 64,  // kRequest: park it unless the tensor is here.
  kRun = 128,     // kKey: it stands for a run of keys, whose numbers are its text.
};

struct CellHead {
  uint32_t sequence;  // Used by the ring.
  CellType type;
  uint8_t flags;
  uint16_t slot;
  uint32_t generation;
  uint32_t number;
};
static_assert(sizeof(CellHead) == 16, "");

inline constexpr size_t kRequestCellBytes = 64;
inline constexpr size_t kReplyCellBytes = 128;

// A copy of a cell, or a cell to be filled.
struct RequestCell {
  CellHead head;
  uint8_t body[kRequestCellBytes - sizeof(CellHead)];
};
struct ReplyCell {
  CellHead head;
  uint8_t is_long;  // Not 0: more than the first cache line is used.
  uint8_t pad;
  uint8_t body[kReplyCellBytes - sizeof(CellHead) - 2];
};
static_assert(sizeof(RequestCell) == kRequestCellBytes, "");
static_assert(sizeof(ReplyCell) == kReplyCellBytes, "");
// Every cell of a reply ring has it at this place.
inline constexpr size_t kIsLongAt = offsetof(ReplyCell, is_long);

// The room for bytes in the body of kInline: dtype 1, rank 1, rank dimensions of 8, the bytes.
constexpr size_t InlineRoom(int rank) {
  return sizeof(ReplyCell::body) - 2 - 8 * static_cast<size_t>(rank);
}

// A loop: for a length that it does not know the compiler emits a string instruction, which takes
// longer to start than most shapes take to copy.
inline void CopyDims(const void* from, size_t rank, void* to) {
  for (size_t i = 0; i < rank; ++i) {
    memcpy(static_cast<uint8_t*>(to) + 8 * i, static_cast<const uint8_t*>(from) + 8 * i, 8);
  }
}

// Where the bytes of a tensor are.
struct Placed {
  uint8_t dtype = 0;
  uint8_t rank = 0;
  uint16_t reference = 0;
  uint16_t reference_generation = 0;
  uint16_t segment = 0;      // Its index on this link. Not used by kPull.
  uint32_t digest = 0;       // CRC-32C, with kHasDigest.
  uint32_t piece_bytes = 0;  // kChunk: the size of this part.
  uint64_t offset = 0;       // In the segment; kPull: the address.
  uint64_t bytes = 0;        // The whole tensor's.
  uint64_t position = 0;     // kChunk: where this part begins in the tensor.
  int64_t dims[TensorShape::kMaxRank] = {};
};
static_assert(sizeof(Placed) <= sizeof(ReplyCell::body), "");
void WritePlaced(const Placed& placed, ReplyCell* cell);
// kDataLoss: type, shape and number of bytes do not fit together.
absl::StatusOr<Placed> ReadPlaced(const ReplyCell& cell, TensorShape* shape);

// How many tickets kUnwanted and kHere can hold.
inline constexpr size_t kRequestTickets = sizeof(RequestCell::body) / 8;
inline constexpr size_t kReplyTickets = sizeof(ReplyCell::body) / 8;
// REQUIRES: they fit.
void WriteTickets(absl::Span<const uint64_t> tickets, RequestCell* cell);
void WriteTickets(absl::Span<const uint64_t> tickets, ReplyCell* cell);
// Returns how many tickets it stored; `tickets` must have room for as many as a cell can hold.
absl::StatusOr<size_t> ReadTickets(const RequestCell& cell, uint64_t* tickets);
absl::StatusOr<size_t> ReadTickets(const ReplyCell& cell, uint64_t* tickets);

// ---- The shared memory of a link ---- No field that the peer can change is trusted; the sizes
// come from the handshake.
struct LinkSizes {
  uint32_t cells = 512;                 // Each ring has so many; a power of two.
  uint32_t slots = limits::kUsedSlots;  // How many fetches can be out.
  uint32_t references = 4096;           // How many tensors the consumer may hold by reference.
};
// kDataLoss: one is out of its bounds.
absl::Status CheckSizes(const LinkSizes& sizes);

// Which events must wake a sleeping side.
enum Asleep : uint32_t { kAwake = 0, kForMessages = 1, kForRoomToo = 2 };

// How an end has left the link. It stores this before its socket ends; a process that is killed
// stores nothing.
enum LinkEnd : uint32_t {
  kNotEnded = 0,
  kKept = 1,     // Its process lives on, and so does the session.
  kNotKept = 2,  // The session is over.
};

// Whether the consumer may use what it reads out of the producer's own memory. Both change it by
// compare-and-swap, so that one of them has the tensor.
enum Loan : uint32_t {
  kNoLoan = 0,
  kLent = 1,       // Stored by the producer, before kPull.
  kTaken = 2,      // The consumer had read all, and has the tensor.
  kLoanEnded = 3,  // The producer has it back; what was read may be anything.
};

// What both ends know of a slot beside the cells.
struct SlotWord {
  // The generation after the last one whose answer the consumer has accepted.
  std::atomic<uint32_t> accepted;
  std::atomic<uint32_t> loan;
};

struct LinkHeader {
  // Written by the consumer; the producer sees by it that both map the same memory.
  uint8_t proof[16];
  alignas(128) std::atomic<uint32_t> consumer_asleep;
  alignas(128) std::atomic<uint32_t> producer_asleep;
  alignas(128) std::atomic<uint32_t> requests_read;
  alignas(128) std::atomic<uint32_t> replies_read;
  alignas(128) std::atomic<uint32_t> releases_written;
  alignas(128) std::atomic<uint32_t> producer_left;  // LinkEnd.
  std::atomic<uint32_t> consumer_left;               // LinkEnd.
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

// One returned reference: sequence 4, reference generation 2, reference 2.
using ReleaseEntry = std::atomic<uint64_t>;

constexpr uint64_t kHeaderBytes = 4096;
static_assert(sizeof(LinkHeader) <= kHeaderBytes, "");
inline uint64_t LinkBytes(const LinkSizes& sizes) {
  return kHeaderBytes + uint64_t{sizes.cells} * (kRequestCellBytes + kReplyCellBytes) +
         uint64_t{sizes.references} * sizeof(ReleaseEntry) +
         uint64_t{sizes.slots} * sizeof(SlotWord);
}

// Where the parts of a link's memory begin.
struct LinkView {
  LinkView() = default;
  LinkView(uint8_t* memory, const LinkSizes& sizes)
      : header(reinterpret_cast<LinkHeader*>(memory)),
        requests(memory + kHeaderBytes),
        replies(requests + size_t{sizes.cells} * kRequestCellBytes),
        releases(reinterpret_cast<ReleaseEntry*>(replies + size_t{sizes.cells} * kReplyCellBytes)),
        slots(reinterpret_cast<SlotWord*>(releases + sizes.references)) {}
  LinkHeader* header = nullptr;
  uint8_t* requests = nullptr;
  uint8_t* replies = nullptr;
  ReleaseEntry* releases = nullptr;
  SlotWord* slots = nullptr;
};

// Whether the consumer has accepted what it was answered on `slot` under this generation.
inline bool Accepted(const LinkView& view, uint16_t slot, uint16_t generation) {
  return view.slots[slot].accepted.load(std::memory_order_acquire) == generation + 1u;
}
// Whether it says so when the link begins: it may have used the slot again since.
inline bool WasAccepted(const LinkView& view, uint16_t slot, uint16_t generation) {
  const uint32_t accepted = view.slots[slot].accepted.load(std::memory_order_acquire);
  return static_cast<int16_t>(static_cast<uint16_t>(accepted) - generation) > 0;
}

// ---- Hello ----
using Token = std::array<uint8_t, 32>;

// From the consumer: its host, and the sizes that it asks for; or a farewell.
struct Offer {
  std::string farewell;        // As EncodeFarewell() made it. Empty: it wants a link.
  std::string boot_id;         // The kernel's.
  uint64_t network_space = 0;  // The namespace that names of sockets belong to.
  LinkSizes sizes;
  bool digests = false;
};
std::string EncodeOffer(const Offer& offer);
absl::StatusOr<Offer> DecodeOffer(absl::string_view in);

// From the producer: where to connect, and with which token.
struct Invitation {
  std::string socket;    // An abstract name.
  Token token{};         // Valid for one connection and a limited time.
  uint64_t session = 0;  // The producer's memory of this consumer.
};
std::string EncodeInvitation(const Invitation& invitation);
absl::StatusOr<Invitation> DecodeInvitation(absl::string_view in);

// ---- Socket messages: a packet each ----
enum class PacketType : uint32_t {
  kJoin = 0x314a5954,     // From the consumer: the token.
  kWelcome = 0x31575954,  // From the producer: sizes and the probe, with the link's memory.
  // From the consumer: it has mapped the memory and written its proof there.
  kReady = 0x31525954,
  // From the producer: a segment's memory, before the first reference into it.
  kSegment = 0x31535954,
  // Wakes the receiver: there is news in its ring, or the consumer has left the link.
  kWake = 0x314b5954,
};
struct Packet {
  PacketType type = PacketType::kWake;
  uint32_t version = kVersion;
  Token token{};               // kJoin, kReady (its first 16 bytes).
  LinkSizes sizes;             // kWelcome.
  uint32_t digests = 0;        // kWelcome: placed tensors carry digests.
  uint32_t pulls = 0;          // kReady: the consumer can read the producer's own memory.
  uint64_t probe_address = 0;  // kWelcome: an address in the producer's own memory.
  uint8_t probe[16] = {};      // kWelcome: the bytes there.
  uint32_t segment = 0;        // kSegment: its index on this link.
  uint64_t segment_id = 0;     // kSegment.
  uint64_t segment_bytes = 0;  // kSegment.
};

}  // namespace shm_wire
}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_WIRE_H_
