#include "verbs/ofi/ofi_device.h"

#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

// A write before an immediate, and a send after both, land in the order of posting.
constexpr uint64_t kOrder = FI_ORDER_WAW | FI_ORDER_SAS | FI_ORDER_SAW;
constexpr int kMrModes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;
constexpr uint32_t kMaxDepth = 8192;

}  // namespace

absl::StatusOr<std::unique_ptr<OfiDevice>> OfiDevice::Open(OfiCalls calls,
                                                           const OfiProvider& provider,
                                                           const std::string& host) {
  std::unique_ptr<OfiDevice> device(new OfiDevice(std::move(calls), provider));
  absl::Status status = device->FindInfo(host);
  if (!status.ok()) return status;
  const std::string name = absl::StrCat("libfabric's provider ", provider.full_name);
  status =
      OfiStatus(device->calls_,
                device->calls_.open_fabric(device->info_->fabric_attr, &device->fabric_, nullptr),
                absl::StrCat(name, " opens no fabric"));
  if (!status.ok()) return status;
  status = OfiStatus(device->calls_,
                     fi_domain(device->fabric_, device->info_, &device->domain_, nullptr),
                     absl::StrCat(name, " opens no domain"));
  if (!status.ok()) return status;
  device->FillLimits();
  device->wakes_ = device->ProbeWakes();
  return device;
}

OfiDevice::~OfiDevice() {
  if (abandoned_.load(std::memory_order_relaxed)) return;
  const int closed = domain_ != nullptr ? fi_close(&domain_->fid) : 0;
  if (closed != 0) {
    TRYST_LOG(Error) << "libfabric's provider " << provider_.full_name
                     << " does not close its domain, which stays until the process ends: error "
                     << -closed;
    return;
  }
  if (fabric_ != nullptr) fi_close(&fabric_->fid);
  if (info_ != nullptr) calls_.free_info(info_);
}

absl::Status OfiDevice::AskFor(const std::string& host, int mr_mode, uint64_t order) {
  fi_info* const hints = calls_.dup_info(nullptr);
  if (hints == nullptr)
    return absl::ResourceExhaustedError(
        "the process has no memory left to ask libfabric for a NIC");
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = mr_mode;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->tx_attr->msg_order = order;
  hints->rx_attr->msg_order = order;
  hints->fabric_attr->prov_name = strdup(std::string(provider_.full_name).c_str());
  const bool by_host = provider_.takes_host && !host.empty();
  if (info_ != nullptr) calls_.free_info(std::exchange(info_, nullptr));
  const int returned = calls_.get_info(FI_VERSION(1, 17), by_host ? host.c_str() : nullptr, nullptr,
                                       by_host ? FI_SOURCE : 0, hints, &info_);
  calls_.free_info(hints);
  if (returned == 0) return absl::OkStatus();
  info_ = nullptr;
  return absl::UnavailableError(
      absl::StrCat("libfabric's provider ", provider_.full_name, " is not usable here",
                   by_host ? absl::StrCat(" on ", host) : "", ": ", calls_.error_text(-returned)));
}

absl::Status OfiDevice::FindInfo(const std::string& host) {
  absl::Status asked = AskFor(host, kMrModes, kOrder);
  uint64_t order = kOrder;
  if (!asked.ok()) {
    order = 0;
    asked = AskFor(host, kMrModes, order);
  }
  if (!asked.ok()) return asked;
  if ((info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0) return absl::OkStatus();
  // In this mode peers would name memory by its offset in the region. Asked in the older mode it
  // uses addresses, as every other NIC does.
  return AskFor(host, FI_MR_BASIC, order);
}

void OfiDevice::FillLimits() {
  const uint64_t order = info_->tx_attr->msg_order;
  limits_.max_message_bytes = std::min<uint64_t>(info_->ep_attr->max_msg_size, kMaxMessageBytes);
  limits_.max_entries = static_cast<uint32_t>(
      std::max<size_t>(std::min(info_->tx_attr->iov_limit, info_->rx_attr->iov_limit), 1));
  limits_.max_inline_bytes = 256;
  limits_.max_send_depth = kMaxDepth;
  limits_.max_receive_depth = kMaxDepth;
  limits_.max_completion_depth = 1 << 20;
  limits_.max_reads_in_flight = 16;
  limits_.ordered =
      (order & kOrder) == kOrder && info_->ep_attr->max_order_waw_size >= limits_.max_message_bytes;
  limits_.write_with_immediate = info_->domain_attr->cq_data_size >= 4;
  limits_.tells_length = tells_length();
}

bool OfiDevice::ProbeWakes() const {
  fi_cq_attr attributes = {};
  attributes.size = 16;
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.wait_obj = FI_WAIT_FD;
  fid_cq* queue = nullptr;
  if (fi_cq_open(domain_, &attributes, &queue, nullptr) != 0) return false;
  int descriptor = -1;
  const bool wakes = fi_control(&queue->fid, FI_GETWAIT, &descriptor) == 0 && descriptor >= 0;
  fi_close(&queue->fid);
  return wakes;
}

}  // namespace tryst
