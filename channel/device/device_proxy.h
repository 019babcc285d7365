#ifndef TRYST_CHANNEL_DEVICE_DEVICE_PROXY_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_PROXY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "channel/device/device_engine.h"
#include "channel/device/device_fetcher.h"
#include "channel/device/device_source.h"

namespace tryst {

struct DeviceProxyOptions {
  DeviceEngineOptions engine;
  DeviceSourceOptions source;
  DeviceFetcherOptions fetcher;
};

// What a worker with GPUs puts around its channels: source() stands between channels and steps,
// fetcher() between steps and channels. Device tensors then move over every channel.
class DeviceProxy {
 public:
  // `poller` has not started yet. `gpus` and `source` outlive the proxy, and `gpus` outlive mapped
  // memory of peers, too. With an arena, call it before the arena is shared. kInvalidArgument: the
  // limits are inconsistent.
  static absl::StatusOr<std::unique_ptr<DeviceProxy>> Open(Poller* poller,
                                                           const std::vector<const Gpu*>& gpus,
                                                           TensorSource* source,
                                                           const DeviceProxyOptions& options);
  ~DeviceProxy();  // REQUIRES: stopped, or the poller never ran.

  // Call it once, before the first fetch. `channels` outlives the proxy.
  void SetChannels(TensorFetcher* channels);

  TensorSource* source() { return source_.get(); }
  TensorFetcher* fetcher() { return fetcher_.get(); }
  // Copies under way by device contexts. Their ends come to parts of this.
  size_t copying() const { return source_->copying() + fetcher_->copying(); }
  // Null: that GPU is not open.
  DeviceEngine* engine(int ordinal) const;

  // Call it after the channels were stopped, not on the poller thread: waits until no copy is under
  // way. kDeadlineExceeded: the proxy must not be destroyed.
  absl::Status Stop(absl::Duration timeout);
  // Lends no further tensors; returns how many GPUs of peers may still read. Not on the poller
  // thread.
  size_t EndLending() {
    size_t lent = 0;
    poller_->RunAndWait([&] { lent = source_->EndLending(); });
    return lent;
  }
  // ---- On the poller thread ----
  std::string ExplainNow() const;
  size_t transfers_kept() const { return source_->transfers(); }
  const DeviceSourceCounters& source_counters() const { return source_->counters(); }
  const DeviceFetcherCounters& fetcher_counters() const { return fetcher_->counters(); }

 private:
  DeviceProxy(Poller* poller, const DeviceProxyOptions& options)
      : poller_(poller), options_(options) {}
  std::vector<DeviceEngine*> Engines() const;

  Poller* const poller_;
  const DeviceProxyOptions options_;
  std::vector<std::unique_ptr<DeviceEngine>> engines_;
  std::unique_ptr<DeviceSource> source_;
  std::unique_ptr<DeviceFetcher> fetcher_;
  bool stopped_ = false;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_PROXY_H_
