#include "channel/ops/serve_table.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

struct ServeEntry {
  ServeState state;
  ServeEvent event;
  ServeState next;
  ServeAction action;
  const char* why;
};

constexpr ServeEntry kServeEntries[] = {
    {ServeState::kFree, ServeEvent::kRequest, ServeState::kTaking, ServeAction::kTake,
     "nothing is in its way"},
    {ServeState::kFree, ServeEvent::kRequestAnew, ServeState::kTaking, ServeAction::kTake,
     "nothing is in its way"},
    {ServeState::kFree, ServeEvent::kRepeat, ServeState::kTaking, ServeAction::kTake,
     "the request, or what it had met, was lost with the connection or went back"},
    {ServeState::kFree, ServeEvent::kWithRoom, ServeState::kTaking, ServeAction::kTake,
     "the generations of a new consumer begin where ours did"},
    {ServeState::kFree, ServeEvent::kStale, ServeState::kTaking, ServeAction::kTake,
     "generations begin anew with a consumer that has lost its slots"},
    {ServeState::kTaking, ServeEvent::kRequestAnew, ServeState::kTaking, ServeAction::kGiveUpFirst,
     "the CANCEL of the former use was lost with the connection"},
    {ServeState::kTaking, ServeEvent::kRepeat, ServeState::kTaking, ServeAction::kRenew,
     "after a break the destination may be another"},
    {ServeState::kReady, ServeEvent::kRequestAnew, ServeState::kTaking, ServeAction::kGiveUpFirst,
     "the CANCEL of the former use was lost with the connection"},
    {ServeState::kReady, ServeEvent::kRepeat, ServeState::kReady, ServeAction::kAnswer,
     "after a break nothing is answered before it is named"},
    {ServeState::kNeedsDestination, ServeEvent::kRequestAnew, ServeState::kTaking,
     ServeAction::kGiveUpFirst, "the CANCEL of the former use was lost with the connection"},
    {ServeState::kNeedsDestination, ServeEvent::kRepeat, ServeState::kReady, ServeAction::kAnswer,
     "NEED_DESTINATION may be lost"},
    {ServeState::kNeedsDestination, ServeEvent::kWithRoom, ServeState::kReady, ServeAction::kAnswer,
     "now there is room for it"},
    {ServeState::kSent, ServeEvent::kRequest, ServeState::kTaking, ServeAction::kAcceptFirst,
     "who uses a slot again has accepted what came on it"},
    {ServeState::kSent, ServeEvent::kRequestAnew, ServeState::kTaking, ServeAction::kAcceptFirst,
     "it was sent whole, so it may have been accepted"},
    {ServeState::kSent, ServeEvent::kRepeat, ServeState::kReady, ServeAction::kAnswer,
     "it was lost with the connection, or its bytes were changed on their way"},

    {ServeState::kTaking, ServeEvent::kPark, ServeState::kTaking, ServeAction::kPark,
     "a fetch that waits holds no slot; one whose tensor comes this moment stays"},
    {ServeState::kTaking, ServeEvent::kCancel, ServeState::kFree, ServeAction::kGiveBack,
     "nobody wants it here"},
    {ServeState::kReady, ServeEvent::kCancel, ServeState::kFree, ServeAction::kGiveBack,
     "the next request of its key must find it"},
    {ServeState::kNeedsDestination, ServeEvent::kCancel, ServeState::kFree, ServeAction::kGiveBack,
     "the next request of its key must find it"},
    {ServeState::kStaging, ServeEvent::kCancel, ServeState::kFree, ServeAction::kGiveBack,
     "the next request of its key must find it"},
    {ServeState::kInParts, ServeEvent::kCancel, ServeState::kFree, ServeAction::kGiveBack,
     "the next request of its key must find it"},
    {ServeState::kPulled, ServeEvent::kCancel, ServeState::kFree, ServeAction::kGiveBack,
     "who cancels accepts nothing that comes later"},
    {ServeState::kSent, ServeEvent::kCancel, ServeState::kFree, ServeAction::kGiveBack,
     "who cancels accepts nothing that comes later"},
    {ServeState::kPulled, ServeEvent::kRead, ServeState::kFree, ServeAction::kLetGo,
     "the consumer has it"},
    {ServeState::kPulled, ServeEvent::kNotRead, ServeState::kReady, ServeAction::kAnswer,
     "the kernel forbids the read: it goes another way"},
    {ServeState::kSent, ServeEvent::kAccepted, ServeState::kFree, ServeAction::kLetGo,
     "the consumer has it"},
    {ServeState::kPulled, ServeEvent::kAccepted, ServeState::kFree, ServeAction::kLetGo,
     "the consumer had taken the loan before the link ended"},
    {ServeState::kTaking, ServeEvent::kNotAccepted, ServeState::kFree, ServeAction::kGiveBack,
     "nobody wants it here"},
    {ServeState::kReady, ServeEvent::kNotAccepted, ServeState::kFree, ServeAction::kGiveBack,
     "nobody wants it here"},
    {ServeState::kNeedsDestination, ServeEvent::kNotAccepted, ServeState::kFree,
     ServeAction::kGiveBack, "nobody wants it here"},
    {ServeState::kSent, ServeEvent::kNotAccepted, ServeState::kFree, ServeAction::kGiveBack,
     "nobody wants it here"},

    {ServeState::kTaking, ServeEvent::kUnnamed, ServeState::kFree, ServeAction::kGiveBack,
     "its CANCEL was lost with the connection"},
    {ServeState::kReady, ServeEvent::kUnnamed, ServeState::kFree, ServeAction::kGiveBack,
     "its CANCEL was lost with the connection"},
    {ServeState::kNeedsDestination, ServeEvent::kUnnamed, ServeState::kFree, ServeAction::kGiveBack,
     "its CANCEL was lost with the connection"},
    {ServeState::kSent, ServeEvent::kUnnamed, ServeState::kFree, ServeAction::kLetGo,
     "the consumer has it, or has given it up"},
    {ServeState::kTaking, ServeEvent::kLeft, ServeState::kFree, ServeAction::kGiveBack,
     "nobody wants it here"},
    {ServeState::kReady, ServeEvent::kLeft, ServeState::kFree, ServeAction::kGiveBack,
     "nobody has had it"},
    {ServeState::kNeedsDestination, ServeEvent::kLeft, ServeState::kFree, ServeAction::kGiveBack,
     "nobody has had it"},
    {ServeState::kSent, ServeEvent::kLeft, ServeState::kFree, ServeAction::kLetGo,
     "it may have been accepted, and nobody is left to say so"},

    {ServeState::kTaking, ServeEvent::kOutcome, ServeState::kReady, ServeAction::kAnswer,
     "its Send has happened"},
    {ServeState::kTaking, ServeEvent::kParked, ServeState::kFree, ServeAction::kNothing,
     "the take waits under its ticket"},
    {ServeState::kReady, ServeEvent::kAskRoom, ServeState::kNeedsDestination, ServeAction::kNothing,
     "it is larger than the room that it was asked with"},
    {ServeState::kReady, ServeEvent::kStage, ServeState::kStaging, ServeAction::kNothing,
     "a turn copies a part of a large tensor, so that others get theirs"},
    {ServeState::kStaging, ServeEvent::kStaged, ServeState::kReady, ServeAction::kAnswer,
     "its bytes are in place"},
    {ServeState::kReady, ServeEvent::kPart, ServeState::kInParts, ServeAction::kNothing,
     "the room for parts is bounded"},
    {ServeState::kReady, ServeEvent::kLend, ServeState::kPulled, ServeAction::kNothing,
     "the consumer copies once, out of our memory"},
    {ServeState::kReady, ServeEvent::kSay, ServeState::kSent, ServeAction::kNothing,
     "it is kept, since the answer may be lost or refused"},
    {ServeState::kInParts, ServeEvent::kSay, ServeState::kSent, ServeAction::kNothing,
     "it is kept, since it may be refused"},
    {ServeState::kStaging, ServeEvent::kUnlinked, ServeState::kReady, ServeAction::kNothing,
     "the copy was for that link"},
    {ServeState::kInParts, ServeEvent::kUnlinked, ServeState::kReady, ServeAction::kNothing,
     "the consumer has a part of it at most"},
    {ServeState::kPulled, ServeEvent::kUnlinked, ServeState::kReady, ServeAction::kNothing,
     "the loan has ended, and the consumer had not taken it"},
};

