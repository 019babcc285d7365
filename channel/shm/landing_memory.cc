#include "channel/shm/landing_memory.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

namespace tryst {

absl::StatusOr<Tensor> AllocateLanding(DType dtype, const TensorShape& shape) {
  constexpr uint64_t kHugePageBytes = 2 << 20;
  const absl::StatusOr<uint64_t> bytes = TensorBytes(dtype, shape);
  if (dtype == DType::kString || !bytes.ok() || *bytes < kLandingHugeBytes) {
    return Tensor::Allocate(dtype, shape);
  }
  // One huge page more, so that the tensor can begin at a huge page's start.
  const uint64_t mapped = (*bytes + 2 * kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* const at =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory for a tensor of ", DTypeName(dtype), shape.ToString()));
  }
  madvise(at, mapped, MADV_HUGEPAGE);  // Without huge pages it works, but slower.
  const uint64_t begin = reinterpret_cast<uintptr_t>(at);
  const uint64_t aligned = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  return Tensor::Adopt(static_cast<uint8_t*>(at) + (aligned - begin), dtype, shape, MemorySpace(),
                       [at, mapped] { munmap(at, mapped); });
}

}  // namespace tryst
