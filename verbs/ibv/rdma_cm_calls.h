#ifndef TRYST_VERBS_IBV_RDMA_CM_CALLS_H_
#define TRYST_VERBS_IBV_RDMA_CM_CALLS_H_

#include <rdma/rdma_cma.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tryst {

// The boundary to librdmacm, as ibv_calls.h is to libibverbs. Only iWARP devices need it. All but
// the first two return -1 and set errno when they fail.
struct RdmaCmCalls {
  std::function<rdma_event_channel*()> create_event_channel;
  std::function<void(rdma_event_channel* channel)> destroy_event_channel;
  std::function<int(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                    rdma_port_space space)>
      create_id;
  std::function<int(rdma_cm_id* id)> destroy_id;
  std::function<int(rdma_cm_id* id, sockaddr* address)> bind_addr;
  std::function<int(rdma_cm_id* id, int backlog)> listen;
  std::function<int(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout_ms)> resolve_addr;
  std::function<int(rdma_cm_id* id, int timeout_ms)> resolve_route;
  std::function<int(rdma_cm_id* id, rdma_conn_param* parameters)> connect;
  std::function<int(rdma_cm_id* id, rdma_conn_param* parameters)> accept;
  std::function<int(rdma_cm_id* id, const void* data, uint8_t bytes)> reject;
  std::function<int(rdma_event_channel* channel, rdma_cm_event** event)> get_cm_event;
  std::function<int(rdma_cm_event* event)> ack_cm_event;
};

// kNotFound when the library is not installed; the message says what to install. It stays loaded
// for the life of the process.
absl::StatusOr<RdmaCmCalls> LoadRdmaCmCalls(const std::string& library = "librdmacm.so.1");

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_RDMA_CM_CALLS_H_
