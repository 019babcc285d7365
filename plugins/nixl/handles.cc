#include "plugins/nixl/handles.h"

#include <cstring>

namespace tryst::nixl {

absl::Status StatusOf(tryst_status* status) {
  if (status == nullptr) return absl::OkStatus();
  absl::Status copied(static_cast<absl::StatusCode>(tryst_status_code(status)),
                      tryst_status_message(status));
  tryst_status_free(status);
  return copied;
}

absl::Status EndOf(tryst_op* op, Owned<tryst_tensor>* tensor) {
  tryst_tensor* got = nullptr;
  int is_dead = 0;
  absl::Status status = StatusOf(tryst_op_result(op, 0, &got, &is_dead));
  Owned<tryst_tensor> owned(got);
  if (tensor != nullptr) *tensor = std::move(owned);
  return status;
}

absl::StatusOr<Owned<tryst_tensor>> CopyOf(const std::string& bytes) {
  const int64_t dims[] = {static_cast<int64_t>(bytes.size())};
  tryst_tensor* made = nullptr;
  absl::Status status = StatusOf(tryst_tensor_allocate(TRYST_UINT8, dims, 1, &made));
  if (!status.ok()) return status;
  memcpy(tryst_tensor_data(made), bytes.data(), bytes.size());
  return Owned<tryst_tensor>(made);
}

absl::StatusOr<Owned<tryst_tensor>> TensorAt(uintptr_t address, uint64_t bytes) {
  const int64_t dims[] = {static_cast<int64_t>(bytes)};
  tryst_tensor* made = nullptr;
  absl::Status status = StatusOf(tryst_tensor_adopt(reinterpret_cast<void*>(address), TRYST_UINT8,
                                                    dims, 1, nullptr, nullptr, &made));
  if (!status.ok()) return status;
  return Owned<tryst_tensor>(made);
}

abi::Status NixlStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return abi::kSuccess;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return abi::kInvalidParameter;
    case absl::StatusCode::kNotFound:
      return abi::kNotFound;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return abi::kNotAllowed;
    case absl::StatusCode::kUnimplemented:
      return abi::kNotSupported;
    case absl::StatusCode::kCancelled:
      return abi::kCancelled;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return abi::kRemoteGone;
    default:
      return abi::kBackendFailed;
  }
}

}  // namespace tryst::nixl
