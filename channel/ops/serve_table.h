#ifndef TRYST_CHANNEL_OPS_SERVE_TABLE_H_
#define TRYST_CHANNEL_OPS_SERVE_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

// The states of a producer's slot, for every transport; docs/STATES.md is printed from here.
namespace tryst {

// What a slot waits for.
enum class ServeState : uint8_t {
  kFree,              // A request on this slot.
  kTaking,            // The local Send, through the rendezvous.
  kReady,             // Room on the wire; the tensor or its error is here.
  kNeedsDestination,  // The consumer, which was told how large the tensor is.
  kStaging,           // The copy of its bytes into shared memory, a part in each turn.
  kInParts,           // Room for its next part.
  kPulled,            // The consumer, which reads the bytes from our own memory.
  kSent,              // The consumer's acceptance; until then it can be sent again.
};
inline constexpr size_t kServeStateCount = static_cast<size_t>(ServeState::kSent) + 1;
const char* ServeStateName(ServeState state);

enum class ServeEvent : uint8_t {
  // What the consumer says.
  kRequest,      // A new use of the slot.
  kRequestAnew,  // The same, but what the slot held was not requested again after a break.
  kRepeat,       // The same use once more, after a break or a wrong digest.
  kWithRoom,     // The same use once more, with a destination.
  kStale,        // It names a use of the slot that has ended.
  kPark,
  kCancel,
  kLateCancel,  // A cancel of a use that has ended.
  kRead,        // The consumer has read the bytes,
  kNotRead,     // or could not read them.
  kAccepted,
  kNotAccepted,  // And will not be: said in a farewell, or by the words of a link that is over.
  kUnnamed,      // After a break it has named all that it still wants, and not this.
  // What happens here.
  kLeft,      // The consumer has gone, or this channel ends.
  kOutcome,   // The tensor was met, or an error in its place.
  kParked,    // The take goes on without the slot.
  kAskRoom,   // NEED_DESTINATION is said.
  kStage,     // Its copy into shared memory begins,
  kStaged,    // and ends.
  kPart,      // Its first part is sent.
  kLend,      // The consumer is told where to read it.
  kSay,       // All of the answer is sent, or an error.
  kUnlinked,  // The link is over by which it was being sent.
};
inline constexpr size_t kServeEventCount = static_cast<size_t>(ServeEvent::kUnlinked) + 1;
const char* ServeEventName(ServeEvent event);

enum class ServeAction : uint8_t {
  kNothing,
  kTake,         // Take from the rendezvous.
  kAcceptFirst,  // What was sent before was accepted; then take.
  kGiveUpFirst,  // What was here goes back; then take.
  kRenew,        // Note the new destination.
  kAnswer,       // The outcome is here: send it, or send it again.
  kPark,
  kGiveBack,
  kLetGo,
};
const char* ServeActionName(ServeAction action);

struct alignas(4) ServeRow {
  ServeState next;  // Once the action has been done.
  ServeAction action;
  bool exists = false;
};
using ServeRows = std::array<std::array<ServeRow, kServeEventCount>, kServeStateCount>;
extern const ServeRows kServeRows;

// Null: the event must not happen in that state. If a message of the consumer caused it, the
// channel is closed; otherwise it is our bug.
inline const ServeRow* FindServeRow(ServeState state, ServeEvent event) {
  const ServeRow& row = kServeRows[static_cast<size_t>(state)][static_cast<size_t>(event)];
  return row.exists ? &row : nullptr;
}

// kDataLoss: the consumer said something that is not allowed for such a slot.
absl::Status OutOfPlace(ServeState state, ServeEvent event, uint32_t slot);

// A Markdown table of all entries, for the documents.
std::string ServeTable();

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_TABLE_H_
