#ifndef TRYST_CHANNEL_OPS_VERIFY_TRACES_H_
#define TRYST_CHANNEL_OPS_VERIFY_TRACES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "channel/trace/trace_dump.h"

namespace tryst {

// Something in a trace that the tables (fetch_table.h) or the promises of two ends do not allow.
struct TraceBreach {
  int64_t at_ns = 0;  // By the clock of its dump's reader.
  int clock = 0;      // Which reader: TraceDump::clock.
  std::string what;   // Which operation, of whom, and why it must not be so.
};

struct TraceVerdict {
  size_t operations = 0;              // All that were looked at, of both ends.
  size_t under_way = 0;               // Those that had not ended.
  size_t pairs = 0;                   // Fetches of which the producer's trace tells, too.
  size_t alone = 0;                   // Ends whose other end is in no trace.
  std::vector<TraceBreach> breaches;  // The earliest first.
};

// Compares what consumers and producers have traced with what may happen:
//
// - at each end, what an operation waits for follows what it waited for before as the table of its
//   states allows, at no earlier time, and it ends as such an operation may;
// - nothing ends twice;
// - of a pair, both tell of the same key, step, path and workers; a fetch that got its tensor got
//   as many bytes as were sent, and its producer holds it for accepted; of one that was cancelled,
//   or too late, the producer does not; what the producer could not send failed with its code;
// - no tensor comes before it was sent, and none is accepted before it came, within the error of
//   the clocks and `turn_ns`, since times are those at which a poller's turn began;
// - the tensors of one key and step come in the order in which they were sent;
// - where a producer's trace is complete, a fetch that got a tensor from it is in it.
//
// Dumps with the same `clock` were read by one reader: times of different ones are not compared.
// Device tensors are traced as the fetches that they consist of.
//
// Where a machine is busy, or a turn copies much, a turn takes long; of one that took longer than
// `turn_ns`, times seem to go back.
TraceVerdict VerifyTraces(absl::Span<const TraceDump> dumps, int64_t turn_ns = 1'000'000'000);

// Whether the table of a fetch's states leads from one wait to the next, over any transport that
// has these states.
bool MayFollow(WaitsFor before, WaitsFor after);

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_VERIFY_TRACES_H_
