#ifndef TRYST_TESTS_MODEL_SLOT_EDGES_H_
#define TRYST_TESTS_MODEL_SLOT_EDGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

namespace tryst {

// The states of one slot at either end, and the events that change them. The model of slots
// (slot_model.h) and the replay of a trace (slot_replay.h) share them.

// The states of a slot at the consumer.
enum class Ask : uint8_t {
  kIdle,          // Nothing is asked for.
  kQueued,        // Requested before a break, and not again yet.
  kAsked,         // The request is out.
  kRoom,          // The producer has said how large the tensor is.
  kAnswered,      // The tensor or the failure is here, and not accepted yet.
  kLeaving,       // Given up; GONE has not come.
  kLeft,          // GONE has come; parts of the tensor may still land.
  kFenced,        // The queue pair is broken and has not drained.
  kFencedEnding,  // As kFenced, and given up.
};
const char* AskName(Ask state);

enum class AskStep : uint8_t {
  kAsks,
  kHearsTensor,
  kHearsFailed,
  kHearsNeed,
  kHearsParked,
  kHearsGone,
  kAccepts,
  kCancels,
  kBreaks,
  kDrains,
  kFrees,    // It follows GONE and the last part.
  kForgets,  // The producer that was asked has ended, or the path is left.
};
const char* AskStepName(AskStep step);

// The states of a slot at the producer.
enum class Serve : uint8_t { kFree, kTaking, kReady, kNeeds, kSent };
const char* ServeName(Serve state);

enum class ServeDeed : uint8_t {
  kHearsRequest,  // A request for a new use of the slot.
  kHearsAgain,    // A request for the same use, once more.
  kHearsCancel,
  kHearsLateCancel,  // A cancel of an earlier use.
  kHearsAccepted,
  kMeets,  // Its take gets the tensor of the local Send.
  kAnswers,
  kAsksForRoom,
  kParks,
  kGivesUp,  // It was not asked for again after a break.
  kLetsGo,   // The consumer has left the path.
};
const char* ServeDeedName(ServeDeed deed);

// An event of one slot at one end. `named` is used at the producer only: the consumer has requested
// it in this epoch.
struct SlotEdge {
  bool at_producer = false;
  uint8_t from = 0;
  bool named = false;
  uint8_t step = 0;
  uint8_t to = 0;

  bool operator<(const SlotEdge& other) const {
    return std::tie(at_producer, from, named, step, to) <
           std::tie(other.at_producer, other.from, other.named, other.step, other.to);
  }
  std::string ToText() const;
};
SlotEdge Edge(Ask from, AskStep step, Ask to);
SlotEdge Edge(Serve from, bool named, ServeDeed deed, Serve to);

// Each edge, and how often it was taken.
using SlotEdges = std::map<SlotEdge, uint64_t>;

}  // namespace tryst

#endif  // TRYST_TESTS_MODEL_SLOT_EDGES_H_
