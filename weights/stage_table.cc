#include "weights/stage_table.h"

#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

struct StageEntry {
  StageState state;
  StageEvent event;
  StageState next;
  StageAction action;
  const char* why;
};

constexpr StageEntry kStageEntries[] = {
    {StageState::kNone, StageEvent::kWanted, StageState::kStaging, StageAction::kStage,
     "it is staged beside what is served"},
    {StageState::kStaging, StageEvent::kStaged, StageState::kStaged, StageAction::kTell,
     "only a whole stage is a vote"},
    {StageState::kStaging, StageEvent::kNotStaged, StageState::kFailed, StageAction::kTell,
     "one that cannot keeps all others from it"},
    {StageState::kStaging, StageEvent::kOver, StageState::kNone, StageAction::kDrop,
     "nobody will serve it"},
    {StageState::kFailed, StageEvent::kOver, StageState::kNone, StageAction::kDrop,
     "nobody will serve it"},
    {StageState::kFailed, StageEvent::kChosen, StageState::kStaging, StageAction::kStage,
     "the others have it, and serve it without this member"},
    {StageState::kStaged, StageEvent::kHold, StageState::kHolding, StageAction::kHold,
     "under a barrier nobody serves while it is chosen"},
    {StageState::kStaged, StageEvent::kChosen, StageState::kSwitching, StageAction::kSwitch,
     "chosen is the decision"},
    {StageState::kStaged, StageEvent::kOver, StageState::kNone, StageAction::kDrop,
     "nobody will serve it"},
    {StageState::kHolding, StageEvent::kQuiet, StageState::kHeld, StageAction::kTell,
     "the leader waits for it"},
    {StageState::kHolding, StageEvent::kChosen, StageState::kSwitching, StageAction::kSwitch,
     "it was put out, and the others went on"},
    {StageState::kHolding, StageEvent::kOver, StageState::kNone, StageAction::kDrop,
     "what is active stays active"},
    {StageState::kHeld, StageEvent::kChosen, StageState::kSwitching, StageAction::kSwitch,
     "chosen is the decision"},
    {StageState::kHeld, StageEvent::kOver, StageState::kNone, StageAction::kDrop,
     "what is active stays active"},
    {StageState::kSwitching, StageEvent::kSwitched, StageState::kNone, StageAction::kServe,
     "its first permit comes with the next answer"},
};

using StageRows = std::array<std::array<StageRow, kStageEventCount>, kStageStateCount>;

constexpr StageRows MakeStageRows() {
  StageRows rows{};
  for (const StageEntry& entry : kStageEntries) {
    rows[static_cast<size_t>(entry.state)][static_cast<size_t>(entry.event)] = {entry.next,
                                                                                entry.action, true};
  }
  return rows;
}
constexpr StageRows kStageRows = MakeStageRows();

}  // namespace

const StageRow& FindStageRow(StageState state, StageEvent event) {
  return kStageRows[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

std::string StageTable() {
  std::string table =
      "| a stage that | hears | then | and the member | because |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const StageEntry& entry : kStageEntries) {
    absl::StrAppend(&table, "| ", StageStateName(entry.state), " | ", StageEventName(entry.event),
                    " | ", StageStateName(entry.next), " | ", StageActionName(entry.action), " | ",
                    entry.why, " |\n");
  }
  return table;
}

const char* StageStateName(StageState state) {
  constexpr const char* kNames[] = {"is not there",  "is being staged", "is whole",
                                    "has failed",    "lets work end",   "holds",
                                    "is switched to"};
  static_assert(std::size(kNames) == kStageStateCount, "one is missing");
  return kNames[static_cast<size_t>(state)];
}

const char* StageEventName(StageEvent event) {
  constexpr const char* kNames[] = {"it is wanted", "all is there",     "it cannot be had",
                                    "HOLD",         "nothing runs",     "ACTIVE",
                                    "its end",      "it is switched to"};
  static_assert(std::size(kNames) == kStageEventCount, "one is missing");
  return kNames[static_cast<size_t>(event)];
}

const char* StageActionName(StageAction action) {
  constexpr const char* kNames[] = {
      "does nothing", "stages it", "tells the leader", "starts nothing more",
      "switches",     "drops it",  "serves it"};
  return kNames[static_cast<size_t>(action)];
}

}  // namespace tryst
