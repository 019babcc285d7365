#include "verbs/ibv/ibv_nic.h"

#include <atomic>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/log.h"
#include "verbs/ibv/ibv_completion_queue.h"
#include "verbs/ibv/ibv_device.h"
#include "verbs/ibv/ibv_port.h"
#include "verbs/ibv/ibv_queue_pair.h"
#include "verbs/ibv/ibv_region.h"
#include "verbs/ibv/ibv_status.h"

namespace tryst {
namespace {

uint32_t KernelRandom() {
  std::random_device device;
  return device();
}

// The kind of an event that concerns channels; other events are ignored.
absl::optional<NicEvent::Kind> KindOf(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_PORT_ACTIVE:
      return NicEvent::Kind::kPortUp;
    case IBV_EVENT_PORT_ERR:
      return NicEvent::Kind::kPortDown;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
      return NicEvent::Kind::kAddressChanged;
    case IBV_EVENT_DEVICE_FATAL:
      return NicEvent::Kind::kDeviceFatal;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      return NicEvent::Kind::kQueuePairFatal;
    case IBV_EVENT_CQ_ERR:
      return NicEvent::Kind::kCompletionQueueFatal;
    default:
      return absl::nullopt;
  }
}

NicEvent EventOf(NicEvent::Kind kind, const ibv_async_event& from) {
  NicEvent event;
  event.kind = kind;
  switch (kind) {
    case NicEvent::Kind::kPortUp:
    case NicEvent::Kind::kPortDown:
    case NicEvent::Kind::kAddressChanged:
      event.port = static_cast<uint8_t>(from.element.port_num);
      break;
    case NicEvent::Kind::kQueuePairFatal:
      event.id = from.element.qp->qp_num;
      break;
    case NicEvent::Kind::kDeviceFatal:
    case NicEvent::Kind::kCompletionQueueFatal:
      break;
  }
  return event;
}

class IbvNic final : public Nic {
 public:
  IbvNic(std::unique_ptr<IbvDevice> device, uint8_t port, std::string sysfs_root)
      : device_(std::move(device)), first_port_(port), sysfs_root_(std::move(sysfs_root)) {}

  std::string name() const override { return device_->name(); }
  const NicLimits& limits() const override { return device_->limits(); }
  std::vector<NicPort> Ports() const override;

  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    return IbvRegion::Register(device_.get(), address, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int fd, uint64_t offset, uint64_t bytes,
                                                         uint64_t remote_base,
                                                         uint32_t access) override {
    return IbvRegion::RegisterDmaBuf(device_.get(), fd, offset, bytes, remote_base, access);
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override {
    return IbvCompletionQueue::Create(device_.get(), depth);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    return IbvQueuePair::Create(device_.get(), options, sysfs_root_);
  }

  absl::optional<NicEvent> NextEvent() override;
  int event_fd() const override { return device_->context()->async_fd; }

 private:
  NicPort PortOf(uint8_t number) const;

  const std::unique_ptr<IbvDevice> device_;
  const uint8_t first_port_;
  const std::string sysfs_root_;
  std::atomic<bool> events_lost_{false};  // The descriptor failed, and that was reported.
};

NicPort IbvNic::PortOf(uint8_t number) const {
  const IbvPort from =
      ProbePort(device_->calls(), device_->context(), number, device_->settings(), sysfs_root_);
  NicPort port;
  port.number = number;
  port.state = from.state;
  port.mtu_bytes = from.mtu_bytes;
  port.bits_per_second = from.bits_per_second;
  port.address = GidText(from.gid.gid);
  port.description = from.description;
  return port;
}

std::vector<NicPort> IbvNic::Ports() const {
  std::vector<NicPort> ports = {PortOf(first_port_)};
  for (int number = 1; number <= device_->port_count(); ++number) {
    if (number != first_port_) ports.push_back(PortOf(static_cast<uint8_t>(number)));
  }
  return ports;
}

absl::optional<NicEvent> IbvNic::NextEvent() {
  while (true) {
    ibv_async_event event = {};
    const absl::StatusOr<bool> taken = FromEventCall(
        device_->calls().get_async_event(device_->context(), &event), "ibv_get_async_event");
    if (!taken.ok()) {
      // Reported once as the device's death, then never again.
      if (events_lost_.exchange(true)) return absl::nullopt;
      TRYST_LOG(Error) << name() << ": " << taken.status();
      NicEvent fatal;
      fatal.kind = NicEvent::Kind::kDeviceFatal;
      return fatal;
    }
    if (!*taken) return absl::nullopt;
    const absl::optional<NicEvent::Kind> kind = KindOf(event.event_type);
    absl::optional<NicEvent> ours;
    if (kind) ours = EventOf(*kind, event);
    // Only after this may the object that the event names be destroyed.
    device_->calls().ack_async_event(&event);
    if (ours) return ours;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Nic>> OpenIbvNic(const IbvNicOptions& options) {
  absl::StatusOr<IbvCalls> calls =
      options.calls ? absl::StatusOr<IbvCalls>(*options.calls) : LoadIbvCalls();
  if (!calls.ok()) return calls.status();
  const IbvChoice choice = ChooseIbvPort(*calls, options.choice);
  if (!choice.chosen) return choice.status;
  const IbvCandidate& chosen = choice.candidates[*choice.chosen];
  absl::StatusOr<std::unique_ptr<IbvDevice>> device =
      IbvDevice::Open(*std::move(calls), chosen.device, options.choice.settings,
                      options.random ? options.random : KernelRandom);
  if (!device.ok()) return device.status();
  return std::unique_ptr<Nic>(
      new IbvNic(*std::move(device), chosen.port.number, options.choice.sysfs_root));
}

}  // namespace tryst
