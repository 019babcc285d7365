#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/printable.h"
#include "channel/trace/trace_dump.h"

// Writes dumps for a terminal.
namespace tryst {
namespace {

struct End {  // One end of an operation.
  const TraceDump* dump;
  const TraceRecord* record;
  const TraceDump::Track& track() const { return dump->tracks[record->track]; }
  int64_t at_ns(int64_t its_ns) const { return its_ns - dump->ahead_ns; }
};

struct Line {
  int64_t at_ns;
  std::string text;
};

void AddLines(const End& end, std::vector<Line>* lines) {
  const char* who = end.track().role == TraceRole::kFetch ? "consumer" : "producer";
  const TraceSpan& span = end.record->span;
  for (size_t i = 0; i < span.count(); ++i) {
    lines->push_back({end.at_ns(span.stamp(i).at_ns),
                      absl::StrCat(who, " waits for ", WaitsForText(span.stamp(i).what))});
  }
  if (span.lost() > 0) lines->back().text += absl::StrCat(" (", span.lost(), " more before)");
  if (end.record->end_ns == 0) return;
  lines->push_back({end.at_ns(end.record->end_ns),
                    absl::StrCat(who, " done: ", absl::StatusCodeToString(end.record->code))});
}

std::string Operation(const End& end, const End* other) {
  const TraceRecord& record = *end.record;
  const bool fetches = end.track().role == TraceRole::kFetch;
  const int64_t until_ns = record.end_ns != 0 ? record.end_ns : end.dump->now_ns;
  std::string out = absl::StrFormat(
      "step %d: %s %s %s by %s, %.3f ms%s, %d bytes: %s\n", record.step,
      Printable(end.dump->worker), fetches ? "fetches from" : "serves", Printable(end.track().peer),
      Printable(end.track().path), static_cast<double>(until_ns - record.span.began_ns()) / 1e6,
      record.end_ns == 0 ? " so far" : "", std::max(record.bytes, other ? other->record->bytes : 0),
      Printable(record.key));
  std::vector<Line> lines;
  AddLines(end, &lines);
  if (other != nullptr) AddLines(*other, &lines);
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.at_ns < b.at_ns; });
  const int64_t zero_ns = lines.empty() ? 0 : lines.front().at_ns;
  for (const Line& line : lines) {
    absl::StrAppendFormat(&out, "  %+12.3f ms  %s\n",
                          static_cast<double>(line.at_ns - zero_ns) / 1e6, line.text);
  }
  return out;
}

}  // namespace

std::string TraceText(absl::Span<const TraceDump> dumps) {
  absl::flat_hash_map<uint64_t, End> serves;  // Serves that a fetch may belong to.
  std::vector<End> all;
  for (const TraceDump& dump : dumps) {
    for (const TraceRecord& record : dump.records) {
      const End end{&dump, &record};
      const bool serve = end.track().role == TraceRole::kServe;
      if (serve && record.id != 0) serves.insert_or_assign(record.id, end);
      if (!serve || record.id == 0) all.push_back(end);
    }
  }
  std::string out;
  for (const End& end : all) {
    const auto serve = end.record->id == 0 ? serves.end() : serves.find(end.record->id);
    out += Operation(end, serve == serves.end() ? nullptr : &serve->second);
    if (serve != serves.end()) serves.erase(serve);
  }
  for (const auto& [id, end] : serves) out += Operation(end, nullptr);
  return out;
}

}  // namespace tryst
