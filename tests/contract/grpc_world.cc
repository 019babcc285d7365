#include "tests/contract/grpc_world.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_transport.h"
#include "channel/signing/caller.h"
#include "channel/transports.h"
#include "rendezvous/thread_alarms.h"
#include "server/cut_proxy.h"
#include "server/membership.h"
#include "server/transport_service.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:ps/replica:0/task:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0";
constexpr char kFetch[] = "/tryst.rpc.TransportService/FetchTensor";

// gRPC is the only path here, so no hello is ever sent.
class NoBootstrap final : public Bootstrap {
  void Exchange(const std::string&, const Hello&, Deadline, HelloDone done) override {
    std::move(done)(absl::UnimplementedError("no data plane"));
  }
};

class Producer {
 public:
  Producer(Alarms* alarms, uint64_t incarnation, const FetchServerOptions& options)
      : steps(alarms),
        verifier_("lab", kProducer, "", [] { return UnixMs(); }),
        members_(false, nullptr),
        fetches_(
            &steps, alarms, incarnation,
            [this](const grpc::ServerContextBase& context, absl::string_view request) {
              return Authenticate(context, kFetch, request);
            },
            [](const Caller&, const TensorKey&) { return absl::OkStatus(); }, options) {
    members_.Set(kConsumer, "");
    TransportServiceParts parts;
    parts.self = {"lab", kProducer, incarnation};
    parts.address = [] { return ""; };
    parts.members = &members_;
    parts.authenticate = [this](const grpc::ServerContextBase& context, absl::string_view method,
                                absl::string_view request) {
      return Authenticate(context, method, request);
    };
    service_ = MakeTransportService(std::move(parts));
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_->service());
    auto queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    grpc::ServerCompletionQueue* const server_queue = queue.get();
    events_ = std::make_unique<EventThread>(std::move(queue), std::vector<Poller*>());
    service_->Start(server_queue);
    fetches_.Start(server_queue, service_->next_fetch());
    proxy = std::make_unique<CutProxy>(port);
  }

  ~Producer() {
    proxy.reset();
    fetches_.Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_->Wait();
    service_->Join();
    fetches_.Join();
  }

  FetchServer::Counts counts() const { return fetches_.counts(); }

  StepTable steps;
  std::unique_ptr<CutProxy> proxy;

 private:
  absl::StatusOr<Caller> Authenticate(const grpc::ServerContextBase& context,
                                      absl::string_view method, absl::string_view request) {
    const auto said = context.client_metadata().find(kCallerMetadata);
    if (said == context.client_metadata().end()) return absl::UnauthenticatedError("nobody");
    return verifier_.Verify(absl::string_view(said->second.data(), said->second.size()), method,
                            request);
  }

  CallVerifier verifier_;
  Membership members_;
  FetchServer fetches_;
  std::unique_ptr<TransportService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<EventThread> events_;
};

class Consumer {
 public:
  explicit Consumer(const GrpcChannelOptions& options)
      : members(false,
                [](const std::string&, const std::string& address) {
                  grpc::ChannelArguments args;
                  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
                  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
                  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
                  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
                  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                                   args);
                }),
        signer({"lab", kConsumer, 0xc0}, "", [] { return UnixMs(); }),
        poller(&clock) {
    TransportsOptions pool_options;
    pool_options.self = kConsumer;
    pool_options.incarnation = 0xc0;
    pool = MakeChannelPool(
        &poller, &bootstrap, &nothing, std::vector<NicPath>(),
        [this, options](const TransportContext& context) {
          return std::make_unique<GrpcTransport>(context, GrpcParts{&members, &signer, &events},
                                                 options);
        },
        pool_options);
    const absl::Status opened = pool->Open();
    TRYST_CHECK(opened.ok()) << opened;
    poller.Start();
  }

  ~Consumer() {
    const absl::Status stopped =
        pool->Stop(absl::CancelledError("the worker is stopping"), absl::Seconds(20));
    EXPECT_TRUE(stopped.ok()) << stopped;
    poller.Stop();
    pool.reset();
  }

  const SteadyClock clock;
  ThreadAlarms alarms;
  StepTable nothing{&alarms};
  NoBootstrap bootstrap;
  Membership members;
  CallSigner signer;
  Poller poller;
  EventThread events{std::make_unique<grpc::CompletionQueue>(), std::vector<Poller*>{&poller}};
  std::unique_ptr<ChannelPool> pool;
};

class LoopbackGrpcWorld final : public GrpcWorld {
 public:
  explicit LoopbackGrpcWorld(GrpcWorldOptions options)
      : options_(std::move(options)), consumer_(options_.channel) {
    OpenProducer();
  }

  StepTable* producer() override { return &producer_->steps; }
  TensorFetcher* consumer() override { return consumer_.pool.get(); }
  uint64_t producer_incarnation() const override { return incarnation_; }
  bool BreakLink() override {
    producer_->proxy->CutNow();
    return true;
  }
  bool RestartProducer() override {
    KillProducer();
    ++incarnation_;
    OpenProducer();
    return true;
  }
  void KillProducer() override { producer_.reset(); }
  std::string Explain() override { return consumer_.pool->Explain(""); }
  FetchServer::Counts served() override { return producer_->counts(); }

 private:
  void OpenProducer() {
    producer_ = std::make_unique<Producer>(&alarms_, incarnation_, options_.server);
    consumer_.members.Set(kProducer, absl::StrCat("127.0.0.1:", producer_->proxy->port()));
  }

  const GrpcWorldOptions options_;
  ThreadAlarms alarms_;
  uint64_t incarnation_ = 0xab;
  std::unique_ptr<Producer> producer_;
  Consumer consumer_;
};

}  // namespace

std::unique_ptr<GrpcWorld> OpenGrpcWorld(const GrpcWorldOptions& options) {
  return std::make_unique<LoopbackGrpcWorld>(options);
}

}  // namespace tryst
