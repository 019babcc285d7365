#ifndef TRYST_SERVER_GRPC_ARGUMENTS_H_
#define TRYST_SERVER_GRPC_ARGUMENTS_H_

#include <grpc/impl/codegen/grpc_types.h>

namespace tryst {

// How gRPC's transport is set at both ends of a connection, for tensors rather than small
// messages. `set(name, number)` for each.
//
// How far a producer may be ahead is left to gRPC, which measures what the connection holds
// (GRPC_ARG_HTTP2_BDP_PROBE, on by default): without that the connection, and each stream after
// its first moment, has HTTP/2's 64 KiB, whatever GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES says
// (gRPC 1.51).
template <typename Set>
void SetTransportArguments(Set set) {
  // A chunk of a tensor is one frame, and one read as long as it comes in as fast.
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16'777'215);
  set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 8 << 20);
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, 1024);  // What an idle connection keeps; it grows.
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 16 << 20);
  // What each call would pass through and nobody uses: Tryst repeats its calls itself.
  set(GRPC_ARG_ENABLE_RETRIES, 0);
  set(GRPC_ARG_ENABLE_CHANNELZ, 0);
}

}  // namespace tryst

#endif  // TRYST_SERVER_GRPC_ARGUMENTS_H_
