#include "channel/trace/trace_dump.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"

namespace tryst {
namespace {

uint16_t TrackOf(const TraceDump::Track& wanted, TraceDump* dump) {
  for (size_t i = 0; i < dump->tracks.size(); ++i) {
    const TraceDump::Track& track = dump->tracks[i];
    if (track.role == wanted.role && track.peer == wanted.peer && track.path == wanted.path) {
      return static_cast<uint16_t>(i);
    }
  }
  dump->tracks.push_back(wanted);
  return static_cast<uint16_t>(dump->tracks.size() - 1);
}

bool Wants(const TraceFilter& filter, int64_t step, absl::string_view key) {
  return (filter.step < 0 || filter.step == step) && absl::StrContains(key, filter.key_part);
}

}  // namespace

void AddRecords(const Trace& trace, const TraceFilter& filter, TraceDump* dump) {
  std::vector<TraceRecord> records = trace.Records();
  // Read afterwards, so that the track of every record is there.
  const std::vector<const TraceTrack*> tracks = trace.Tracks();
  for (TraceRecord& record : records) {
    if (!Wants(filter, record.step, record.key)) continue;
    const TraceTrack& track = *tracks[record.track];
    record.track = TrackOf({track.role, track.peer, track.path}, dump);
    dump->records.push_back(std::move(record));
  }
  const Trace::Counts counts = trace.counts();
  dump->counts.ended += counts.ended;
  dump->counts.kept += counts.kept;
  dump->counts.overwritten += counts.overwritten;
  dump->counts.passed_over += counts.passed_over;
}

void AddLiveOps(const std::vector<LiveOp>& ops, const TraceFilter& filter, TraceDump* dump) {
  for (const LiveOp& op : ops) {
    if (!Wants(filter, op.step, op.key.text())) continue;
    TraceRecord record;
    record.id = op.span.id;
    record.step = op.step;
    record.key_hash = op.key.hash();
    record.key = Trace::CutKey(op.key.text());  // As its peer may have it, which has ended it.
    record.track = TrackOf({op.role, op.peer, op.path}, dump);
    record.bytes = op.bytes;
    record.span = op.span;
    dump->records.push_back(std::move(record));
  }
}

void FinishDump(const TraceFilter& filter, TraceDump* dump) {
  auto& records = dump->records;
  // An operation that ended between the two readings is listed twice; the record of its end is the
  // right one.
  const auto name = [dump](const TraceRecord& record) {
    return std::make_pair(record.id, dump->tracks[record.track].role);
  };
  std::set<std::pair<uint64_t, TraceRole>> ended;
  for (const TraceRecord& record : records) {
    if (record.end_ns != 0) ended.insert(name(record));
  }
  records.erase(std::remove_if(records.begin(), records.end(),
                               [&](const TraceRecord& record) {
                                 return record.end_ns == 0 && record.id != 0 &&
                                        ended.count(name(record)) > 0;
                               }),
                records.end());
  std::sort(records.begin(), records.end(), [](const TraceRecord& a, const TraceRecord& b) {
    return a.span.began_ns() < b.span.began_ns();
  });
  if (records.size() > filter.most) {
    records.erase(records.begin(),
                  records.begin() + static_cast<ptrdiff_t>(records.size() - filter.most));
  }
}

}  // namespace tryst
