#include "tests/contract/device_world.h"

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tests/doubles/cuda/expandable_range.h"

namespace tryst {
namespace {

// The key's text with another destination device: a GPU on its way, and the CPU for the test.
TensorKey WithDestination(const TensorKey& key, absl::string_view from, absl::string_view to) {
  std::string text(key.text());
  const size_t at = text.rfind(std::string(from));
  if (at == std::string::npos) return key;
  text.replace(at, from.size(), std::string(to));
  auto changed = TensorKey::Parse(text);
  TRYST_CHECK(changed.ok()) << changed.status();
  return *changed;
}

constexpr absl::string_view kCpu = "device:CPU:";
constexpr absl::string_view kGpu = "device:GPU:";

class UploadingSource final : public TensorSource {
 public:
  explicit UploadingSource(TensorSource* source) : source_(source) {}
  void Set(DeviceEngine* engine, cuda::Stream stream, bool in_chunks) {
    engine_ = engine;
    stream_ = stream;
    in_chunks_ = in_chunks;
  }

  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    source_->Take(step_id, WithDestination(key, kGpu, kCpu), args,
                  [this, done = std::move(done)](Received&& received) mutable {
                    if (!received.status.ok() || received.is_dead ||
                        received.tensor.dtype() == DType::kString) {
                      return std::move(done)(std::move(received));
                    }
                    if (!received.tensor.space().host_readable()) {  // It was given back.
                      return std::move(done)(std::move(received));
                    }
                    Upload(std::move(received), std::move(done));
                  });
  }
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override {
    source_->GiveBack(step_id, WithDestination(key, kGpu, kCpu), std::move(taken));
  }

 private:
  // Allocates several chunks; the tensor's size is not a multiple of theirs.
  absl::StatusOr<Tensor> AllocateInChunks(const Tensor& like) {
    constexpr uint64_t kOffset = 16;  // Aligned for every type.
    constexpr uint64_t kMostChunks = 6;
    const Gpu* const gpu = engine_->gpu();
    auto range =
        std::make_shared<ExpandableRange>(gpu, like.bytes() / (kMostChunks - 1) + 1, kMostChunks);
    const uint64_t count = (like.bytes() + kOffset) / range->chunk_bytes() + 1;
    range->Map(0, count);
    return Tensor::Adopt(reinterpret_cast<void*>(range->At(0) + kOffset), like.dtype(),
                         like.shape(), MemorySpace{MemorySpace::Kind::kDevice, gpu->ordinal()},
                         [range] {});
  }

  void Upload(Received&& taken, FetchedFn done) {
    const Tensor host = std::move(taken.tensor);
    auto into = in_chunks_ ? AllocateInChunks(host)
                           : engine_->Allocate(host.dtype(), host.shape(), stream_);
    if (!into.ok()) {
      return std::move(done)({into.status()});
    }
    engine_->StartCopy(host, *into, nullptr,
                       [this, host, into = *into, turn = taken.turn,
                        done = std::move(done)](absl::Status status) mutable {
                         auto context = GpuContext::Make(engine_, stream_);
                         if (status.ok()) status = context.status();
                         Received received{std::move(status), into};
                         if (context.ok()) received.send_context = *context;
                         received.turn = turn;
                         std::move(done)(std::move(received));
                       });
  }

