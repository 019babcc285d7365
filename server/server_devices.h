#ifndef TRYST_SERVER_SERVER_DEVICES_H_
#define TRYST_SERVER_SERVER_DEVICES_H_

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
#include "server/config.h"

namespace tryst {

// The ways of device tensors that config.gpu_ways allows; staging always is.
struct DeviceWays {
  bool cuda_ipc = false;
  bool direct = false;
};
absl::StatusOr<DeviceWays> ParseDeviceWays(const std::string& text);

// A server's GPUs: opened, with what moves their tensors, and its NICs as far as they reach
// them. Not thread-safe but for Explain() and AddStats().
class ServerDevices {
 public:
  struct Parts {
    const ServerConfig* config = nullptr;
    std::vector<const Gpu*> gpus;  // Somebody's own; empty: those that config.gpus names.
    Poller* poller = nullptr;      // Not yet started.
    TensorSource* source = nullptr;
    std::shared_ptr<Arena> arena;  // Null: no shared memory. Not yet used.
    uint64_t seed = 1;
    std::vector<NicPath>* paths = nullptr;  // Each hardware NIC is replaced by one that reaches.
  };
  static bool Wanted(const ServerConfig& config, const std::vector<const Gpu*>& gpus) {
    return !config.gpus.empty() || !gpus.empty();
  }
  // kInvalidArgument: a setting. kNotFound, kUnavailable: no driver, or no such GPU.
  static absl::StatusOr<std::unique_ptr<ServerDevices>> Open(const Parts& parts);
  ~ServerDevices();  // REQUIRES: stopped, and the poller too, or it never ran.

  DeviceProxy* proxy() { return proxy_.get(); }
  std::vector<int> ordinals() const;

  // What moves where, by which way and why not by a better one; waits for the poller, but not
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

#endif  // TRYST_SERVER_SERVER_DEVICES_H_
