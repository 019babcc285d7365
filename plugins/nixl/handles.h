#ifndef TRYST_PLUGINS_NIXL_HANDLES_H_
#define TRYST_PLUGINS_NIXL_HANDLES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plugins/nixl/abi.h"
#include "server/c/tryst_v1.h"

// The C interface's handles, owned.
namespace tryst::nixl {

struct Free {
  void operator()(tryst_tensor* tensor) const { tryst_tensor_free(tensor); }
  void operator()(tryst_op* op) const { tryst_op_free(op); }
  void operator()(tryst_region* region) const { tryst_region_free(region); }
  void operator()(tryst_group* group) const { tryst_group_free(group); }
  void operator()(char* text) const { tryst_string_free(text); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// Takes `status` over.
absl::Status StatusOf(tryst_status* status);
// What an operation of one receive has ended with.
absl::Status EndOf(tryst_op* op, Owned<tryst_tensor>* tensor = nullptr);
// Bytes as a tensor of their own.
absl::StatusOr<Owned<tryst_tensor>> CopyOf(const std::string& bytes);
absl::StatusOr<Owned<tryst_tensor>> TensorAt(uintptr_t address, uint64_t bytes);

// What NIXL calls a failure.
abi::Status NixlStatus(const absl::Status& status);

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_HANDLES_H_
