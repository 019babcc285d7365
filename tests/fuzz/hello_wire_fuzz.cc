// A hello, as a hostile peer may send it over gRPC. It is refused, or it is within the bounds of an
// honest one and survives another trip unchanged.

#include <cstdint>
#include <cstdlib>

#include "channel/grpc/hello_wire.h"
#include "proto/transport.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tryst::rpc::HelloRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto hello = tryst::HelloFromProto(request);
  if (!hello.ok()) return 0;
  tryst::rpc::HelloRequest again;
  tryst::HelloToProto(*hello, &again);
  const auto same = tryst::HelloFromProto(again);
  if (!same.ok() || same->worker != hello->worker || same->incarnation != hello->incarnation ||
      same->epoch != hello->epoch || same->path != hello->path ||
      same->queue_pairs != hello->queue_pairs || same->parameters != hello->parameters) {
    abort();
  }
  return 0;
}
