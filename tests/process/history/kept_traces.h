#ifndef TRYST_TESTS_PROCESS_HISTORY_KEPT_TRACES_H_
#define TRYST_TESTS_PROCESS_HISTORY_KEPT_TRACES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"
#include "channel/trace/trace_dump.h"

namespace tryst {

// What a life has traced is kept beside its history, in HISTORY.traces. A life that is killed
// leaves none. All lives of a folder have one clock, that of their host.
inline constexpr char kTracesEnd[] = ".traces";

// For a trace that keeps every operation, the newest `records` of them.
TraceOptions EveryOperation(size_t records = TraceOptions().records);
// All of it, for a worker that has `under_way` besides.
TraceDump DumpOf(const Trace& trace, const std::string& worker, uint64_t incarnation,
                 int64_t now_ns, const std::vector<LiveOp>& under_way = {});

// Writes them. With an empty path it writes nothing.
void KeepTraces(const std::string& history, const TraceDump& dump);

// Reads back what KeepTraces() has written.
absl::StatusOr<TraceDump> ReadKeptTraces(const std::string& text);

// What breaks the tables of states or the promises of two ends (channel/ops/verify_traces.h), a
// line each. A process that was stopped for so long in the midst of a turn has times that seem to
// go back.
struct TracesJudgement {
  size_t operations = 0;
  size_t pairs = 0;  // Both ends' traces tell of these.
  std::string breaches;
};
TracesJudgement JudgeTraces(const std::vector<TraceDump>& dumps);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_HISTORY_KEPT_TRACES_H_
