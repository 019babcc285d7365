#ifndef TRYST_CHANNEL_OPS_SERVE_TABLE_H_
#define TRYST_CHANNEL_OPS_SERVE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

// What can become of a slot of the producer, for every transport; docs/STATES.md is printed from
// here.
namespace tryst {

// What the serving of a request waits for.
enum class ServeState : uint8_t {
  kFree,              // For a request on this slot.
  kTaking,            // For the local Send.
  kReady,             // For room on the wire: the outcome is here.
  kNeedsDestination,  // For the consumer: it was told how large the tensor is.
  kStaging,           // For its bytes to be copied into shared memory, a part in each turn.
  kInParts,           // For room for its next part.
  kPulled,            // For the consumer to have read the bytes out of our own memory.
  kSent,              // For the consumer to accept it; until then it can be sent again.
};
inline constexpr size_t kServeStateCount = static_cast<size_t>(ServeState::kSent) + 1;
const char* ServeStateName(ServeState state);

// What the consumer says.
enum class ServeEvent : uint8_t {
  kRequest,      // A new use of the slot.
  kRequestAnew,  // The same, where what the slot held was not asked for again after a break.
  kRepeat,       // The same use once more: after a break, or a wrong digest.
  kWithRoom,     // The same use once more, with a destination.
  kStale,        // A use that is over.
  kPark,
  kCancel,
  kRefuse,   // What it was sent cannot be had there.
  kRead,     // It has read the bytes,
  kNotRead,  // or could not.
};
inline constexpr size_t kServeEventCount = static_cast<size_t>(ServeEvent::kNotRead) + 1;
const char* ServeEventName(ServeEvent event);

enum class ServeAction : uint8_t {
  kNothing,
  kTake,         // From the rendezvous.
  kAcceptFirst,  // What was sent before was accepted; then take.
  kGiveUpFirst,  // What was here goes back; then take.
  kRenew,        // Note the new destination.
  kAnswer,       // The outcome is here: send it, again if it was sent.
  kPark,
  kGiveBack,
  kAccept,
};
const char* ServeActionName(ServeAction action);

// Null: the event has no place in that state, and closes the channel.
const ServeAction* FindServeAction(ServeState state, ServeEvent event);

// kDataLoss: the consumer said what it may not say of such a slot.
absl::Status OutOfPlace(ServeState state, ServeEvent event, uint32_t slot);

// For the documents: a Markdown table of all entries.
std::string ServeTable();

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_TABLE_H_
