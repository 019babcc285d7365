#include "channel/ops/serve_table.h"

#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

struct ServeEntry {
  ServeState state;
  ServeEvent event;
  ServeAction action;
};

constexpr ServeEntry kServeEntries[] = {
    {ServeState::kFree, ServeEvent::kRequest, ServeAction::kTake},
    {ServeState::kFree, ServeEvent::kRequestAnew, ServeAction::kTake},
    {ServeState::kFree, ServeEvent::kRepeat, ServeAction::kTake},
    {ServeState::kFree, ServeEvent::kWithRoom, ServeAction::kTake},
    {ServeState::kFree, ServeEvent::kStale, ServeAction::kTake},
    {ServeState::kTaking, ServeEvent::kRequestAnew, ServeAction::kGiveUpFirst},
    {ServeState::kTaking, ServeEvent::kRepeat, ServeAction::kRenew},
    {ServeState::kReady, ServeEvent::kRequestAnew, ServeAction::kGiveUpFirst},
    {ServeState::kReady, ServeEvent::kRepeat, ServeAction::kAnswer},
    {ServeState::kNeedsDestination, ServeEvent::kRequestAnew, ServeAction::kGiveUpFirst},
    {ServeState::kNeedsDestination, ServeEvent::kRepeat, ServeAction::kAnswer},
    {ServeState::kNeedsDestination, ServeEvent::kWithRoom, ServeAction::kAnswer},
    {ServeState::kSent, ServeEvent::kRequest, ServeAction::kAcceptFirst},
    {ServeState::kSent, ServeEvent::kRequestAnew, ServeAction::kAcceptFirst},
    {ServeState::kSent, ServeEvent::kRepeat, ServeAction::kAnswer},

    {ServeState::kFree, ServeEvent::kPark, ServeAction::kNothing},
    {ServeState::kTaking, ServeEvent::kPark, ServeAction::kPark},
    {ServeState::kReady, ServeEvent::kPark, ServeAction::kNothing},
    {ServeState::kNeedsDestination, ServeEvent::kPark, ServeAction::kNothing},
    {ServeState::kStaging, ServeEvent::kPark, ServeAction::kNothing},
    {ServeState::kInParts, ServeEvent::kPark, ServeAction::kNothing},
    {ServeState::kPulled, ServeEvent::kPark, ServeAction::kNothing},
    {ServeState::kSent, ServeEvent::kPark, ServeAction::kNothing},

    {ServeState::kFree, ServeEvent::kCancel, ServeAction::kNothing},
    {ServeState::kTaking, ServeEvent::kCancel, ServeAction::kGiveBack},
    {ServeState::kReady, ServeEvent::kCancel, ServeAction::kGiveBack},
    {ServeState::kNeedsDestination, ServeEvent::kCancel, ServeAction::kGiveBack},
    {ServeState::kStaging, ServeEvent::kCancel, ServeAction::kGiveBack},
    {ServeState::kInParts, ServeEvent::kCancel, ServeAction::kGiveBack},
    {ServeState::kPulled, ServeEvent::kCancel, ServeAction::kGiveBack},
    {ServeState::kSent, ServeEvent::kCancel, ServeAction::kGiveBack},

    {ServeState::kPulled, ServeEvent::kRefuse, ServeAction::kGiveBack},
    {ServeState::kSent, ServeEvent::kRefuse, ServeAction::kGiveBack},
    {ServeState::kPulled, ServeEvent::kRead, ServeAction::kAccept},
    {ServeState::kPulled, ServeEvent::kNotRead, ServeAction::kAnswer},
};

struct Matrix {
  std::array<std::array<const ServeAction*, kServeEventCount>, kServeStateCount> actions{};
};

constexpr Matrix MakeMatrix() {
  Matrix matrix;
  for (const ServeEntry& entry : kServeEntries) {
    matrix.actions[static_cast<size_t>(entry.state)][static_cast<size_t>(entry.event)] =
        &entry.action;
  }
  return matrix;
}
constexpr Matrix kMatrix = MakeMatrix();

}  // namespace

const ServeAction* FindServeAction(ServeState state, ServeEvent event) {
  return kMatrix.actions[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

absl::Status OutOfPlace(ServeState state, ServeEvent event, uint32_t slot) {
  return absl::DataLossError(absl::StrCat("the consumer broke the protocol: it said ",
                                          ServeEventName(event), " of slot ", slot, ", which ",
                                          ServeStateName(state)));
}

std::string ServeTable() {
  std::string table = "| a slot that | hears | and we |\n| --- | --- | --- |\n";
  for (const ServeEntry& entry : kServeEntries) {
    absl::StrAppend(&table, "| ", ServeStateName(entry.state), " | ", ServeEventName(entry.event),
                    " | ", ServeActionName(entry.action), " |\n");
  }
  return table;
}

const char* ServeStateName(ServeState state) {
  constexpr const char* kNames[] = {
      "is free",
      "waits for the local Send",
      "waits for room on the wire",
      "waits for a destination",
      "is copied into shared memory",
      "goes in parts",
      "is read by the consumer",
      "waits to be accepted",
  };
  static_assert(std::size(kNames) == kServeStateCount, "one is missing");
  return kNames[static_cast<size_t>(state)];
}

const char* ServeEventName(ServeEvent event) {
  constexpr const char* kNames[] = {
      "REQUEST of a new generation",
      "REQUEST of a new generation, and none of the last one since a break",
      "REQUEST once more, as a replay or for a wrong digest",
      "REQUEST once more, with a destination",
      "REQUEST of a generation that is over",
      "PARK",
      "CANCEL",
      "REFUSED",
      "PULLED",
      "PULLED, with failure",
  };
  static_assert(std::size(kNames) == kServeEventCount, "one is missing");
  return kNames[static_cast<size_t>(event)];
}

const char* ServeActionName(ServeAction action) {
  switch (action) {
    case ServeAction::kNothing:
      return "do nothing";
    case ServeAction::kTake:
      return "take";
    case ServeAction::kAcceptFirst:
      return "let go of what was accepted, and take";
    case ServeAction::kGiveUpFirst:
      return "give back what was here, and take";
    case ServeAction::kRenew:
      return "note the new destination";
    case ServeAction::kAnswer:
      return "answer";
    case ServeAction::kPark:
      return "park it and say PARKED";
    case ServeAction::kGiveBack:
      return "give it back";
    case ServeAction::kAccept:
      return "let go of it";
  }
  return "";
}

}  // namespace tryst
