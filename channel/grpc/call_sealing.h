#ifndef TRYST_CHANNEL_GRPC_CALL_SEALING_H_
#define TRYST_CHANNEL_GRPC_CALL_SEALING_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/sealing.h"

namespace tryst {

// Encrypts and proves the answers of one FetchTensor call where workers share a token and have no
// certificates. The key is of the token and of the caller's statement, which no other call has, so
// an answer is good for this call alone, and its messages in their order alone. Each end uses its
// own, one call at a time.
class CallSealing {
 public:
  CallSealing(absl::string_view token, absl::string_view statement)
      : sealing_(token, statement, "tryst fetch answer 1") {}

  grpc::ByteBuffer Seal(const grpc::ByteBuffer& message);
  // kDataLoss: somebody else has made it, or changed it.
  absl::Status Open(grpc::ByteBuffer* message);

 private:
  Sealing sealing_;
  uint64_t number_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_CALL_SEALING_H_
