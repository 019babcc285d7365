#ifndef TRYST_SERVER_WEIGHTS_DEVICE_BOXES_H_
#define TRYST_SERVER_WEIGHTS_DEVICE_BOXES_H_

#include <memory>

#include "absl/status/status.h"
#include "channel/device/device_engine.h"
#include "gpu/strided_runs.h"
#include "rendezvous/tensor.h"
#include "server/weights/patience.h"
#include "weights/fetch_plan.h"
#include "weights/layout.h"

// Boxes in a GPU's memory. A kernel makes them dense there, with their cast, or the other way
// round; they travel through the host's memory, where digests are. A call waits until all of it is
// copied, on its caller's thread, and not on one that delivers for others.
namespace tryst {

// kInvalidArgument: `tensor` is on a GPU of which `context` is none.
absl::Status CheckContext(const std::shared_ptr<GpuContext>& context, const Tensor& tensor);
// Waits until the stream has reached the context's moment.
absl::Status AwaitMoment(const GpuContext& context, const Patience& patience);

// Fills `dense`, in the host's memory, with the box that lies in `from` as `lies` says; a cast
// where the types differ. kUnimplemented: the GPU is too old for a box that is strided or cast.
// REQUIRES: CheckView(), CanCast().
absl::Status CopyBoxFromGpu(const GpuContext& context, const Tensor& from, const Strides& lies,
                            const Extents& extent, const Tensor& dense);
// The other way round, of one type.
absl::Status CopyBoxToGpu(const GpuContext& context, const Tensor& dense, const Tensor& into,
                          const Strides& lies, const Extents& extent);

// For tests: what the kernel is told. The tensors' memory begins at the addresses.
StridedRuns PlanRuns(const Extents& extent, DType from_type, unsigned long long from,
                     const Strides& from_lies, DType to_type, unsigned long long to,
                     const Strides& to_lies);

}  // namespace tryst

#endif  // TRYST_SERVER_WEIGHTS_DEVICE_BOXES_H_
