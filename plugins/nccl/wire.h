#ifndef TRYST_PLUGINS_NCCL_WIRE_H_
#define TRYST_PLUGINS_NCCL_WIRE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/nccl/abi.h"

// What two plugins say to each other: the handle that NCCL carries, the greetings on the
// control socket, and what is written from memory to memory afterwards. Both sides are of
// one version, which the handle and the greetings name; hosts are little-endian.
namespace tryst::nccl {

inline constexpr uint32_t kWireVersion = 3;
inline constexpr int kMaxRails = 8;
inline constexpr int kMaxLanes = 16;
// What NCCL may send at once, whatever a NIC takes in one work: the rest is cutting.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;
inline constexpr uint32_t kEagerSlots = 32;
// Twice the groups that can be open: one may be announced before its slot's last is looked at.
inline constexpr uint32_t kAnnouncements = 2 * kMaxRequests;

using Secret = std::array<uint8_t, 16>;

enum class DeviceKind : uint8_t { kSoft = 1, kIbv = 2, kOfi = 3 };
const char* DeviceKindName(DeviceKind kind);

// The 128 bytes of a listener, which NCCL carries to the connecting rank.
struct Handle {
  static constexpr uint64_t kMagic = 0x3176'7473'7972'7454;
  uint64_t magic = kMagic;
  uint32_t version = kWireVersion;
  DeviceKind kind = DeviceKind::kSoft;
  Secret secret = {};
  char address[80] = {};    // Of the control socket's listener, ending with a zero.
  uint64_t connecting = 0;  // The connector's own: what it has begun.
};
static_assert(sizeof(Handle) <= kHandleBytes, "NCCL carries no more");

// A process, for people and to know it again.
struct PeerName {
  uint64_t process = 0;  // Random; one for each life of a process.
  uint32_t pid = 0;
  std::string host;
  std::string device;

  std::string ToString() const;  // "process 12 on host7 (eth0)".
};

// Where a rail's memory is reached.
struct RemoteRing {
  uint64_t address = 0;
  uint32_t key = 0;
};

struct Hello {  // From the connector.
  Secret secret = {};
  PeerName name;
  DeviceKind kind = DeviceKind::kSoft;
  RemoteRing announcements;        // Where the receiver writes what it has posted.
  std::vector<std::string> lanes;  // Queue pair addresses; the first is for control, too.
};

struct Welcome {        // From the acceptor.
  std::string refusal;  // Not empty: there will be no connection, and why.
  PeerName name;
  RemoteRing eager;
  uint32_t eager_bytes = 0;        // Of one slot's payload; 0: none.
  std::vector<std::string> lanes;  // At most as many as were offered.
  std::vector<uint8_t> rails;      // Of each lane, the acceptor's.
};

std::string Encode(const Hello& hello);
std::string Encode(const Welcome& welcome);
// kDataLoss for what Encode() never wrote.
absl::StatusOr<Hello> DecodeHello(absl::string_view bytes);
absl::StatusOr<Welcome> DecodeWelcome(absl::string_view bytes);

// One receive of a group, as the sender must know it.
struct AnnouncedReceive {
  uint64_t address = 0;
  uint64_t bytes = 0;
  int32_t tag = 0;
  uint32_t keys[kMaxRails] = {};  // Of each of the receiver's rails.
};

// A group of receives, written into the sender's ring; `sequence` counts groups.
struct Announcement {
  uint32_t count = 0;
  uint32_t sequence = 0;
  uint64_t eager_freed = 0;  // Slots that were ever given back, in order.
  AnnouncedReceive receives[kMaxGroup];
};

// In front of the bytes in an eager slot.
struct EagerHeader {
  int32_t tag = 0;
  uint32_t bytes = 0;
  uint32_t groups_known = 0;  // To the sender when it sent: this is for a later one.
  uint32_t reserved = 0;
};

// The 32 bits that come with a write.
struct Immediate {
  enum class Kind : uint8_t { kPiece, kEager, kAnnouncement, kProbe };
  static constexpr uint32_t kMaxPieces = 2047;
  static constexpr uint32_t kGenerationMask = 0x7ff;

  Kind kind = Kind::kPiece;
  uint8_t slot = 0;         // Of a group, an eager slot: below 32.
  uint8_t receive = 0;      // In its group: below 8.
  uint16_t pieces = 0;      // That the message comes in.
  uint16_t generation = 0;  // Of the group's slot.

  uint32_t Pack() const;
  static Immediate Unpack(uint32_t bits);
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_WIRE_H_
