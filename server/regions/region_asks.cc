#include "server/regions/region_asks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "rendezvous/span_digests.h"

namespace tryst {
namespace {

// Five bits of a number, the lowest first; the sixth says that there are more.
constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr char kWantsDigests = '.';  // No digit.
constexpr int kDigitBits = 5;
constexpr size_t kMostDigits = 13;  // A number of 64 bits has so many.
constexpr int kMostShift = 16;      // kMaxAskBytes is a multiple of 1 << it.
static_assert(kMaxAskBytes % (uint64_t{1} << kMostShift) == 0);

void AppendNumber(uint64_t number, std::string* text) {
  for (;;) {
    const uint64_t low = number & ((1 << kDigitBits) - 1);
    number >>= kDigitBits;
    text->push_back(kDigits[low | (number > 0 ? 1 << kDigitBits : 0)]);
    if (number == 0) return;
  }
}

int DigitOf(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '-' ? 62 : c == '_' ? 63 : -1;
}

bool ConsumeNumber(absl::string_view* text, uint64_t* number) {
  *number = 0;
  for (int shift = 0; !text->empty(); shift += kDigitBits) {
    const int digit = DigitOf(text->front());
    if (digit < 0) return false;
    const uint64_t low = digit & ((1 << kDigitBits) - 1);
    if (shift > 63 || (low << shift) >> shift != low) return false;
    *number |= low << shift;
    text->remove_prefix(1);
    if (digit >> kDigitBits == 0) return true;
  }
  return false;
}

// Signed numbers, so that small ones are short.
uint64_t ZigZag(int64_t number) {
  return static_cast<uint64_t>(number) << 1 ^ static_cast<uint64_t>(number >> 63);
}
uint64_t UnZigZag(uint64_t coded) { return coded >> 1 ^ (~(coded & 1) + 1); }

absl::Status NoList(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("what a peer wants of a region cannot be read: ",
                                                 why, "; run the same release on both workers"));
}

}  // namespace

absl::Status CheckRegionName(absl::string_view name) {
  const bool fits = !name.empty() && name.size() <= kMaxRegionName &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return absl::ascii_isprint(c) && c != '|' && c != ';';
                    });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the name of a region is up to ", kMaxRegionName,
                   " printable ASCII characters other than '|' and ';': ",
                   absl::CHexEscape(name.substr(0, 64))));
}

std::string RegionEdge(absl::string_view name) { return absl::StrCat(kRegionPrefix, name, "|"); }

absl::string_view RegionNameOf(absl::string_view edge) {
  if (!absl::ConsumePrefix(&edge, kRegionPrefix)) return {};
  return edge.substr(0, edge.find('|'));
}

ListWriter::ListWriter(const Selection& selection, uint64_t granule, size_t most_text)
    : selection_(selection),
      granule_(granule),
      most_text_(std::min(most_text, kMaxListText)),
      shift_(std::min(CommonBits(selection), kMostShift)) {}

std::string ListWriter::Next(uint64_t left, uint64_t* bytes) {
  std::string list;
  if (granule_ > 0) {
    list.push_back(kWantsDigests);
    AppendNumber(granule_, &list);
  }
  AppendNumber(static_cast<uint64_t>(shift_), &list);
  uint64_t most = std::min(left, kMaxAskBytes);
  uint64_t behind = 0;
  *bytes = 0;
  while (most > 0 && list.size() + 2 * kMostDigits <= most_text_) {
    const ByteSpan span = NextSpan(selection_, most, &place_);
    if (span.bytes == 0) break;
    AppendNumber(ZigZag(static_cast<int64_t>((span.offset >> shift_) - (behind >> shift_))), &list);
    AppendNumber(span.bytes >> shift_, &list);
    behind = span.offset + span.bytes;
    most -= span.bytes;
    *bytes += span.bytes;
  }
  return list;
}

uint64_t WantedSpans::answer_bytes() const {
  return granule == 0 ? bytes : bytes + TrailerBytes(bytes, granule);
}

absl::StatusOr<WantedSpans> ParseList(absl::string_view list, uint64_t region_bytes) {
  WantedSpans wanted;
  if (absl::ConsumePrefix(&list, absl::string_view(&kWantsDigests, 1)) &&
      (!ConsumeNumber(&list, &wanted.granule) || wanted.granule < kMinGranule ||
       wanted.granule > kMaxGranule)) {
    return NoList("it wants digests of no size");
  }
  uint64_t shift = 0;
  if (!ConsumeNumber(&list, &shift) || shift > kMostShift) return NoList("it begins wrongly");
  uint64_t behind = 0;  // In units, as all of these; they may wrap around, and are checked then.
  while (!list.empty()) {
    uint64_t gap = 0, units = 0;
    if (!ConsumeNumber(&list, &gap) || !ConsumeNumber(&list, &units) || units == 0) {
      return NoList("a span is cut off");
    }
    const uint64_t at = behind + UnZigZag(gap);
    const uint64_t most = region_bytes >> shift;
    if (at > most || units > most - at) {
      return absl::InvalidArgumentError(
          absl::StrCat("what is wanted lies outside of the region, which has ", region_bytes,
                       " bytes: span ", wanted.spans.size(), " of an ask, at ", at << shift));
    }
    behind = at + units;
    if (units << shift > kMaxAskBytes - wanted.bytes) return NoList("it wants too much at once");
    wanted.bytes += units << shift;
    wanted.spans.push_back({at << shift, units << shift});
  }
  return wanted;
}

}  // namespace tryst
