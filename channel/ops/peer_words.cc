#include "channel/ops/peer_words.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rendezvous/derived_status.h"

namespace tryst {

bool IsFinal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsFailedPrecondition(status);
}

bool IsPathRefusal(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsInvalidArgument(status);
}

absl::Status Restarted(absl::string_view peer, uint64_t former, uint64_t incarnation) {
  return absl::AbortedError(absl::StrFormat(
      "%s has restarted: its incarnation was %016x and is %016x", peer, former, incarnation));
}

absl::Status NotAnswered(absl::string_view peer, absl::string_view path, int64_t patience_ms,
                         const absl::Status& why) {
  return absl::UnavailableError(absl::StrCat(peer, " has not answered over ", path, " for ",
                                             patience_ms, " ms (patience)", why.ok() ? "" : ": ",
                                             why.message()));
}

absl::Status Late(absl::string_view waits, absl::string_view peer, absl::string_view why) {
  return absl::DeadlineExceededError(
      absl::StrCat("not received in time: ", waits, " of ", peer, why));
}

absl::Status Cancelled() {
  return MarkDerived(absl::CancelledError("the fetch was cancelled by its caller"));
}

absl::Status FailureTold(uint32_t code, absl::string_view text, bool is_derived) {
  const bool known = code != 0 && code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  const absl::Status status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, text);
  return is_derived ? MarkDerived(status) : status;
}

absl::Status FitsLimit(uint64_t bytes, uint64_t most) {
  if (bytes <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the tensor has ", bytes,
                                                   " bytes, and this worker receives at most ",
                                                   most, ": raise max_tensor_bytes"));
}

absl::Status FitsDestination(const Tensor& wanted, DType dtype, const TensorShape& shape) {
  if (!wanted.valid() || (wanted.dtype() == dtype && wanted.shape() == shape)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the receive's destination is ", DTypeName(wanted.dtype()), wanted.shape().ToString(),
      " and the tensor that came is ", DTypeName(dtype), shape.ToString()));
}

}  // namespace tryst
