#ifndef TRYST_SERVER_SERVICES_HEALTH_SERVICE_H_
#define TRYST_SERVER_SERVICES_HEALTH_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <set>

#include "base/mutex.h"
#include "server/services/unary_calls.h"

namespace grpc {
class ServerCompletionQueue;
}  // namespace grpc

namespace tryst {

// grpc.health.v1.Health for the server as a whole: SERVING from Start() until SetNotServing().
// gRPC's own service uses callbacks, which cost us threads (see UnaryCalls). Thread-safe.
class HealthService final : public grpc::Service {
 public:
  HealthService();
  ~HealthService() override;

  // `queue` belongs to the gRPC server's builder. REQUIRES: the server has started.
  void Start(grpc::ServerCompletionQueue* queue);
  // Tells every client that watches.
  void SetNotServing();
  // Waits for the last call. REQUIRES: the gRPC server has shut down.
  void Join();

 private:
  class Watch;
  void AwaitWatch();
  void OnWatchOver(const std::shared_ptr<Watch>& watch);

  UnaryCalls checks_;
  grpc::ServerCompletionQueue* queue_ = nullptr;  // Constant after Start().
  Mutex mu_;
  CondVar none_;
  bool serving_ ABSL_GUARDED_BY(mu_) = true;
  // Includes the call that gRPC will hand us next.
  std::set<std::shared_ptr<Watch>> watches_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_SERVICES_HEALTH_SERVICE_H_
