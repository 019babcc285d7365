#ifndef TRYST_VERBS_IBV_IBV_CALLS_H_
#define TRYST_VERBS_IBV_IBV_CALLS_H_

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tryst {

// The boundary to libibverbs: every function that we call in the library. So one binary also runs
// without it, and tests can replace it. They fail in the five ways that ibv_status.h turns into
// absl::Status.
//
// The calls of the fast path (post_send, post_recv, poll_cq, req_notify_cq) are not here: verbs.h
// inlines them as calls through the context's own table, which a fake context fills just as well.
//
// Thread-safe once filled.
struct IbvCalls {
  std::function<ibv_device**(int* count)> get_device_list;
  std::function<void(ibv_device** list)> free_device_list;
  std::function<ibv_context*(ibv_device* device)> open_device;
  std::function<int(ibv_context* context)> close_device;
  std::function<int(ibv_context* context, ibv_device_attr* out)> query_device;
  std::function<int(ibv_context* context, uint8_t port, ibv_port_attr* out)> query_port;
  std::function<int(ibv_context* context, uint8_t port, int index, union ibv_gid* out)> query_gid;
  std::function<ibv_pd*(ibv_context* context)> alloc_pd;
  std::function<int(ibv_pd* domain)> dealloc_pd;
  std::function<ibv_mr*(ibv_pd* domain, void* address, size_t bytes, int access)> reg_mr;
  std::function<int(ibv_mr* region)> dereg_mr;
  std::function<ibv_comp_channel*(ibv_context* context)> create_comp_channel;
  std::function<int(ibv_comp_channel* channel)> destroy_comp_channel;
  std::function<ibv_cq*(ibv_context* context, int depth, void* cookie, ibv_comp_channel* channel,
                        int vector)>
      create_cq;
  std::function<int(ibv_cq* queue)> destroy_cq;
  std::function<int(ibv_comp_channel* channel, ibv_cq** queue, void** cookie)> get_cq_event;
  std::function<void(ibv_cq* queue, unsigned count)> ack_cq_events;
  std::function<ibv_qp*(ibv_pd* domain, ibv_qp_init_attr* attributes)> create_qp;
  std::function<int(ibv_qp* pair, ibv_qp_attr* attributes, int mask)> modify_qp;
  std::function<int(ibv_qp* pair)> destroy_qp;
  std::function<int(ibv_context* context, ibv_async_event* out)> get_async_event;
  std::function<void(ibv_async_event* event)> ack_async_event;

  // Not in the oldest library that we support; empty where it lacks them.
  std::function<ssize_t(ibv_context* context, ibv_gid_entry* out, size_t room)> query_gid_table;
  std::function<ibv_mr*(ibv_pd* domain, void* address, size_t bytes, uint64_t remote_base,
                        unsigned access)>
      reg_mr_iova2;
  std::function<ibv_mr*(ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t remote_base, int fd,
                        int access)>
      reg_dmabuf_mr;
  std::function<int(ibv_qp* pair, ibv_ece* out)> query_ece;
  std::function<int(ibv_qp* pair, ibv_ece* options)> set_ece;
};

// Loads the library and fills the table. kNotFound: it is not installed, or too old to have a call
// that we need; the message says what to install. The library stays loaded as long as the process
// runs, because its drivers cannot be unloaded.
absl::StatusOr<IbvCalls> LoadIbvCalls(const std::string& library = "libibverbs.so.1");

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_CALLS_H_
