#ifndef TRYST_TESTS_PROMISES_HISTORY_H_
#define TRYST_TESTS_PROMISES_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tryst {

// What both ends of a transport did and got, and a judge of it.
//
// A stamp is drawn from one atomic counter of the process, before a call and after it has
// returned. The counter orders calls as a lock would: call A comes before call B when A's
// second stamp is below B's first, and then B's thread knew that A had returned. Calls whose
// stamps overlap have no order, and rendezvous.h promises none for them. Stamps of two
// processes are never compared, and neither are those of two keys.
uint64_t NextStamp();

constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

// One accepted Send. `number` is the tensor's, once for each key.
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
  // How it may fail, from when (its deadline, or the moment before it was cancelled), and by
  // when it has to have ended then. kOk: it may not fail.
  absl::StatusCode may_fail_with = absl::StatusCode::kOk;
  int64_t fails_from_ns = kNeverNs;
  int64_t ends_by_ns = kNeverNs;
  // Its end.
  int calls = 0;  // Of `done`.
  absl::StatusCode code = absl::StatusCode::kUnknown;
  int64_t number = -1;  // Of the tensor it got.
  bool whole = true;    // The tensor's bytes are those of its number.
  int64_t ended_ns = 0;
};

enum class Breach {
  kLost,       // A tensor was sent, and no receive got it.
  kDoubled,    // Two receives got one tensor, or one receive ended twice.
  kInvented,   // A receive got a tensor that nobody sent, or other bytes.
  kOpen,       // A receive never ended.
  kFailed,     // A receive failed otherwise than it might, or before it might.
  kLate,       // A receive ended after its time.
  kOrder,      // Of two sends in order, an earlier receive got the later.
  kOvertaken,  // A later receive got a tensor while an earlier one that then failed still waited.
};
const char* BreachName(Breach breach);

struct Judgement {
  std::map<Breach, size_t> counts;
  std::vector<std::string> examples;  // Some of each, in words.

  size_t of(Breach breach) const;
  std::string ToText() const;  // "order 12, lost 0, ...", and the examples.
};

// Judges a whole history: everything that was sent has been received, and everything that was
// received has ended.
Judgement JudgeHistory(const std::vector<SentTensor>& sent, const std::vector<MadeReceive>& made);

}  // namespace tryst

#endif  // TRYST_TESTS_PROMISES_HISTORY_H_
