#ifndef TRYST_TESTS_HARDWARE_GUEST_FORK_PAIR_H_
#define TRYST_TESTS_HARDWARE_GUEST_FORK_PAIR_H_

#include <sys/types.h>

#include <functional>

namespace tryst {

// Runs `parent` here and `child` in another process, each with one end of a stream socket (-1 is
// never given). Returns the parent's exit code, or the child's if that is 0. A child that was
// killed counts as 0, because some programs kill it on purpose. The child dies with the parent.
int RunForked(const std::function<int(int socket, pid_t child)>& parent,
              const std::function<int(int socket)>& child);

}  // namespace tryst

#endif  // TRYST_TESTS_HARDWARE_GUEST_FORK_PAIR_H_
