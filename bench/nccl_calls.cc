#include "bench/nccl_calls.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tryst {

absl::StatusOr<NcclCalls> NcclCalls::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::NotFoundError(dlerror());
  NcclCalls calls;
  bool whole = true;
  const auto find = [&](const char* name, auto* call) {
    *reinterpret_cast<void**>(call) = dlsym(handle, name);
    whole &= *call != nullptr;
  };
  find("ncclGetVersion", &calls.ncclGetVersion);
  find("ncclGetUniqueId", &calls.ncclGetUniqueId);
  find("ncclCommInitRank", &calls.ncclCommInitRank);
  find("ncclCommDestroy", &calls.ncclCommDestroy);
  find("ncclSend", &calls.ncclSend);
  find("ncclRecv", &calls.ncclRecv);
  if (!whole) return absl::UnavailableError(absl::StrCat(library, " is no NCCL"));
  return calls;
}

}  // namespace tryst
