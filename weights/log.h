#ifndef TRYST_WEIGHTS_LOG_H_
#define TRYST_WEIGHTS_LOG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// The log of a set: one list of entries, whose prefixes are all that anybody acts on
// (docs/decisions/0071-weights-log.md; tests/model/weights.pml has its rules).
namespace tryst {

using WeightRoot = std::array<uint8_t, 16>;

struct WeightVersion {
  uint64_t number = 0;  // 0: none.
  uint64_t birth =
      0;  // Random, so that a number that comes again after its log is lost is another.
  friend bool operator==(const WeightVersion& a, const WeightVersion& b) {
    return a.number == b.number && a.birth == b.birth;
  }
  friend bool operator!=(const WeightVersion& a, const WeightVersion& b) { return !(a == b); }
};

enum class ActivateMode : uint8_t {
  kRolling,  // Members switch as they hear of it.
  kBarrier,  // No two versions are served at one moment.
};

enum class EntryKind : uint8_t { kOwners, kMembers, kSealed, kActive, kDropped };
inline constexpr size_t kEntryKindCount = static_cast<size_t>(EntryKind::kDropped) + 1;
const char* EntryKindName(EntryKind kind);

struct LogEntry {
  EntryKind kind = EntryKind::kMembers;
  WeightVersion version;  // kDropped: without a birth where it was never sealed.
  uint64_t term = 0;      // kOwners, kSealed.
  uint64_t floor = 0;     // kOwners: somebody has seen this number sealed.
  ActivateMode mode = ActivateMode::kRolling;
  std::vector<uint64_t> incarnations;  // kOwners by rank, kMembers ascending.
  WeightRoot root = {};                // kOwners: of the layouts. kSealed.
  std::vector<WeightRoot> digests;     // kSealed: by rank.
};

inline constexpr size_t kMaxOwners = 4096;
inline constexpr size_t kMaxReplaced = kMaxOwners;  // All that one entry can replace.
inline constexpr size_t kMaxGroup = 8192;           // Members.
inline constexpr size_t kMaxOpenVersions = 8;       // Sealed, neither active nor given up.
inline constexpr size_t kKeptEntries = 64;          // A reader that lacks more gets a state.
inline constexpr size_t kEntryOverhead = 128;       // Numbers, tags and lengths.
// The longest entry is a SEALED of kMaxOwners owners, or a MEMBERS of kMaxGroup members.
inline constexpr size_t kMaxEntryBytes =
    kEntryOverhead + sizeof(WeightRoot) +
    (kMaxOwners * sizeof(WeightRoot) > kMaxGroup * 8 ? kMaxOwners * sizeof(WeightRoot)
                                                     : kMaxGroup * 8);
inline constexpr size_t kMaxStateBytes =
    kEntryOverhead + sizeof(WeightRoot) + kMaxOwners * 8 + kMaxReplaced * 8 + kMaxGroup * 8 +
    (kMaxOpenVersions + 1) *
        (kEntryOverhead + sizeof(WeightRoot) + kMaxOwners * sizeof(WeightRoot));

// What a prefix of the log says.
struct LogState {
  uint64_t length = 0;  // How many entries it has.
  uint64_t term = 0;    // 0: nobody has declared.
  std::vector<uint64_t> owners;
  std::vector<uint64_t> replaced;  // Were owners, and will not be again; the newest kMaxReplaced.
  WeightRoot layout = {};
  std::vector<uint64_t> members;
  uint64_t floor = 0;  // Numbers up to it are sealed, or never will be.
  LogEntry active;     // Its SEALED entry; number 0: none.
  ActivateMode active_mode = ActivateMode::kRolling;
  std::vector<LogEntry> open;  // The SEALED entries that may become active, ascending.

  bool HasMember(uint64_t incarnation) const;
  bool WasReplaced(uint64_t incarnation) const;
  const LogEntry* FindOpen(uint64_t number) const;  // Null: it is none.
  // Whether it may come next. kFailedPrecondition says why not.
  absl::Status Check(const LogEntry& entry) const;
  void Apply(const LogEntry& entry);  // REQUIRES: Check() is OK.
};

// A part of the log, for who has the entries before it.
struct LogSlice {
  std::optional<LogState> base;  // Where those between are not kept: what they say together.
  uint64_t first = 0;            // The index of the first entry.
  std::vector<LogEntry> entries;
};

// The newest entries, and what all say together. At most `kept` of kMaxEntryBytes.
class WeightLog {
 public:
  explicit WeightLog(size_t kept = kKeptEntries) : most_kept_(kept) {}
  absl::Status Append(const LogEntry& entry);  // As LogState::Check().
  void Restart(LogState base);
  // Entries from `from` on, at most `most`.
  LogSlice ReadFrom(uint64_t from, size_t most) const;
  const LogState& state() const { return state_; }

 private:
  LogState state_;
  LogState base_;
  size_t most_kept_;
  std::deque<LogEntry> kept_;  // Those from base_.length on.
};

// Applies what of the slice goes on where `state` ends. False: nothing did. kDataLoss: an entry
// contradicts the ones before it.
absl::StatusOr<bool> ApplySlice(const LogSlice& slice, LogState* state);

std::string EncodeEntry(const LogEntry& entry);
std::string EncodeState(const LogState& state);
// Read what a stranger sent. kInvalidArgument: it is longer than kMaxEntryBytes (kMaxStateBytes),
// or no entry (state). Either takes twice its bytes.
absl::StatusOr<LogEntry> DecodeEntry(absl::string_view bytes);
absl::StatusOr<LogState> DecodeState(absl::string_view bytes);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_LOG_H_
