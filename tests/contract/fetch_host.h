#ifndef TRYST_TESTS_CONTRACT_FETCH_HOST_H_
#define TRYST_TESTS_CONTRACT_FETCH_HOST_H_

#include <cstdint>
#include <memory>

#include "channel/compat/fetch_server.h"
#include "rendezvous/alarms.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

inline constexpr char kHostWorker[] = "/job:ps/replica:0/task:0";
inline constexpr char kHostConsumer[] = "/job:worker/replica:0/task:0";

// A gRPC server on the loopback around one FetchServer. It believes what callers of the cluster
// "lab" say of themselves.
class FetchHost {
 public:
  // The arguments outlive it.
  FetchHost(TensorSource* source, Alarms* alarms, uint64_t incarnation,
            const FetchServerOptions& options);
  ~FetchHost();  // Ends its calls.

  void Shutdown();  // The FetchServer's; calls still come.
  // Ends the gRPC server, and waits for the last call of the FetchServer, as its owner has to.
  void Join();
  int port() const;
  FetchServer* server();
  FetchServer::Counts counts() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_FETCH_HOST_H_
