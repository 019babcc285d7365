#include "verbs/ofi/ofi_calls.h"

#include <dlfcn.h>
#include <rdma/fi_errno.h>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr char kAdvice[] =
    "install libfabric 1.17 or later (Debian: libfabric1; Red Hat: libfabric), in the container "
    "too";

// Resolves symbols with the version whose structs we compiled with.
template <typename Function, typename Slot>
bool Resolve(void* library, const char* symbol, const char* version, Slot* slot) {
  auto* const found = reinterpret_cast<Function*>(dlvsym(library, symbol, version));
  if (found == nullptr) return false;
  *slot = found;
  return true;
}

}  // namespace

absl::StatusOr<OfiCalls> LoadOfiCalls(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    const char* const reason = dlerror();
    return absl::NotFoundError(
        absl::StrCat("libfabric cannot be loaded: ", reason == nullptr ? library.c_str() : reason,
                     "; ", kAdvice));
  }
  OfiCalls calls;
  const bool complete =
      Resolve<int(uint32_t, const char*, const char*, uint64_t, const fi_info*, fi_info**)>(
          loaded, "fi_getinfo", "FABRIC_1.3", &calls.get_info) &&
      Resolve<void(fi_info*)>(loaded, "fi_freeinfo", "FABRIC_1.3", &calls.free_info) &&
      Resolve<fi_info*(const fi_info*)>(loaded, "fi_dupinfo", "FABRIC_1.3", &calls.dup_info) &&
      Resolve<int(fi_fabric_attr*, fid_fabric**, void*)>(loaded, "fi_fabric", "FABRIC_1.1",
                                                         &calls.open_fabric) &&
      Resolve<const char*(int)>(loaded, "fi_strerror", "FABRIC_1.0", &calls.error_text) &&
      Resolve<uint32_t()>(loaded, "fi_version", "FABRIC_1.0", &calls.version);
  if (complete) return calls;
  dlclose(loaded);
  return absl::NotFoundError(
      absl::StrCat(library, " lacks the calls of libfabric 1.17; ", kAdvice));
}

absl::Status OfiStatus(const OfiCalls& calls, int64_t returned, absl::string_view what) {
  if (returned >= 0) return absl::OkStatus();
  const int error = static_cast<int>(-returned);
  const std::string message = absl::StrCat(what, ": ", calls.error_text(error));
  switch (error) {
    case FI_ENOMEM:
    case FI_ENOSPC:
    case FI_EMFILE:
      return absl::ResourceExhaustedError(message);
    case FI_EINVAL:
    case FI_EADDRNOTAVAIL:
      return absl::InvalidArgumentError(message);
    case FI_ENOSYS:
    case FI_EOPNOTSUPP:
      return absl::UnimplementedError(message);
    case FI_EPERM:
    case FI_EACCES:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace tryst
