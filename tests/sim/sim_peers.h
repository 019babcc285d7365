#ifndef TRYST_TESTS_SIM_SIM_PEERS_H_
#define TRYST_TESTS_SIM_SIM_PEERS_H_

#include <vector>

#include "channel/ops/fetch_session.h"
#include "channel/transports.h"
#include "tests/doubles/sim_nic/sim_random.h"

// Consumers of the simulated cluster that do what few do, or what none of ours does.
namespace tryst {

// The sessions of a worker that fetch, whatever link they have.
std::vector<FetchSession*> FetchingOf(const ChannelPools& pools);

// One of those that have a link says CANCEL of a generation that is over, of a slot that it has
// asked for. False: none has, or there was no room for the word.
bool SayStrayCancel(const ChannelPools& pools, SimRandom* random);

// The seed of a pool whose first session, if it is the `draw`th that is drawn from the seed (2 to
// 5), begins its generations at 0.
uint64_t SeedOfGenerationZero(size_t draw);

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_SIM_PEERS_H_
