#ifndef TRYST_RENDEZVOUS_SELECTION_H_
#define TRYST_RENDEZVOUS_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tryst {

// Bytes of a tensor without a gap.
struct ByteSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const ByteSpan& a, const ByteSpan& b) {
    return a.offset == b.offset && a.bytes == b.bytes;
  }
};

// `count` spans of `bytes` each. Each begins `stride` bytes behind the beginning of the one before.
struct ByteRun {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t stride = 0;
  uint64_t count = 0;
};

// Spans of one tensor's bytes, in the order in which they travel. A value that refers to its list,
// which stays until the call returns that is given it. A span of no bytes is none.
struct Selection {
  enum class Kind : uint8_t { kWhole, kIndices, kRuns, kSpans };
  static constexpr uint64_t kMaxSpans = uint64_t{1} << 24;

  // Block i is the bytes [i * unit, (i + 1) * unit).
  static Selection Indices(absl::Span<const uint32_t> indices, uint64_t unit) {
    Selection selection;
    selection.kind = Kind::kIndices;
    selection.indices = indices;
    selection.unit = unit;
    return selection;
  }
  static Selection Runs(absl::Span<const ByteRun> runs) {
    Selection selection;
    selection.kind = Kind::kRuns;
    selection.runs = runs;
    return selection;
  }
  static Selection Spans(absl::Span<const ByteSpan> spans) {
    Selection selection;
    selection.kind = Kind::kSpans;
    selection.spans = spans;
    return selection;
  }

  Kind kind = Kind::kWhole;
  uint64_t unit = 0;
  absl::Span<const uint32_t> indices;
  absl::Span<const ByteRun> runs;
  absl::Span<const ByteSpan> spans;
};

// A selection with a list of its own.
class OwnSelection {
 public:
  OwnSelection() = default;
  explicit OwnSelection(const Selection& selection);
  // It lasts as long as this one, and moves with it.
  Selection view() const;

 private:
  Selection::Kind kind_ = Selection::Kind::kWhole;
  uint64_t unit_ = 0;
  std::vector<uint32_t> indices_;
  std::vector<ByteRun> runs_;
  std::vector<ByteSpan> spans_;
};

enum class SelectionUse {
  kRead,   // It may have the same bytes twice.
  kWrite,  // It may not.
};
// The bytes of all spans. kInvalidArgument names the first that lies outside of a tensor of
// `tensor_bytes`, and for kWrite one that overlaps another; there are more than kMaxSpans; a block
// has no bytes. Takes time for each span, and memory only to compare spans that do not ascend.
absl::StatusOr<uint64_t> CheckSelection(const Selection& selection, uint64_t tensor_bytes,
                                        SelectionUse use);

// How far a copy has come.
struct SelectionPlace {
  size_t item = 0;      // The number in the list.
  uint64_t repeat = 0;  // The number in the run, if the item is one.
  uint64_t inside = 0;  // The bytes of that span that were copied.
};

// The next span from `*place` on, with those behind it that it touches, cut to `most` bytes; moves
// `*place` behind it. Of no bytes: none is left. REQUIRES: the selection was checked.
ByteSpan NextSpan(const Selection& selection, uint64_t most, SelectionPlace* place);

// Moves `*place` behind the next `bytes`. REQUIRES: as Gather().
void SkipBytes(const Selection& selection, uint64_t bytes, SelectionPlace* place);
// All offsets and sizes are multiples of 1 << it. At most 63.
int CommonBits(const Selection& selection);

// How many numbers a SpanCursor has for its spans.
uint64_t SpanCount(const Selection& selection);

// Goes through the spans by their numbers: each of the list has one, also if it has no bytes. Those
// of a run have one each, but a run without gaps is one span. kWhole is one.
class SpanCursor {
 public:
  // The list outlives it. REQUIRES: the selection was checked with `tensor_bytes`.
  SpanCursor(const Selection& selection, uint64_t tensor_bytes,
             const SelectionPlace& place = SelectionPlace());
  bool AtEnd() const { return item_ == items_; }
  uint32_t number() const { return number_; }
  ByteSpan span() const;
  void Next();

 private:
  void SkipEmptyRuns();

  const Selection selection_;
  const uint64_t tensor_bytes_;
  const size_t items_;
  size_t item_;
  uint64_t repeat_;  // The number in a run.
  uint32_t number_ = 0;
};

// Copies the next `bytes` of the selection from `*place` on, and moves it behind them. Nothing is
// allocated. REQUIRES: the selection was checked with the tensor's size, and has so many left.
void Gather(const Selection& selection, const void* tensor, void* dense, uint64_t bytes,
            SelectionPlace* place);
void Scatter(const Selection& selection, const void* dense, void* tensor, uint64_t bytes,
             SelectionPlace* place);

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_SELECTION_H_
