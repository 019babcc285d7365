#ifndef TRYST_CHANNEL_DEVICE_DEVICE_SELECTIONS_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_SELECTIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/device/device_engine.h"
#include "gpu/stream_gather.h"
#include "rendezvous/selection.h"

namespace tryst {

// Copies selected bytes, and boxes, of one GPU's memory by kernels. Thread-safe, but for idle().
class DeviceSelections {
 public:
  // `own` is a stream of the engine's GPU. The engine's copier is open, and outlives this.
  DeviceSelections(DeviceEngine* engine, GpuStream own);

  // As SelectionCopier::Gather(), on `stream`. The row may be written until what is on the stream
  // by then has run: see UsedUntil().
  absl::StatusOr<Tensor> Gather(const Tensor& tensor, const Selection& selection, uint64_t bytes,
                                cuda::Stream stream);
  // As SelectionCopier::StartScatter(), once `after` is reached, which may be null. `stream` is one
  // that lasts until `done` has run.
  void StartScatter(const Tensor& dense, const Tensor& into, const Selection& selection,
                    cuda::Stream stream, std::shared_ptr<const GpuEvent> after,
                    absl::AnyInvocable<void(absl::Status) &&> done);
  // Copies runs of `from`, of this GPU or in its reach, to `to`, once the former use of that memory
  // is over. They last until `done` has run: once, perhaps in here. kUnimplemented: the GPU is old.
  void StartStrided(const StridedRuns& runs, const Tensor& from, const Tensor& to,
                    absl::AnyInvocable<void(absl::Status) &&> done);
  // As DeviceEngine::StartCopy(), of a GPU's memory to the host's or the other way round.
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done);
  // What begins from now on fails with kUnavailable.
  void Close() { closed_.store(true); }
  bool idle() { return under_way_.load() == 0 && gathers_.idle(); }

 private:
  struct Scatter;
  struct Strided;

  bool Begin();
  void End() { under_way_.fetch_sub(1); }
  bool Reaches(const Tensor& tensor) const;
  absl::Status CheckHere(const Tensor& tensor) const;
  void Await(const std::shared_ptr<Scatter>& scatter);
  void Step(const std::shared_ptr<Scatter>& scatter);
  void EndScatter(const std::shared_ptr<Scatter>& scatter, absl::Status status);

  DeviceEngine* const engine_;
  const GpuStream own_;  // Only waits, for memory that goes before its copies have run.
  StreamGather gathers_;
  std::atomic<bool> closed_{false};
  std::atomic<size_t> under_way_{0};
  std::vector<GatherPiece> pieces_;  // Poller thread only.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_SELECTIONS_H_
