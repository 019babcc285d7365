#ifndef TRYST_TESTS_PROCESS_PROMISES_HISTORY_H_
#define TRYST_TESTS_PROCESS_PROMISES_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tryst {

// A record of what both ends of a transport did and got, and its judge.
//
// A stamp is drawn from one atomic counter of the process, before a call and after its return. Call
// A comes before call B when A's second stamp is below B's first: then B's thread could know that A
// had returned. Calls whose stamps overlap have no order, and rendezvous.h promises none. Stamps of
// two processes are never compared, nor those of two keys.
uint64_t NextStamp();

constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

// One accepted Send. `number` names the tensor, once for each key.
struct SentTensor {
  uint32_t key = 0;
  int64_t number = 0;
  uint64_t before = 0;
  uint64_t after = 0;
};

// One RecvAsync and its end.
struct MadeReceive {
  uint32_t key = 0;
  uint64_t before = 0;
  uint64_t after = 0;
  // How it may fail; from when on (its deadline, or the moment before its cancel); and by when it
  // must then have ended. kOk: it must not fail.
  absl::StatusCode may_fail_with = absl::StatusCode::kOk;
  int64_t fails_from_ns = kNeverNs;
  int64_t ends_by_ns = kNeverNs;
  // How it ended.
  int calls = 0;  // How often `done` ran.
  absl::StatusCode code = absl::StatusCode::kUnknown;
  int64_t number = -1;  // The number of its tensor.
  bool whole = true;    // The tensor has all bytes of its number.
  int64_t ended_ns = 0;
  bool landed_late = false;  // Not one of its own: bytes came into its memory after its end.
};

enum class Breach {
  kLost,       // A tensor was sent, and no receive got it.
  kDoubled,    // Two receives got one tensor, or one receive ended twice.
  kInvented,   // A receive got a tensor that nobody sent, or other bytes.
  kOpen,       // A receive never ended.
  kFailed,     // A receive failed otherwise than it might, or before it might.
  kLate,       // A receive ended after its time.
  kOrder,      // An earlier receive got the later of two sends in order.
  kLanded,     // Bytes came into a receive's memory after it had ended.
  kOvertaken,  // A later receive got a tensor while an earlier one that then failed still waited.
};
const char* BreachName(Breach breach);

struct Judgement {
  std::map<Breach, size_t> counts;
  std::vector<std::string> examples;  // Some examples of each, in words.

  size_t of(Breach breach) const;
  std::string ToText() const;  // "order 12, lost 0, ...", and the examples.
};

// Judges a complete history: everything that was sent must have been received, and every receive
// must have ended.
Judgement JudgeHistory(const std::vector<SentTensor>& sent, const std::vector<MadeReceive>& made);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PROMISES_HISTORY_H_
