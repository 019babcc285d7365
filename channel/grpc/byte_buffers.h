#ifndef TRYST_CHANNEL_GRPC_BYTE_BUFFERS_H_
#define TRYST_CHANNEL_GRPC_BYTE_BUFFERS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

namespace tryst {

// Empty when the buffer cannot be read.
inline std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::string out;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

inline grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_BYTE_BUFFERS_H_
