#include "channel/grpc/call_sealing.h"

#include <grpc/slice.h>
#include <grpcpp/support/slice.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/log.h"
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

void CallSealing::Begin(const uint8_t drawn[kDrawnBytes]) {
  salt_.append(reinterpret_cast<const char*>(drawn), kDrawnBytes);
  sealing_.emplace(token_, salt_, "tryst fetch answer 1");
}

grpc::ByteBuffer CallSealing::Seal(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  (void)message.Dump(&slices);
  const size_t drawn = sealing_.has_value() ? 0 : kDrawnBytes;
  const grpc_slice sealed = grpc_slice_malloc(drawn + message.Length() + Sealing::kTagBytes);
  uint8_t* out = Writable(sealed);
  if (drawn > 0) {
    TRYST_CHECK(RAND_bytes(out, static_cast<int>(drawn)) == 1) << "no random bytes";
    Begin(out);
    out += drawn;
  }
  sealing_->BeginSeal(number_++, "");
  for (const grpc::Slice& slice : slices) {
    sealing_->Add(slice.begin(), slice.size(), out);
    out += slice.size();
  }
  sealing_->EndSeal(out);
  const grpc::Slice slice(sealed, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status CallSealing::Open(grpc::ByteBuffer* message) {
  std::vector<grpc::Slice> slices;
  size_t ahead = sealing_.has_value() ? 0 : kDrawnBytes;
  if (!message->Dump(&slices).ok() || message->Length() < ahead + Sealing::kTagBytes) {
    return Forged();
  }
  size_t left = message->Length() - ahead - Sealing::kTagBytes;
  const grpc_slice opened = grpc_slice_malloc(left);
  uint8_t* out = Writable(opened);
  uint8_t tag[Sealing::kTagBytes];
  size_t of_tag = 0;
  uint8_t drawn[kDrawnBytes];
  if (sealing_.has_value()) sealing_->BeginOpen(number_++, "");
  for (const grpc::Slice& slice : slices) {
    const uint8_t* in = slice.begin();
    for (; ahead > 0 && in < slice.end(); --ahead) {
      drawn[kDrawnBytes - ahead] = *in++;
      if (ahead > 1) continue;
      Begin(drawn);
      sealing_->BeginOpen(number_++, "");
    }
    const size_t text = std::min(left, static_cast<size_t>(slice.end() - in));
    if (text > 0) sealing_->Add(in, text, out);
    out += text;
    left -= text;
    for (in += text; in < slice.end(); ++in) tag[of_tag++] = *in;
  }
  // Not before its bytes are there: a small slice is copied with them.
  const grpc::Slice plain(opened, grpc::Slice::STEAL_REF);
  if (!sealing_->EndOpen(tag)) return Forged();
  *message = grpc::ByteBuffer(&plain, 1);
  return absl::OkStatus();
}

}  // namespace tryst
