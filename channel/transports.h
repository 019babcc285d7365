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

// What a pool of all our transports is made from.
struct TransportsOptions : ChannelPoolOptions, RdmaOptions {
  // Shared memory with workers of this host, before any NIC. Null: there is none.
  std::shared_ptr<Arena> shm_arena;
  ShmOptions shm;
  std::vector<TransportFactory> more;  // Others, before all of ours.
};

// Here transports are registered, in order of preference: shared memory; the NICs, in their order;
// `last_resort`, which may be null (GrpcTransport). All pointers outlive the pool.
// One pool on one poller, and the pools of several: each has its own transports of all kinds, and
// `traces`, which may be empty, has one for each poller.
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
