#ifndef TRYST_TESTS_CONTRACT_GRPC_WORLD_H_
#define TRYST_TESTS_CONTRACT_GRPC_WORLD_H_

#include <memory>
#include <string>

#include "channel/compat/fetch_server.h"
#include "channel/compat/grpc_channel.h"
#include "tests/contract/channel_contract.h"

namespace tryst {

struct GrpcWorldOptions {
  GrpcChannelOptions channel;
  FetchServerOptions server;
};

// Two workers in this process whose only path is gRPC, over the loopback through a CutProxy.
class GrpcWorld : public ChannelWorld {
 public:
  virtual FetchServer::Counts served() = 0;
  // The producer ends and its port refuses; RestartProducer() starts the next one.
  virtual void KillProducer() = 0;
};
std::unique_ptr<GrpcWorld> OpenGrpcWorld(const GrpcWorldOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_GRPC_WORLD_H_
