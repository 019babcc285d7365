#include "verbs/ibv/rdma_cm_calls.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr char kVersion[] = "RDMACM_1.0";

// Function is named as a type alone: its address would ask the linker for librdmacm.
template <typename Function, typename Slot>
void Resolve(void* library, const char* symbol, Slot* slot, std::string* missing) {
  auto* const found = reinterpret_cast<Function*>(dlvsym(library, symbol, kVersion));
  if (found != nullptr) *slot = found;
  if (found == nullptr && missing->empty()) *missing = symbol;
}

}  // namespace

absl::StatusOr<RdmaCmCalls> LoadRdmaCmCalls(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    const char* const reason = dlerror();
    return absl::NotFoundError(
        absl::StrCat("an iWARP device connects through the RDMA connection manager: ",
                     reason == nullptr ? library.c_str() : reason,
                     "; install it (Debian: librdmacm1), in the container too"));
  }
  RdmaCmCalls calls;
  std::string missing;
#define TRYST_RESOLVE(name) \
  Resolve<decltype(rdma_##name)>(loaded, "rdma_" #name, &calls.name, &missing)
  TRYST_RESOLVE(create_event_channel);
  TRYST_RESOLVE(destroy_event_channel);
  TRYST_RESOLVE(create_id);
  TRYST_RESOLVE(destroy_id);
  TRYST_RESOLVE(bind_addr);
  TRYST_RESOLVE(listen);
  TRYST_RESOLVE(resolve_addr);
  TRYST_RESOLVE(resolve_route);
  TRYST_RESOLVE(connect);
  TRYST_RESOLVE(accept);
  TRYST_RESOLVE(reject);
  TRYST_RESOLVE(get_cm_event);
  TRYST_RESOLVE(ack_cm_event);
#undef TRYST_RESOLVE
  if (missing.empty()) return calls;
  dlclose(loaded);
  return absl::NotFoundError(absl::StrCat(library, " lacks the function ", missing, "@", kVersion));
}

}  // namespace tryst
