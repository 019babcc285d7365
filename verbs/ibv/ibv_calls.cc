#include "verbs/ibv/ibv_calls.h"

#include <dlfcn.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tryst {
namespace {

constexpr char kAdvice[] =
    "install rdma-core's user space (Debian: libibverbs1 ibverbs-providers; Red Hat: "
    "libibverbs), in the container too";

// Resolves symbols with the version for which we compiled: when the library changes a signature,
// plain dlsym would return a function with another one.
class SymbolTable {
 public:
  SymbolTable(void* library, std::string name) : library_(library), name_(std::move(name)) {}

  template <typename Function>
  Function* Optional(const char* symbol, const char* version) const {
    return reinterpret_cast<Function*>(dlvsym(library_, symbol, version));
  }

  template <typename Function, typename Slot>
  void Require(const char* symbol, const char* version, Slot* slot) {
    Function* found = Optional<Function>(symbol, version);
    if (found != nullptr) {
      *slot = found;
    } else if (status_.ok()) {
      status_ = absl::NotFoundError(absl::StrCat(name_, " lacks the function ", symbol, "@",
                                                 version, ": the library is too old; ", kAdvice));
    }
  }

  const absl::Status& status() const { return status_; }

 private:
  void* const library_;
  const std::string name_;
  absl::Status status_;
};

using QueryPortCall = int(ibv_context*, uint8_t, _compat_ibv_port_attr*);

// The exported ibv_query_port fills an older, shorter struct. Drivers that know the complete one
// are called through the context, as verbs.h does.
int QueryPort(QueryPortCall* fallback, ibv_context* context, uint8_t port, ibv_port_attr* out) {
  std::memset(out, 0, sizeof(*out));
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  if (extended != nullptr) return extended->query_port(context, port, out, sizeof(*out));
  return fallback(context, port, reinterpret_cast<_compat_ibv_port_attr*>(out));
}

void FillRequired(SymbolTable* symbols, IbvCalls* calls) {
  constexpr char k10[] = "IBVERBS_1.0";
  constexpr char k11[] = "IBVERBS_1.1";
  symbols->Require<ibv_device**(int*)>("ibv_get_device_list", k11, &calls->get_device_list);
  symbols->Require<void(ibv_device**)>("ibv_free_device_list", k11, &calls->free_device_list);
  symbols->Require<ibv_context*(ibv_device*)>("ibv_open_device", k11, &calls->open_device);
  symbols->Require<int(ibv_context*)>("ibv_close_device", k11, &calls->close_device);
  symbols->Require<int(ibv_context*, ibv_device_attr*)>("ibv_query_device", k11,
                                                        &calls->query_device);
  QueryPortCall* query_port = nullptr;
  symbols->Require<QueryPortCall>("ibv_query_port", k11, &query_port);
  calls->query_port = [query_port](ibv_context* context, uint8_t port, ibv_port_attr* out) {
    return QueryPort(query_port, context, port, out);
  };
  symbols->Require<int(ibv_context*, uint8_t, int, union ibv_gid*)>("ibv_query_gid", k11,
                                                                    &calls->query_gid);
  symbols->Require<ibv_pd*(ibv_context*)>("ibv_alloc_pd", k11, &calls->alloc_pd);
  symbols->Require<int(ibv_pd*)>("ibv_dealloc_pd", k11, &calls->dealloc_pd);
  symbols->Require<ibv_mr*(ibv_pd*, void*, size_t, int)>("ibv_reg_mr", k11, &calls->reg_mr);
  symbols->Require<int(ibv_mr*)>("ibv_dereg_mr", k11, &calls->dereg_mr);
  symbols->Require<ibv_comp_channel*(ibv_context*)>("ibv_create_comp_channel", k10,
                                                    &calls->create_comp_channel);
  symbols->Require<int(ibv_comp_channel*)>("ibv_destroy_comp_channel", k10,
                                           &calls->destroy_comp_channel);
  symbols->Require<ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int)>("ibv_create_cq", k11,
                                                                              &calls->create_cq);
  symbols->Require<int(ibv_cq*)>("ibv_destroy_cq", k11, &calls->destroy_cq);
  symbols->Require<int(ibv_comp_channel*, ibv_cq**, void**)>("ibv_get_cq_event", k11,
                                                             &calls->get_cq_event);
  symbols->Require<void(ibv_cq*, unsigned)>("ibv_ack_cq_events", k11, &calls->ack_cq_events);
  symbols->Require<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)>("ibv_create_qp", k11, &calls->create_qp);
  symbols->Require<int(ibv_qp*, ibv_qp_attr*, int)>("ibv_modify_qp", k11, &calls->modify_qp);
  symbols->Require<int(ibv_qp*)>("ibv_destroy_qp", k11, &calls->destroy_qp);
  symbols->Require<int(ibv_context*, ibv_async_event*)>("ibv_get_async_event", k11,
                                                        &calls->get_async_event);
  symbols->Require<void(ibv_async_event*)>("ibv_ack_async_event", k11, &calls->ack_async_event);
}

void FillOptional(const SymbolTable& symbols, IbvCalls* calls) {
  auto* gid_table =
      symbols.Optional<ssize_t(ibv_context*, ibv_gid_entry*, size_t, uint32_t, size_t)>(
          "_ibv_query_gid_table", "IBVERBS_1.11");
  if (gid_table != nullptr) {
    calls->query_gid_table = [gid_table](ibv_context* context, ibv_gid_entry* out, size_t room) {
      return gid_table(context, out, room, 0, sizeof(*out));
    };
  }
  // A null pointer gives an empty function.
  calls->reg_mr_iova2 = symbols.Optional<ibv_mr*(ibv_pd*, void*, size_t, uint64_t, unsigned)>(
      "ibv_reg_mr_iova2", "IBVERBS_1.8");
  calls->query_ece = symbols.Optional<int(ibv_qp*, ibv_ece*)>("ibv_query_ece", "IBVERBS_1.10");
  calls->set_ece = symbols.Optional<int(ibv_qp*, ibv_ece*)>("ibv_set_ece", "IBVERBS_1.10");
  calls->reg_dmabuf_mr = symbols.Optional<ibv_mr*(ibv_pd*, uint64_t, size_t, uint64_t, int, int)>(
      "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
}

}  // namespace

absl::StatusOr<IbvCalls> LoadIbvCalls(const std::string& library) {
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    const char* reason = dlerror();
    return absl::NotFoundError(absl::StrCat(
        "the RDMA library cannot be loaded: ", reason == nullptr ? library.c_str() : reason, "; ",
        kAdvice));
  }
  SymbolTable symbols(loaded, library);
  IbvCalls calls;
  FillRequired(&symbols, &calls);
  if (!symbols.status().ok()) {
    dlclose(loaded);
    return symbols.status();
  }
  FillOptional(symbols, &calls);
  return calls;
}

}  // namespace tryst
