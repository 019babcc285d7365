#ifndef TRYST_WEIGHTS_QUESTIONS_H_
#define TRYST_WEIGHTS_QUESTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weights/log.h"

// All that members and owners say to a leader, and all that it says to them. A question tells the
// whole state of who asks, so one that is lost is made good by the next.
namespace tryst {

enum class StageState : uint8_t;  // weights/stage_table.h

// READY: all boxes of one owner are published, under this digest of their list.
struct OwnerReady {
  uint64_t term = 0;
  uint64_t number = 0;
  WeightRoot digest = {};
};
inline constexpr size_t kMaxReady = 4;  // By one owner at one time.

inline constexpr size_t kMaxHeldVersions = 2;  // By one member at one time.

inline constexpr int64_t kMaxWishNs = int64_t{30} * 24 * 3600 * 1'000'000'000;
struct Wish {
  uint64_t number = 0;  // 0: none.
  ActivateMode mode = ActivateMode::kRolling;
  int64_t timeout_ns = 0;  // From 0 to kMaxWishNs.
};

struct Question {
  uint64_t incarnation = 0;  // Whoever asks.
  uint64_t question = 0;     // Counts up; the answer names it.
  uint64_t log = 0;          // The life of the log that it knows,
  uint64_t length = 0;       // and how much of it it has applied.
  uint64_t floor = 0;        // The highest number that it has ever seen sealed.
  Wish wish;

  // A member.
  bool member = false;
  WeightVersion serving;
  WeightVersion stage;
  StageState stage_state{};
  uint64_t holder = 0;              // Its server's incarnation, if it has parts for others:
  std::vector<WeightVersion> held;  // of these versions.

  // An owner.
  bool owner = false;
  uint32_t rank = 0;
  uint32_t owners = 0;
  uint64_t term = 0;  // That it has applied. It counts as declared once that is the log's.
  WeightRoot layout = {};
  std::vector<OwnerReady> ready;
};

inline constexpr size_t kEntriesInAnswer = 8;
struct Answer {
  uint64_t incarnation = 0;  // Whom it is for.
  uint64_t question = 0;     // 0: nobody asked.
  uint64_t log = 0;
  LogSlice slice;
  uint64_t length = 0;  // All of the log that the leader knows.
  WeightVersion prepare;
  bool hold = false;     // `prepare` is about to be chosen: start nothing more.
  bool permit = false;   // For the version that is active at `length`.
  uint64_t settled = 0;  // Every member serves the active version, and this is its number.
};

// Takes out the answers that are for one, in their order, which the others keep: what is told last
// has all of what was told before.
std::vector<Answer> TakeFor(uint64_t incarnation, std::vector<Answer>* answers);

// As they travel. The longest answer has a state and as many of the longest entries as fit in one.
inline constexpr size_t kMaxQuestionBytes = 512;
inline constexpr size_t kMaxAnswerBytes =
    kEntryOverhead + kMaxStateBytes + kEntriesInAnswer * (kMaxEntryBytes + 8);
std::string EncodeQuestion(const Question& question);
std::string EncodeAnswer(const Answer& answer);
// Read what a stranger sent. kInvalidArgument: it is longer than that, or no question (answer).
absl::StatusOr<Question> DecodeQuestion(absl::string_view bytes);
absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes);

// Times by which leaders, members and the decider agree.
struct GroupTimes {
  int64_t permit_ns = 1'000'000'000;
  int64_t lease_ns = 1'000'000'000;
  int64_t retry_ns = 200'000'000;     // The decider has not answered: ask again.
  int64_t silent_ns = 2'000'000'000;  // Who has not asked for so long is put out.
};

// Clocks run alike within 1 %: what lasts `ns` by somebody's clock is over after this by any other.
constexpr int64_t SurelyOver(int64_t ns) { return ns + ns / 50; }
// And what somebody else ends after `ns` has not ended before this.
constexpr int64_t SurelyNotOver(int64_t ns) { return ns - ns / 50; }

}  // namespace tryst

#endif  // TRYST_WEIGHTS_QUESTIONS_H_
