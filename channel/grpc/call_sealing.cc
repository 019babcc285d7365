#include "channel/grpc/call_sealing.h"

#include <grpc/slice.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/reached.h"

namespace tryst {
namespace {

// Of a slice that was just made, so it is nobody else's yet.
uint8_t* Writable(const grpc_slice& slice) {
  return const_cast<uint8_t*>(GRPC_SLICE_START_PTR(slice));
}

absl::Status Forged() {
  TRYST_REACHED("grpc: an answer that the producer has not sealed");
  return absl::DataLossError(
      "an answer was not sealed with this cluster's token: somebody between changed it, or the "
      "producer is of a release before 0.3.0, which encrypts nothing (encrypt=off takes its word)");
}

}  // namespace

grpc::ByteBuffer CallSealing::Seal(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  (void)message.Dump(&slices);
  const grpc_slice sealed = grpc_slice_malloc(message.Length() + Sealing::kTagBytes);
  uint8_t* out = Writable(sealed);
  sealing_.BeginSeal(number_++, "");
  for (const grpc::Slice& slice : slices) {
    sealing_.Add(slice.begin(), slice.size(), out);
    out += slice.size();
  }
  sealing_.EndSeal(out);
  const grpc::Slice slice(sealed, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status CallSealing::Open(grpc::ByteBuffer* message) {
  std::vector<grpc::Slice> slices;
  if (!message->Dump(&slices).ok() || message->Length() < Sealing::kTagBytes) return Forged();
  size_t left = message->Length() - Sealing::kTagBytes;
  const grpc_slice opened = grpc_slice_malloc(left);
  uint8_t* out = Writable(opened);
  uint8_t tag[Sealing::kTagBytes];
  size_t of_tag = 0;
  sealing_.BeginOpen(number_++, "");
  for (const grpc::Slice& slice : slices) {
    const size_t text = std::min(left, slice.size());
    sealing_.Add(slice.begin(), text, out);
    out += text;
    left -= text;
    for (size_t i = text; i < slice.size(); ++i) tag[of_tag++] = slice.begin()[i];
  }
  // Not before its bytes are there: a small slice is copied with them.
  const grpc::Slice plain(opened, grpc::Slice::STEAL_REF);
  if (!sealing_.EndOpen(tag)) return Forged();
  *message = grpc::ByteBuffer(&plain, 1);
  return absl::OkStatus();
}

}  // namespace tryst
