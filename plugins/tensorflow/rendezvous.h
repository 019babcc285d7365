#ifndef TRYST_PLUGINS_TENSORFLOW_RENDEZVOUS_H_
#define TRYST_PLUGINS_TENSORFLOW_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/tensorflow/bridge.h"
#include "tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.h"

namespace tryst_tensorflow {

class Steps;

// A step of TensorFlow. It differs from TensorFlow's own only in how it fetches a tensor of another
// worker: by Tryst if that worker has it, otherwise by TensorFlow's gRPC.
class StepRendezvous final : public tensorflow::BaseRemoteRendezvous {
 public:
  StepRendezvous(Steps* steps, const tensorflow::WorkerEnv* env, int64_t step);

  void StartAbort(const absl::Status& status) override;

 protected:
  void RecvFromRemoteAsync(const tensorflow::Rendezvous::ParsedKey& key,
                           const tensorflow::Rendezvous::Args& args, DoneCallback done) override;

 private:
  class Call;

  ~StepRendezvous() override = default;
  void ByGrpc(const tensorflow::Rendezvous::ParsedKey& key,
              const tensorflow::Rendezvous::Args& args, DoneCallback done);
  void ByTryst(std::shared_ptr<ProducerLink> link, Counts* counts,
               const tensorflow::Rendezvous::ParsedKey& key,
               const tensorflow::Rendezvous::Args& args, DoneCallback done);
  std::shared_ptr<tensorflow::WorkerSession> KeptSession();
  Greet GreetOver(const tensorflow::Rendezvous::ParsedKey& key);

  Steps* const steps_;
  std::mutex mu_;
  absl::Status aborted_;
  // TensorFlow's own rendezvous for this step, for what travels by gRPC.
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> stock_;
};

// Makes the steps' rendezvous, and answers greetings, which arrive as RecvTensor calls.
class Steps final : public tensorflow::RpcRendezvousMgr {
 public:
  // Runs `ending` before the bridge is destroyed.
  Steps(const tensorflow::WorkerEnv* env, std::unique_ptr<Bridge> bridge,
        std::function<void(Bridge*)> ending);
  ~Steps() override;

  void RecvLocalAsync(int64_t step, const tensorflow::Rendezvous::ParsedKey& key,
                      tensorflow::Rendezvous::DoneCallback done) override;

  Bridge* bridge() { return bridge_.get(); }
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> MakeStock(int64_t step);

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step, const tensorflow::WorkerEnv* env) override;

 private:
  const tensorflow::WorkerEnv* const env_;
  const std::unique_ptr<Bridge> bridge_;
  const std::function<void(Bridge*)> ending_;
};

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_RENDEZVOUS_H_
