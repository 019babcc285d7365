#ifndef TRYST_SERVER_C_HANDLES_H_
#define TRYST_SERVER_C_HANDLES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/fork_count.h"
#include "rendezvous/rendezvous.h"
#include "server/server.h"

// The types behind the C interface's handles, for its sources alone.

struct tryst_status {
  absl::Status status;
  std::string message;
};

struct tryst_tensor {
  tryst::Tensor tensor;
  bool shared = false;  // True: a producer reads this memory, too.
};

namespace tryst {
namespace c {

// OK, unless the process has forked since ForkCount() gave `forks`: threads live in the parent
// only.
absl::Status InTheProcessOf(int forks);

// Returns null when the status is OK.
tryst_status* Give(const absl::Status& status);
tryst_status* GiveTensor(absl::StatusOr<Tensor> made, tryst_tensor** tensor, bool shared = false);
// kInvalidArgument, where the caller gives null for something that a call cannot do without; else
// null.
template <typename... Pointer>
tryst_status* RefuseNull(Pointer... pointers) {
  if (((pointers != nullptr) && ...)) return nullptr;
  return Give(absl::InvalidArgumentError(
      "null was given for a handle, or for a place that the call writes to"));
}
// The caller frees it with tryst_string_free().
char* GiveText(const std::string& text);

// The caller's number may not be a DType, or one of a type without a fixed size.
absl::StatusOr<DType> CheckedType(int dtype);

// A null from the caller becomes an empty text, which is never a valid key or worker.
inline const char* Text(const char* text) { return text == nullptr ? "" : text; }

// Makes what a step is aborted with. kInvalidArgument: `code` is not that of a failure.
absl::Status CauseOfAbort(int code, const char* message, absl::Status* cause);

inline absl::Duration Timeout(int64_t ms) {
  return ms < 0 ? absl::InfiniteDuration() : absl::Milliseconds(ms);
}

// A receive of one key, until it ends. That may be while its server is being freed, which the steps
// outlive: so it keeps what it needs of the server.
struct Receive {
  // kInvalidArgument: no key, or an `into` that cannot be filled. REQUIRES: the server has started.
  static absl::StatusOr<Receive> Make(Server* server, int64_t step, const char* key,
                                      const tryst_tensor* into);
  // Like Make(), with a key that is parsed already.
  static absl::StatusOr<Receive> Of(Server* server, int64_t step, TensorKey key,
                                    const tryst_tensor* into);
  // Makes what the receive returns when the caller wants `into` filled. A tensor that a worker
  // sends to itself arrives in the sender's memory, so it is copied into `into`. A tensor that does
  // not fit goes back to its step, for the next receive of the key.
  absl::StatusOr<Tensor> Fill(Received got);
  // Whether what Fill() returns may be the sender's memory, which it may still read.
  bool SharesMemory() const { return is_own && !into.valid(); }

  StepRegistry* steps = nullptr;
  int64_t step = 0;
  TensorKey key;
  Tensor into;
  bool is_own = false;  // This worker itself produces the key's tensor.
};

}  // namespace c
}  // namespace tryst

struct tryst_server {
  // OK, unless the server was made before a fork: its threads live in the parent only.
  absl::Status Usable() const;
  absl::StatusOr<std::shared_ptr<tryst::Rendezvous>> Step(int64_t step);

  std::unique_ptr<tryst::Server> server;
  const int forks = tryst::ForkCount();
};

#endif  // TRYST_SERVER_C_HANDLES_H_
