#include "verbs/ibv/ibv_device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/ibv/ibv_status.h"

namespace tryst {
namespace {

// More READs in flight have never helped one queue pair, and each costs the NIC state.
constexpr int kMaxReads = 16;

uint32_t ToUnsigned(int value) { return value < 0 ? 0 : static_cast<uint32_t>(value); }

}  // namespace

IbvDevice::IbvDevice(IbvCalls calls, const RdmaSettings& settings, std::function<uint32_t()> random)
    : calls_(std::move(calls)), settings_(settings), random_(std::move(random)) {}

IbvDevice::~IbvDevice() {
  const int64_t left = live_.load(std::memory_order_relaxed);
  TRYST_CHECK(left == 0) << left << " regions, queues or pairs outlive their NIC";
  if (domain_ != nullptr) {
    const absl::Status status = FromReturned(calls_.dealloc_pd(domain_), "ibv_dealloc_pd");
    if (!status.ok()) TRYST_LOG(Error) << status;
  }
  if (context_ != nullptr) {
    const absl::Status status = FromReturned(calls_.close_device(context_), "ibv_close_device");
    if (!status.ok()) TRYST_LOG(Error) << status;
  }
}

absl::StatusOr<std::unique_ptr<IbvDevice>> IbvDevice::Open(IbvCalls calls, const std::string& name,
                                                           const RdmaSettings& settings,
                                                           std::function<uint32_t()> random) {
  std::unique_ptr<IbvDevice> device(new IbvDevice(std::move(calls), settings, std::move(random)));
  const absl::Status status = device->Initialize(name);
  if (!status.ok()) return status;
  return device;
}

absl::Status IbvDevice::Initialize(const std::string& name) {
  int count = 0;
  const absl::StatusOr<ibv_device**> list =
      FromPointer(calls_.get_device_list(&count), "ibv_get_device_list");
  if (!list.ok()) return list.status();
  absl::StatusOr<ibv_context*> context =
      absl::UnavailableError(absl::StrCat("RDMA device ", name, " is gone"));
  for (int i = 0; i < count; ++i) {
    if (name == (*list)[i]->name) {
      context = FromPointer(calls_.open_device((*list)[i]), "ibv_open_device");
    }
  }
  calls_.free_device_list(*list);
  if (!context.ok()) return context.status();
  context_ = *context;
  // NextEvent() must never wait.
  const int flags = fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return FromErrno(errno, "fcntl of the event descriptor");
  }
  const absl::StatusOr<ibv_pd*> domain = FromPointer(calls_.alloc_pd(context_), "ibv_alloc_pd");
  if (!domain.ok()) return domain.status();
  domain_ = *domain;
  return FillLimits();
}

absl::Status IbvDevice::FillLimits() {
  ibv_device_attr attributes = {};
  absl::Status status =
      FromReturned(calls_.query_device(context_, &attributes), "ibv_query_device");
  if (!status.ok()) return status;
  port_count_ = attributes.phys_port_cnt;
  reads_served_ = std::min(attributes.max_qp_rd_atom, kMaxReads);
  // The least of all ports, so that a limit holds on each of them.
  uint64_t message_bytes = std::numeric_limits<uint32_t>::max();
  for (int number = 1; number <= port_count_; ++number) {
    ibv_port_attr port = {};
    status = FromReturned(calls_.query_port(context_, number, &port), "ibv_query_port");
    if (!status.ok()) return status;
    message_bytes = std::min<uint64_t>(message_bytes, port.max_msg_sz);
  }
  limits_.max_message_bytes = message_bytes;
  limits_.max_entries = ToUnsigned(attributes.max_sge);
  // One entry of each queue, and half of a completion queue, are reserved for the markers that tell
  // when a broken queue pair has drained.
  limits_.max_send_depth = ToUnsigned(attributes.max_qp_wr - 1);
  limits_.max_receive_depth = ToUnsigned(attributes.max_qp_wr - 1);
  limits_.max_completion_depth = ToUnsigned(attributes.max_cqe / 2);
  limits_.max_reads_in_flight = ToUnsigned(std::min(attributes.max_qp_init_rd_atom, kMaxReads));
  limits_.relaxed_ordering = calls_.reg_mr_iova2 != nullptr;
  limits_.dma_buf = ProbeDmaBuf();
  limits_.device_pointers = true;
  limits_.max_inline_bytes = ProbeInlineBytes();
  return absl::OkStatus();
}

// No attribute tells, so make queue pairs: one that asks for too much is refused.
uint32_t IbvDevice::ProbeInlineBytes() const {
  ibv_cq* queue = calls_.create_cq(context_, 4, nullptr, nullptr, 0);
  if (queue == nullptr) return 0;
  uint32_t found = 0;
  for (uint32_t bytes : {1024, 512, 256, 220, 128, 64, 32}) {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = queue;
    attributes.recv_cq = queue;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {1, 1, 1, 1, bytes};
    ibv_qp* pair = calls_.create_qp(domain_, &attributes);
    if (pair == nullptr) continue;
    found = bytes;
    const absl::Status status = FromReturned(calls_.destroy_qp(pair), "ibv_destroy_qp");
    if (!status.ok()) TRYST_LOG(Error) << status;
    break;
  }
  const absl::Status status = FromReturned(calls_.destroy_cq(queue), "ibv_destroy_cq");
  if (!status.ok()) TRYST_LOG(Error) << status;
  return found;
}

// The descriptor is invalid on purpose. A kernel that supports dma-buf on this device complains
// about the descriptor, another about the request.
bool IbvDevice::ProbeDmaBuf() const {
  if (calls_.reg_dmabuf_mr == nullptr) return false;
  constexpr size_t kPage = 4096;
  ibv_mr* region = calls_.reg_dmabuf_mr(domain_, 0, kPage, 0, -1, 0);
  if (region == nullptr) return errno == EBADF;
  const absl::Status status = FromReturned(calls_.dereg_mr(region), "ibv_dereg_mr");
  if (!status.ok()) TRYST_LOG(Error) << status;
  return true;
}

int IbvDevice::NextCompletionVector() {
  const int vectors = std::max(context_->num_comp_vectors, 1);
  return static_cast<int>(next_vector_.fetch_add(1, std::memory_order_relaxed) % vectors);
}

}  // namespace tryst
