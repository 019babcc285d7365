#ifndef TRYST_GPU_GPU_H_
#define TRYST_GPU_GPU_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/driver.h"

namespace tryst {

class Gpu;

// A mark in a stream's order. Move-only; destroying it is allowed at any time.
class GpuEvent {
 public:
  GpuEvent() = default;
  GpuEvent(GpuEvent&& other) noexcept { *this = std::move(other); }
  GpuEvent& operator=(GpuEvent&& other) noexcept;
  ~GpuEvent();
  bool valid() const { return event_ != nullptr; }
  cuda::Event get() const { return event_; }
  // Marks the end of what is on the stream now. REQUIRES: a stream of the event's GPU.
  absl::Status Record(cuda::Stream stream);
  // False: the device is not there yet. Never waits. True when never recorded.
  absl::StatusOr<bool> Done() const;

 private:
  friend class Gpu;
  GpuEvent(const Gpu* gpu, cuda::Event event) : gpu_(gpu), event_(event) {}
  const Gpu* gpu_ = nullptr;
  cuda::Event event_ = nullptr;
};

class GpuStream {
 public:
  GpuStream() = default;
  GpuStream(GpuStream&& other) noexcept { *this = std::move(other); }
  GpuStream& operator=(GpuStream&& other) noexcept;
  ~GpuStream();
  cuda::Stream get() const { return stream_; }

 private:
  friend class Gpu;
  GpuStream(const Gpu* gpu, cuda::Stream stream) : gpu_(gpu), stream_(stream) {}
  const Gpu* gpu_ = nullptr;
  cuda::Stream stream_ = nullptr;
};

// One GPU in use by this process: it holds the primary context, the one that frameworks
// use too, so that streams and addresses mean the same to both. Thread-safe. Every method
// makes the context current on the calling thread and leaves it so.
class Gpu {
 public:
  // kNotFound: there is no such ordinal. `driver` outlives it.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const CudaDriver* driver, int ordinal);
  ~Gpu();  // REQUIRES: everything made from it is gone.
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  absl::Status Use() const;
  const GpuDevice& device() const { return device_; }
  int ordinal() const { return device_.ordinal; }
  const CudaDriver& driver() const { return *driver_; }
  const cuda::Calls& calls() const { return driver_->calls(); }

  absl::StatusOr<GpuStream> MakeStream() const;  // Does not wait for the null stream.
  absl::StatusOr<GpuEvent> MakeEvent() const;
  // This GPU's streams may then read and write the peer's memory.
  // kUnimplemented: the two have no way to each other.
  absl::Status EnablePeerAccess(const Gpu& peer) const;
  // Whether all work that was queued has ended. Never waits. A default stream always counts as
  // busy, because it waits for other streams, too.
  absl::StatusOr<bool> IsIdle(cuda::Stream stream) const;
  // Stops the calling thread until the stream is empty: for set-up, tests and examples.
  absl::Status WaitFor(cuda::Stream stream) const;
  // kFailedPrecondition: the stream captures a graph.
  absl::Status CheckNotCapturing(cuda::Stream stream) const;
  // For threads of ours: what the calling thread asks from now on does not break graphs that other
  // threads capture.
  void AllowCaptures() const;

 private:
  friend class GpuEvent;
  // Answers a question about work: whether it has ended.
  absl::StatusOr<bool> Answer(const char* call, cuda::Result result) const;

  Gpu(const CudaDriver* driver, GpuDevice device) : driver_(driver), device_(std::move(device)) {}

  const CudaDriver* const driver_;
  const GpuDevice device_;
  cuda::Device handle_ = 0;
  cuda::Context context_ = nullptr;
};

}  // namespace tryst

#endif  // TRYST_GPU_GPU_H_
