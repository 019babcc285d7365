#include "tests/contract/grpc_world.h"

#include <grpcpp/create_channel.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/compat/grpc_transport.h"
#include "channel/grpc/event_thread.h"
#include "channel/signing/caller.h"
#include "channel/transports.h"
#include "rendezvous/thread_alarms.h"
#include "server/members/membership.h"
#include "tests/contract/fetch_host.h"
#include "tests/doubles/server/cut_proxy.h"

namespace tryst {
namespace {

// gRPC is the only path here, so no hello is ever sent.
class NoBootstrap final : public Bootstrap {
  void Exchange(const std::string&, const Hello&, Deadline, HelloDone done) override {
    std::move(done)(absl::UnimplementedError("no data plane"));
  }
};

struct Producer {
  Producer(Alarms* alarms, uint64_t incarnation, const FetchServerOptions& options)
      : steps(alarms), host(&steps, alarms, incarnation, options), proxy(host.port()) {}

  StepTable steps;
  FetchHost host;
  CutProxy proxy;
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
        signer({"lab", kHostConsumer, 0xc0}, "", [] { return UnixMs(); }),
        poller(&clock) {
    TransportsOptions pool_options;
    pool_options.self = kHostConsumer;
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
    producer_->proxy.CutNow();
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
  FetchServer::Counts served() override { return producer_->host.counts(); }

 private:
  void OpenProducer() {
    producer_ = std::make_unique<Producer>(&alarms_, incarnation_, options_.server);
    consumer_.members.Set(kHostWorker, absl::StrCat("127.0.0.1:", producer_->proxy.port()));
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
