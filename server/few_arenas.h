#ifndef TRYST_SERVER_FEW_ARENAS_H_
#define TRYST_SERVER_FEW_ARENAS_H_

namespace tryst {

// For programs that run for weeks: lets glibc keep two heaps in place of eight for each
// processor, before any thread has its own. gRPC starts and ends threads all the time, and
// what lives long ends up scattered over their heaps, none of which shrinks again: a server
// grew by a quarter of a MiB with each life of a peer. Leaves it to MALLOC_ARENA_MAX where
// that is set; does nothing where malloc is another.
void UseFewArenas();

}  // namespace tryst

#endif  // TRYST_SERVER_FEW_ARENAS_H_
