#ifndef TRYST_CHANNEL_OPS_PEER_WORDS_H_
#define TRYST_CHANNEL_OPS_PEER_WORDS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rendezvous/rendezvous.h"

// What a peer's statements mean, on every transport.
namespace tryst {

// Whether this answer to a hello is final: the peer has understood us, and will not answer
// differently later.
bool IsFinal(const absl::Status& status);
// The peer does not have this path and will not have it, so take another.
bool IsPathRefusal(const absl::Status& status);

// How fetches end: one cause has one code and one wording on every path.
// Another incarnation of the peer has answered: what was requested from the former cannot be had
// any more.
absl::Status Restarted(absl::string_view peer, uint64_t former, uint64_t incarnation);
// The peer has not answered for the patience; `why` is the last failure, or OK.
absl::Status NotAnswered(absl::string_view peer, absl::string_view path, int64_t patience_ms,
                         const absl::Status& why);
// The deadline has passed. `waits` is what the fetch did then: "waits for the peer's Send". `why`
// follows the peer's name as it is.
absl::Status Late(absl::string_view waits, absl::string_view peer, absl::string_view why);
absl::Status Cancelled();  // By its caller.

// The status of a fetch that failed at its producer, which sent this code and text.
absl::Status FailureTold(uint32_t code, absl::string_view text, bool is_derived);

// kResourceExhausted: a tensor of `bytes` is larger than `most` (max_tensor_bytes).
absl::Status FitsLimit(uint64_t bytes, uint64_t most);
// kInvalidArgument: `wanted`, where there is one, has another type or shape than the tensor.
absl::Status FitsDestination(const Tensor& wanted, DType dtype, const TensorShape& shape);

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_PEER_WORDS_H_
