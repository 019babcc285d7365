#ifndef TRYST_BASE_FORK_COUNT_H_
#define TRYST_BASE_FORK_COUNT_H_

namespace tryst {

// How many forks lie between this process and the one that loaded the program. What is shared with
// other processes belongs to the process that opened it: keep the count, and compare.
int ForkCount();

}  // namespace tryst

#endif  // TRYST_BASE_FORK_COUNT_H_
