#ifndef TRYST_TESTS_SIM_SIM_SHM_H_
#define TRYST_TESTS_SIM_SIM_SHM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "channel/arena/arena.h"
#include "channel/pool/channel_pools.h"
#include "channel/shm/shm_transport.h"
#include "tests/doubles/sim_nic/sim_random.h"

// Shared memory in the simulated cluster. Its links are the real ones: memory of the kernel that
// both ends map, sockets, and reads out of the producer's memory, all within one process. Their
// pollers have virtual time and take turns, so a seed decides the order of everything.
namespace tryst {

// Sizes from tiny, where every operation waits, to ordinary.
ArenaOptions DrawArena(SimRandom* random, uint64_t seed);
ShmOptions DrawShm(SimRandom* random);

// The transports of shared memory of one worker, one for each poller.
std::vector<ShmTransport*> ShmOf(const ChannelPools& pools);

// Something has come on a socket that the worker has not read. Its pollers look at their sockets
// only now and then, so the time must go on for it.
bool SocketsWait(const ChannelPools& pools);
// So long may pass until a poller reads what has come on a socket.
inline constexpr int64_t kSocketPauseNs = 100'000;

inline constexpr char kBreaksARule[] = "the simulation breaks a rule";
// One link of the worker ends, as after a broken rule or a silence; which one, and at which end,
// `random` says. False: it has none.
bool BreakSomeShmLink(const ChannelPools& pools, SimRandom* random);
// The process has ended: the kernel closes its sockets, and nobody says goodbye.
void EndShmSockets(const ChannelPools& pools);

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_SIM_SHM_H_
