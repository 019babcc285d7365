#ifndef TRYST_SERVER_TRACE_WIRE_H_
#define TRYST_SERVER_TRACE_WIRE_H_

#include "absl/status/statusor.h"
#include "channel/trace/trace_dump.h"

namespace tryst {

namespace rpc {
class TraceResponse;
}  // namespace rpc

void DumpToProto(const TraceDump& dump, rpc::TraceResponse* out);

// kDataLoss: it does not hang together. What an operation waits for that we have no word
// for, a newer worker's, becomes "nothing".
absl::StatusOr<TraceDump> DumpFromProto(const rpc::TraceResponse& in);

}  // namespace tryst

#endif  // TRYST_SERVER_TRACE_WIRE_H_
