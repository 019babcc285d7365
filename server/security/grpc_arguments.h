#ifndef TRYST_SERVER_SECURITY_GRPC_ARGUMENTS_H_
#define TRYST_SERVER_SECURITY_GRPC_ARGUMENTS_H_

#include <grpc/impl/codegen/compression_types.h>
#include <grpc/impl/codegen/grpc_types.h>

namespace tryst {

// Sets gRPC's transport for tensors rather than small messages, the same at both ends of a
// connection. Calls `set(name, number)` for each argument.
//
// HTTP/2's flow control window stays gRPC's business: it measures how much a connection holds
// (GRPC_ARG_HTTP2_BDP_PROBE, on by default). Without that measurement a connection, and each stream
// after its first moment, has a window of 64 KiB, whatever GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES
// says (gRPC 1.51).
template <typename Set>
void SetTransportArguments(Set set) {
  // A chunk of a tensor then travels in one frame, and one read takes it if it arrives fast enough.
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16'777'215);
  set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 8 << 20);
  // An idle connection keeps a buffer of this size; it grows under load.
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, 1024);
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 16 << 20);
  // Each call would pass through these filters, which nobody uses: Tryst repeats its calls itself.
  set(GRPC_ARG_ENABLE_RETRIES, 0);
  set(GRPC_ARG_ENABLE_CHANNELZ, 0);
  // No end compresses. gRPC would unpack a stranger's MiB to a GiB before we see the call.
  set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  set(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
}

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_GRPC_ARGUMENTS_H_
