#include "channel/ops/serve_table.h"

#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

using State = ServeState;
using Event = ServeEvent;
using Action = ServeAction;

struct Entry {
  State state;
  Event event;
  Action action;
};

constexpr Entry kEntries[] = {
    {State::kFree, Event::kRequest, Action::kTake},
    {State::kFree, Event::kRequestAnew, Action::kTake},
    {State::kFree, Event::kRepeat, Action::kTake},
    {State::kFree, Event::kWithRoom, Action::kTake},
    {State::kFree, Event::kStale, Action::kTake},
    {State::kTaking, Event::kRequestAnew, Action::kGiveUpFirst},
    {State::kTaking, Event::kRepeat, Action::kRenew},
    {State::kReady, Event::kRequestAnew, Action::kGiveUpFirst},
    {State::kReady, Event::kRepeat, Action::kAnswer},
    {State::kNeedsDestination, Event::kRequestAnew, Action::kGiveUpFirst},
    {State::kNeedsDestination, Event::kRepeat, Action::kAnswer},
    {State::kNeedsDestination, Event::kWithRoom, Action::kAnswer},
    {State::kSent, Event::kRequest, Action::kAcceptFirst},
    {State::kSent, Event::kRequestAnew, Action::kAcceptFirst},
    {State::kSent, Event::kRepeat, Action::kAnswer},

    {State::kFree, Event::kPark, Action::kNothing},
    {State::kTaking, Event::kPark, Action::kPark},
    {State::kReady, Event::kPark, Action::kNothing},
    {State::kNeedsDestination, Event::kPark, Action::kNothing},
    {State::kStaging, Event::kPark, Action::kNothing},
    {State::kInParts, Event::kPark, Action::kNothing},
    {State::kPulled, Event::kPark, Action::kNothing},
    {State::kSent, Event::kPark, Action::kNothing},

    {State::kFree, Event::kCancel, Action::kNothing},
    {State::kTaking, Event::kCancel, Action::kGiveBack},
    {State::kReady, Event::kCancel, Action::kGiveBack},
    {State::kNeedsDestination, Event::kCancel, Action::kGiveBack},
    {State::kStaging, Event::kCancel, Action::kGiveBack},
    {State::kInParts, Event::kCancel, Action::kGiveBack},
    {State::kPulled, Event::kCancel, Action::kGiveBack},
    {State::kSent, Event::kCancel, Action::kGiveBack},

    {State::kPulled, Event::kRefuse, Action::kGiveBack},
    {State::kSent, Event::kRefuse, Action::kGiveBack},
    {State::kPulled, Event::kRead, Action::kAccept},
    {State::kPulled, Event::kNotRead, Action::kAnswer},
};

struct Matrix {
  std::array<std::array<const Action*, kServeEventCount>, kServeStateCount> actions{};
};

constexpr Matrix MakeMatrix() {
  Matrix matrix;
  for (const Entry& entry : kEntries) {
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
  return absl::DataLossError(absl::StrCat("the consumer said ", ServeEventName(event), " of slot ",
                                          slot, ", which ", ServeStateName(state)));
}

std::string ServeTable() {
  std::string table = "| a slot that | hears | and we |\n| --- | --- | --- |\n";
  for (const Entry& entry : kEntries) {
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
