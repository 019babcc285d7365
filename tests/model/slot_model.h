#ifndef TRYST_TESTS_MODEL_SLOT_MODEL_H_
#define TRYST_TESTS_MODEL_SLOT_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tryst {

// A rule of docs/WIRE.md ("Safety") that can be left out, to see that it is needed.
enum class Rule : uint8_t {
  kReleaseOnLastWord,     // Not when the fetch is cancelled.
  kReleaseOnDrained,      // Not when the queue pair is known to be broken.
  kAnswerEveryCancel,     // Also one that comes too late.
  kHoldSlotUntilGone,     // A cancelled slot whose tensor arrives waits for GONE all the same.
  kCheckGeneration,       // A word for an earlier fetch of the slot is nobody's.
  kReplay,                // After a reconnect what has not landed is asked for again.
  kKeepUntilAccepted,     // The producer can send again what was sent.
  kKnowReplay,            // A replay of what is kept gets what is kept, not the next tensor.
  kDropGivenUp,           // What is not asked for again is let go of (REPLAYED).
  kAnswerOnceAskedAgain,  // Nothing is answered in an epoch before it is asked in it.
  kFreeSlotAtOnce,        // A request behind a take that is let go of has its turn now.
  kCheckIncarnation,      // What was asked of a dead producer is not asked of its successor.
  kNone,
};
inline constexpr int kRuleCount = static_cast<int>(Rule::kNone);
const char* RuleName(Rule rule);

struct SlotModelOptions {
  int slots = 1;     // 1 or 2.
  int fetches = 2;   // Of one key, at most 4.
  int breaks = 1;    // The connection breaks so often, at any point.
  int restarts = 0;  // Of the producer.
  int cancels = 1;
  std::vector<Rule> without;
  uint64_t max_states = 20'000'000;
};

struct SlotModelReport {
  uint64_t states = 0;
  uint64_t transitions = 0;
  uint64_t ends = 0;     // States in which nothing can happen any more: all is at rest there.
  bool complete = true;  // Every reachable state was seen.
  uint32_t most_to_producer = 0;
  uint32_t most_to_consumer = 0;
  std::string violation;           // Empty: every promise holds in every state.
  std::vector<std::string> trace;  // The shortest way to it.
};

// All interleavings of one consumer and one producer with so many slots: requests, cancels,
// writes, broken connections at every point, restarts. In every state: no write lands in
// memory that was given back; no tensor comes twice, or out of turn, or from another
// incarnation; none is lost. Whatever happens, it ends with every fetch ended and nothing
// kept. Every step uses something up, so nothing goes round for ever.
SlotModelReport ExploreSlotModel(const SlotModelOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_MODEL_SLOT_MODEL_H_
