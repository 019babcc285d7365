#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/little_endian.h"
#include "proto/only_fields.h"
#include "proto/weights_log.pb.h"
#include "weights/log.h"

namespace tryst {
namespace {

absl::Status NoEntry(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("an entry of a log of weights is malformed: ", why));
}

std::string Pack(const std::vector<uint64_t>& numbers) {
  std::string bytes(numbers.size() * 8, '\0');
  for (size_t i = 0; i < numbers.size(); ++i) {
    StoreLittle(reinterpret_cast<uint8_t*>(&bytes[i * 8]), numbers[i]);
  }
  return bytes;
}

bool Unpack(const std::string& bytes, size_t most, std::vector<uint64_t>* numbers) {
  if (bytes.size() % 8 != 0 || bytes.size() / 8 > most) return false;
  numbers->resize(bytes.size() / 8);
  for (size_t i = 0; i < numbers->size(); ++i) {
    (*numbers)[i] = LoadLittle<uint64_t>(reinterpret_cast<const uint8_t*>(&bytes[i * 8]));
  }
  return true;
}

std::string Pack(const WeightRoot& root) {
  return std::string(reinterpret_cast<const char*>(root.data()), root.size());
}

// Empty bytes stand for a root of zeros.
bool Unpack(const std::string& bytes, WeightRoot* root) {
  if (bytes.empty()) return true;
  if (bytes.size() != root->size()) return false;
  memcpy(root->data(), bytes.data(), root->size());
  return true;
}

void ToMessage(const LogEntry& entry, rpc::WeightEntry* message) {
  message->set_kind(static_cast<uint32_t>(entry.kind));
  message->set_number(entry.version.number);
  message->set_birth(entry.version.birth);
  message->set_term(entry.term);
  message->set_mode(static_cast<uint32_t>(entry.mode));
  message->set_floor(entry.floor);
  message->set_incarnations(Pack(entry.incarnations));
  if (entry.root != WeightRoot{}) message->set_root(Pack(entry.root));
  std::string digests;
  for (const WeightRoot& digest : entry.digests) digests += Pack(digest);
  message->set_digests(std::move(digests));
}

absl::StatusOr<LogEntry> FromMessage(const rpc::WeightEntry& message) {
  if (message.kind() >= kEntryKindCount) return NoEntry("its kind is unknown");
  if (message.mode() > static_cast<uint32_t>(ActivateMode::kBarrier)) {
    return NoEntry("its mode is unknown");
  }
  LogEntry entry;
  entry.kind = static_cast<EntryKind>(message.kind());
  entry.version = {message.number(), message.birth()};
  entry.term = message.term();
  entry.floor = message.floor();
  entry.mode = static_cast<ActivateMode>(message.mode());
  const std::string& digests = message.digests();
  if (!Unpack(message.incarnations(), kMaxGroup, &entry.incarnations) ||
      !Unpack(message.root(), &entry.root) || digests.size() % sizeof(WeightRoot) != 0 ||
      digests.size() / sizeof(WeightRoot) > kMaxOwners) {
    return NoEntry("a column has no whole number of fields, or too many");
  }
  entry.digests.resize(digests.size() / sizeof(WeightRoot));
  for (size_t i = 0; i < entry.digests.size(); ++i) {
    memcpy(entry.digests[i].data(), &digests[i * sizeof(WeightRoot)], sizeof(WeightRoot));
  }
  return entry;
}

constexpr int kEntryFields = 9, kStateFields = 10, kStateSealed = 7;

bool IsSealed(const LogEntry& entry) {
  return entry.kind == EntryKind::kSealed && entry.version.number != 0 &&
         entry.version.birth != 0 && !entry.digests.empty();
}

absl::Status CheckState(const LogState& state) {
  uint64_t last = state.active.version.number;
  if (last != 0 && !IsSealed(state.active)) {
    return absl::InvalidArgumentError(
        "the state of a log of weights is malformed: what is active was not sealed");
  }
  for (const LogEntry& entry : state.open) {
    if (!IsSealed(entry) || entry.version.number <= last) {
      return absl::InvalidArgumentError(
          "the state of a log of weights is malformed: its versions do not ascend");
    }
    last = entry.version.number;
  }
  if (last > state.floor || state.open.size() > kMaxOpenVersions) {
    return absl::InvalidArgumentError(
        "the state of a log of weights is malformed: it has too many versions");
  }
  // MEMBERS and OWNERS have to keep to the rules of entries.
  LogEntry entry;
  entry.incarnations = state.members;
  if (absl::Status members = LogState{}.Check(entry); !members.ok()) return members;
  if (state.term == 0 && state.owners.empty()) return absl::OkStatus();
  entry.kind = EntryKind::kOwners;
  entry.term = 1;
  entry.incarnations = state.owners;
  return LogState{}.Check(entry);
}

}  // namespace

