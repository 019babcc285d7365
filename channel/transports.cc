#include "channel/transports.h"

#include <utility>

#include "channel/rdma/rdma_transport.h"

namespace tryst {

std::unique_ptr<ChannelPool> MakeChannelPool(Poller* poller, Bootstrap* bootstrap,
                                             TensorSource* source, std::vector<NicPath> nics,
                                             TransportFactory last_resort,
                                             const TransportsOptions& options) {
  std::vector<TransportFactory> transports = options.more;
  if (options.shm_arena != nullptr) {
    transports.push_back(
        [arena = options.shm_arena, shm = options.shm](const TransportContext& context) {
          return std::make_unique<ShmTransport>(context, arena, shm);
        });
  }
  for (NicPath& nic : nics) {
    transports.push_back(
        [nic = std::move(nic), rdma = RdmaOptions(options)](const TransportContext& context) {
          return std::make_unique<RdmaTransport>(context, nic, rdma);
        });
  }
  if (last_resort) transports.push_back(std::move(last_resort));
  return std::make_unique<ChannelPool>(poller, bootstrap, source, transports, options);
}

}  // namespace tryst
