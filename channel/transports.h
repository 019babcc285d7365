#ifndef TRYST_CHANNEL_TRANSPORTS_H_
#define TRYST_CHANNEL_TRANSPORTS_H_

#include <memory>
#include <vector>

#include "channel/arena/arena.h"
#include "channel/pool/channel_pool.h"
#include "channel/pool/channel_pools.h"
#include "channel/rdma/rdma_options.h"
#include "channel/shm/shm_transport.h"
#include "channel/transport.h"

namespace tryst {

// The options of a pool with all of our transports.
struct TransportsOptions : ChannelPoolOptions, RdmaOptions {
  // For shared memory with workers of this host, which is tried before any NIC. Null: none.
  std::shared_ptr<Arena> shm_arena;
  ShmOptions shm;
  std::vector<TransportFactory> more;  // Further transports, tried before all of ours.
};

// Registers the transports in order of preference: shared memory; the NICs, in their order;
// `last_resort` (GrpcTransport), which may be null. All pointers outlive the pool. Makes one pool
// on one poller, or one pool for each of several pollers. Each pool has its own transports of all
// kinds. `traces` has one for each poller, or is empty.
std::unique_ptr<ChannelPool> MakeChannelPool(Poller* poller, Bootstrap* bootstrap,
                                             TensorSource* source, std::vector<NicPath> nics,
                                             TransportFactory last_resort,
                                             const TransportsOptions& options);
std::unique_ptr<ChannelPools> MakeChannelPools(const std::vector<Poller*>& pollers,
                                               const std::vector<Trace*>& traces,
                                               Bootstrap* bootstrap, TensorSource* source,
                                               std::vector<NicPath> nics,
                                               TransportFactory last_resort,
                                               const TransportsOptions& options);

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRANSPORTS_H_
