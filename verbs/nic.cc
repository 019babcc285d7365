#include "verbs/nic.h"

#include "absl/strings/str_cat.h"

namespace tryst {

absl::Status Nic::ReachesDevice(int ordinal) const {
  return absl::UnimplementedError(
      absl::StrCat("the NIC ", name(), " does not reach the memory of device ", ordinal));
}

absl::StatusOr<std::unique_ptr<Region>> Nic::RegisterDevice(int ordinal, void*, uint64_t,
                                                            uint32_t) {
  return ReachesDevice(ordinal);
}

const char* CompletionStatusName(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kOk:
      return "ok";
    case CompletionStatus::kLocalLength:
      return "local length error";
    case CompletionStatus::kLocalOperation:
      return "local operation error";
    case CompletionStatus::kLocalProtection:
      return "local protection error";
    case CompletionStatus::kFlushed:
      return "flushed";
    case CompletionStatus::kBadResponse:
      return "bad response";
    case CompletionStatus::kLocalAccess:
      return "local access error";
    case CompletionStatus::kRemoteInvalidRequest:
      return "remote invalid request";
    case CompletionStatus::kRemoteAccess:
      return "remote access error";
    case CompletionStatus::kRemoteOperation:
      return "remote operation error";
    case CompletionStatus::kRetryExceeded:
      return "retries exceeded";
    case CompletionStatus::kReceiverNotReady:
      return "receiver not ready";
    case CompletionStatus::kRemoteAborted:
      return "remote aborted";
    case CompletionStatus::kFatal:
      return "fatal";
    case CompletionStatus::kResponseTimeout:
      return "response timeout";
    case CompletionStatus::kGeneral:
      return "general error";
  }
  return "unknown";
}

const char* QueuePairStateName(QueuePairState state) {
  switch (state) {
    case QueuePairState::kReset:
      return "reset";
    case QueuePairState::kReady:
      return "ready";
    case QueuePairState::kBroken:
      return "broken";
    case QueuePairState::kDrained:
      return "drained";
  }
  return "unknown";
}

}  // namespace tryst
