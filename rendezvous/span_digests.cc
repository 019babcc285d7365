#include "rendezvous/span_digests.h"

#include <algorithm>
#include <numeric>

#include "base/crc32c.h"
#include "base/little_endian.h"

namespace tryst {
namespace {

// So much is copied, and then digested while it is in the cache.
constexpr uint64_t kAtOnceBytes = 32 << 10;
// A whole tensor has it.
constexpr uint64_t kWholeGranule = 64 << 10;
constexpr uint64_t kDigestBytes = sizeof(uint32_t);
// Behind the granules' digests: the granule, and the trailer's own digest.
constexpr uint64_t kTailBytes = 2 * sizeof(uint32_t);

uint64_t Granules(uint64_t bytes, uint64_t granule) { return (bytes + granule - 1) / granule; }

// Who has sent it may write it at any time, where it is memory that he shares: what is read is
// judged each time.
uint32_t GranuleIn(const uint8_t* dense, uint64_t all) {
  return LoadLittle<uint32_t>(dense + all - kTailBytes);
}

bool MayBeGranule(uint64_t granule, uint64_t all, uint64_t bytes) {
  return granule >= kMinGranule && granule <= kMaxGranule &&
         all - bytes == TrailerBytes(bytes, granule);
}

// Adds a part that ascends to parts, or to the last one where that touches it.
void AddPart(uint64_t offset, uint64_t bytes, std::vector<ByteSpan>* parts) {
  if (!parts->empty() && parts->back().offset + parts->back().bytes == offset) {
    parts->back().bytes += bytes;
  } else {
    parts->push_back({offset, bytes});
  }
}

}  // namespace

uint64_t GranuleFor(const Selection& selection, uint64_t bytes) {
  uint64_t granule = kWholeGranule;
  if (selection.kind == Selection::Kind::kIndices) granule = selection.unit;
  if (selection.kind == Selection::Kind::kRuns) {
    granule = 0;
    for (const ByteRun& run : selection.runs) granule = std::max(granule, run.bytes);
  }
  if (selection.kind == Selection::Kind::kSpans && !selection.spans.empty()) {
    granule = bytes / selection.spans.size();
  }
  return std::clamp(granule, kMinGranule, kMaxGranule);
}

uint64_t TrailerBytes(uint64_t bytes, uint64_t granule) {
  return Granules(bytes, granule) * kDigestBytes + kTailBytes;
}

bool HasTrailer(const void* dense, uint64_t all, uint64_t bytes) {
  if (all < bytes || all - bytes < kTailBytes) return false;
  return MayBeGranule(GranuleIn(static_cast<const uint8_t*>(dense), all), all, bytes);
}

void GatherDigested(const Selection& selection, const void* tensor, void* dense, uint64_t bytes,
                    uint64_t granule) {
  auto* const to = static_cast<uint8_t*>(dense);
  uint8_t* at = to + bytes;  // Where the next digest goes.
  const uint64_t at_once = std::max(granule, kAtOnceBytes / granule * granule);
  SelectionPlace place;
  for (uint64_t begin = 0; begin < bytes; begin += at_once) {
    const uint64_t end = std::min(bytes, begin + at_once);
    Gather(selection, tensor, to + begin, end - begin, &place);
    for (uint64_t one = begin; one < end; one += granule, at += kDigestBytes) {
      StoreLittle(at, Crc32c(0, to + one, std::min(granule, end - one)));
    }
  }
  StoreLittle(at, static_cast<uint32_t>(granule));
  at += sizeof(uint32_t);
  StoreLittle(at, Crc32c(0, to + bytes, static_cast<size_t>(at - (to + bytes))));
}

std::vector<ByteSpan> FindWrong(const void* dense, uint64_t all, uint64_t bytes) {
  const auto* const from = static_cast<const uint8_t*>(dense);
  const uint8_t* at = from + bytes;
  const uint64_t own = all - bytes - kDigestBytes;
  const uint64_t granule = GranuleIn(from, all);
  if (!MayBeGranule(granule, all, bytes) || Crc32c(0, at, own) != LoadLittle<uint32_t>(at + own)) {
    return {{0, bytes}};
  }
  std::vector<ByteSpan> wrong;
  for (uint64_t begin = 0; begin < bytes; begin += granule, at += kDigestBytes) {
    const uint64_t one = std::min(granule, bytes - begin);
    if (Crc32c(0, from + begin, one) != LoadLittle<uint32_t>(at)) AddPart(begin, one, &wrong);
  }
  return wrong;
}

std::vector<uint32_t> SpansIn(const Selection& selection, uint64_t tensor_bytes,
                              absl::Span<const ByteSpan> parts) {
  std::vector<uint32_t> numbers;
  uint64_t begin = 0;
  for (SpanCursor cursor(selection, tensor_bytes); !cursor.AtEnd(); cursor.Next()) {
    while (!parts.empty() && parts[0].offset + parts[0].bytes <= begin) parts.remove_prefix(1);
    if (parts.empty()) break;
    const uint64_t end = begin + cursor.span().bytes;
    if (begin < end && parts[0].offset < end) numbers.push_back(cursor.number());
    begin = end;
  }
  return numbers;
}

void NoneIsThere(const SelectedLanding& landing) {
  if (landing.result == nullptr) return;
  const uint64_t spans = SpanCount(landing.selection);
  landing.result->failed.resize(spans);
  std::iota(landing.result->failed.begin(), landing.result->failed.end(), 0);
  landing.result->digests.assign(landing.digests ? spans : 0, 0);
}

void ScatterExcept(const Selection& selection, const void* dense, void* tensor, uint64_t bytes,
                   absl::Span<const ByteSpan> except, SelectionPlace place) {
  const char* const from = static_cast<const char*>(dense);
  uint64_t at = 0;
  for (const ByteSpan& part : except) {
    Scatter(selection, from + at, tensor, part.offset - at, &place);
    SkipBytes(selection, part.bytes, &place);
    at = part.offset + part.bytes;
  }
  Scatter(selection, from + at, tensor, bytes - at, &place);
}

void DigestSpans(const Selection& selection, uint64_t tensor_bytes, const SelectionPlace& place,
                 const void* dense, uint64_t all, uint64_t bytes, uint32_t* digests,
                 std::vector<uint32_t>* cut) {
  const auto* const from = static_cast<const uint8_t*>(dense);
  uint64_t inside = place.inside;
  if (selection.kind == Selection::Kind::kIndices && inside == 0 &&
      GranuleIn(from, all) == selection.unit && MayBeGranule(selection.unit, all, bytes)) {
    const uint64_t whole = bytes / selection.unit;
    for (uint64_t i = 0; i < whole; ++i) {
      digests[place.item + i] = LoadLittle<uint32_t>(from + bytes + i * kDigestBytes);
    }
    if (bytes % selection.unit > 0) cut->push_back(static_cast<uint32_t>(place.item + whole));
    return;
  }
  SpanCursor cursor(selection, tensor_bytes, place);
  for (uint64_t begin = 0; begin < bytes; cursor.Next(), inside = 0) {
    const uint64_t one = std::min(cursor.span().bytes - inside, bytes - begin);
    if (one == cursor.span().bytes) {
      digests[cursor.number()] = Crc32c(0, from + begin, one);
    } else {
      cut->push_back(cursor.number());
    }
    begin += one;
  }
}

void DigestCut(const Selection& selection, const void* tensor, uint64_t tensor_bytes,
               std::vector<uint32_t> cut, uint32_t* digests) {
  std::sort(cut.begin(), cut.end());
  auto next = cut.begin();
  for (SpanCursor cursor(selection, tensor_bytes); next != cut.end(); cursor.Next()) {
    if (cursor.number() != *next) continue;
    const ByteSpan span = cursor.span();
    digests[*next] = Crc32c(0, static_cast<const char*>(tensor) + span.offset, span.bytes);
    next = std::upper_bound(next, cut.end(), *next);
  }
}

}  // namespace tryst
