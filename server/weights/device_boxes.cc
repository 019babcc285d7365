#include "server/weights/device_boxes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "channel/device/device_selections.h"
#include "rendezvous/delivering.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

// What is dense in the GPU's memory at one time, and what one copy through the host has of that: so
// copies of the GPU and of the host's processor overlap.
constexpr uint64_t kMostDenseBytes = 64 << 20;
constexpr uint64_t kCopyBytes = 2 << 20;
constexpr unsigned kCastElements = 4;  // One thread's.

// Copies that a call waits for.
class Copies {
 public:
  absl::AnyInvocable<void(absl::Status) &&> Add() {
    MutexLock lock(&mu_);
    ++left_;
    return [this](absl::Status ended) {
      MutexLock lock(&mu_);
      if (status_.ok()) status_ = std::move(ended);
      if (--left_ == 0) changed_.NotifyAll();  // Under the lock, as this may be destroyed at once.
    };
  }
  absl::Status Await() {
    MutexLock lock(&mu_);
    while (left_ > 0) changed_.Wait(&mu_);
    return status_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t left_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

Tensor BytesIn(const Tensor& tensor, uint64_t offset, uint64_t bytes) {
  return *Tensor::FromStorage(tensor.storage(), tensor.storage_offset() + offset, DType::kUint8,
                              {static_cast<int64_t>(bytes)});
}

// Between a GPU and the host.
absl::Status CopyBytes(DeviceSelections* gpu, const Tensor& from, const Tensor& into) {
  Copies copies;
  for (uint64_t at = 0; at < from.bytes(); at += kCopyBytes) {
    const uint64_t bytes = std::min(kCopyBytes, from.bytes() - at);
    gpu->StartCopy(BytesIn(from, at, bytes), BytesIn(into, at, bytes), copies.Add());
  }
  return copies.Await();
}

absl::Status RunStrided(DeviceSelections* gpu, const StridedRuns& runs, const Tensor& from,
                        const Tensor& to) {
  Copies copies;
  gpu->StartStrided(runs, from, to, copies.Add());
  return copies.Await();
}

StridedKind KindOf(DType from, DType to) {
  if (from == to) return kCopies;
  if (from == DType::kDouble) return kDoubleToFloat;
  return from == DType::kFloat ? kFloatToBfloat16 : kHalfToBfloat16;
}

absl::Status MayWait() {
  if (!DeliversForOthers()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "weights in a GPU's memory are copied while the call waits, which a callback that runs in "
      "place must not do: give it an executor");
}

// Calls copy(part of the box, where it begins in the dense box, in elements) for each part.
template <typename Fn>
absl::Status ForEachPart(const Extents& extent, uint32_t element_bytes, Fn copy) {
  absl::Status status = MayWait();
  Box whole{Extents(extent.size(), 0), extent};
  if (!status.ok() || whole.empty()) return status;
  std::vector<Box> parts;
  CutBox(whole, kMostDenseBytes / element_bytes, &parts);
  for (const Box& part : parts) {
    status = copy(whole, part, static_cast<uint64_t>(PartOf(whole, Dense(extent), part).offset));
    if (!status.ok()) return status;
  }
  return status;
}

absl::StatusOr<Tensor> Row(const GpuContext& context, uint64_t bytes) {
  return context.engine()->Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(bytes)}),
                                    context.stream());
}

}  // namespace

absl::Status CheckContext(const std::shared_ptr<GpuContext>& context, const Tensor& tensor) {
  if (tensor.on_host()) return absl::OkStatus();
  const int gpu = tensor.space().device_ordinal;
  if (context != nullptr && context->engine()->gpu()->ordinal() == gpu) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weights in memory of GPU ", gpu, " need a stream of that GPU"));
}

absl::Status AwaitMoment(const GpuContext& context, const Patience& patience) {
  constexpr absl::Duration kBetweenLooks = absl::Microseconds(50);
  const GpuEvent* const moment = context.moment();
  for (;;) {
    const absl::StatusOr<bool> there = moment == nullptr ? true : moment->Done();
    if (!there.ok() || *there) return there.status();
    const absl::Status waits = patience.Check("a GPU's stream is still at work");
    if (!waits.ok()) return waits;
    absl::SleepFor(kBetweenLooks);
  }
}

