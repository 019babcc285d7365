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

// An open NIC and what of it is registered: one rail of a comm.
struct Rail {
  std::unique_ptr<Nic> nic;
  std::unique_ptr<RegistrationCache> cache;
};

// One NIC, as NCCL numbers them. A traffic class is a NIC's own setting, so each class
// that is asked for opens the NIC once more. Any thread.
class PhysicalDevice {
 public:
  virtual ~PhysicalDevice() = default;
  // Opens it at the first call. Lives as long as the device.
  absl::StatusOr<Rail*> Open(int traffic_class);

  // Constant once made.
  std::string name;
  std::string reason;  // Why it is offered.
  std::string pci_path;
  std::string control_host;  // Where peers dial for the control socket.
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

// A device that NCCL may use: one NIC, or several fused into one.
struct Device {
  std::string name;
  std::vector<int> members;  // Physical devices, by number.
};

struct DeviceSearch {
  std::vector<std::unique_ptr<PhysicalDevice>> found;
  std::vector<std::string> explanation;  // A line for each that was looked at.
};

// RDMA NICs where there are some that work, else the network interfaces by the software
// NIC; `settings` may ask for one of the two, or for libfabric. Nothing found is kNotFound with the
// reasons.
absl::StatusOr<DeviceSearch> FindDevices(const Settings& settings);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_DEVICES_H_
