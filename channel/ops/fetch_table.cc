#include "channel/ops/fetch_table.h"

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

using State = FetchState;
using Event = FetchEvent;
using Action = FetchAction;

struct Entry {
  State state;
  Event event;
  State next;
  Action action;
};

// `next` is the state in which the action begins.
constexpr Entry kEntries[] = {
    {State::kAsked, Event::kTensor, State::kAsked, Action::kTake},
    {State::kAsked, Event::kLanded, State::kParts, Action::kTake},
    {State::kAsked, Event::kPart, State::kAsked, Action::kCount},
    {State::kAsked, Event::kNeedDestination, State::kAsked, Action::kFindRoom},
    {State::kAsked, Event::kFailed, State::kAsked, Action::kFail},
    {State::kAsked, Event::kParked, State::kParked, Action::kGiveSlot},
    {State::kParts, Event::kPart, State::kParts, Action::kCount},
    {State::kParked, Event::kOutcome, State::kHere, Action::kLineUp},
    {State::kHere, Event::kOutcome, State::kHere, Action::kNothing},
    // After a CANCEL only its answer counts.
    {State::kLeaving, Event::kTensor, State::kLeaving, Action::kNothing},
    {State::kLeaving, Event::kLanded, State::kLeaving, Action::kKeepParts},
    {State::kLeaving, Event::kPart, State::kLeaving, Action::kCount},
    {State::kLeaving, Event::kNeedDestination, State::kLeaving, Action::kNothing},
    {State::kLeaving, Event::kFailed, State::kLeaving, Action::kNothing},
    {State::kLeaving, Event::kParked, State::kLeaving, Action::kUnwant},
    {State::kLeaving, Event::kGone, State::kLeft, Action::kLastWord},
    {State::kLeft, Event::kPart, State::kLeft, Action::kCount},

    {State::kQueued, Event::kSlot, State::kInSlot, Action::kNothing},
    {State::kHere, Event::kSlot, State::kInSlot, Action::kNothing},
    {State::kInSlot, Event::kAsk, State::kAsked, Action::kNothing},
    {State::kAgain, Event::kAsk, State::kAsked, Action::kNothing},
    {State::kAsked, Event::kNoRoom, State::kWaitingRoom, Action::kNothing},
    {State::kAsked, Event::kCopy, State::kCopying, Action::kNothing},
    {State::kWaitingRoom, Event::kRetry, State::kAgain, Action::kNothing},
    {State::kParts, Event::kRetry, State::kAgain, Action::kNothing},
    {State::kCopying, Event::kRetry, State::kAsked, Action::kNothing},

    {State::kAsked, Event::kComplete, State::kEnding, Action::kReport},
    {State::kParts, Event::kComplete, State::kEnding, Action::kReport},
    {State::kCopying, Event::kComplete, State::kEnding, Action::kReport},
    {State::kAhead, Event::kComplete, State::kEnding, Action::kReport},
    {State::kLeaving, Event::kComplete, State::kEnding, Action::kReport},
    {State::kLeft, Event::kComplete, State::kEnding, Action::kReport},
    {State::kAsked, Event::kAheadDone, State::kAhead, Action::kKeep},
    {State::kParts, Event::kAheadDone, State::kAhead, Action::kKeep},

    {State::kQueued, Event::kEnd, State::kEnding, Action::kReport},
    {State::kInSlot, Event::kEnd, State::kEnding, Action::kReport},
    {State::kAgain, Event::kEnd, State::kLeaving, Action::kCancel},
    {State::kAsked, Event::kEnd, State::kLeaving, Action::kCancel},
    {State::kParked, Event::kEnd, State::kEnding, Action::kReport},
    {State::kHere, Event::kEnd, State::kEnding, Action::kReport},
    {State::kWaitingRoom, Event::kEnd, State::kLeaving, Action::kCancel},
    {State::kParts, Event::kEnd, State::kLeaving, Action::kCancel},
    {State::kCopying, Event::kEnd, State::kLeaving, Action::kCancel},
    {State::kAhead, Event::kEnd, State::kLeaving, Action::kCancel},
    {State::kLeaving, Event::kEnd, State::kLeaving, Action::kNothing},
    {State::kLeft, Event::kEnd, State::kLeft, Action::kNothing},
    {State::kFenced, Event::kEnd, State::kFencedLeaving, Action::kRemember},
    {State::kFencedLeaving, Event::kEnd, State::kFencedLeaving, Action::kNothing},
    {State::kInSlot, Event::kEndAsked, State::kLeaving, Action::kCancel},

    {State::kQueued, Event::kHandOver, State::kQueued, Action::kPass},
    {State::kInSlot, Event::kHandOver, State::kInSlot, Action::kPass},
    {State::kAgain, Event::kHandOver, State::kAgain, Action::kPass},
    {State::kAsked, Event::kHandOver, State::kAsked, Action::kPass},
    {State::kParked, Event::kHandOver, State::kParked, Action::kPass},
    {State::kHere, Event::kHandOver, State::kHere, Action::kPass},
    {State::kWaitingRoom, Event::kHandOver, State::kWaitingRoom, Action::kPass},
    {State::kParts, Event::kHandOver, State::kParts, Action::kPass},
    {State::kFenced, Event::kHandOver, State::kFenced, Action::kPass},

    {State::kInSlot, Event::kBroken, State::kInSlot, Action::kNothing},
    {State::kAgain, Event::kBroken, State::kFenced, Action::kAskAgain},
    {State::kAsked, Event::kBroken, State::kFenced, Action::kAskAgain},
    {State::kWaitingRoom, Event::kBroken, State::kFenced, Action::kAskAgain},
    {State::kParts, Event::kBroken, State::kFenced, Action::kAskAgain},
    {State::kCopying, Event::kBroken, State::kFenced, Action::kAskAgain},
    {State::kLeaving, Event::kBroken, State::kFencedLeaving, Action::kAskAgain},
    {State::kLeft, Event::kBroken, State::kFencedLeaving, Action::kAskAgain},
    {State::kFenced, Event::kDrained, State::kInSlot, Action::kAskAgain},
    {State::kFencedLeaving, Event::kDrained, State::kLeaving, Action::kCancel},

    {State::kInSlot, Event::kUnlinked, State::kQueued, Action::kAskAgain},
    {State::kParked, Event::kUnlinked, State::kQueued, Action::kAskAgain},
    {State::kHere, Event::kUnlinked, State::kQueued, Action::kAskAgain},
};

