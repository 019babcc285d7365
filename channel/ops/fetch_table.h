#ifndef TRYST_CHANNEL_OPS_FETCH_TABLE_H_
#define TRYST_CHANNEL_OPS_FETCH_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

// What can become of a fetch: states, what happens to them, and what is done then. The same for
// every transport; docs/STATES.md is printed from here.
namespace tryst {

// What a fetch waits for.
enum class FetchState : uint8_t {
  kFree,         // In the pool.
  kQueued,       // For a slot, a connection, or the fetch of its key before it.
  kInSlot,       // For room, or a connection, to be asked for in the slot that it has.
  kAsked,        // For the peer: it has the request, and may write the destination.
  kParked,       // For the peer's Send, without a slot: the peer holds its ticket.
  kHere,         // For a slot: the peer holds its outcome under its ticket.
  kWaitingRoom,  // For landing room: the peer has the tensor and said how large it is.
  kParts,        // For tensor immediates of other queue pairs: the peer's word is here.
  kCopying,      // For its bytes to be copied to where they belong, a part in each turn.
  kAhead,        // For its fetch: the tensor came before anybody asked, and is not accepted.
  kLeaving,      // For the answer to our CANCEL, the peer's last word on the slot.
  kFenced,       // For the broken queue pair to drain.
  kEnding,       // For `done` to have run.
};
inline constexpr size_t kFetchStateCount = static_cast<size_t>(FetchState::kEnding) + 1;
const char* FetchStateName(FetchState state);

enum class FetchEvent : uint8_t {
  // The peer's words.
  kTensor,           // The tensor, or where its bytes lie.
  kLanded,           // Its bytes are in the destination, or soon will be.
  kPart,             // A part of them is.
  kNeedDestination,  // How large it is.
  kFailed,           // Why there is none.
  kParked,           // It waits under its ticket.
  kOutcome,          // What waits under the ticket has its outcome.
  kGone,             // The answer to a CANCEL.
  // Ours.
  kSlot,       // It gets a slot.
  kAsk,        // Its request leaves.
  kNoRoom,     // Its destination has to wait.
  kRetry,      // It is to be asked for once more, with room or after a wrong digest.
  kCopy,       // It has its answer; the bytes are copied by turns.
  kComplete,   // All that the peer had to say is here.
  kAheadDone,  // The same of one that nobody has fetched yet.
  kEnd,        // Cancelled, late, aborted, refused, closed.
  kEndAsked,   // The same, of one that the peer may still serve for an earlier request.
  kHandOver,   // The next fetch of its key gets what it has asked for.
  kBroken,     // The connection broke; the NIC may still write the destination.
  kDrained,    // No longer.
  kUnlinked,   // The connection ended; nobody but us writes our memory.
};
inline constexpr size_t kFetchEventCount = static_cast<size_t>(FetchEvent::kUnlinked) + 1;
const char* FetchEventName(FetchEvent event);

enum class FetchAction : uint8_t {
  kNothing,
  kTake,       // Look at it and accept or refuse it.
  kCount,      // Of parts.
  kKeepParts,  // Note how many parts the destination must be kept for.
  kFindRoom,   // And ask again with it.
  kFail,       // Report what the peer said.
  kGiveSlot,   // To the next in line.
  kLineUp,     // For a slot.
  kUnwant,     // Tell the peer that nobody wants what it parked.
  kLastWord,   // Nothing more comes: end it.
  kReport,     // End it; the peer need not know, or hears by its ticket.
  kCancel,     // Tell the peer, and wait for its answer.
  kRefuse,     // End it; the peer gets back what it had sent.
  kKeep,       // For its fetch.
  kRemember,   // To end it once the queue pair has drained.
  kPass,       // All that was asked to the next of the key.
  kAskAgain,   // Over the next connection.
};
const char* FetchActionName(FetchAction action);

struct FetchRow {
  FetchState next;
  FetchAction action;
};
// Null: the event has no place in that state. Of a peer's, it closes the channel; ours is a bug.
const FetchRow* FindFetchRow(FetchState state, FetchEvent event);

// kDataLoss: the peer said what it may not say of such a fetch.
absl::Status OutOfPlace(FetchState state, FetchEvent event);

// For the documents: a Markdown table of all entries.
std::string FetchTable();

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_TABLE_H_
