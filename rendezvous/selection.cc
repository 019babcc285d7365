#include "rendezvous/selection.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "base/stream_copy.h"

namespace tryst {
namespace {

// Bits for each span that are cheaper to clear than spans are to sort, and the most of all.
constexpr uint64_t kBitsOfSpan = 2048;
constexpr uint64_t kMostBits = uint64_t{1} << 30;
constexpr uint64_t kLineBytes = 64;

// ---- Spans by their numbers ----

// So many spans ahead memory is asked for the next one, as no processor guesses where it lies.
constexpr size_t kAheadOfSmall = 32;
constexpr size_t kAheadOfLarge = 8;
size_t AheadOf(uint64_t bytes) { return bytes <= 4 * kLineBytes ? kAheadOfSmall : kAheadOfLarge; }

struct IndexSpans {
  const uint32_t* indices;
  size_t count;
  uint64_t unit;
  size_t size() const { return count; }
  size_t ahead() const { return AheadOf(unit); }
  ByteSpan operator[](size_t i) const { return {indices[i] * unit, unit}; }
};

struct ListSpans {
  const ByteSpan* spans;
  size_t count;
  size_t size() const { return count; }
  size_t ahead() const { return kAheadOfSmall / 2; }
  ByteSpan operator[](size_t i) const { return spans[i]; }
};

struct RunSpans {
  ByteRun run;
  size_t size() const { return run.count; }
  size_t ahead() const { return AheadOf(run.bytes); }
  ByteSpan operator[](size_t i) const { return {run.offset + i * run.stride, run.bytes}; }
};

IndexSpans IndexSpansOf(const Selection& selection) {
  return {selection.indices.data(), selection.indices.size(), selection.unit};
}

ListSpans ListSpansOf(const Selection& selection) {
  return {selection.spans.data(), selection.spans.size()};
}

// A run without gaps is one span.
RunSpans RunSpansOf(const ByteRun& run) {
  if (run.bytes == 0) return {{0, 0, 0, 0}};
  if (run.stride == run.bytes) return {{run.offset, run.bytes * run.count, 0, 1}};
  return {run};
}

// Calls fn(span) for each span that has bytes, until it returns false. REQUIRES: none overflows.
template <typename Fn>
bool ForEachSpan(const Selection& selection, Fn fn) {
  const auto each = [&fn](const auto& spans) {
    for (size_t i = 0; i < spans.size(); ++i) {
      const ByteSpan span = spans[i];
      if (span.bytes > 0 && !fn(span)) return false;
    }
    return true;
  };
  switch (selection.kind) {
    case Selection::Kind::kWhole:
      return true;
    case Selection::Kind::kIndices:
      return each(IndexSpansOf(selection));
    case Selection::Kind::kSpans:
      return each(ListSpansOf(selection));
    case Selection::Kind::kRuns:
      for (const ByteRun& run : selection.runs) {
        if (!each(RunSpansOf(run))) return false;
      }
      return true;
  }
  return true;
}

// ---- Checks ----

absl::Status Outside(absl::string_view what, uint64_t tensor_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the selection's ", what, " lies outside of the tensor, which has ", tensor_bytes, " bytes"));
}

absl::Status TooMany() {
  return absl::InvalidArgumentError(absl::StrCat(
      "the selection has more than ", Selection::kMaxSpans, " spans: select in several calls"));
}

absl::Status TooLong() {
  return absl::InvalidArgumentError("the selection has more bytes than 64 bits can count");
}

absl::Status Overlaps(const ByteSpan& span) {
  return absl::InvalidArgumentError(
      absl::StrCat("the selection of a destination has bytes twice: of its spans one is [",
                   span.offset, ", ", span.offset + span.bytes, "), and another one overlaps it"));
}

absl::StatusOr<uint64_t> CheckIndices(const Selection& selection, uint64_t tensor_bytes) {
  const absl::Span<const uint32_t> indices = selection.indices;
  if (selection.unit == 0) {
    return absl::InvalidArgumentError("the selection's blocks have 0 bytes: give their size");
  }
  if (indices.size() > Selection::kMaxSpans) return TooMany();
  const uint64_t blocks = tensor_bytes / selection.unit;
  uint32_t highest = 0;
  for (const uint32_t index : indices) highest = std::max(highest, index);
  if (!indices.empty() && highest >= blocks) {
    const auto first = std::find_if(indices.begin(), indices.end(),
                                    [blocks](uint32_t index) { return index >= blocks; });
    return Outside(absl::StrCat("block ", *first, " (number ", first - indices.begin(), ", of ",
                                selection.unit, " bytes)"),
                   tensor_bytes);
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(indices.size(), selection.unit, &bytes)) return TooLong();
  return bytes;
}

absl::StatusOr<uint64_t> CheckSpans(const Selection& selection, uint64_t tensor_bytes) {
  if (selection.spans.size() > Selection::kMaxSpans) return TooMany();
  uint64_t bytes = 0;
  for (const ByteSpan& span : selection.spans) {
    if (span.offset > tensor_bytes || span.bytes > tensor_bytes - span.offset) {
      return Outside(absl::StrCat("span ", &span - selection.spans.data(), " (", span.bytes,
                                  " bytes at ", span.offset, ")"),
                     tensor_bytes);
    }
    if (__builtin_add_overflow(bytes, span.bytes, &bytes)) return TooLong();
  }
  return bytes;
}

absl::StatusOr<uint64_t> CheckRuns(const Selection& selection, uint64_t tensor_bytes) {
  uint64_t bytes = 0;
  uint64_t spans = 0;
  for (const ByteRun& run : selection.runs) {
    if (run.bytes == 0 || run.count == 0) {
      ++spans;
      continue;
    }
    uint64_t last = 0, end = 0, all = 0;
    if (__builtin_mul_overflow(run.count - 1, run.stride, &last) ||
        __builtin_add_overflow(last, run.offset, &last) ||
        __builtin_add_overflow(last, run.bytes, &end) || end > tensor_bytes) {
      return Outside(
          absl::StrCat("run ", &run - selection.runs.data(), " (", run.count, " times ", run.bytes,
                       " bytes from ", run.offset, " on, every ", run.stride, ")"),
          tensor_bytes);
    }
    if (__builtin_mul_overflow(run.count, run.bytes, &all) ||
        __builtin_add_overflow(bytes, all, &bytes)) {
      return TooLong();
    }
    const uint64_t more = RunSpansOf(run).size();
    if (more > Selection::kMaxSpans || (spans += more) > Selection::kMaxSpans) return TooMany();
  }
  return bytes;
}

// What is known of all spans together.
struct Outline {
  bool ascends = true;   // None begins before the end of the one before it.
  uint64_t granule = 0;  // Every bit that any offset or size has.
  uint64_t begin = UINT64_MAX, end = 0;
  uint64_t spans = 0;
};

Outline OutlineOf(const Selection& selection) {
  Outline outline;
  uint64_t behind = 0;
  ForEachSpan(selection, [&](const ByteSpan& span) {
    outline.ascends &= span.offset >= behind;
    behind = span.offset + span.bytes;
    outline.granule |= span.offset | span.bytes;
    outline.begin = std::min(outline.begin, span.offset);
    outline.end = std::max(outline.end, behind);
    ++outline.spans;
    return true;
  });
  return outline;
}

// Sets the bits [begin, end); false: one of them was set.
bool SetBits(uint64_t* words, uint64_t begin, uint64_t end) {
  uint64_t twice = 0;
  for (uint64_t word = begin / 64; word * 64 < end; ++word) {
    const uint64_t from = word * 64 < begin ? begin % 64 : 0;
    const uint64_t until = std::min<uint64_t>(end - word * 64, 64);
    const uint64_t mask = (~uint64_t{0} << from) & (~uint64_t{0} >> (64 - until));
    twice |= words[word] & mask;
    words[word] |= mask;
  }
  return twice == 0;
}

absl::Status FindOverlapByBits(const Selection& selection, const Outline& outline, int shift) {
  const uint64_t bits = (outline.end - outline.begin) >> shift;
  const auto words = std::make_unique<uint64_t[]>(bits / 64 + 1);
  absl::Status status;
  ForEachSpan(selection, [&](const ByteSpan& span) {
    const uint64_t begin = (span.offset - outline.begin) >> shift;
    if (SetBits(words.get(), begin, begin + (span.bytes >> shift))) return true;
    status = Overlaps(span);
    return false;
  });
  return status;
}

absl::Status FindOverlapBySorting(const Selection& selection, const Outline& outline) {
  std::vector<ByteSpan> spans;
  spans.reserve(outline.spans);
  ForEachSpan(selection, [&](const ByteSpan& span) {
    spans.push_back(span);
    return true;
  });
  std::sort(spans.begin(), spans.end(),
            [](const ByteSpan& a, const ByteSpan& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i - 1].offset + spans[i - 1].bytes > spans[i].offset) return Overlaps(spans[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckOverlap(const Selection& selection) {
  if (selection.kind == Selection::Kind::kRuns) {
    for (const ByteRun& run : selection.runs) {
      if (run.count > 1 && run.stride < run.bytes) return Overlaps({run.offset, run.bytes});
    }
  }
  const Outline outline = OutlineOf(selection);
  if (outline.ascends) return absl::OkStatus();
  const int shift = __builtin_ctzll(outline.granule);
  const uint64_t bits = (outline.end - outline.begin) >> shift;
  if (bits <= std::min(outline.spans * kBitsOfSpan, kMostBits)) {
    return FindOverlapByBits(selection, outline, shift);
  }
  return FindOverlapBySorting(selection, outline);
}

// ---- Copies ----

enum class Direction { kGather, kScatter };

template <Direction kDirection>
inline void CopySpan(char* tensor, char* dense, uint64_t bytes, bool streams) {
  char* const to = kDirection == Direction::kGather ? dense : tensor;
  const char* const from = kDirection == Direction::kGather ? tensor : dense;
  if (bytes == kLineBytes) {  // In place: a call would cost more than the copy.
    memcpy(to, from, kLineBytes);
  } else {
    CopyPart(to, from, bytes, kDirection == Direction::kScatter && streams);
  }
}

// What is written around the caches must not be in them. In place always: GCC takes a function that
// only prefetches for one that does nothing, and drops calls of it.
template <Direction kDirection>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void Prefetch(const char* tensor, const ByteSpan& span,
                                                  bool streams) {
  if (kDirection == Direction::kScatter && streams && span.bytes >= kStreamSpanBytes) return;
  const char* const at = tensor + span.offset;
  __builtin_prefetch(at, kDirection == Direction::kScatter ? 1 : 0);
  // The second line: of a longer one, and of a short one that lies across two.
  const uint64_t second = std::min(span.bytes - 1, 2 * kLineBytes - 1);
  if (span.bytes > 1) __builtin_prefetch(at + second, kDirection == Direction::kScatter ? 1 : 0);
}

// Copies until `left` is 0 or the spans are over; returns what is left.
template <Direction kDirection, typename Spans>
uint64_t CopySpans(const Spans& spans, char* tensor, char* dense, uint64_t left, bool streams,
                   size_t* item, uint64_t* inside) {
  const size_t count = spans.size();
  const size_t ahead = spans.ahead();
  size_t i = *item;
  uint64_t begin = *inside;
  for (size_t k = i; k < std::min(i + ahead, count); ++k) {
    Prefetch<kDirection>(tensor, spans[k], streams);
  }
  for (; left > 0 && i < count; ++i) {
    if (i + ahead < count) Prefetch<kDirection>(tensor, spans[i + ahead], streams);
    const ByteSpan span = spans[i];
    uint64_t bytes = span.bytes - begin;
    // Neighbours are copied as one.
    while (bytes < left && i + 1 < count && spans[i + 1].offset == span.offset + begin + bytes) {
      bytes += spans[++i].bytes;
      if (i + ahead < count) Prefetch<kDirection>(tensor, spans[i + ahead], streams);
    }
    const uint64_t over = bytes > left ? bytes - left : 0;
    bytes -= over;
    CopySpan<kDirection>(tensor + span.offset + begin, dense, bytes, streams);
    dense += bytes;
    left -= bytes;
    begin = over == 0 ? 0 : spans[i].bytes - over;
    if (over > 0) break;
  }
  *item = i;
  *inside = begin;
  return left;
}

template <Direction kDirection>
void CopyParts(const Selection& selection, char* tensor, char* dense, uint64_t bytes, bool streams,
               SelectionPlace* place) {
  switch (selection.kind) {
    case Selection::Kind::kWhole:
      CopySpan<kDirection>(tensor + place->inside, dense, bytes, streams);
      place->inside += bytes;
      return;
    case Selection::Kind::kIndices:
      CopySpans<kDirection>(IndexSpansOf(selection), tensor, dense, bytes, streams, &place->item,
                            &place->inside);
      return;
    case Selection::Kind::kSpans:
      CopySpans<kDirection>(ListSpansOf(selection), tensor, dense, bytes, streams, &place->item,
                            &place->inside);
      return;
    case Selection::Kind::kRuns:
      for (uint64_t left = bytes; left > 0 && place->item < selection.runs.size();) {
        const RunSpans spans = RunSpansOf(selection.runs[place->item]);
        size_t repeat = place->repeat;
        const uint64_t after =
            CopySpans<kDirection>(spans, tensor, dense, left, streams, &repeat, &place->inside);
        dense += left - after;
        left = after;
        place->repeat = repeat;
        if (repeat < spans.size()) continue;
        place->repeat = 0;
        ++place->item;
      }
      return;
  }
}

template <Direction kDirection>
void Copy(const Selection& selection, char* tensor, char* dense, uint64_t bytes,
          SelectionPlace* place) {
  if (bytes == 0) return;
  const bool streams = bytes >= kStreamBytes;
  CopyParts<kDirection>(selection, tensor, dense, bytes, streams, place);
  if (kDirection == Direction::kScatter && streams) FinishStreams();
}

// ---- Going through them ----

// The next part of the span at `*item`; moves behind it. REQUIRES: most > 0.
template <typename Spans>
ByteSpan NextOf(const Spans& spans, uint64_t most, size_t* item, uint64_t* inside) {
  while (*item < spans.size()) {
    const ByteSpan span = spans[*item];
    if (*inside == span.bytes) {  // It has no bytes, or is over.
      *inside = 0;
      ++*item;
      continue;
    }
    const ByteSpan next = {span.offset + *inside, std::min(span.bytes - *inside, most)};
    *inside += next.bytes;
    if (*inside == span.bytes) {
      *inside = 0;
      ++*item;
    }
    return next;
  }
  return {};
}

ByteSpan NextPart(const Selection& selection, uint64_t most, SelectionPlace* place) {
  switch (selection.kind) {
    case Selection::Kind::kWhole:
      place->inside += most;
      return {place->inside - most, most};
    case Selection::Kind::kIndices:
      return NextOf(IndexSpansOf(selection), most, &place->item, &place->inside);
    case Selection::Kind::kSpans:
      return NextOf(ListSpansOf(selection), most, &place->item, &place->inside);
    case Selection::Kind::kRuns:
      break;
  }
  while (place->item < selection.runs.size()) {
    const RunSpans spans = RunSpansOf(selection.runs[place->item]);
    size_t repeat = place->repeat;
    const ByteSpan next = NextOf(spans, most, &repeat, &place->inside);
    place->repeat = repeat;
    if (repeat == spans.size()) {
      place->repeat = 0;
      ++place->item;
    }
    if (next.bytes > 0) return next;
  }
  return {};
}

}  // namespace

OwnSelection::OwnSelection(const Selection& selection)
    : kind_(selection.kind),
      unit_(selection.unit),
      indices_(selection.indices.begin(), selection.indices.end()),
      runs_(selection.runs.begin(), selection.runs.end()),
      spans_(selection.spans.begin(), selection.spans.end()) {}

Selection OwnSelection::view() const {
  Selection selection;
  selection.kind = kind_;
  selection.unit = unit_;
  selection.indices = indices_;
  selection.runs = runs_;
  selection.spans = spans_;
  return selection;
}

absl::StatusOr<uint64_t> CheckSelection(const Selection& selection, uint64_t tensor_bytes,
                                        SelectionUse use) {
  absl::StatusOr<uint64_t> bytes = tensor_bytes;
  if (selection.kind == Selection::Kind::kIndices) bytes = CheckIndices(selection, tensor_bytes);
  if (selection.kind == Selection::Kind::kSpans) bytes = CheckSpans(selection, tensor_bytes);
  if (selection.kind == Selection::Kind::kRuns) bytes = CheckRuns(selection, tensor_bytes);
  if (!bytes.ok() || use == SelectionUse::kRead) return bytes;
  const absl::Status once = CheckOverlap(selection);
  if (!once.ok()) return once;
  return bytes;
}

namespace {

size_t ItemsOf(const Selection& selection) {
  switch (selection.kind) {
    case Selection::Kind::kWhole:
      return 1;
    case Selection::Kind::kIndices:
      return selection.indices.size();
    case Selection::Kind::kSpans:
      return selection.spans.size();
    case Selection::Kind::kRuns:
      return selection.runs.size();
  }
  return 0;
}

uint64_t SpansBefore(const Selection& selection, size_t item) {
  if (selection.kind != Selection::Kind::kRuns) return item;
  uint64_t spans = 0;
  for (const ByteRun& run : selection.runs.subspan(0, item)) spans += RunSpansOf(run).size();
  return spans;
}

}  // namespace

uint64_t SpanCount(const Selection& selection) {
  return SpansBefore(selection, ItemsOf(selection));
}

SpanCursor::SpanCursor(const Selection& selection, uint64_t tensor_bytes,
                       const SelectionPlace& place)
    : selection_(selection),
      tensor_bytes_(tensor_bytes),
      items_(ItemsOf(selection)),
      item_(place.item),
      repeat_(place.repeat),
      number_(static_cast<uint32_t>(SpansBefore(selection, place.item) + place.repeat)) {
  if (selection_.kind == Selection::Kind::kRuns) SkipEmptyRuns();
}

void SpanCursor::SkipEmptyRuns() {
  while (item_ < items_ && repeat_ >= RunSpansOf(selection_.runs[item_]).size()) {
    repeat_ = 0;
    ++item_;
  }
}

ByteSpan SpanCursor::span() const {
  switch (selection_.kind) {
    case Selection::Kind::kWhole:
      return {0, tensor_bytes_};
    case Selection::Kind::kIndices:
      return IndexSpansOf(selection_)[item_];
    case Selection::Kind::kSpans:
      return selection_.spans[item_];
    case Selection::Kind::kRuns:
      return RunSpansOf(selection_.runs[item_])[repeat_];
  }
  return {};
}

void SpanCursor::Next() {
  ++number_;
  if (selection_.kind != Selection::Kind::kRuns) {
    ++item_;
    return;
  }
  ++repeat_;
  SkipEmptyRuns();
}

ByteSpan NextSpan(const Selection& selection, uint64_t most, SelectionPlace* place) {
  if (most == 0) return {};
  ByteSpan span = NextPart(selection, most, place);
  while (span.bytes > 0 && span.bytes < most && selection.kind != Selection::Kind::kWhole) {
    SelectionPlace behind = *place;
    const ByteSpan next = NextPart(selection, most - span.bytes, &behind);
    if (next.bytes == 0 || next.offset != span.offset + span.bytes) break;
    span.bytes += next.bytes;
    *place = behind;
  }
  return span;
}

void SkipBytes(const Selection& selection, uint64_t bytes, SelectionPlace* place) {
  if (selection.kind == Selection::Kind::kIndices) {
    const uint64_t behind = place->inside + bytes;
    place->item += behind / selection.unit;
    place->inside = behind % selection.unit;
    return;
  }
  while (bytes > 0) bytes -= NextPart(selection, bytes, place).bytes;
}

int CommonBits(const Selection& selection) {
  const uint64_t bits = OutlineOf(selection).granule;
  return bits == 0 ? 0 : __builtin_ctzll(bits);
}

void Gather(const Selection& selection, const void* tensor, void* dense, uint64_t bytes,
            SelectionPlace* place) {
  Copy<Direction::kGather>(selection, static_cast<char*>(const_cast<void*>(tensor)),
                           static_cast<char*>(dense), bytes, place);
}

void Scatter(const Selection& selection, const void* dense, void* tensor, uint64_t bytes,
             SelectionPlace* place) {
  Copy<Direction::kScatter>(selection, static_cast<char*>(tensor),
                            static_cast<char*>(const_cast<void*>(dense)), bytes, place);
}

}  // namespace tryst
