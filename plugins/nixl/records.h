#ifndef TRYST_PLUGINS_NIXL_RECORDS_H_
#define TRYST_PLUGINS_NIXL_RECORDS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// What agents say to each other, as bytes. What is read comes from a peer: kInvalidArgument says
// what is wrong with it.
namespace tryst::nixl {

inline constexpr size_t kMaxAgentName = 4096;
inline constexpr size_t kMaxNotification = 8 << 20;

// One life of an agent: no other has its worker's name.
struct PeerName {
  std::string worker;
  std::string address;
  uint64_t incarnation = 0;
};
std::string WritePeerName(const PeerName& name);
absl::StatusOr<PeerName> ReadPeerName(absl::string_view text);

std::string WriteRegionId(uint64_t id);
absl::StatusOr<uint64_t> ReadRegionId(absl::string_view text);
std::string RegionName(uint64_t id);  // As the server knows it.

// Spans of a region of the target's that are to have the bytes of spans of the initiator's.
struct PutSpan {
  uint64_t lands_at;
  uint64_t comes_from;
  uint64_t bytes;
};
struct PutPart {
  uint64_t target = 0;  // Regions.
  uint64_t source = 0;
  std::vector<PutSpan> spans;
};
struct Put {
  uint64_t id = 0;
  std::string agent;
  bool has_note = false;
  std::string note;
  std::vector<PutPart> parts;
};
// In two parts: a transfer that is posted again has the same spans.
std::string WritePutParts(const std::vector<PutPart>& parts);
std::string WritePut(uint64_t id, absl::string_view agent, const std::string* note,
                     absl::string_view parts);
absl::StatusOr<Put> ReadPut(absl::string_view text);

// Notifications in their order. A batch that comes twice has the same number.
struct Notes {
  uint64_t number = 0;
  std::string agent;
  std::vector<std::string> notes;
};
std::string WriteNotes(const Notes& notes);
absl::StatusOr<Notes> ReadNotes(absl::string_view text);

std::string WriteNumber(uint64_t number);
absl::StatusOr<uint64_t> ReadNumber(absl::string_view text);

// The text of an ask: what it is about, who asks, and its record, or where the asker has that.
struct Question {
  std::string verb;
  PeerName asker;          // Without the worker, which the ask has.
  std::string record;      // If it is short,
  uint64_t record_id = 0;  // else 0 does not stand here, and it has so many bytes.
  uint64_t record_bytes = 0;
};
inline constexpr size_t kMaxShortRecord = 1600;
inline constexpr uint64_t kMaxRecord = 16 << 20;
std::string WriteQuestion(const Question& question);
absl::StatusOr<Question> ReadQuestion(absl::string_view text);

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_RECORDS_H_
