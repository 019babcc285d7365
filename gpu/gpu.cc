#include "gpu/gpu.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// Whether a question about the GPU's work was answered with "not yet", or not at all: the memory
// has run out for a moment, or another thread captures a graph. It is asked again, and what it is
// asked about goes on meanwhile.
bool IsNoAnswer(cuda::Result result) {
  return result == cuda::kNotReady || result == cuda::kOutOfMemory ||
         result == cuda::kCaptureUnsupported || result == cuda::kCaptureImplicit;
}

}  // namespace

GpuEvent& GpuEvent::operator=(GpuEvent&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(event_, other.event_);
  return *this;
}

GpuEvent::~GpuEvent() {
  if (event_ != nullptr && gpu_->Use().ok()) gpu_->calls().cuEventDestroy_v2(event_);
}

absl::Status GpuEvent::Record(cuda::Stream stream) {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  return gpu_->driver().Check("cuEventRecord", gpu_->calls().cuEventRecord(event_, stream));
}

absl::StatusOr<bool> GpuEvent::Done() const {
  const cuda::Result current = gpu_->calls().cuCtxSetCurrent(gpu_->context_);
  if (current != cuda::kSuccess) return gpu_->Answer("cuCtxSetCurrent", current);
  return gpu_->Answer("cuEventQuery", gpu_->calls().cuEventQuery(event_));
}

GpuStream& GpuStream::operator=(GpuStream&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(stream_, other.stream_);
  return *this;
}

GpuStream::~GpuStream() {
  if (stream_ != nullptr && gpu_->Use().ok()) gpu_->calls().cuStreamDestroy_v2(stream_);
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const CudaDriver* driver, int ordinal) {
  auto devices = driver->Devices();
  if (!devices.ok()) return devices.status();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices->size()) {
    return absl::NotFoundError(absl::StrCat("there is no GPU ", ordinal, ": the CUDA driver shows ",
                                            devices->size(), " GPUs, counted from 0"));
  }
  std::unique_ptr<Gpu> gpu(new Gpu(driver, std::move((*devices)[static_cast<size_t>(ordinal)])));
  const cuda::Calls& calls = driver->calls();
  absl::Status status = driver->Check("cuDeviceGet", calls.cuDeviceGet(&gpu->handle_, ordinal));
  if (!status.ok()) return status;
  status = driver->Check("cuDevicePrimaryCtxRetain",
                         calls.cuDevicePrimaryCtxRetain(&gpu->context_, gpu->handle_));
  if (!status.ok()) return status;
  return gpu;
}

Gpu::~Gpu() {
  if (context_ != nullptr) calls().cuDevicePrimaryCtxRelease_v2(handle_);
}

absl::Status Gpu::Use() const {
  return driver_->Check("cuCtxSetCurrent", calls().cuCtxSetCurrent(context_));
}

absl::StatusOr<GpuStream> Gpu::MakeStream() const {
  cuda::Stream stream = nullptr;
  absl::Status status = Use();
  if (status.ok()) {
    status =
        driver_->Check("cuStreamCreate", calls().cuStreamCreate(&stream, cuda::kStreamNonBlocking));
  }
  if (!status.ok()) return status;
  return GpuStream(this, stream);
}

absl::StatusOr<GpuEvent> Gpu::MakeEvent() const {
  cuda::Event event = nullptr;
  absl::Status status = Use();
  if (status.ok()) {
    status = driver_->Check("cuEventCreate", calls().cuEventCreate(&event, cuda::kEventNoTiming));
  }
  if (!status.ok()) return status;
  return GpuEvent(this, event);
}

absl::Status Gpu::EnablePeerAccess(const Gpu& peer) const {
  if (peer.handle_ == handle_) return absl::OkStatus();
  int can = 0;
  absl::Status status = Use();
  if (status.ok()) {
    status = driver_->Check("cuDeviceCanAccessPeer",
                            calls().cuDeviceCanAccessPeer(&can, handle_, peer.handle_));
  }
  if (!status.ok()) return status;
  if (can == 0) {
    return absl::UnimplementedError(
        absl::StrCat("GPU ", ordinal(), " cannot read the memory of GPU ", peer.ordinal()));
  }
  const cuda::Result result = calls().cuCtxEnablePeerAccess(peer.context_, 0);
  if (result == cuda::kPeerAccessAlreadyEnabled) return absl::OkStatus();
  return driver_->Check("cuCtxEnablePeerAccess", result);
}

absl::StatusOr<bool> Gpu::IsIdle(cuda::Stream stream) const {
  constexpr uintptr_t kDefaultStreams = 2;  // Null, and the handles 1 and 2.
  if (reinterpret_cast<uintptr_t>(stream) <= kDefaultStreams) return false;
  const cuda::Result current = calls().cuCtxSetCurrent(context_);
  if (current != cuda::kSuccess) return Answer("cuCtxSetCurrent", current);
  return Answer("cuStreamQuery", calls().cuStreamQuery(stream));
}

absl::StatusOr<bool> Gpu::Answer(const char* call, cuda::Result result) const {
  if (IsNoAnswer(result)) return false;
  const absl::Status status = driver_->Check(call, result);
  if (!status.ok()) return status;
  return true;
}

absl::Status Gpu::CheckNotCapturing(cuda::Stream stream) const {
  if (calls().cuStreamIsCapturing == nullptr) return absl::OkStatus();
  absl::Status status = Use();
  int captures = cuda::kCapturesNothing;
  if (status.ok()) {
    status = driver_->Check("cuStreamIsCapturing", calls().cuStreamIsCapturing(stream, &captures));
  }
  if (!status.ok() || captures == cuda::kCapturesNothing) return status;
  return absl::FailedPreconditionError(
      "the CUDA stream is capturing a graph, so its work does not run yet: send and receive "
      "outside of the capture");
}

void Gpu::AllowCaptures() const {
  thread_local bool allows = false;
  if (allows || calls().cuThreadExchangeStreamCaptureMode == nullptr) return;
  int mode = cuda::kCaptureRelaxed;
  allows = calls().cuThreadExchangeStreamCaptureMode(&mode) == cuda::kSuccess;
}

absl::Status Gpu::WaitFor(cuda::Stream stream) const {
  absl::Status status = Use();
  if (!status.ok()) return status;
  return driver_->Check("cuStreamSynchronize", calls().cuStreamSynchronize(stream));
}

}  // namespace tryst
