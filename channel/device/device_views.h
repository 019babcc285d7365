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

// Tensors in other processes' memory, by reference: their producers are told that they are still
// looked at, and at last that they are not. Poller thread only; who holds a view may let go of it
// on any thread.
class DeviceViews {
 public:
  // `renewal_ms`: of the leases.
  DeviceViews(Poller* poller, int64_t renewal_ms, ProvedWays::AsideFn aside);
  ~DeviceViews() { poller_->CancelTimer(&timer_); }  // REQUIRES: empty().

  // Of the bytes at `data`, which `mapping`, the view's from now on, shows; null: they are this
  // process's.
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
