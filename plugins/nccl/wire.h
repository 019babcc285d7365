#ifndef TRYST_PLUGINS_NCCL_WIRE_H_
#define TRYST_PLUGINS_NCCL_WIRE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/nccl/abi.h"

// What two plugins exchange: the handle that NCCL carries, the greetings on the control socket, and
// what each then writes into the other's memory. Both sides have the same version, which the handle
// and the greetings name. Hosts are little-endian.
namespace tryst::nccl {

inline constexpr uint32_t kWireVersion = 3;
inline constexpr int kMaxRails = 8;
inline constexpr int kMaxLanes = 16;
// The largest message that NCCL may send. A NIC may take less in one work; the message is then cut
// into pieces.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;
inline constexpr uint32_t kEagerSlots = 32;
// Twice the groups that can be open: a slot may get a new announcement before the sender has read
// all of the last one.
inline constexpr uint32_t kAnnouncements = 2 * kMaxRequests;

using Secret = std::array<uint8_t, 16>;

enum class DeviceKind : uint8_t { kSoft = 1, kIbv = 2, kOfi = 3 };
const char* DeviceKindName(DeviceKind kind);

// A listener's 128 bytes, which NCCL carries to the connecting rank.
struct Handle {
  static constexpr uint64_t kMagic = 0x3176'7473'7972'7454;
  uint64_t magic = kMagic;
  uint32_t version = kWireVersion;
  DeviceKind kind = DeviceKind::kSoft;
  Secret secret = {};
  char address[80] = {};    // Where the control socket listens; ends with a zero.
  uint64_t connecting = 0;  // Used by the connector: what it has begun.
};
static_assert(sizeof(Handle) <= kHandleBytes, "NCCL carries no more");

// Identifies a process, for people and for comparison.
struct PeerName {
  uint64_t process = 0;  // Random for each process that starts.
  uint32_t pid = 0;
  std::string host;
  std::string device;

  std::string ToString() const;  // "process 12 on host7 (eth0)".
};

// Where a rail's memory can be written.
struct RemoteRing {
  uint64_t address = 0;
  uint32_t key = 0;
};

struct Hello {  // Sent by the connector.
  Secret secret = {};
  PeerName name;
  DeviceKind kind = DeviceKind::kSoft;
  RemoteRing announcements;  // Where the receiver writes its announcements.
  // The addresses of queue pairs; the first also carries control messages.
  std::vector<std::string> lanes;
};

struct Welcome {        // Sent by the acceptor.
  std::string refusal;  // Not empty: why there will be no connection.
  PeerName name;
  RemoteRing eager;
  uint32_t eager_bytes = 0;        // The payload of one slot; 0: no eager messages.
  std::vector<std::string> lanes;  // Not more than were offered.
  std::vector<uint8_t> rails;      // The acceptor's rail for each lane.
};

std::string Encode(const Hello& hello);
std::string Encode(const Welcome& welcome);
// kDataLoss: Encode() did not write this.
absl::StatusOr<Hello> DecodeHello(absl::string_view bytes);
absl::StatusOr<Welcome> DecodeWelcome(absl::string_view bytes);

// What the sender must know of one receive of a group.
struct AnnouncedReceive {
  uint64_t address = 0;
  uint64_t bytes = 0;
  int32_t tag = 0;
  uint32_t keys[kMaxRails] = {};  // One for each of the receiver's rails.
};

// A group of receives, written into the sender's ring; `sequence` counts groups.
struct Announcement {
  uint32_t count = 0;
  uint32_t sequence = 0;
  uint64_t eager_freed = 0;  // How many slots were ever freed; they are freed in order.
  AnnouncedReceive receives[kMaxGroup];
};

// Goes before the bytes in an eager slot.
struct EagerHeader {
  int32_t tag = 0;
  uint32_t bytes = 0;
  // How many groups the sender knew when it sent: the message is for a later one.
  uint32_t groups_known = 0;
  uint32_t reserved = 0;
};

// The 32 bits that come with a write.
struct Immediate {
  enum class Kind : uint8_t { kPiece, kEager, kAnnouncement, kProbe };
  static constexpr uint32_t kMaxPieces = 2047;
  static constexpr uint32_t kGenerationMask = 0x7ff;

  Kind kind = Kind::kPiece;
  uint8_t slot = 0;         // A group's slot or an eager slot; below 32.
  uint8_t receive = 0;      // The receive's index in its group; below 8.
  uint16_t pieces = 0;      // How many pieces the message has.
  uint16_t generation = 0;  // How often the group's slot was used.

  uint32_t Pack() const;
  static Immediate Unpack(uint32_t bits);
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_WIRE_H_
