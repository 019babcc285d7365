#include "channel/device/device_views.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace tryst {

// A tensor in another process's memory, by reference. When its last reference is gone, the poller
// tells the producer.
class DeviceViews::View final : public Storage {
 public:
  View(DeviceViews* owner, DeviceEngine* engine, IpcMappings::Mapping* mapping, void* data,
       int64_t its_step, const TensorKey& its_key, const DeviceManifest& manifest)
      : Storage(data, manifest.bytes,
                MemorySpace{MemorySpace::Kind::kDevice, engine->gpu()->ordinal()}),
        step(its_step),
        key(its_key),
        transfer(manifest.transfer),
        owner_(owner),
        engine_(engine),
        mapping_(mapping) {}

  // On the poller thread.
  void Close() {
    if (mapping_ != nullptr) engine_->mappings()->Close(mapping_);
    delete this;
  }

  const int64_t step;
  const TensorKey key;
  const uint64_t transfer;

 private:
  ~View() override = default;
  void OnUnused() override {
    owner_->poller_->PostFn([this] { owner_->End(this); });
  }

  DeviceViews* const owner_;
  DeviceEngine* const engine_;
  IpcMappings::Mapping* const mapping_;
};

DeviceViews::DeviceViews(Poller* poller, int64_t renewal_ms, ProvedWays::AsideFn aside)
    : poller_(poller), renewal_ms_(renewal_ms), aside_(std::move(aside)) {}

absl::StatusOr<Tensor> DeviceViews::Make(DeviceEngine* engine, IpcMappings::Mapping* mapping,
                                         void* data, int64_t step, const TensorKey& key,
                                         const DeviceManifest& manifest) {
  auto* view = new View(this, engine, mapping, data, step, key, manifest);
  if (views_.empty()) poller_->SetTimer(&timer_, poller_->now_ns() + renewal_ms_ * 1'000'000);
  views_.insert(view);
  return Tensor::FromStorage(StorageRef::Own(view), 0, manifest.dtype, manifest.shape);
}

void DeviceViews::Renew() {
  for (View* view : views_) {
    aside_(view->step, TransferKey(view->key, view->transfer, "alive"), Tensor(),
           [text = std::string(view->key.text())](absl::Status kept, const Tensor&) {
             if (kept.ok()) return;
             TRYST_LOG(Error) << "do not trust the received tensor " << text
                              << ", which lies in memory that its producer no longer keeps: "
                              << kept;
           });
  }
  if (views_.empty()) return;
  poller_->SetTimer(&timer_, poller_->now_ns() + renewal_ms_ * 1'000'000);
}

void DeviceViews::End(View* view) {
  views_.erase(view);
  aside_(view->step, TransferKey(view->key, view->transfer, "done"), Tensor(),
         [](absl::Status, const Tensor&) {});
  view->Close();
}

}  // namespace tryst
