#ifndef TRYST_TESTS_CONTRACT_GRPC_NIC_H_
#define TRYST_TESTS_CONTRACT_GRPC_NIC_H_

#include <memory>
#include <string>

#include "base/mutex.h"
#include "channel/grpc/grpc_pipes.h"
#include "verbs/nic.h"

namespace tryst {

// Workers in this process whose NICs reach each other by streams of gRPC, over the loopback.
class GrpcNet : public std::enable_shared_from_this<GrpcNet> {
 public:
  // With a token every message is sealed with it.
  static std::shared_ptr<GrpcNet> Make(std::string token);
  virtual ~GrpcNet() = default;
  // The NIC of a worker of its own, with a gRPC server, which ends with the NIC.
  virtual std::unique_ptr<Nic> OpenNic() = 0;
  // What carries the bytes of the NIC that was opened as the `index`th, and where its server
  // listens.
  virtual GrpcPipes* pipes(size_t index) = 0;
  virtual int port(size_t index) = 0;
  static std::string WorkerName(size_t index);
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_GRPC_NIC_H_
