#ifndef TRYST_CHANNEL_GRPC_CALL_SEALING_H_
#define TRYST_CHANNEL_GRPC_CALL_SEALING_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/sealing.h"

namespace tryst {

// Encrypts and proves the answers of one FetchTensor call where workers share a token and have no
// certificates. The key is of the token, of the caller's statement, and of random bytes that the
// producer puts before its first message. So an answer is good for this call alone, its messages in
// their order alone, and a statement that is played again brings nothing under a key that was used.
// Each end uses its own, one call at a time.
class CallSealing {
 public:
  CallSealing(absl::string_view token, absl::string_view statement)
      : token_(token), salt_(statement) {}

  grpc::ByteBuffer Seal(const grpc::ByteBuffer& message);
  // kDataLoss: somebody else has made it, or changed it.
  absl::Status Open(grpc::ByteBuffer* message);

 private:
  static constexpr size_t kDrawnBytes = 16;

  // Adds what the producer has drawn to the salt, and makes the key.
  void Begin(const uint8_t drawn[kDrawnBytes]);
  // Null: somebody else has made it, or changed it.
  absl::optional<grpc::Slice> Opened(grpc::ByteBuffer* message);

  const std::string token_;
  std::string salt_;
  absl::optional<Sealing> sealing_;  // From the first message on.
  uint64_t number_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_CALL_SEALING_H_
