#include "server/data_plane/server_devices.h"

#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/mutex.h"

namespace tryst {
namespace {

constexpr std::chrono::milliseconds kPatience(200);

// A question to the poller. Its asker may have given up before the poller answers.
struct Question {
  Mutex mu;
  CondVar answered;
  bool done ABSL_GUARDED_BY(mu) = false;
  bool given_up ABSL_GUARDED_BY(mu) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServerDevices>> ServerDevices::Open(const Parts& parts) {
  const ServerConfig& config = *parts.config;
  std::unique_ptr<ServerDevices> devices(new ServerDevices(parts.poller));
  devices->gpus_ = parts.gpus;
  if (devices->gpus_.empty()) {
    absl::Status opened = devices->OpenGpus(config.gpus);
    if (!opened.ok()) return opened;
  }
  for (NicPath& path : *parts.paths) {
    const NicLimits& limits = path.nic->limits();
    if (!parts.options.source.offer_direct || (!limits.dma_buf && !limits.device_pointers))
      continue;
    DirectOptions direct;
    direct.seed = parts.seed;
    std::shared_ptr<GpuNic> nic = GpuNic::Wrap(path.nic, devices->gpus_, direct);
    devices->nics_.push_back(nic);
    path.nic = std::move(nic);
  }
  DeviceProxyOptions options = parts.options;
  options.engine.arena = parts.arena;
  options.engine.pool_bytes = config.gpu_pool_bytes;
  options.source.seed = parts.seed;
  options.fetcher.max_tensor_bytes = config.max_tensor_bytes;
  auto proxy = DeviceProxy::Open(parts.poller, devices->gpus_, parts.source, options);
  if (!proxy.ok()) return proxy.status();
  devices->proxy_ = *std::move(proxy);
  return devices;
}

ServerDevices::~ServerDevices() = default;

absl::Status ServerDevices::OpenGpus(const std::string& names) {
  auto driver = CudaDriver::Load();
  if (!driver.ok()) return driver.status();
  driver_ = *std::move(driver);
  auto found = driver_->Devices();
  if (!found.ok()) return found.status();
  std::vector<int> ordinals;
  if (names == "all") {
    for (const GpuDevice& device : *found) ordinals.push_back(device.ordinal);
  } else {
    for (absl::string_view name : absl::StrSplit(names, ',', absl::SkipWhitespace())) {
      if (absl::SimpleAtoi(name, &ordinals.emplace_back())) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("gpus is '", names, "', and should be all, or numbers as in 0,1"));
    }
  }
  if (ordinals.empty())
    return absl::NotFoundError(
        "gpus is set, and the CUDA driver shows no GPU: unset gpus, or see what nvidia-smi says");
  for (int ordinal : ordinals) {
    auto gpu = Gpu::Open(driver_.get(), ordinal);
    if (!gpu.ok()) return gpu.status();
    gpus_.push_back(gpu->get());
    own_.push_back(*std::move(gpu));
  }
  return absl::OkStatus();
}

std::vector<int> ServerDevices::ordinals() const {
  std::vector<int> all;
  for (const Gpu* gpu : gpus_) all.push_back(gpu->ordinal());
  return all;
}

bool ServerDevices::OnPoller(std::function<void()> fn) const {
  auto question = std::make_shared<Question>();
  poller_->PostFn([question, fn = std::move(fn)] {
    MutexLock lock(&question->mu);
    if (question->given_up) return;  // The asker has returned, so what `fn` refers to may be gone.
    fn();
    question->done = true;
    question->answered.NotifyAll();
  });
  MutexLock lock(&question->mu);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!question->done && !question->answered.WaitUntil(&question->mu, until)) {
  }
  question->given_up = !question->done;
  return question->done;
}

std::string ServerDevices::Explain() const {
  std::string out;
  if (!OnPoller([&] { out = proxy_->ExplainNow(); })) {
    out = "device tensors: the poller does not answer\n";
  }
  for (const auto& nic : nics_) out += nic->Explain();
  return out;
}

void ServerDevices::AddStats(std::map<std::string, int64_t>* stats) const {
  DeviceFetcherCounters fetched;
  DeviceSourceCounters served;
  (void)OnPoller([&] {
    fetched = proxy_->fetcher_counters();
    served = proxy_->source_counters();
  });
  const auto add = [stats](const char* name, uint64_t value) {
    (*stats)[name] = static_cast<int64_t>(value);
  };
  add("gpu_fetches", fetched.fetches);
  add("gpu_fetched_bytes", fetched.bytes);
  add("gpu_by_cuda_ipc", fetched.ipc);
  add("gpu_by_direct", fetched.direct);
  add("gpu_by_staging", fetched.staged);
  add("gpu_in_messages", fetched.inside);
  add("gpu_staged_bytes_served", served.bytes_staged);
  add("gpu_leases_expired", served.expired);
  FlushCounters flushes;
  for (const auto& nic : nics_) {
    const FlushCounters its = nic->flushes();
    flushes.flushes += its.flushes;
    flushes.failed += its.failed;
    flushes.ns += its.ns;
  }
  add("gpu_flushes", flushes.flushes);
  add("gpu_flushes_failed", flushes.failed);
  add("gpu_flush_ns", flushes.ns);
}

}  // namespace tryst
