#ifndef TRYST_SERVER_C_HANDLES_H_
#define TRYST_SERVER_C_HANDLES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

// How often the process has forked since the program started: a child counts one more.
int ForkCount();

// Returns null when the status is OK.
tryst_status* Give(const absl::Status& status);
tryst_status* GiveTensor(absl::StatusOr<Tensor> made, tryst_tensor** tensor, bool shared = false);
// The caller frees it with tryst_string_free().
char* GiveText(const std::string& text);

// A null from the caller becomes an empty text, which is never a valid key or worker.
inline const char* Text(const char* text) { return text == nullptr ? "" : text; }

inline absl::Duration Timeout(int64_t ms) {
  return ms < 0 ? absl::InfiniteDuration() : absl::Milliseconds(ms);
}

}  // namespace c
}  // namespace tryst

struct tryst_server {
  // OK, unless the server was made before a fork: its threads live in the parent only.
  absl::Status Usable() const;
  absl::StatusOr<std::shared_ptr<tryst::Rendezvous>> Step(int64_t step);
  // Makes what a receive returns when the caller wants `into` filled. A tensor that a worker sends
  // to itself arrives in the sender's memory, so it is copied into `into`. A tensor that does not
  // fit goes back to its step, for the next receive of the key.
  absl::StatusOr<tryst::Tensor> Fill(int64_t step, const tryst::TensorKey& key,
                                     const tryst::Tensor& into, uint64_t turn, tryst::Received got);

  std::unique_ptr<tryst::Server> server;
  const int forks = tryst::c::ForkCount();
};

#endif  // TRYST_SERVER_C_HANDLES_H_