StridedRuns PlanRuns(const Extents& extent, DType from_type, unsigned long long from,
                     const Strides& from_lies, DType to_type, unsigned long long to,
                     const Strides& to_lies) {
  const long long from_bytes = DTypeBytes(from_type), to_bytes = DTypeBytes(to_type);
  // It counts elements.
  const StridedCopy copy = PlanCopy(extent, 1, from_lies, to_lies);
  StridedRuns runs = {};
  runs.from = from + static_cast<unsigned long long>(copy.from * from_bytes);
  runs.to = to + static_cast<unsigned long long>(copy.to * to_bytes);
  runs.runs = copy.runs();
  runs.kind = KindOf(from_type, to_type);
  unsigned long long all = copy.run_bytes * from_bytes;
  all |= runs.from | runs.to;
  for (const StridedCopy::Loop& loop : copy.loops) {
    runs.counts[runs.loops] = static_cast<unsigned long long>(loop.count);
    runs.from_steps[runs.loops] = loop.from_step * from_bytes;
    runs.to_steps[runs.loops] = loop.to_step * to_bytes;
    all |= static_cast<unsigned long long>(runs.from_steps[runs.loops] | runs.to_steps[runs.loops]);
    ++runs.loops;
  }
  if (runs.kind != kCopies) {
    const unsigned elements = copy.run_bytes % kCastElements == 0 ? kCastElements : 1;
    runs.units = copy.run_bytes / elements;
    runs.from_unit = elements * static_cast<unsigned>(from_bytes);
    runs.to_unit = elements * static_cast<unsigned>(to_bytes);
    return runs;
  }
  // The widest at which everything is aligned.
  const unsigned unit = static_cast<unsigned>(std::min<unsigned long long>(all & -all, 16));
  runs.from_unit = runs.to_unit = std::max(unit, 1u);
  runs.units = copy.run_bytes * static_cast<unsigned long long>(from_bytes) / runs.from_unit;
  return runs;
}

absl::Status CopyBoxFromGpu(const GpuContext& context, const Tensor& from, const Strides& lies,
                            const Extents& extent, const Tensor& dense) {
  DeviceSelections* const gpu = context.engine()->selections();
  const uint32_t element = DTypeBytes(dense.dtype()), from_element = DTypeBytes(from.dtype());
  if (from.dtype() != dense.dtype() && AddressOf(from.data()) % from_element != 0) {
    return absl::InvalidArgumentError(
        "the memory of weights that are to be cast does not begin where an element may: align it");
  }
  return ForEachPart(extent, element, [&](const Box& whole, const Box& part, uint64_t begin) {
    const Strides its = PartOf(whole, lies, part);
    const uint64_t bytes = static_cast<uint64_t>(part.elements()) * element;
    const Tensor into = BytesIn(dense, begin * element, bytes);
    if (from.dtype() == dense.dtype() && LiesDense(part.extent, its)) {
      return CopyBytes(gpu, BytesIn(from, static_cast<uint64_t>(its.offset) * element, bytes),
                       into);
    }
    const auto row = Row(context, bytes);
    if (!row.ok()) return row.status();
    const absl::Status made =
        RunStrided(gpu,
                   PlanRuns(part.extent, from.dtype(), AddressOf(from.data()), its, dense.dtype(),
                            AddressOf(row->data()), Dense(part.extent)),
                   from, *row);
    return made.ok() ? CopyBytes(gpu, *row, into) : made;
  });
}

absl::Status CopyBoxToGpu(const GpuContext& context, const Tensor& dense, const Tensor& into,
                          const Strides& lies, const Extents& extent) {
  DeviceSelections* const gpu = context.engine()->selections();
  const uint32_t element = DTypeBytes(into.dtype());
  return ForEachPart(extent, element, [&](const Box& whole, const Box& part, uint64_t begin) {
    const Strides its = PartOf(whole, lies, part);
    const uint64_t bytes = static_cast<uint64_t>(part.elements()) * element;
    const Tensor from = BytesIn(dense, begin * element, bytes);
    if (LiesDense(part.extent, its)) {
      return CopyBytes(gpu, from,
                       BytesIn(into, static_cast<uint64_t>(its.offset) * element, bytes));
    }
    const auto row = Row(context, bytes);
    if (!row.ok()) return row.status();
    const absl::Status came = CopyBytes(gpu, from, *row);
    if (!came.ok()) return came;
    return RunStrided(gpu,
                      PlanRuns(part.extent, into.dtype(), AddressOf(row->data()),
                               Dense(part.extent), into.dtype(), AddressOf(into.data()), its),
                      *row, into);
  });
}

}  // namespace tryst
