#include "tests/contract/grpc_nic.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "channel/grpc/event_thread.h"
#include "channel/signing/caller.h"
#include "proto/transport.grpc.pb.h"
#include "verbs/forwarding_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

using Service = rpc::TransportService::WithRawMethod_Converse<rpc::TransportService::Service>;

class Directory final : public PeerDirectory {
 public:
  void Add(const std::string& worker, int port) {
    auto channel =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    // At once, as a test that counts descriptors cannot know which end dials first.
    TRYST_CHECK(
        channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60)));
    MutexLock lock(&mu_);
    channels_[worker] = std::move(channel);
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view peer) override {
    MutexLock lock(&mu_);
    const auto found = channels_.find(std::string(peer));
    if (found == channels_.end()) return absl::NotFoundError(peer);
    return found->second;
  }

 private:
  Mutex mu_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mu_);
};

// One worker's gRPC server, and its pipes.
class Worker {
 public:
  Worker(std::shared_ptr<GrpcNet> net, Directory* directory, std::string name, std::string token)
      : net_(std::move(net)),
        signer_({"lab", name, 0xc0}, token, [] { return UnixMs(); }),
        verifier_("lab", name, 0xc0, token, [] { return UnixMs(); }) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    auto queue = builder.AddCompletionQueue();
    grpc::ServerCompletionQueue* const calls = queue.get();
    events_ = std::make_unique<EventThread>(std::move(queue), std::vector<Poller*>());
    GrpcPipes::Parts parts;
    parts.peers = directory;
    parts.signer = &signer_;
    parts.events = events_.get();
    parts.seals = !token.empty();
    parts.authorize = [this](const grpc::ServerContextBase& context, absl::string_view request) {
      const auto said = context.client_metadata().find(kCallerMetadata);
      TRYST_CHECK(said != context.client_metadata().end());
      return verifier_.Verify(absl::string_view(said->second.data(), said->second.size()),
                              kConverseMethod, request);
    };
    pipes_ = std::make_shared<GrpcPipes>(std::move(parts));
    server_ = builder.BuildAndStart();
    TRYST_CHECK(server_ != nullptr);
    directory->Add(name, port_);
    pipes_->Start(calls, [this](grpc::ServerContext* context, GrpcPipes::CallStream* stream,
                                grpc::ServerCompletionQueue* queue, void* tag) {
      service_.RequestConverse(context, stream, queue, queue, tag);
    });
  }
  ~Worker() {
    pipes_->Shutdown(absl::Milliseconds(100));
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    pipes_->Join();
  }
  const std::shared_ptr<GrpcPipes>& pipes() const { return pipes_; }
  int port() const { return port_; }

 private:
  const std::shared_ptr<GrpcNet> net_;  // Has the directory.
  int port_ = 0;
  CallSigner signer_;
  CallVerifier verifier_;
  Service service_;
  std::unique_ptr<EventThread> events_;
  std::shared_ptr<GrpcPipes> pipes_;
  std::unique_ptr<grpc::Server> server_;
};

class NicOfWorker final : public ForwardingNic {
 public:
  NicOfWorker(std::shared_ptr<Nic> nic, std::shared_ptr<Worker> worker)
      : ForwardingNic(std::move(nic)), worker_(std::move(worker)) {}

 private:
  const std::shared_ptr<Worker> worker_;
};

class LoopbackNet final : public GrpcNet {
 public:
  explicit LoopbackNet(std::string token) : token_(std::move(token)) {}
  std::unique_ptr<Nic> OpenNic() override {
    auto worker = std::make_shared<Worker>(shared_from_this(), &directory_,
                                           WorkerName(pipes_.size()), token_);
    pipes_.push_back(worker->pipes().get());
    ports_.push_back(worker->port());
    SoftNicOptions options;
    options.pipes = worker->pipes();
    auto nic = OpenSoftNic(options);
    TRYST_CHECK(nic.ok()) << nic.status();
    return std::make_unique<NicOfWorker>(*std::move(nic), std::move(worker));
  }
  GrpcPipes* pipes(size_t index) override { return pipes_[index]; }
  int port(size_t index) override { return ports_[index]; }

 private:
  const std::string token_;
  Directory directory_;
  std::vector<GrpcPipes*> pipes_;
  std::vector<int> ports_;
};

}  // namespace

std::string GrpcNet::WorkerName(size_t index) { return absl::StrCat("/job:w/task:", index); }

std::shared_ptr<GrpcNet> GrpcNet::Make(std::string token) {
  return std::make_shared<LoopbackNet>(std::move(token));
}

}  // namespace tryst
