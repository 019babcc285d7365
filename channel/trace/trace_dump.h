#ifndef TRYST_CHANNEL_TRACE_TRACE_DUMP_H_
#define TRYST_CHANNEL_TRACE_TRACE_DUMP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"

namespace tryst {

// Operations of one worker, in a form that can be sent to others.
struct TraceDump {
  struct Track {
    TraceRole role = TraceRole::kFetch;
    std::string peer;
    std::string path;
  };
  std::string worker;
  uint64_t incarnation = 0;
  int64_t now_ns = 0;  // By its own clock, like all times here.
  std::vector<Track> tracks;
  std::vector<TraceRecord> records;  // By their beginning; some have not ended.
  Trace::Counts counts;

  // How far its clock is ahead of the reader's; the reader fills it in.
  int64_t ahead_ns = 0;
  int64_t ahead_error_ns = 0;
  int clock = 0;  // Which reader's clock that is, where dumps of several readers meet.
};

// Selects operations.
struct TraceFilter {
  std::string key_part;  // The key's text contains it. Empty: all keys.
  int64_t step = -1;     // -1: all.
  size_t most = 2000;    // Only the newest `most`.
};

// Adds the records of `trace`.
void AddRecords(const Trace& trace, const TraceFilter& filter, TraceDump* dump);
// Adds operations that have not ended.
void AddLiveOps(const std::vector<LiveOp>& ops, const TraceFilter& filter, TraceDump* dump);
// Sorts what was added, and keeps the newest filter.most.
void FinishDump(const TraceFilter& filter, TraceDump* dump);

// The dumps of several workers as one Chrome trace (JSON, for chrome://tracing and Perfetto). Each
// operation is a slice, which contains a slice for each thing that it waited for. If both ends are
// there, arrows lead from the consumer's slice to the producer's and back. Times are of the
// reader's clock, from the earliest event on. One event a line; the arguments of an operation's
// slice say all that its record does, so that `tryst verify` reads dumps out of it
// (server/cli/trace_file.h).
std::string ChromeTrace(absl::Span<const TraceDump> dumps);

// A text for a terminal: each operation with what both ends waited for, in order.
std::string TraceText(absl::Span<const TraceDump> dumps);

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_TRACE_DUMP_H_
