// What members and owners ask a leader, and what comes as its answer: it is refused, or it is
// within its bounds and is written and read again alike. The first byte says which of the two.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "tests/fuzz/require.h"
#include "weights/questions.h"
#include "weights/stage_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto question = tryst::DecodeQuestion(bytes);
    if (!question.ok()) return 0;
    Require(question->ready.size() <= tryst::kMaxReady && question->rank < tryst::kMaxOwners);
    Require(question->wish.timeout_ns >= 0 && question->wish.timeout_ns <= tryst::kMaxWishNs);
    Require(static_cast<size_t>(question->stage_state) < tryst::kStageStateCount);
    const std::string again = tryst::EncodeQuestion(*question);
    Require(again.size() <= tryst::kMaxQuestionBytes);
    const auto twice = tryst::DecodeQuestion(again);
    Require(twice.ok() && tryst::EncodeQuestion(*twice) == again);
    return 0;
  }
  const auto answer = tryst::DecodeAnswer(bytes);
  if (!answer.ok()) return 0;
  Require(answer->slice.entries.size() <= tryst::kEntriesInAnswer);
  tryst::LogState state;
  static_cast<void>(tryst::ApplySlice(answer->slice, &state));
  const std::string again = tryst::EncodeAnswer(*answer);
  const auto twice = tryst::DecodeAnswer(again);
  Require(twice.ok() && tryst::EncodeAnswer(*twice) == again);
  return 0;
}
