#ifndef TRYST_SERVER_MEMBERS_TRACE_WIRE_H_
#define TRYST_SERVER_MEMBERS_TRACE_WIRE_H_

#include "absl/status/statusor.h"
#include "channel/trace/trace_dump.h"

namespace tryst {

namespace rpc {
class TraceResponse;
}  // namespace rpc

void DumpToProto(const TraceDump& dump, rpc::TraceResponse* out);

// kDataLoss: the message is inconsistent. A newer worker may send a reason to wait that this
// release does not know; it becomes "nothing".
absl::StatusOr<TraceDump> DumpFromProto(const rpc::TraceResponse& in);

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_TRACE_WIRE_H_
