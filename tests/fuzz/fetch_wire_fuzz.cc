// The messages of a fetch over gRPC, as a hostile producer may send them. They must cause no crash,
// no byte past the destination, and no more memory than is allowed.
//
// An input is one byte of flags, then messages, each after its length in two bytes.

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "channel/compat/fetch_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kMaxBytes = 1 << 16;
  if (size == 0) return 0;
  const uint8_t flags = data[0];
  tryst::Tensor destination;
  if ((flags & 1) != 0) {
    destination = *tryst::Tensor::Allocate(tryst::DType::kFloat, {int64_t{flags >> 1}});
  }
  tryst::IncomingTensor incoming(destination, kMaxBytes);
  for (size_t at = 1; at + 2 <= size;) {
    const size_t wanted = data[at] + (size_t{data[at + 1]} << 8);
    at += 2;
    const size_t bytes = std::min(wanted & 0x7fff, size - at);
    if ((wanted & 0x8000) != 0) incoming.StartAttempt();
    const grpc::Slice slice(data + at, bytes);
    at += bytes;
    grpc::ByteBuffer message(&slice, 1);
    if (!incoming.Take(&message).ok()) return 0;
    if (incoming.received() > kMaxBytes) abort();
    if (!incoming.complete()) continue;
    const auto tensor = incoming.Finish();
    if (!tensor.ok()) return 0;
    if ((flags & 1) != 0 && tensor->valid() && tensor->data() != destination.data()) abort();
    return 0;
  }
  return 0;
}
