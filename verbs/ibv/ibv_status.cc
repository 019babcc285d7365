#include "verbs/ibv/ibv_status.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case EINVAL:
    case EFAULT:
    case EMSGSIZE:
    case E2BIG:
      return absl::StatusCode::kInvalidArgument;
    case ENOMEM:
    case ENOSPC:
    case EAGAIN:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case EPERM:
    case EACCES:
      return absl::StatusCode::kPermissionDenied;
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
    case ENOSYS:
      return absl::StatusCode::kUnimplemented;
    case EBUSY:
    case EEXIST:
      return absl::StatusCode::kFailedPrecondition;
    default:
      // ENODEV, EIO, ENETUNREACH, ETIMEDOUT, ...: the device, or the path to the peer.
      return absl::StatusCode::kUnavailable;
  }
}

std::string ErrnoText(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof(buffer));
}

}  // namespace

absl::Status FromErrno(int error, absl::string_view call) {
  if (error == 0) return absl::UnavailableError(absl::StrCat(call, " failed and gave no reason"));
  return absl::Status(CodeOf(error),
                      absl::StrCat(call, ": ", ErrnoText(error), " (errno ", error, ")"));
}

absl::Status FromReturned(int returned, absl::string_view call) {
  if (returned == 0) return absl::OkStatus();
  if (returned > 0) return FromErrno(returned, call);
  // EPERM is 1 as well, but no driver is known to return it negated; -1 is the old convention for
  // "see errno".
  return FromErrno(returned == -1 ? errno : -returned, call);
}

absl::StatusOr<size_t> FromPolled(int returned) {
  if (returned >= 0) return static_cast<size_t>(returned);
  return absl::UnavailableError(absl::StrCat(
      "the RDMA device cannot be asked for completions: ibv_poll_cq returned ", returned));
}

absl::StatusOr<bool> FromEventCall(int returned, absl::string_view call) {
  if (returned == 0) return true;
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return false;
  return FromErrno(error, call);
}

CompletionStatus FromWorkStatus(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return CompletionStatus::kOk;
    case IBV_WC_LOC_LEN_ERR:
      return CompletionStatus::kLocalLength;
    case IBV_WC_LOC_QP_OP_ERR:
      return CompletionStatus::kLocalOperation;
    case IBV_WC_LOC_PROT_ERR:
      return CompletionStatus::kLocalProtection;
    case IBV_WC_WR_FLUSH_ERR:
      return CompletionStatus::kFlushed;
    case IBV_WC_BAD_RESP_ERR:
      return CompletionStatus::kBadResponse;
    case IBV_WC_LOC_ACCESS_ERR:
      return CompletionStatus::kLocalAccess;
    case IBV_WC_REM_INV_REQ_ERR:
      return CompletionStatus::kRemoteInvalidRequest;
    case IBV_WC_REM_ACCESS_ERR:
      return CompletionStatus::kRemoteAccess;
    case IBV_WC_REM_OP_ERR:
      return CompletionStatus::kRemoteOperation;
    case IBV_WC_RETRY_EXC_ERR:
      return CompletionStatus::kRetryExceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return CompletionStatus::kReceiverNotReady;
    case IBV_WC_REM_ABORT_ERR:
      return CompletionStatus::kRemoteAborted;
    case IBV_WC_FATAL_ERR:
      return CompletionStatus::kFatal;
    case IBV_WC_RESP_TIMEOUT_ERR:
      return CompletionStatus::kResponseTimeout;
    case IBV_WC_GENERAL_ERR:
    // Only transports and features that we do not use report these.
    case IBV_WC_MW_BIND_ERR:
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_INV_EECN_ERR:
    case IBV_WC_INV_EEC_STATE_ERR:
    case IBV_WC_TM_ERR:
    case IBV_WC_TM_RNDV_INCOMPLETE:
      return CompletionStatus::kGeneral;
  }
  return CompletionStatus::kGeneral;  // A status of a newer library.
}

absl::Status StatusOfWork(ibv_wc_status status, uint32_t vendor_error, uint32_t queue_pair) {
  const CompletionStatus ours = FromWorkStatus(status);
  if (ours == CompletionStatus::kOk) return absl::OkStatus();
  const std::string text =
      absl::StrCat("queue pair ", queue_pair, ": ", CompletionStatusName(ours), " (status ",
                   static_cast<int>(status), ", vendor error 0x", absl::Hex(vendor_error), ")");
  switch (ours) {
    // Only a wrong work of our own ends in this way.
    case CompletionStatus::kLocalLength:
    case CompletionStatus::kLocalOperation:
    case CompletionStatus::kLocalProtection:
    case CompletionStatus::kLocalAccess:
      return absl::InternalError(text);
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace tryst
