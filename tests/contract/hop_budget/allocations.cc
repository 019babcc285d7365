#include "tests/contract/hop_budget/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<uint64_t> allocations{0};
std::atomic<bool> die_on_allocation{false};

void* Count(size_t bytes, size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (die_on_allocation.load(std::memory_order_relaxed)) abort();
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* CountOrThrow(size_t bytes, size_t alignment) {
  void* memory = Count(bytes == 0 ? 1 : bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr size_t kPlain = alignof(std::max_align_t);

}  // namespace

namespace tryst {

uint64_t AllocationsSoFar() { return allocations.load(std::memory_order_relaxed); }
void DieOnAllocation(bool die) { die_on_allocation.store(die); }

}  // namespace tryst

void* operator new(size_t bytes) { return CountOrThrow(bytes, kPlain); }
void* operator new[](size_t bytes) { return CountOrThrow(bytes, kPlain); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Count(bytes == 0 ? 1 : bytes, kPlain);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Count(bytes == 0 ? 1 : bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete[](void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
void operator delete[](void* memory, size_t) noexcept { free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { free(memory); }