std::string EncodeEntry(const LogEntry& entry) {
  rpc::WeightEntry message;
  ToMessage(entry, &message);
  return message.SerializeAsString();
}

absl::StatusOr<LogEntry> DecodeEntry(absl::string_view bytes) {
  if (bytes.size() > kMaxEntryBytes)
    return NoEntry(absl::StrCat("it has ", bytes.size(), " bytes"));
  rpc::WeightEntry message;
  if (!HasOnlyFields(bytes, kEntryFields) ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return NoEntry("it cannot be parsed");
  }
  return FromMessage(message);
}

std::string EncodeState(const LogState& state) {
  rpc::WeightState message;
  message.set_length(state.length);
  message.set_term(state.term);
  message.set_owners(Pack(state.owners));
  message.set_replaced(Pack(state.replaced));
  message.set_layout(Pack(state.layout));
  message.set_members(Pack(state.members));
  message.set_floor(state.floor);
  message.set_has_active(state.active.version.number != 0);
  message.set_active_mode(static_cast<uint32_t>(state.active_mode));
  if (message.has_active()) ToMessage(state.active, message.add_sealed());
  for (const LogEntry& entry : state.open) ToMessage(entry, message.add_sealed());
  return message.SerializeAsString();
}

absl::StatusOr<LogState> DecodeState(absl::string_view bytes) {
  rpc::WeightState message;
  if (bytes.size() > kMaxStateBytes ||
      !HasOnlyFields(bytes, kStateFields, kStateSealed, kMaxOpenVersions + 1,
                     [](absl::string_view entry) { return HasOnlyFields(entry, kEntryFields); }) ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state of a log of weights is malformed: its ", bytes.size(),
                     " bytes cannot be parsed"));
  }
  LogState state;
  state.length = message.length();
  state.term = message.term();
  state.floor = message.floor();
  if (message.active_mode() > static_cast<uint32_t>(ActivateMode::kBarrier) ||
      !Unpack(message.owners(), kMaxOwners, &state.owners) ||
      !Unpack(message.replaced(), kMaxReplaced, &state.replaced) ||
      !Unpack(message.layout(), &state.layout) ||
      !Unpack(message.members(), kMaxGroup, &state.members)) {
    return absl::InvalidArgumentError(
        "the state of a log of weights is malformed: a column is too long");
  }
  state.active_mode = static_cast<ActivateMode>(message.active_mode());
  for (const rpc::WeightEntry& one : message.sealed()) {
    absl::StatusOr<LogEntry> entry = FromMessage(one);
    if (!entry.ok()) return entry.status();
    if (message.has_active() && state.active.version.number == 0) {
      state.active = *std::move(entry);
      if (state.active.version.number == 0) return NoEntry("version 0 is active");
    } else {
      state.open.push_back(*std::move(entry));
    }
  }
  if (absl::Status may = CheckState(state); !may.ok()) {
    return absl::InvalidArgumentError(may.message());
  }
  return state;
}

}  // namespace tryst
