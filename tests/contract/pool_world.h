#ifndef TRYST_TESTS_CONTRACT_POOL_WORLD_H_
#define TRYST_TESTS_CONTRACT_POOL_WORLD_H_

#include <functional>
#include <memory>

#include "channel/channel_pool.h"
#include "tests/contract/channel_contract.h"

namespace tryst {

// Two workers in this process, each with a poller thread, a NIC and a ChannelPool; hellos
// are handed over in memory.
struct PoolWorldOptions {
  std::function<std::unique_ptr<Nic>()> open_nic;
  std::function<void(ChannelPoolOptions*)> adjust;
};
std::unique_ptr<ChannelWorld> OpenPoolWorld(const PoolWorldOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_POOL_WORLD_H_
