#ifndef TRYST_CHANNEL_TRACE_TRACE_DUMP_H_
#define TRYST_CHANNEL_TRACE_TRACE_DUMP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"

namespace tryst {

// What one worker knows of some operations, ready to leave its process.
struct TraceDump {
  struct Track {
    TraceRole role = TraceRole::kFetch;
    std::string peer;
    std::string path;
  };
  std::string worker;
  uint64_t incarnation = 0;
  int64_t now_ns = 0;  // By its own clock, as all times in here.
  std::vector<Track> tracks;
  std::vector<TraceRecord> records;  // By their beginning; some have not ended.
  Trace::Counts counts;

  // How its clock stands to the reader's, who finds out.
  int64_t ahead_ns = 0;
  int64_t ahead_error_ns = 0;
};

// Which operations are wanted.
struct TraceFilter {
  std::string key_part;  // Contained in the key's text. Empty: all.
  int64_t step = -1;     // -1: all.
  size_t most = 2000;    // The newest.
};

// Adds what `trace` keeps.
void AddRecords(const Trace& trace, const TraceFilter& filter, TraceDump* dump);
// Adds what has not ended.
void AddLiveOps(const std::vector<LiveOp>& ops, const TraceFilter& filter, TraceDump* dump);
// Sorts what was added and keeps the newest filter.most.
void FinishDump(const TraceFilter& filter, TraceDump* dump);

// The dumps of several workers as one Chrome trace (JSON; chrome://tracing and Perfetto open
// it): a slice for each operation with one for each thing it waited for in it, and arrows
// from the consumer's slice to the producer's and back where both are there. All times are
// by the reader's clock, from the earliest event on.
std::string ChromeTrace(absl::Span<const TraceDump> dumps);

// The same for a terminal: each operation with what both ends waited for, in turn.
std::string TraceText(absl::Span<const TraceDump> dumps);

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_TRACE_DUMP_H_
