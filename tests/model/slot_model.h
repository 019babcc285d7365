#ifndef TRYST_TESTS_MODEL_SLOT_MODEL_H_
#define TRYST_TESTS_MODEL_SLOT_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/model/slot_edges.h"

namespace tryst {

// A rule of docs/WIRE.md ("Safety") that can be left out, to see that it is needed.
enum class Rule : uint8_t {
  kReleaseOnLastWord,  // Memory is free after the last word, not when the fetch is cancelled.
  // Memory is free once the queue pair has drained, not once it is known to be broken.
  kReleaseOnDrained,
  kAnswerEveryCancel,  // The producer answers each CANCEL, even one that comes too late.
  kHoldSlotUntilGone,  // A cancelled slot waits for GONE even if its tensor arrives.
  kCheckGeneration,    // A word for an earlier fetch of the slot is ignored.
  kReplay,             // After a reconnect, what has not landed is requested again.
  kKeepUntilAccepted,  // The producer keeps what it sent, so that it can send it again.
  kKnowReplay,         // A replayed request gets the tensor that is kept for it, not the next one.
  kDropGivenUp,        // After REPLAYED the producer drops what was not requested again.
  kAnswerOnceAskedAgain,  // In each epoch the producer answers only what was requested in it.
  kFreeSlotAtOnce,        // A request behind a dropped take starts at once.
  kCheckIncarnation,      // What a dead producer was asked is not asked of its successor.
  kNone,
};
inline constexpr int kRuleCount = static_cast<int>(Rule::kNone);
const char* RuleName(Rule rule);

struct SlotModelOptions {
  int slots = 1;     // 1 or 2.
  int fetches = 2;   // At most 4, all of one key.
  int breaks = 1;    // How often the connection may break, at any point.
  int restarts = 0;  // How often the producer may restart.
  int cancels = 1;
  int digests = 0;    // How many tensors may arrive with a wrong digest.
  int parks = 0;      // How many requests may be parked.
  int failures = 0;   // How many takes may fail.
  int farewells = 0;  // How often the consumer may leave the path.
  std::vector<Rule> without;
  uint64_t max_states = 20'000'000;
};

struct SlotModelReport {
  uint64_t states = 0;
  uint64_t transitions = 0;
  uint64_t ends = 0;     // Final states: nothing can happen any more, and all is at rest.
  bool complete = true;  // Every reachable state was seen.
  uint32_t most_to_producer = 0;
  uint32_t most_to_consumer = 0;
  SlotEdges edges;                 // What happened to a slot, and how often.
  std::string violation;           // Empty: every promise holds in every state.
  std::vector<std::string> trace;  // The shortest trace to the violation.
};

// Explores all interleavings of one consumer and one producer: requests, cancels, writes, restarts,
// and connections that break at any point. In every state: no write lands in memory that was given
// back; no tensor comes twice, out of turn, or from another incarnation; none is lost. In every
// final state all fetches have ended and nothing is kept. Each step uses up one of the options'
// numbers, so the search ends.
SlotModelReport ExploreSlotModel(const SlotModelOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_MODEL_SLOT_MODEL_H_
