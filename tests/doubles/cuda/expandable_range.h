#ifndef TRYST_TESTS_DOUBLES_CUDA_EXPANDABLE_RANGE_H_
#define TRYST_TESTS_DOUBLES_CUDA_EXPANDABLE_RANGE_H_

#include <cstdint>
#include <map>

#include "base/log.h"
#include "gpu/gpu.h"

namespace tryst {

// For tests and benches: memory as an allocator with expandable segments makes it, a range of
// addresses in which chunks are mapped and unmapped one by one. Ends the process on an error.
class ExpandableRange {
 public:
  // Room for `most` chunks of at least `chunk_bytes`.
  ExpandableRange(const Gpu* gpu, uint64_t chunk_bytes, uint64_t most,
                  int handle_types = cuda::kHandlePosixFd)
      : gpu_(gpu), most_(most) {
    properties_.type = cuda::kAllocationPinned;
    properties_.handle_types = handle_types;
    properties_.location = {cuda::kLocationDevice, gpu->ordinal()};
    size_t granularity = 0;
    Must(gpu_->Use().ok() &&
         gpu_->calls().cuMemGetAllocationGranularity(&granularity, &properties_,
                                                     cuda::kGranularityMinimum) == cuda::kSuccess);
    chunk_bytes_ = (chunk_bytes + granularity - 1) / granularity * granularity;
    Must(gpu_->calls().cuMemAddressReserve(&base_, chunk_bytes_ * most, 0, 0, 0) == cuda::kSuccess);
  }
  ~ExpandableRange() {
    while (!chunks_.empty()) Unmap(chunks_.begin()->first);
    Must(gpu_->calls().cuMemAddressFree(base_, chunk_bytes_ * most_) == cuda::kSuccess);
  }
  ExpandableRange(const ExpandableRange&) = delete;
  ExpandableRange& operator=(const ExpandableRange&) = delete;

  // New memory in place `index`.
  void Map(uint64_t index) {
    const cuda::Calls& calls = gpu_->calls();
    cuda::Allocation made = 0;
    Must(gpu_->Use().ok() &&
         calls.cuMemCreate(&made, chunk_bytes_, &properties_, 0) == cuda::kSuccess);
    Must(calls.cuMemMap(At(index), chunk_bytes_, 0, made, 0) == cuda::kSuccess);
    const cuda::AccessDescription access{{cuda::kLocationDevice, gpu_->ordinal()},
                                         cuda::kAccessReadWrite};
    Must(calls.cuMemSetAccess(At(index), chunk_bytes_, &access, 1) == cuda::kSuccess);
    chunks_[index] = made;
  }
  void Map(uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) Map(i);
  }
  void Unmap(uint64_t index) {
    Must(gpu_->Use().ok() && gpu_->calls().cuMemUnmap(At(index), chunk_bytes_) == cuda::kSuccess);
    Must(gpu_->calls().cuMemRelease(chunks_.at(index)) == cuda::kSuccess);
    chunks_.erase(index);
  }
  cuda::Address At(uint64_t index) const { return base_ + index * chunk_bytes_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }

 private:
  static void Must(bool ok) { TRYST_CHECK(ok) << "the driver refused a step of a range"; }

  const Gpu* const gpu_;
  const uint64_t most_;
  uint64_t chunk_bytes_ = 0;
  cuda::AllocationProperties properties_{};
  cuda::Address base_ = 0;
  std::map<uint64_t, cuda::Allocation> chunks_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_CUDA_EXPANDABLE_RANGE_H_
