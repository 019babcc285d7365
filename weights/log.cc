#include "weights/log.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

absl::Status MayNot(const LogEntry& entry, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the entry ", EntryKindName(entry.kind),
                   entry.kind == EntryKind::kOwners ? " of term " : " of version ",
                   entry.kind == EntryKind::kOwners ? entry.term : entry.version.number, " ", why));
}

bool Ascending(const std::vector<uint64_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<uint64_t>()) ==
         numbers.end();
}

bool Distinct(std::vector<uint64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return Ascending(numbers) && (numbers.empty() || numbers.front() != 0);
}

}  // namespace

bool LogState::HasMember(uint64_t incarnation) const {
  return std::binary_search(members.begin(), members.end(), incarnation);
}

bool LogState::WasReplaced(uint64_t incarnation) const {
  return std::find(replaced.begin(), replaced.end(), incarnation) != replaced.end();
}

const LogEntry* LogState::FindOpen(uint64_t number) const {
  for (const LogEntry& entry : open) {
    if (entry.version.number == number) return &entry;
  }
  return nullptr;
}

absl::Status LogState::Check(const LogEntry& entry) const {
  const LogEntry* sealed = FindOpen(entry.version.number);
  switch (entry.kind) {
    case EntryKind::kOwners:
      if (entry.term != term + 1) return MayNot(entry, absl::StrCat("does not follow ", term));
      if (entry.incarnations.empty() || entry.incarnations.size() > kMaxOwners ||
          !Distinct(entry.incarnations)) {
        return MayNot(entry, "has no owners, too many, or one twice");
      }
      for (const uint64_t owner : entry.incarnations) {
        if (WasReplaced(owner)) return MayNot(entry, "has an owner that was replaced");
      }
      return absl::OkStatus();
    case EntryKind::kMembers:
      if (entry.incarnations.size() > kMaxGroup || !Ascending(entry.incarnations) ||
          (!entry.incarnations.empty() && entry.incarnations.front() == 0)) {
        return MayNot(entry, "has too many members, or not in order");
      }
      return absl::OkStatus();
    case EntryKind::kSealed:
      if (entry.term != term || term == 0) {
        return MayNot(entry, absl::StrCat("is of term ", entry.term, ", and this is ", term));
      }
      if (entry.version.number <= floor) {
        return MayNot(entry, absl::StrCat("is not above ", floor));
      }
      if (entry.digests.size() != owners.size() || entry.version.birth == 0) {
        return MayNot(entry, "lacks a birth or an owner's digest");
      }
      if (open.size() >= kMaxOpenVersions)
        return MayNot(entry, "would leave too many versions open");
      return absl::OkStatus();
    case EntryKind::kActive:
      if (sealed == nullptr || sealed->version != entry.version) {
        return MayNot(entry, "is of a version that is not sealed and waiting");
      }
      return absl::OkStatus();
    case EntryKind::kDropped:
      if (sealed != nullptr ? sealed->version != entry.version
                            : entry.version.birth != 0 || entry.version.number <= floor) {
        return MayNot(entry, "is of a version that is already active, dropped or replaced");
      }
      return absl::OkStatus();
  }
  return absl::FailedPreconditionError("the kind of the entry is unknown");
}

void LogState::Apply(const LogEntry& entry) {
  ++length;
  const uint64_t number = entry.version.number;
  switch (entry.kind) {
    case EntryKind::kOwners:
      term = entry.term;
      for (const uint64_t owner : owners) {
        if (std::find(entry.incarnations.begin(), entry.incarnations.end(), owner) ==
            entry.incarnations.end()) {
          replaced.push_back(owner);
        }
      }
      if (replaced.size() > kMaxReplaced) {
        replaced.erase(replaced.begin(), replaced.end() - kMaxReplaced);
      }
      owners = entry.incarnations;
      layout = entry.root;
      floor = std::max(floor, entry.floor);
      return;
    case EntryKind::kMembers:
      members = entry.incarnations;
      return;
    case EntryKind::kSealed:
      floor = number;
      open.push_back(entry);
      return;
    case EntryKind::kActive:
      active = *FindOpen(number);
      active_mode = entry.mode;
      // Versions that were sealed before this one cannot become active any more.
      while (!open.empty() && open.front().version.number <= number) open.erase(open.begin());
      return;
    case EntryKind::kDropped:
      open.erase(
          std::remove_if(open.begin(), open.end(),
                         [number](const LogEntry& one) { return one.version.number == number; }),
          open.end());
      floor = std::max(floor, number);
      return;
  }
}

absl::Status WeightLog::Append(const LogEntry& entry) {
  if (absl::Status may = state_.Check(entry); !may.ok()) return may;
  state_.Apply(entry);
  kept_.push_back(entry);
  if (kept_.size() > most_kept_) {
    base_.Apply(kept_.front());
    kept_.pop_front();
  }
  return absl::OkStatus();
}

void WeightLog::Restart(LogState base) {
  kept_.clear();
  base_ = base;
  state_ = std::move(base);
}

LogSlice WeightLog::ReadFrom(uint64_t from, size_t most) const {
  LogSlice slice;
  slice.first = from;
  if (from < base_.length) {
    slice.base = base_;
    slice.first = base_.length;
  }
  for (uint64_t i = slice.first; i < state_.length && slice.entries.size() < most; ++i) {
    slice.entries.push_back(kept_[i - base_.length]);
  }
  return slice;
}

absl::StatusOr<bool> ApplySlice(const LogSlice& slice, LogState* state) {
  bool moved = false;
  if (slice.base.has_value() && slice.base->length > state->length) {
    *state = *slice.base;
    moved = true;
  }
  uint64_t index = slice.first;
  for (const LogEntry& entry : slice.entries) {
    if (index++ != state->length) continue;
    if (absl::Status may = state->Check(entry); !may.ok()) {
      return absl::DataLossError(
          absl::StrCat("entry ", state->length,
                       " of the log of weights contradicts the entries before: ", may.message()));
    }
    state->Apply(entry);
    moved = true;
  }
  return moved;
}

const char* EntryKindName(EntryKind kind) {
  constexpr const char* kNames[] = {"OWNERS", "MEMBERS", "SEALED", "ACTIVE", "DROPPED"};
  static_assert(std::size(kNames) == kEntryKindCount, "one is missing");
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace tryst
