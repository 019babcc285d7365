#ifndef TRYST_GPU_STREAM_GATHER_H_
#define TRYST_GPU_STREAM_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "gpu/gather.h"
#include "gpu/gpu.h"

namespace tryst {

// Copies many pieces of a GPU's memory in the order of a caller's stream. Thread-safe; no call
// waits for the device, unless its launch fails.
class StreamGather {
 public:
  static constexpr uint32_t kMostCopies = 1 << 20;  // One call has so many: a list of 24 MiB.
  // The lists of launches that have not ended have as many at most, and those that are kept.
  static constexpr uint64_t kMostListed = 4 * uint64_t{kMostCopies};
  static constexpr uint64_t kMostKept = 1 << 18;

  // Both outlive it. A null `kernel`: this GPU cannot run it, and the driver copies each piece.
  StreamGather(const Gpu* gpu, const GatherKernel* kernel) : gpu_(gpu), kernel_(kernel) {}
  ~StreamGather();  // REQUIRES: idle().

  // Puts the copies on `stream`. kFailedPrecondition: it captures a graph. kResourceExhausted: no
  // memory for the list. After any error nothing of it moves. REQUIRES: at most kMostCopies, which
  // do not overlap.
  absl::Status Copy(absl::Span<const GatherPiece> pieces, cuda::Stream stream);
  // Whether all launches have ended, or never will.
  bool idle();

 private:
  // A list, and the end of the launch that reads it.
  struct Launch {
    GatherList list;
    GpuEvent end;
    uint32_t pieces = 0;
  };

  absl::StatusOr<std::unique_ptr<Launch>> Take(uint32_t pieces);
  void Keep(std::unique_ptr<Launch> launch);
  void Reap(size_t most);
  absl::Status Put(absl::Span<const GatherPiece> pieces, Launch* launch, cuda::Stream stream) const;

  const Gpu* const gpu_;
  const GatherKernel* const kernel_;
  Mutex mu_;
  std::deque<std::unique_ptr<Launch>> running_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<Launch>> kept_ ABSL_GUARDED_BY(mu_);  // The oldest first.
  uint64_t listed_ ABSL_GUARDED_BY(mu_) = 0;                       // By launches that are not kept.
  uint64_t kept_room_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tryst

#endif  // TRYST_GPU_STREAM_GATHER_H_
