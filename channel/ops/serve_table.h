#ifndef TRYST_CHANNEL_OPS_SERVE_TABLE_H_
#define TRYST_CHANNEL_OPS_SERVE_TABLE_H_

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

// What the consumer says.
enum class ServeEvent : uint8_t {
  kRequest,      // A new use of the slot.
  kRequestAnew,  // The same, but what the slot held was not requested again after a break.
  kRepeat,       // The same use once more, after a break or a wrong digest.
  kWithRoom,     // The same use once more, with a destination.
  kStale,        // It names a use of the slot that has ended.
  kPark,
  kCancel,
  kRefuse,   // The consumer cannot use what it was sent.
  kRead,     // The consumer has read the bytes,
  kNotRead,  // or could not read them.
};
inline constexpr size_t kServeEventCount = static_cast<size_t>(ServeEvent::kNotRead) + 1;
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
  kAccept,
};
const char* ServeActionName(ServeAction action);

// Null: the event must not happen in that state, and closes the channel.
const ServeAction* FindServeAction(ServeState state, ServeEvent event);

// kDataLoss: the consumer said something that is not allowed for such a slot.
absl::Status OutOfPlace(ServeState state, ServeEvent event, uint32_t slot);

// A Markdown table of all entries, for the documents.
std::string ServeTable();

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_TABLE_H_