constexpr FetchRows MakeRows() {
  FetchRows rows{};
  for (const Entry& entry : kEntries) {
    rows[static_cast<size_t>(entry.state)][static_cast<size_t>(entry.event)] = {
        entry.next, entry.action, /*exists=*/true};
  }
  return rows;
}

}  // namespace

constexpr FetchRows kFetchRows = MakeRows();

absl::Status OutOfPlace(FetchState state, FetchEvent event) {
  return absl::DataLossError(absl::StrCat("the producer broke the protocol: it said ",
                                          FetchEventName(event), " of a fetch that ",
                                          FetchStateName(state)));
}

std::string FetchTable() {
  std::string table = "| it | and then | it | and we |\n| --- | --- | --- | --- |\n";
  for (const Entry& entry : kEntries) {
    absl::StrAppend(&table, "| ", FetchStateName(entry.state), " | ", FetchEventName(entry.event),
                    " | ", FetchStateName(entry.next), " | ", FetchActionName(entry.action),
                    " |\n");
  }
  return table;
}

const char* FetchStateName(FetchState state) {
  constexpr const char* kNames[] = {
      "is free",
      "waits for a slot or a connection",
      "waits in its slot to be asked for",
      "waits in its slot to be asked for again",
      "waits for the peer's Send",
      "waits for the peer's Send without a slot",
      "is there and waits for a slot",
      "waits for landing room",
      "waits for parts on other queue pairs",
      "is copied to its destination",
      "came before it was asked for",
      "waits for the peer's last word after a cancel",
      "has that word and waits for the last parts",
      "waits for a broken link to drain",
      "waits for a broken link to drain and is given up",
      "has had the peer's last word",
  };
  static_assert(std::size(kNames) == kFetchStateCount, "one is missing");
  return kNames[static_cast<size_t>(state)];
}

const char* FetchEventName(FetchEvent event) {
  constexpr const char* kNames[] = {
      "TENSOR",
      "LANDED",
      "a part has landed",
      "NEED_DESTINATION",
      "FAILED",
      "PARKED",
      "HERE",
      "GONE",
      "it gets a slot",
      "its request leaves",
      "there is no room for it",
      "it is to be asked for once more",
      "its bytes are to be copied",
      "all has come",
      "all has come ahead of its fetch",
      "it is to end early",
      "it is to end early and was asked for before a break",
      "its fetch ends and the next of its key takes over",
      "the link breaks",
      "the link has drained",
      "the life that was asked is over",
  };
  static_assert(std::size(kNames) == kFetchEventCount, "one is missing");
  return kNames[static_cast<size_t>(event)];
}

const char* FetchActionName(FetchAction action) {
  switch (action) {
    case FetchAction::kNothing:
      return "do nothing";
    case FetchAction::kTake:
      return "accept or refuse it";
    case FetchAction::kCount:
      return "count the parts";
    case FetchAction::kKeepParts:
      return "note how many parts may still land";
    case FetchAction::kFindRoom:
      return "find room and ask again";
    case FetchAction::kFail:
      return "report the failure";
    case FetchAction::kGiveSlot:
      return "give its slot to the next in line";
    case FetchAction::kLineUp:
      return "let it wait for a slot before all others";
    case FetchAction::kUnwant:
      return "say UNWANTED";
    case FetchAction::kLastWord:
      return "end it once no part can land";
    case FetchAction::kReport:
      return "report it";
    case FetchAction::kCancel:
      return "say CANCEL";
    case FetchAction::kKeep:
      return "keep it for its fetch";
    case FetchAction::kRemember:
      return "give it up when it has drained";
    case FetchAction::kPass:
      return "let the next fetch have it";
    case FetchAction::kAskAgain:
      return "ask again over the next connection";
  }
  return "";
}

}  // namespace tryst
