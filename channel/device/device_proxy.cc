#include "channel/device/device_proxy.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/device/device_selections.h"

namespace tryst {

absl::StatusOr<std::unique_ptr<DeviceProxy>> DeviceProxy::Open(Poller* poller,
                                                               const std::vector<const Gpu*>& gpus,
                                                               TensorSource* source,
                                                               const DeviceProxyOptions& options) {
  const uint64_t inside = options.source.inside_bytes + DeviceManifest::kBytes;
  if (options.source.chunk_bytes == 0 || options.source.chunk_bytes > options.engine.slot_bytes ||
      inside > options.engine.slot_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the bytes of a chunk and those inside a message, ", options.source.chunk_bytes, " and ",
        inside, ", must be above 0 and fit into staging slots of ", options.engine.slot_bytes));
  }
  std::unique_ptr<DeviceProxy> proxy(new DeviceProxy(poller, options));
  if (options.engine.arena != nullptr && options.engine.arena->peer_watcher() == nullptr) {
    options.engine.arena->SetPeerWatcher(std::make_shared<PeerSegments>());
  }
  for (const Gpu* gpu : gpus) {
    auto engine = DeviceEngine::Open(poller, gpu, options.engine);
    if (!engine.ok()) return engine.status();
    for (const Gpu* peer : gpus) {
      const absl::Status reached = gpu->EnablePeerAccess(*peer);
      if (!reached.ok()) TRYST_LOG(Info) << reached.message();
      if (reached.ok()) (*engine)->AddPeer(peer->ordinal());
    }
    proxy->engines_.push_back(*std::move(engine));
  }
  for (auto& engine : proxy->engines_) engine->Attach();
  proxy->source_ = std::make_unique<DeviceSource>(poller, source, proxy->Engines(), options.source);
  return proxy;
}

DeviceProxy::~DeviceProxy() {
  // Without a source Open() has failed, and nothing is attached.
  if (!stopped_ && source_ != nullptr) {
    source_->Close();
    for (auto& engine : engines_) engine->Detach();
  }
  fetcher_.reset();
  source_.reset();
}

std::vector<DeviceEngine*> DeviceProxy::Engines() const {
  std::vector<DeviceEngine*> engines;
  for (const auto& engine : engines_) engines.push_back(engine.get());
  return engines;
}

void DeviceProxy::SetChannels(TensorFetcher* channels) {
  TRYST_CHECK(fetcher_ == nullptr);
  fetcher_ = std::make_unique<DeviceFetcher>(poller_, channels, options_.fetcher);
}

DeviceEngine* DeviceProxy::engine(int ordinal) const {
  for (const auto& engine : engines_) {
    if (engine->gpu()->ordinal() == ordinal) return engine.get();
  }
  return nullptr;
}

absl::Status DeviceProxy::Stop(absl::Duration timeout) {
  const Clock& clock = poller_->clock();
  const Deadline until = Deadline::After(clock, timeout);
  for (auto& engine : engines_) engine->selections()->Close();
  while (!stopped_) {
    poller_->RunAndWait([this] {
      source_->Close();
      bool idle = fetcher_->Drained();
      for (auto& engine : engines_) idle &= engine->idle();
      if (!idle) return;
      for (auto& engine : engines_) engine->Detach();
      stopped_ = true;
    });
    if (!stopped_ && until.Passed(clock.NowNs())) {
      return absl::DeadlineExceededError(
          "copies of GPU tensors did not end within the time for stopping: raise stop_deadline");
    }
  }
  return absl::OkStatus();
}

std::string DeviceProxy::ExplainNow() const {
  std::string out;
  for (const auto& engine : engines_) {
    const GpuDevice& device = engine->gpu()->device();
    absl::StrAppend(&out, "GPU ", device.ordinal, " ", device.name, " at ", device.pci_bus_id, "; ",
                    engine->ExplainStaging(), "\n");
  }
  if (fetcher_ != nullptr && !engines_.empty()) absl::StrAppend(&out, fetcher_->Explain());
  absl::StrAppend(&out, source_->Explain());
  return out;
}

}  // namespace tryst
