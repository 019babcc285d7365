#include "verbs/ofi/ofi_nic.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "verbs/ofi/ofi_completion_queue.h"
#include "verbs/ofi/ofi_device.h"
#include "verbs/ofi/ofi_provider.h"
#include "verbs/ofi/ofi_queue_pair.h"
#include "verbs/ofi/ofi_region.h"

namespace tryst {
namespace {

class OfiNic final : public Nic {
 public:
  OfiNic(std::unique_ptr<OfiDevice> device, std::string host, int events)
      : device_(std::move(device)), host_(std::move(host)), events_(events) {}
  ~OfiNic() override { close(events_); }

  std::string name() const override { return absl::StrCat("ofi:", device_->provider().name); }
  const NicLimits& limits() const override { return device_->limits(); }
  std::vector<NicPort> Ports() const override;

  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    return OfiRegion::Register(device_.get(), address, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int, uint64_t, uint64_t, uint64_t,
                                                         uint32_t) override {
    return absl::UnimplementedError("a libfabric NIC cannot register GPU memory");
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override {
    return OfiCompletionQueue::Create(device_.get(), depth);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    return OfiQueuePair::Create(device_.get(), options);
  }
  absl::optional<NicEvent> NextEvent() override { return absl::nullopt; }
  int event_fd() const override { return events_; }

 private:
  const std::unique_ptr<OfiDevice> device_;
  const std::string host_;
  const int events_;  // Never readable, because libfabric has no such events.
};

std::vector<NicPort> OfiNic::Ports() const {
  const fi_info& info = *device_->info();
  const NicLimits& limits = device_->limits();
  NicPort port;
  port.state = PortState::kActive;
  port.address = device_->provider().takes_host ? host_ : info.domain_attr->name;
  if (info.nic != nullptr && info.nic->link_attr != nullptr) {
    port.mtu_bytes = static_cast<uint32_t>(info.nic->link_attr->mtu);
    port.bits_per_second = info.nic->link_attr->speed;
  }
  const uint32_t version = device_->calls().version();
  port.description = absl::StrCat(
      "libfabric ", FI_MAJOR(version), ".", FI_MINOR(version), ", provider ",
      device_->provider().full_name, ", domain ", info.domain_attr->name,
      limits.ordered ? ", ordered" : ", no order",
      limits.write_with_immediate ? "" : ", no immediates", "; ", device_->provider().differences);
  return {port};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Nic>> OpenOfiNic(const OfiNicOptions& options) {
  const absl::StatusOr<OfiProvider> provider = FindOfiProvider(options.provider);
  if (!provider.ok()) return provider.status();
  absl::StatusOr<OfiCalls> calls =
      options.calls ? absl::StatusOr<OfiCalls>(*options.calls) : LoadOfiCalls();
  if (!calls.ok()) return calls.status();
  auto device = OfiDevice::Open(*std::move(calls), *provider, options.host);
  if (!device.ok()) return device.status();
  const int events = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (events < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the process has no file descriptor left for a NIC's events: raise the limit "
                     "of open files (ulimit -n): ",
                     strerror(errno)));
  }
  return std::unique_ptr<Nic>(new OfiNic(*std::move(device), options.host, events));
}

}  // namespace tryst
