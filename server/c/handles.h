#ifndef TRYST_SERVER_C_HANDLES_H_
#define TRYST_SERVER_C_HANDLES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/rendezvous.h"
#include "server/server.h"

// What the handles of the C interface are, for its sources alone.

struct tryst_status {
  absl::Status status;
  std::string message;
};

struct tryst_tensor {
  tryst::Tensor tensor;
  bool shared = false;  // Somebody else reads its memory, too: a producer's.
};

namespace tryst {
namespace c {

// How many forks lie between the program's start and this process.
int ForkCount();

// Null when all is well.
tryst_status* Give(const absl::Status& status);
tryst_status* GiveTensor(absl::StatusOr<Tensor> made, tryst_tensor** tensor, bool shared = false);
// For tryst_string_free().
char* GiveText(const std::string& text);

// A caller's null is an empty text, which is no key and no worker.
inline const char* Text(const char* text) { return text == nullptr ? "" : text; }

inline absl::Duration Timeout(int64_t ms) {
  return ms < 0 ? absl::InfiniteDuration() : absl::Milliseconds(ms);
}

}  // namespace c
}  // namespace tryst

struct tryst_server {
  // OK, unless it was made before a fork: its threads are the parent's.
  absl::Status Usable() const;
  absl::StatusOr<std::shared_ptr<tryst::Rendezvous>> Step(int64_t step);
  // What a receive gives its caller of `got` where the caller wants `into` filled. What a worker
  // sends to itself comes in the sender's memory and not in the destination, so it is copied;
  // what does not fit goes back to where it was, for the next receive of the key.
  absl::StatusOr<tryst::Tensor> Fill(int64_t step, const tryst::TensorKey& key,
                                     const tryst::Tensor& into, uint64_t turn, tryst::Received got);

  std::unique_ptr<tryst::Server> server;
  const int forks = tryst::c::ForkCount();
};

#endif  // TRYST_SERVER_C_HANDLES_H_
