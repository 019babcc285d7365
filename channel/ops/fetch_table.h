#ifndef TRYST_CHANNEL_OPS_FETCH_TABLE_H_
#define TRYST_CHANNEL_OPS_FETCH_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

// The states of an ask (fetch_ask.h), the events in each, and the actions. They are the same for
// every transport; docs/STATES.md is printed from here.
namespace tryst {

// What an ask waits for.
enum class FetchState : uint8_t {
  kFree,         // It is in the pool.
  kQueued,       // Waits for a slot, a connection, or the earlier fetch of its key.
  kInSlot,       // Has a slot, and waits for room or a connection to be requested.
  kAgain,        // As kInSlot, and the peer still has the request before, which it has answered.
  kAsked,        // Waits for the peer, which has the request and may write the destination.
  kParked,       // Waits for the peer's Send, without a slot; the peer holds its ticket.
  kHere,         // Waits for a slot; the peer holds its outcome under its ticket.
  kWaitingRoom,  // Waits for landing room; the peer has the tensor and has said how large it is.
  kParts,        // Waits for tensor immediates of other queue pairs; the peer's answer is here.
  kCopying,      // Waits for its bytes to be copied to their place, a part in each turn.
  // Waits to be fetched: the tensor came for a standing receive, and is not accepted yet.
  kAhead,
  kLeaving,        // Waits for the answer to our CANCEL, the peer's last word on the slot.
  kLeft,           // Has that answer, and waits for parts that may still land.
  kFenced,         // Waits for the broken link to drain, to be requested again.
  kFencedLeaving,  // Waits for that, too, and is given up.
  kEnding,         // Has had the peer's last word.
};
inline constexpr size_t kFetchStateCount = static_cast<size_t>(FetchState::kEnding) + 1;
const char* FetchStateName(FetchState state);

enum class FetchEvent : uint8_t {
  // What the peer says:
  kTensor,           // The tensor, or where its bytes are.
  kLanded,           // The bytes are in the destination, or soon will be.
  kPart,             // A part of the bytes is.
  kNeedDestination,  // How large the tensor is.
  kFailed,           // Why there is no tensor.
  kParked,           // The fetch waits under its ticket.
  kOutcome,          // What waits under the ticket has its outcome.
  kGone,             // The answer to a CANCEL.
  // What happens on our side:
  kSlot,       // It gets a slot.
  kAsk,        // Its request is sent.
  kNoRoom,     // Its destination has to wait.
  kRetry,      // It must be requested again, with room or after a wrong digest.
  kCopy,       // The answer is here, and the bytes are copied in several turns.
  kComplete,   // Everything that the peer had to say is here.
  kAheadDone,  // Everything is here, and nobody has fetched this standing receive yet.
  kEnd,        // It was cancelled, refused, aborted or closed, or its deadline has passed.
  kEndAsked,   // As kEnd, and the peer may still serve an earlier request of it.
  kHandOver,   // Its fetch ends, and the next one of its key takes over.
  kBroken,     // The link broke; a NIC may still write the destination.
  kDrained,    // No byte of that link can land any more.
  kUnlinked,   // The life that was asked is over, and it is to be asked of another.
};
inline constexpr size_t kFetchEventCount = static_cast<size_t>(FetchEvent::kUnlinked) + 1;
const char* FetchEventName(FetchEvent event);

enum class FetchAction : uint8_t {
  kNothing,
  kTake,       // Examine the tensor; accept or refuse it.
  kCount,      // Count parts.
  kKeepParts,  // Note how many parts the destination must be kept for.
  kFindRoom,   // Find room, and request again with it.
  kFail,       // Report what the peer said.
  kGiveSlot,   // Give the slot to the next in line.
  kLineUp,     // Put it in the line for a slot.
  kUnwant,     // Tell the peer that what it parked is not wanted.
  kLastWord,   // End it: the peer will say nothing more of it.
  kReport,     // End it; the peer need not know, or learns it by the ticket.
  kCancel,     // Tell the peer, and wait for its answer.
  kKeep,       // Keep it until it is fetched.
  kRemember,   // Give it up once the queue pair has drained.
  kPass,       // Let the next fetch have it.
  kAskAgain,   // Request again over the next connection.
};
const char* FetchActionName(FetchAction action);

struct FetchRow {
  FetchState next;
  FetchAction action;
  bool exists = false;
};
using FetchRows = std::array<std::array<FetchRow, kFetchEventCount>, kFetchStateCount>;
extern const FetchRows kFetchRows;

// Null: the event must not happen in that state. If it came from a peer, it closes the channel;
// otherwise it is our bug.
inline const FetchRow* FindFetchRow(FetchState state, FetchEvent event) {
  const FetchRow& row = kFetchRows[static_cast<size_t>(state)][static_cast<size_t>(event)];
  return row.exists ? &row : nullptr;
}

// kDataLoss: the peer said something that is not allowed for such a fetch.
absl::Status OutOfPlace(FetchState state, FetchEvent event);

// A Markdown table of all entries, for the documents.
std::string FetchTable();

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TABLE_H_