  TensorSource* const source_;
  DeviceEngine* engine_ = nullptr;
  cuda::Stream stream_ = nullptr;
  bool in_chunks_ = false;
};

class DownloadingFetcher final : public TensorFetcher {
 public:
  DownloadingFetcher(TensorFetcher* fetcher, DeviceEngine* engine, cuda::Stream stream)
      : fetcher_(fetcher), engine_(engine), stream_(stream) {}

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override {
    RecvArgs inner = args;
    inner.executor = nullptr;
    auto context = GpuContext::Make(engine_, stream_);
    TRYST_CHECK(context.ok()) << context.status();
    inner.device_context = *context;
    inner.alloc_attrs.on_host = false;  // What is selected of it here is asked for so.
    if (args.destination.valid() && args.destination.dtype() != DType::kString) {
      auto on_device =
          engine_->Allocate(args.destination.dtype(), args.destination.shape(), stream_);
      TRYST_CHECK(on_device.ok()) << on_device.status();
      inner.destination = *on_device;
    }
    fetcher_->Fetch(step_id, WithDestination(key, kCpu, kGpu), inner,
                    [this, args, done = std::move(done)](Received&& received) mutable {
                      Download(std::move(received), args, std::move(done));
                    });
  }

  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn done) override {
    auto results = std::make_shared<std::vector<Received>>(keys.size());
    auto left = std::make_shared<std::atomic<size_t>>(keys.size());
    auto end = std::make_shared<ManyFetchedFn>(std::move(done));
    ArgsOfEach each(args);
    for (size_t i = 0; i < keys.size(); ++i) {
      Fetch(step_id, keys[i], each.At(i), [results, left, end, i](Received&& received) {
        (*results)[i] = std::move(received);
        if (left->fetch_sub(1) != 1) return;
        absl::Status first;
        for (const Received& result : *results) {
          if (first.ok()) first = result.status;
        }
        std::move (*end)(first, absl::MakeSpan(*results));
      });
    }
  }
  void AbortStep(int64_t step_id, const absl::Status& status) override {
    fetcher_->AbortStep(step_id, status);
  }

 private:
  void Download(Received&& received, const RecvArgs& args, FetchedFn done) {
    if (!received.status.ok() || received.is_dead || received.tensor.dtype() == DType::kString) {
      return EndReceive(args.executor, std::move(received), std::move(done));
    }
    const Tensor tensor = std::move(received.tensor);
    TRYST_CHECK(!tensor.space().host_readable());
    auto host = args.destination.valid() ? args.destination
                                         : *Tensor::Allocate(tensor.dtype(), tensor.shape());
    engine_->StartCopy(tensor, host, nullptr,
                       [tensor, host, executor = args.executor,
                        done = std::move(done)](absl::Status copied) mutable {
                         EndReceive(executor, {std::move(copied), host}, std::move(done));
                       });
  }

  TensorFetcher* const fetcher_;
  DeviceEngine* const engine_;
  const cuda::Stream stream_;
};

class DeviceWrap final : public PoolWorldWrap {
 public:
  DeviceWrap(const Gpu* gpu, const DeviceProxyOptions& options, bool in_chunks,
             std::function<void(const DeviceFetcherCounters&)> check, Poller* poller,
             TensorSource* source)
      : check_(std::move(check)), uploading_(source) {
    auto proxy = DeviceProxy::Open(poller, {gpu}, &uploading_, options);
    TRYST_CHECK(proxy.ok()) << proxy.status();
    proxy_ = *std::move(proxy);
    auto stream = gpu->MakeStream();
    TRYST_CHECK(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    engine_ = proxy_->engine(gpu->ordinal());
    uploading_.Set(engine_, stream_.get(), in_chunks);
  }

  TensorSource* source() override { return proxy_->source(); }
  void SetChannels(TensorFetcher* channels) override {
    proxy_->SetChannels(channels);
    downloading_ = std::make_unique<DownloadingFetcher>(proxy_->fetcher(), engine_, stream_.get());
  }
  TensorFetcher* fetcher() override { return downloading_.get(); }
  absl::Status Stop() override {
    const absl::Status stopped = proxy_->Stop(absl::Seconds(20));
    if (check_) check_(proxy_->fetcher_counters());  // Nothing changes them any more.
    return stopped;
  }
  std::string ExplainNow() override { return proxy_->ExplainNow(); }

 private:
  const std::function<void(const DeviceFetcherCounters&)> check_;
  UploadingSource uploading_;
  GpuStream stream_;
  std::unique_ptr<DeviceProxy> proxy_;
  DeviceEngine* engine_ = nullptr;
  std::unique_ptr<DownloadingFetcher> downloading_;
};

}  // namespace

void PutDevicesUnder(const DeviceWorldOptions& options, PoolWorldOptions* world) {
  world->wrap = [options](bool is_producer, uint64_t incarnation, const TransportsOptions& pool,
                          Poller* poller, TensorSource* source) {
    DeviceProxyOptions proxy = options.proxy;
    proxy.engine.arena = pool.shm_arena;
    proxy.source.seed = incarnation;
    return std::make_unique<DeviceWrap>(is_producer ? options.producer_gpu : options.consumer_gpu,
                                        proxy, options.in_chunks, options.check, poller, source);
  };
}

}  // namespace tryst