// What changes nothing, in any state that has no other row for it.
struct ServeIdle {
  ServeEvent event;
  const char* why;
};
constexpr ServeIdle kServeIdle[] = {
    {ServeEvent::kPark, "its answer is under way, or is due"},
    {ServeEvent::kLateCancel, "GONE is said of every CANCEL"},
};

constexpr ServeRows MakeServeRows() {
  ServeRows rows{};
  for (size_t state = 0; state < kServeStateCount; ++state) {
    for (const ServeIdle& idle : kServeIdle) {
      rows[state][static_cast<size_t>(idle.event)] = {static_cast<ServeState>(state),
                                                      ServeAction::kNothing, true};
    }
  }
  for (const ServeEntry& entry : kServeEntries) {
    ServeRow& row = rows[static_cast<size_t>(entry.state)][static_cast<size_t>(entry.event)];
    row = {entry.next, entry.action, true};
  }
  return rows;
}

}  // namespace

constexpr ServeRows kServeRows = MakeServeRows();

absl::Status OutOfPlace(ServeState state, ServeEvent event, uint32_t slot) {
  return absl::DataLossError(absl::StrCat("the consumer broke the protocol: it said ",
                                          ServeEventName(event), " of slot ", slot, ", which ",
                                          ServeStateName(state)));
}

std::string ServeTable() {
  std::string table =
      "| a slot that | hears or does | then | and we | because |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const ServeEntry& entry : kServeEntries) {
    absl::StrAppend(&table, "| ", ServeStateName(entry.state), " | ", ServeEventName(entry.event),
                    " | ", ServeStateName(entry.next), " | ", ServeActionName(entry.action), " | ",
                    entry.why, " |\n");
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
      "CANCEL of a generation that is over",
      "PULLED",
      "PULLED, with failure",
      "that it was accepted",
      "that it is not accepted, and will not be",
      "REPLAYED, without its name",
      "that the consumer has gone, or we end the channel",
      "the tensor is met, or an error",
      "the take goes on without the slot",
      "NEED_DESTINATION is said",
      "a copy into shared memory begins",
      "the copy into shared memory ends",
      "a first part is sent",
      "the consumer is told where to read it",
      "the answer is sent",
      "the link is over by which it was being sent",
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
    case ServeAction::kLetGo:
      return "let go of it";
  }
  return "";
}

}  // namespace tryst
