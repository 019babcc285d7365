#ifndef TRYST_CHANNEL_DEVICE_DEVICE_VIEWS_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_VIEWS_H_

#include <cstdint>
#include <set>

#include "absl/status/statusor.h"
#include "channel/device/device_engine.h"
#include "channel/device/manifest.h"
#include "channel/device/proved_ways.h"
#include "channel/poller/poller.h"
#include "rendezvous/tensor.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// Tensors in other processes' memory, by reference. It renews the lease of each view at its
// producer, and ends it when the view is gone. Poller thread only; views may be dropped on any
// thread.
class DeviceViews {
 public:
  // `renewal_ms` is the time between renewals.
  DeviceViews(Poller* poller, int64_t renewal_ms, ProvedWays::AsideFn aside);
  ~DeviceViews() { poller_->CancelTimer(&timer_); }  // REQUIRES: empty().

  // A view of the bytes at `data`. It takes over `mapping`, in which they lie; null: they are this
  // process's own.
  absl::StatusOr<Tensor> Make(DeviceEngine* engine, IpcMappings::Mapping* mapping, void* data,
                              int64_t step, const TensorKey& key, const DeviceManifest& manifest);
  bool empty() const { return views_.empty(); }

 private:
  class View;
  struct Timer final : PollerTimer {
    explicit Timer(DeviceViews* views) : views(views) {}
    void OnTimer() override { views->Renew(); }
    DeviceViews* const views;
  };
  void Renew();
  void End(View* view);

  Poller* const poller_;
  const int64_t renewal_ms_;
  ProvedWays::AsideFn aside_;
  std::set<View*> views_;
  Timer timer_{this};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_VIEWS_H_
