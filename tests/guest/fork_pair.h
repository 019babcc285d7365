#ifndef TRYST_TESTS_GUEST_FORK_PAIR_H_
#define TRYST_TESTS_GUEST_FORK_PAIR_H_

#include <sys/types.h>

#include <functional>

namespace tryst {

// Runs `parent` here and `child` in a process of its own, each with its end of a stream
// socket to the other (-1 is never given). The exit code: the parent's, or the child's
// when the parent's is 0; a child that was killed counts as 0, for that is a fault some
// programs provoke. The child dies with the parent.
int RunForked(const std::function<int(int socket, pid_t child)>& parent,
              const std::function<int(int socket)>& child);

}  // namespace tryst

#endif  // TRYST_TESTS_GUEST_FORK_PAIR_H_
