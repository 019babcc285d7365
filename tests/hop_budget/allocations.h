#ifndef TRYST_TESTS_HOP_BUDGET_ALLOCATIONS_H_
#define TRYST_TESTS_HOP_BUDGET_ALLOCATIONS_H_

#include <cstdint>

namespace tryst {

// How often this process has called operator new. Linking this replaces it.
uint64_t AllocationsSoFar();

// From now on, or no longer, die at the next one: for a debugger to show where it is.
void DieOnAllocation(bool die);

}  // namespace tryst

#endif  // TRYST_TESTS_HOP_BUDGET_ALLOCATIONS_H_
