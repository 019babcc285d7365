#ifndef TRYST_WEIGHTS_STAGE_TABLE_H_
#define TRYST_WEIGHTS_STAGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>

// What becomes of the version that a member stages beside the one that it serves.
namespace tryst {

enum class StageState : uint8_t {
  kNone,       // Nothing is staged.
  kStaging,    // Its bytes are fetched and checked.
  kStaged,     // All of it is there: the member's vote is yes.
  kFailed,     // It cannot be had: the vote is no.
  kHolding,    // Nothing new is started; what runs ends.
  kHeld,       // Nothing runs.
  kSwitching,  // It is chosen, and becomes what is served.
};
inline constexpr size_t kStageStateCount = static_cast<size_t>(StageState::kSwitching) + 1;
const char* StageStateName(StageState state);

enum class StageEvent : uint8_t {
  kWanted,  // A leader prepares it, or it is active and not served here.
  kStaged,  // From the engine.
  kNotStaged,
  kHold,      // From the leader.
  kQuiet,     // From the engine: nothing runs.
  kChosen,    // The log says that it is active,
  kOver,      // or never will be.
  kSwitched,  // From the engine.
};
inline constexpr size_t kStageEventCount = static_cast<size_t>(StageEvent::kSwitched) + 1;
const char* StageEventName(StageEvent event);

enum class StageAction : uint8_t {
  kNothing,
  kStage,
  kTell,  // Ask the leader at once; the question says how it stands.
  kHold,  // No permit any more; the engine starts nothing new.
  kSwitch,
  kDrop,   // The stage goes; a member that holds goes on with what it serves.
  kServe,  // It is served now.
};
const char* StageActionName(StageAction action);

struct StageRow {
  StageState next = StageState::kNone;
  StageAction action = StageAction::kNothing;
  bool exists = false;
};
// A row that does not exist changes nothing: a word that came late.
const StageRow& FindStageRow(StageState state, StageEvent event);

// A Markdown table of all rows.
std::string StageTable();

}  // namespace tryst

#endif  // TRYST_WEIGHTS_STAGE_TABLE_H_
