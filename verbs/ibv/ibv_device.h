#ifndef TRYST_VERBS_IBV_IBV_DEVICE_H_
#define TRYST_VERBS_IBV_IBV_DEVICE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbs/ibv/ibv_calls.h"
#include "verbs/ibv/rdma_settings.h"
#include "verbs/nic.h"

namespace tryst {

// An open device and its protection domain: what everything made from one IbvNic shares. Constant
// after Open() except for the count. Thread-safe.
class IbvDevice {
 public:
  // kUnavailable: there is no device with this name any more.
  static absl::StatusOr<std::unique_ptr<IbvDevice>> Open(IbvCalls calls, const std::string& name,
                                                         const RdmaSettings& settings,
                                                         std::function<uint32_t()> random);
  ~IbvDevice();  // REQUIRES: nothing made from it is left.
  IbvDevice(const IbvDevice&) = delete;
  IbvDevice& operator=(const IbvDevice&) = delete;

  const IbvCalls& calls() const { return calls_; }
  const RdmaSettings& settings() const { return settings_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const NicLimits& limits() const { return limits_; }
  // How many READs a queue pair can serve at once (limits() has how many it may ask).
  uint8_t reads_served() const { return reads_served_; }
  uint8_t port_count() const { return port_count_; }
  std::string name() const { return context_->device->name; }
  uint32_t Random() const { return random_(); }  // For a queue pair's first packet number.
  int NextCompletionVector();

  // Counts what lives on the device.
  void OnMade() { live_.fetch_add(1, std::memory_order_relaxed); }
  void OnGone() { live_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  IbvDevice(IbvCalls calls, const RdmaSettings& settings, std::function<uint32_t()> random);
  absl::Status Initialize(const std::string& name);
  absl::Status FillLimits();
  uint32_t ProbeInlineBytes() const;
  bool ProbeDmaBuf() const;

  const IbvCalls calls_;
  const RdmaSettings settings_;
  const std::function<uint32_t()> random_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  NicLimits limits_;
  uint8_t reads_served_ = 0;
  uint8_t port_count_ = 0;
  std::atomic<uint32_t> next_vector_{0};
  std::atomic<int64_t> live_{0};
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_DEVICE_H_
