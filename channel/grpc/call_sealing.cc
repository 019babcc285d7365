#include "channel/grpc/call_sealing.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpc/slice.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <sys/random.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/log.h"
#include "base/reached.h"

namespace tryst {
namespace {

// The slice was just made, so it is nobody else's yet.
uint8_t* Writable(const grpc_slice& slice) {
  return const_cast<uint8_t*>(GRPC_SLICE_START_PTR(slice));
}

absl::Status Forged() {
  TRYST_REACHED("grpc: an answer that the producer has not sealed");
  return absl::DataLossError(
      "an answer was not sealed with this cluster's token: somebody between the two changed it, or "
      "the producer runs a release before 0.3.0, which encrypts nothing (upgrade it, or set "
      "encrypt=off here)");
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
    TRYST_CHECK(getrandom(out, drawn, 0) == static_cast<ssize_t>(drawn)) << "no random bytes";
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
  absl::optional<grpc::Slice> plain = Opened(message);
  if (!plain.has_value()) return Forged();
  *message = grpc::ByteBuffer(&*plain, 1);
  return absl::OkStatus();
}

absl::optional<grpc::Slice> CallSealing::Opened(grpc::ByteBuffer* message) {
  grpc::ProtoBufferReader reader(message);
  const size_t around = (sealing_.has_value() ? 0 : kDrawnBytes) + Sealing::kTagBytes;
  if (!reader.status().ok() || message->Length() < around) return absl::nullopt;
  google::protobuf::io::CodedInputStream in(&reader);
  in.SetTotalBytesLimit(std::numeric_limits<int>::max());
  if (!sealing_.has_value()) {
    uint8_t drawn[kDrawnBytes];
    if (!in.ReadRaw(drawn, sizeof(drawn))) return absl::nullopt;
    Begin(drawn);
  }
  sealing_->BeginOpen(number_++, "");
  size_t left = message->Length() - around;
  const grpc_slice opened = grpc_slice_malloc(left);
  uint8_t* out = Writable(opened);
  const void* piece;
  int bytes;
  while (left > 0 && in.GetDirectBufferPointer(&piece, &bytes)) {
    const size_t text = std::min(left, static_cast<size_t>(bytes));
    sealing_->Add(static_cast<const uint8_t*>(piece), text, out);
    in.Skip(static_cast<int>(text));
    out += text;
    left -= text;
  }
  // Not before its bytes are there: a small slice is copied with them.
  grpc::Slice plain(opened, grpc::Slice::STEAL_REF);
  uint8_t tag[Sealing::kTagBytes];
  if (left > 0 || !in.ReadRaw(tag, sizeof(tag)) || !sealing_->EndOpen(tag)) return absl::nullopt;
  return plain;
}

}  // namespace tryst
