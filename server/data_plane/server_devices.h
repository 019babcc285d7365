#ifndef TRYST_SERVER_DATA_PLANE_SERVER_DEVICES_H_
#define TRYST_SERVER_DATA_PLANE_SERVER_DEVICES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/device/device_proxy.h"
#include "channel/device/gpu_nic.h"
#include "channel/rdma/rdma_options.h"
#include "server/config/config.h"

namespace tryst {

// A server's GPUs, the parts that move their tensors, and the NICs as far as they reach GPU memory.
// Not thread-safe except for Explain() and AddStats().
class ServerDevices {
 public:
  struct Parts {
    const ServerConfig* config = nullptr;
    std::vector<const Gpu*> gpus;  // The embedder's; empty: open those that config.gpus names.
    Poller* poller = nullptr;      // It has not started yet.
    TensorSource* source = nullptr;
    std::shared_ptr<Arena> arena;  // Null: no shared memory. Not used before Open().
    uint64_t seed = 1;
    // Open() replaces each hardware NIC that can reach GPU memory.
    std::vector<NicPath>* paths = nullptr;
    DeviceProxyOptions options;  // Open() adds what the config and the parts above say.
  };
  static bool Wanted(const ServerConfig& config, const std::vector<const Gpu*>& gpus) {
    return !config.gpus.empty() || !gpus.empty();
  }
  // kInvalidArgument: a setting is wrong. kNotFound, kUnavailable: no driver, or no such GPU.
  static absl::StatusOr<std::unique_ptr<ServerDevices>> Open(const Parts& parts);
  ~ServerDevices();  // REQUIRES: it is stopped, and the poller has stopped or never ran.

  DeviceProxy* proxy() { return proxy_.get(); }
  std::vector<int> ordinals() const;

  // How tensors of each GPU travel, and why not in a better way. Asks the poller, but does not wait
  // for one that is stuck.
  std::string Explain() const;
  void AddStats(std::map<std::string, int64_t>* stats) const;

 private:
  explicit ServerDevices(Poller* poller) : poller_(poller) {}
  absl::Status OpenGpus(const std::string& names);
  // False: the poller does not answer.
  bool OnPoller(std::function<void()> fn) const;

  Poller* const poller_;
  std::unique_ptr<CudaDriver> driver_;
  std::vector<std::unique_ptr<Gpu>> own_;
  std::vector<const Gpu*> gpus_;
  std::vector<std::shared_ptr<GpuNic>> nics_;
  std::unique_ptr<DeviceProxy> proxy_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_DATA_PLANE_SERVER_DEVICES_H_
