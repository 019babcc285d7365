#ifndef TRYST_TESTS_CONTRACT_HOP_BUDGET_ALLOCATIONS_H_
#define TRYST_TESTS_CONTRACT_HOP_BUDGET_ALLOCATIONS_H_

#include <cstdint>

namespace tryst {

// How often this process has called operator new. Linking this file replaces that operator.
uint64_t AllocationsSoFar();

// With true, the next allocation aborts, so that a debugger shows where it is.
void DieOnAllocation(bool die);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_HOP_BUDGET_ALLOCATIONS_H_
