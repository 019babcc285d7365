#include "verbs/ofi/ofi_endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

// A work completes when the bytes are in the peer's memory, not when they have left.
constexpr uint64_t kWriteFlags = FI_COMPLETION | FI_DELIVERY_COMPLETE;

constexpr size_t kNameBytes = 256;  // The most that a provider's endpoint is called by.

template <typename Object>
void CloseObject(Object** object) {
  if (*object == nullptr) return;
  const int closed = fi_close(&std::exchange(*object, nullptr)->fid);
  if (closed != 0)
    TRYST_LOG(Error) << "libfabric does not close an object of an endpoint, which stays until the "
                        "process ends: error "
                     << -closed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OfiEndpoint>> OfiEndpoint::Open(OfiDevice* device, size_t depth) {
  std::unique_ptr<OfiEndpoint> endpoint(new OfiEndpoint(device));
  const absl::Status status = endpoint->Initialize(depth);
  if (!status.ok()) return status;
  return endpoint;
}

absl::Status OfiEndpoint::Initialize(size_t depth) {
  const auto step = [this](int64_t returned, const char* what) {
    return OfiStatus(
        device_->calls(), returned,
        absl::StrCat("libfabric's provider ", device_->provider().full_name, " ", what));
  };
  fi_av_attr address_attributes = {};
  address_attributes.type = FI_AV_TABLE;
  address_attributes.count = 1;
  absl::Status status =
      step(fi_av_open(device_->domain(), &address_attributes, &addresses_, nullptr),
           "opens no address table");
  if (!status.ok()) return status;
  fi_cq_attr queue_attributes = {};
  queue_attributes.size = depth;
  queue_attributes.format = FI_CQ_FORMAT_DATA;
  queue_attributes.wait_obj = device_->wakes() ? FI_WAIT_FD : FI_WAIT_NONE;
  status = step(fi_cq_open(device_->domain(), &queue_attributes, &completions_, nullptr),
                "opens no completion queue");
  if (!status.ok()) return status;
  status = step(fi_endpoint(device_->domain(), device_->info(), &endpoint_, nullptr),
                "opens no endpoint");
  if (!status.ok()) return status;
  status = step(fi_ep_bind(endpoint_, &addresses_->fid, 0), "binds no address table");
  if (!status.ok()) return status;
  status = step(fi_ep_bind(endpoint_, &completions_->fid, FI_TRANSMIT | FI_RECV),
                "binds no completion queue");
  if (!status.ok()) return status;
  status = step(fi_enable(endpoint_), "enables no endpoint");
  if (!status.ok() || !device_->wakes()) return status;
  return step(fi_control(&completions_->fid, FI_GETWAIT, &descriptor_), "has no descriptor");
}

void OfiEndpoint::Close() {
  descriptor_ = -1;
  if (shares_process_ && endpoint_ != nullptr) {
    // Nobody polls it any more, and without polling no byte lands through it.
    device_->Abandon();
    endpoint_ = nullptr;
    completions_ = nullptr;
    addresses_ = nullptr;
    return;
  }
  CloseObject(&endpoint_);
  CloseObject(&completions_);
  CloseObject(&addresses_);
}

absl::StatusOr<std::string> OfiEndpoint::Name() const {
  std::string name(kNameBytes, '\0');
  size_t bytes = name.size();
  const absl::Status got = OfiStatus(
      device_->calls(), fi_getname(&endpoint_->fid, &name[0], &bytes), "an endpoint has no name");
  if (!got.ok()) return got;
  name.resize(bytes);
  return name;
}

// In libfabric 1.17's shared memory, two endpoints of one process access each other's queues
// directly, and go on when one of them was closed and unmapped. If both ends are in one process, as
// in tests, an endpoint is therefore kept until the process ends.
bool OfiEndpoint::IsOfThisProcess(const std::string& name) const {
  return device_->provider().full_name == "shm" &&
         absl::StartsWith(name, absl::StrCat("fi_shm://", getpid(), ":"));
}

// libfabric is told no length: it reads a name in text up to a zero, and another as far as its
// first bytes say.
absl::Status OfiEndpoint::SetPeer(const std::string& name) {
  const absl::StatusOr<std::string> ours = Name();
  if (!ours.ok()) return ours.status();
  const bool is_text = device_->info()->addr_format == FI_ADDR_STR;
  if (is_text ? name.size() <= kNameBytes : name.size() == ours->size()) {
    std::string readable = name;
    readable.resize(kNameBytes + 1, '\0');
    if (fi_av_insert(addresses_, readable.data(), 1, &peer_, 0, nullptr) == 1) {
      shares_process_ = IsOfThisProcess(name);
      return absl::OkStatus();
    }
  }
  peer_ = FI_ADDR_UNSPEC;
  return absl::InvalidArgumentError(absl::StrCat("libfabric's provider ",
                                                 device_->provider().full_name,
                                                 " does not accept the peer's address"));
}

bool OfiEndpoint::MaySleep() const {
  if (descriptor_ < 0) return true;  // Its sleeping thread wakes by a timer.
  fid* one = &completions_->fid;
  return fi_trywait(device_->fabric(), &one, 1) == FI_SUCCESS;
}

int64_t OfiEndpoint::Send(const void* bytes, size_t count, void* descriptor, OfiContext* context) {
  return fi_send(endpoint_, bytes, count, descriptor, peer_, &context->provider);
}

int64_t OfiEndpoint::Receive(void* into, size_t count, void* descriptor, OfiContext* context) {
  return fi_recv(endpoint_, into, count, descriptor, FI_ADDR_UNSPEC, &context->provider);
}

int64_t OfiEndpoint::Write(absl::Span<const iovec> from, void** descriptors, uint64_t to,
                           uint64_t key, const uint64_t* immediate, OfiContext* context) {
  fi_rma_iov target = {to, 0, key};
  for (const iovec& piece : from) target.len += piece.iov_len;
  fi_msg_rma message = {};
  message.msg_iov = from.data();
  message.desc = descriptors;
  message.iov_count = from.size();
  message.addr = peer_;
  message.rma_iov = &target;
  message.rma_iov_count = 1;
  message.context = &context->provider;
  message.data = immediate == nullptr ? 0 : *immediate;
  return fi_writemsg(endpoint_, &message,
                     kWriteFlags | (immediate == nullptr ? 0 : FI_REMOTE_CQ_DATA));
}

int64_t OfiEndpoint::Read(absl::Span<const iovec> into, void** descriptors, uint64_t from,
                          uint64_t key, OfiContext* context) {
  fi_rma_iov source = {from, 0, key};
  for (const iovec& piece : into) source.len += piece.iov_len;
  fi_msg_rma message = {};
  message.msg_iov = into.data();
  message.desc = descriptors;
  message.iov_count = into.size();
  message.addr = peer_;
  message.rma_iov = &source;
  message.rma_iov_count = 1;
  message.context = &context->provider;
  return fi_readmsg(endpoint_, &message, FI_COMPLETION);
}

}  // namespace tryst
