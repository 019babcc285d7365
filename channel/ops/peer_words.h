#ifndef TRYST_CHANNEL_OPS_PEER_WORDS_H_
#define TRYST_CHANNEL_OPS_PEER_WORDS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rendezvous/rendezvous.h"

// What a peer's words mean, whichever transport brought them.
namespace tryst {

// The answer to a hello: the peer has understood and will not change its mind about who we are or
// what we speak.
bool IsFinal(const absl::Status& status);
// The peer has no such path and will not have it: another one is to be taken.
bool IsPathRefusal(const absl::Status& status);

// Another life of the peer has answered: what the former was asked can no longer be had.
absl::Status Restarted(absl::string_view peer, uint64_t former, uint64_t incarnation);

// A fetch failed at its producer, who said so with this code and text.
absl::Status FailureTold(uint32_t code, absl::string_view text, bool is_derived);

// kResourceExhausted: a tensor of so many bytes is larger than `most` (max_tensor_bytes).
absl::Status FitsLimit(uint64_t bytes, uint64_t most);
// kInvalidArgument: args.destination is of another type or shape than the tensor.
absl::Status FitsDestination(const Args& args, DType dtype, const TensorShape& shape);

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_PEER_WORDS_H_
