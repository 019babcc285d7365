#ifndef TRYST_SERVER_WEIGHTS_PART_SOURCE_H_
#define TRYST_SERVER_WEIGHTS_PART_SOURCE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/tensor.h"
#include "server/server.h"
#include "weights/asks.h"
#include "weights/chain.h"
#include "weights/digests.h"
#include "weights/fetch_plan.h"

namespace tryst {

// Takes memory of the host's arena, or else of the heap.
absl::StatusOr<Tensor> AllocateShared(Server* server, DType dtype, const TensorShape& shape);
// `bytes` as a tensor, and room for `more` after them.
absl::StatusOr<Tensor> BytesTensor(Server* server, absl::string_view bytes, uint64_t more = 0);

// What an answer with a part is made of. It keeps its memory, whatever becomes of the version.
struct PartSource {
  Tensor box;        // In which the part lies.
  Tensor base;       // That box as the asker has it, of another version; or invalid.
  StridedCopy copy;  // Makes the part lie dense.
  uint32_t element_bytes = 0;
  bool whole = false;  // The part is the box, and who asks has its digest.

  uint64_t digest_bytes() const { return whole ? 0 : Digest::kBytes; }
  // Bounds what the answer takes, and what making it does: of changes all that is, was and is
  // coded.
  uint64_t making_bytes() const { return copy.bytes() * (base.valid() ? 3 : 1) + digest_bytes(); }
};
// The part that is asked for, as who has it knows it.
inline PartName NameOf(const WeightAsk& ask) {
  return {{ask.number, ask.birth}, ask.tensor, ask.box};
}

absl::StatusOr<Digest> DigestOfPart(const PartSource& source);
// The bytes, or what makes them of the base's where that is shorter; and their digest unless
// `whole`. Adds the bytes to `sent`.
absl::StatusOr<Tensor> MakePart(Server* server, const PartSource& source,
                                std::atomic<uint64_t>* sent);

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_PART_SOURCE_H_
