#include "channel/transports.h"

#include <utility>

#include "channel/rdma/rdma_transport.h"

namespace tryst {

namespace {

// Each factory is called once for every poller.
std::vector<TransportFactory> Register(std::vector<NicPath> nics, TransportFactory last_resort,
                                       const TransportsOptions& options) {
  std::vector<TransportFactory> transports = options.more;
  if (options.shm_arena != nullptr) {
    transports.push_back(
        [arena = options.shm_arena, shm = options.shm](const TransportContext& context) {
          return std::make_unique<ShmTransport>(context, arena, shm);
        });
  }
  for (NicPath& path : nics) {
    const uint64_t landing_bytes = options.landing_bytes / path.landing_divisor;
    auto nic = std::make_shared<SharedNic>(std::move(path), landing_bytes);
    transports.push_back([nic, rdma = RdmaOptions(options)](const TransportContext& context) {
      return std::make_unique<RdmaTransport>(context, nic, rdma);
    });
  }
  if (last_resort) transports.push_back(std::move(last_resort));
  return transports;
}

}  // namespace

std::unique_ptr<ChannelPool> MakeChannelPool(Poller* poller, Bootstrap* bootstrap,
                                             TensorSource* source, std::vector<NicPath> nics,
                                             TransportFactory last_resort,
                                             const TransportsOptions& options) {
  ChannelPoolOptions own = options;
  own.sessions = options;
  return std::make_unique<ChannelPool>(poller, bootstrap, source,
                                       Register(std::move(nics), std::move(last_resort), options),
                                       std::move(own));
}

std::unique_ptr<ChannelPools> MakeChannelPools(const std::vector<Poller*>& pollers,
                                               const std::vector<Trace*>& traces,
                                               Bootstrap* bootstrap, TensorSource* source,
                                               std::vector<NicPath> nics,
                                               TransportFactory last_resort,
                                               const TransportsOptions& options) {
  const std::vector<TransportFactory> transports =
      Register(std::move(nics), std::move(last_resort), options);
  std::vector<std::unique_ptr<ChannelPool>> pools;
  for (size_t place = 0; place < pollers.size(); ++place) {
    ChannelPoolOptions own = options;
    own.sessions = options;
    own.place = place;
    own.seed = options.seed + place * 0x9e3779b97f4a7c15u;
    own.trace = traces.empty() ? nullptr : traces[place];
    pools.push_back(
        std::make_unique<ChannelPool>(pollers[place], bootstrap, source, transports, own));
  }
  return std::make_unique<ChannelPools>(std::move(pools));
}

}  // namespace tryst
