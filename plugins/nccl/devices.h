#ifndef TRYST_PLUGINS_NCCL_DEVICES_H_
#define TRYST_PLUGINS_NCCL_DEVICES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "plugins/nccl/settings.h"
#include "plugins/nccl/wire.h"
#include "verbs/nic.h"
#include "verbs/registration_cache.h"

namespace tryst::nccl {

// An open NIC and the memory registered with it: one rail of a comm.
struct Rail {
  std::unique_ptr<Nic> nic;
  std::unique_ptr<RegistrationCache> cache;
};

// One NIC, as NCCL numbers them. A traffic class is a property of an open NIC, so each class that
// is asked for opens the NIC once more. Thread-safe.
class PhysicalDevice {
 public:
  virtual ~PhysicalDevice() = default;
  // The first call opens it. The rail lives as long as the device.
  absl::StatusOr<Rail*> Open(int traffic_class);

  // Constant after FindDevices().
  std::string name;
  std::string reason;  // Why NCCL is offered this device.
  std::string pci_path;
  std::string control_host;  // The host by which peers reach the control socket.
  DeviceKind kind = DeviceKind::kSoft;
  uint64_t guid = 0;
  int speed_mbps = 0;
  int port = 1;
  int pointer_support = kPointerHost;
  uint64_t max_message_bytes = 0;

 protected:
  virtual absl::StatusOr<std::unique_ptr<Nic>> OpenNic(int traffic_class) = 0;

 private:
  Mutex mu_;
  std::map<int, Rail> rails_ ABSL_GUARDED_BY(mu_);
};

// kUnimplemented: NCCL cannot be served by such a NIC; the message says why.
absl::Status ServesNccl(const NicLimits& limits);

// Which memory NCCL may register, as bits. Without `peer_memory_module` no NIC takes a device
// pointer, and NCCL fails where it was told that one does.
int PointerSupport(const NicLimits& limits, bool peer_memory_module);

// A device that NCCL may use: one NIC, or several fused into one.
struct Device {
  std::string name;
  std::vector<int> members;  // The numbers of its physical devices.
};

struct DeviceSearch {
  std::vector<std::unique_ptr<PhysicalDevice>> found;
  std::vector<std::string> explanation;  // One line for each device that was considered.
};

// Finds RDMA NICs, if any work; otherwise the network interfaces, for the software NIC. `settings`
// may choose one of the two, or libfabric. kNotFound: there is none; the message says why.
absl::StatusOr<DeviceSearch> FindDevices(const Settings& settings);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_DEVICES_H_
