#include "server/server_core.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/thread_owner.h"
#include "channel/arena/arena.h"
#include "channel/compat/fetch_wire.h"
#include "rendezvous/own_steps.h"
#include "server/config/pollers.h"
#include "server/process/grpc_log.h"
#include "server/process/lean_heap.h"
#include "server/security/grpc_arguments.h"
#include "server/security/loopback.h"

namespace tryst {
namespace {

// After the deadline, callbacks get this much longer.
constexpr std::chrono::seconds kCallbacksMost(1);
// A server that stops waits this long for the answers to its farewells.
constexpr absl::Duration kShortestFarewell = absl::Milliseconds(50);
constexpr absl::Duration kLongestFarewell = absl::Seconds(1);
// What a stop keeps back for farewells and the drain, if that is less than a quarter of its time.
constexpr std::chrono::milliseconds kRestOfStop(1000);
// Streams of one connection: twice GrpcChannelOptions::max_asked, and further fetches share calls.
constexpr int kMostStreams = 2048;
constexpr int kMostMetadata = 8 << 10;    // The most metadata of a call.
constexpr size_t kGrpcBytes = 256 << 20;  // The most that gRPC's own buffers may take.
constexpr std::chrono::milliseconds kHandshake(10'000);
constexpr std::chrono::milliseconds kIdle(300'000);
// Within how long all connections are made anew, so that they do not wait for each other.
constexpr absl::Duration kRenewWithin = absl::Seconds(5);
// How long the last words to peers over gRPC may take to leave.
constexpr absl::Duration kLastWords = absl::Milliseconds(100);
constexpr char kHelloMethod[] = "/tryst.rpc.TransportService/Hello";
constexpr char kSamplesMethod[] = "/tryst.rpc.TransportService/SendSamples";
constexpr size_t kMaxQueuedCallbacks = 65536;
// If an embedder's executor runs the callbacks.
constexpr size_t kMaxQueuedWork = 1024;
constexpr int kWorkThreads = 2;  // While one copies, the other answers what is short.
// Calls that wait for the control thread: operators' and step control.
constexpr size_t kMaxQueuedControls = 256;
constexpr absl::Duration kClusterFilePeriod = absl::Seconds(1);
// Stands for "for ever", and can still be added to a time.
constexpr absl::Duration kLongestEnd = absl::Hours(24 * 365);

// gRPC turns reflection on, for everybody, as soon as a program links it. This turns it off.
class NoReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const auto& plugin) {
                                    return plugin->name() == "proto_server_reflection";
                                  }),
                   plugins->end());
  }
};

absl::Status CheckIsJobs(int64_t step_id) {
  if (!IsOwnStep(step_id)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("step ", step_id, " is the worker's own: a job's are above ", kLastOwnStep));
}

// The limits of the listener in front of gRPC.
ConnectionLimits LimitsOf(const ServerParts& parts) {
  ConnectionLimits limits;
  limits.connections = static_cast<size_t>(std::max<int64_t>(64, 4 * parts.config.max_peers));
  if (!parts.services.empty()) {
    limits.stranger_ns = absl::ToInt64Nanoseconds(parts.longest_stream);
    limits.member_bytes = 0;
    // An embedder's service authenticates its callers itself, so the listener sees them as
    // strangers. They must still be able to send a message of gRPC's largest size.
    limits.stranger_bytes = 5 << 20;
    limits.strangers_bytes = 10 << 20;
  }
  return WithinDescriptors(limits);
}

void SetServerArguments(grpc::ServerBuilder* builder, absl::Duration least_ping) {
  const auto set = [builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  };
  SetTransportArguments(set);
  // Requests are small, so a stranger gets no room for large frames.
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 64 << 10);
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 64 << 10);
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  set(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadata);
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(kHandshake.count()));
  set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(kIdle.count()));
  // gRPC's default would refuse peers' keepalives (security.cc).
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      static_cast<int>(absl::ToInt64Milliseconds(least_ping)));
  set(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  grpc::ResourceQuota quota("tryst server");
  quota.Resize(kGrpcBytes);
  builder->SetResourceQuota(quota);
}

// Why no other process may copy of our regions by itself. Empty: it may.
std::string NoGrants(const ServerConfig& config) {
  if (!UsesGrants(config)) return "it uses none (its setting shm)";
  if (!config.allow.empty()) return "allow is set there";
  return "";
}

}  // namespace

ServerCore::ServerCore(ServerParts parts)
    : parts_(std::move(parts)),
      incarnation_(RandomIncarnation()),
      security_(parts_.security, parts_.config.cluster),
      unreachable_(parts_.security, parts_.config.cluster),
      members_(
          parts_.config.open_cluster,
          [this](const std::string& worker, const std::string& address) {
            return security_.Connect(worker, address);
          },
          [this](const std::string& worker, const std::string& address) {
            return unreachable_.Why(worker, address);
          }),
      grants_{GrantBook(parts_.worker, incarnation_, NoGrants(parts_.config)),
              GrantTable(UsesGrants(parts_.config))},
      signer_({parts_.config.cluster, parts_.worker, incarnation_}, security_.token(), UnixMs),
      verifier_(parts_.config.cluster, parts_.worker, signer_.self().incarnation, security_.token(),
                UnixMs),
      source_(parts_.allow),
      calls_(&members_, &signer_) {
  for (const auto& [worker, address] : parts_.cluster.Workers()) members_.Set(worker, address);
  MakePollers();
  if (!parts_.etcd.endpoints.empty()) members_.ExpectMore();
  const bool runs_callbacks = parts_.executor == nullptr;
  own_executor_ = std::make_unique<ThreadPoolExecutor>(
      runs_callbacks ? static_cast<int>(pollers_.size()) + 1 : kWorkThreads,
      runs_callbacks ? kMaxQueuedCallbacks : kMaxQueuedWork);
}

ServerCore::~ServerCore() {
  calls_.Close();  // Calls under way may be on our queue.
  service_.reset();
  control_executor_.reset();
  insight_.reset();
  if (data_plane_ != nullptr) data_plane_->EndServing();
  samples_.reset();
  steps_.reset();
  events_.reset();
  for (const auto& poller : pollers_) poller->Stop();
  data_plane_.reset();
  pollers_.clear();
  bootstrap_.reset();
  own_executor_.reset();  // Runs the callbacks that are queued.
}

bool ServerCore::OnOwnThread() const {
  if (IsThreadOf(&alarms_) || IsThreadOf(own_executor_.get())) return true;
  if (!made_) return false;
  if (IsThreadOf(events_.get()) || IsThreadOf(control_executor_.get())) return true;
  return std::any_of(pollers_.begin(), pollers_.end(),
                     [](const auto& poller) { return poller->OnThread(); });
}

const std::string& ServerCore::address() const {
  static const auto* const none = new std::string;
  return listening_ ? address_ : *none;
}

void ServerCore::Reload() {
  security_.Reload();
  if (cluster_file_ != nullptr) cluster_file_->ReadSoon();
}

std::string ServerCore::status_address() const {
  MutexLock lock(&mu_);
  return status_page_ == nullptr ? "" : status_page_->address();
}

// ---- Opening ----

absl::Status ServerCore::Open() {
  BoundGrpcLog();
  KeepLargeBlocks();
  absl::Status opened = Make();
  if (!opened.ok()) return opened;
  opened = Listen();
  if (opened.ok()) opened = ShowStatus();
  if (!opened.ok()) {
    (void)End(absl::Seconds(1));
    return opened;
  }
  KeepUp();
  TRYST_LOG(Info) << parts_.worker << " of cluster " << parts_.config.cluster << " serves at "
                  << address_ << " by " << parts_.config.protocol << " ("
                  << absl::StrJoin(data_plane_->pools()->transport_names(), ", ")
                  << "), incarnation " << absl::StrFormat("%016x", incarnation_);
  if (ClearDespiteProof(parts_.config)) {
    TRYST_LOG(Warning) << parts_.worker
                       << " does not encrypt all that it sends: " << EncryptionText(parts_.config);
  }
  return absl::OkStatus();
}

// Makes every part that does not yet talk to a peer.
absl::Status ServerCore::Make() {
  absl::Status made = OpenDataPlane();
  if (!made.ok()) return made;
  made = MakeSteps();
  if (!made.ok()) {
    for (const auto& poller : pollers_) poller->Start();
    data_plane_->calls()->Shutdown();
    CloseDataPlane(std::chrono::steady_clock::now());
    return made;
  }
  MakeInsight();
  control_executor_ = std::make_unique<ThreadPoolExecutor>(1, kMaxQueuedControls);
  std::vector<WorkSource*> sources;
  for (const auto& poller : pollers_) {
    poller->Start();
    sources.push_back(poller.get());
  }
  // A GPU's driver keeps state for the thread that calls it, so not with GPUs.
  if (parts_.executor == nullptr && !data_plane_->has_devices()) {
    own_executor_->SetSources(sources);
  }
  made_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

// Starts what a server repeats every so often.
void ServerCore::KeepUp() {
  heartbeats_ = std::make_unique<PeerCalls::HeartbeatsOn>(&calls_, queue_);
  announcer_ = std::make_unique<Announcer>(Member{parts_.worker, address_, incarnation_}, &members_,
                                           heartbeats_.get(), &alarms_);
  announcer_->Start();
  upkeep_ = std::make_unique<Repeating>(parts_.security.idle, &alarms_, [this] {
    RenewConnections();
    members_.DropIdleChannels();  // Most peers are called only until the data plane is open.
    samples_->Sweep();
    // Much may be unmapped, for which alarms do not wait.
    own_executor_->RunWithoutWaiting([idle = grants_.taken.Sweep()] {});
    steps_->DropAbandonedSteps();
    GiveBurstsBack();
  });
  if (parts_.resolver.name == "file") {
    cluster_file_ = std::make_unique<ClusterFileWatch>(parts_.resolver.where, parts_.worker,
                                                       parts_.cluster.Workers(), kClusterFilePeriod,
                                                       &members_, &alarms_);
  }
  if (parts_.etcd.endpoints.empty()) return;
  auto etcd = std::make_unique<EtcdMembers>(
      EtcdMembers::Options{parts_.etcd, parts_.config.cluster,
                           Member{parts_.worker, address_, incarnation_}, EtcdLease(parts_.config)},
      &members_, &clock_);
  MutexLock lock(&mu_);
  etcd_ = std::move(etcd);
}

// A round after the certificates have changed, when gRPC uses them, too.
void ServerCore::RenewConnections() {
  const uint64_t read = security_.certificates_read();
  const bool is_used = std::exchange(certificates_seen_, read) == read;
  if (!is_used || read == certificates_met_) return;
  certificates_met_ = read;
  TRYST_LOG(Info) << parts_.worker
                  << " has new certificates, and makes its connections anew within "
                  << kRenewWithin;
  members_.RenewChannels();
  data_plane_->pools()->RenewLinks(absl::ToInt64Milliseconds(kRenewWithin));
}

void ServerCore::GiveBurstsBack() {
  uint64_t over = data_plane_->calls()->counts().bursts_over;
  for (const auto& poller : pollers_) over += poller->bursts_over();
  const bool is_over = std::exchange(bursts_given_back_, over) != over;
  // Twice: what a burst leaves with gRPC and with callers is freed a moment later.
  if (is_over || gives_back_again_) GiveFreeHeapBack();
  gives_back_again_ = is_over;
}

void ServerCore::MakePollers() {
  PollerOptions options = parts_.inner.poller;
  options.keeps_its_thread = DataPlane::KeepsItsThread(parts_);
  const std::string name = options.name;
  const int count = options.keeps_its_thread ? 1 : PollerCount(parts_.config, UsableCpus());
  // CheckLimits() has parsed it.
  const std::vector<int> cpus = PollerPlan::Parse(parts_.config.pollers)->cpus;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (i > 0) options.name = absl::StrCat(name, "-", i);
    options.cpu = cpus.empty() ? -1 : cpus[i % cpus.size()];
    pollers_.push_back(std::make_unique<Poller>(&clock_, options));
  }
}

absl::Status ServerCore::OpenDataPlane() {
  std::vector<Poller*> pollers;
  for (const auto& poller : pollers_) pollers.push_back(poller.get());
  builder_ = std::make_unique<grpc::ServerBuilder>();
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder_->AddCompletionQueue();
  queue_ = queue.get();
  events_ = std::make_unique<EventThread>(std::move(queue), pollers);
  bootstrap_ = std::make_unique<GrpcBootstrap>(&members_, &signer_, queue_, &clock_);
  DataPlane::Parts parts;
  parts.server = &parts_;
  parts.incarnation = incarnation_;
  parts.pollers = pollers;
  parts.events = events_.get();
  parts.bootstrap = bootstrap_.get();
  parts.members = &members_;
  parts.signer = &signer_;
  parts.alarms = &alarms_;
  parts.source = &source_;
  parts.authorize = [this](const grpc::ServerContextBase& context, absl::string_view method,
                           absl::string_view request) {
    return Authenticate(context, method, request);
  };
  parts.heard = [this](const grpc::ServerContextBase& context) {
    listener_->Authenticated(context.peer());
  };
  parts.has_tls = security_.is_tls();
  auto opened = DataPlane::Open(std::move(parts));
  if (!opened.ok()) return opened.status();
  data_plane_ = *std::move(opened);
  Arena* const arena = data_plane_->allocator();
  if (arena == nullptr) return absl::OkStatus();
  grants_.given.SetFindShared([arena](const void* memory) -> GrantBook::Shared {
    const MemorySpace space = arena->SpaceOf(memory);
    if (space.kind != MemorySpace::Kind::kShared) return {};
    return {arena->FindSegment(space.segment_id), space.segment_offset};
  });
  return absl::OkStatus();
}

absl::Status ServerCore::MakeSteps() {
  StepRegistry::Options options;
  options.worker = parts_.worker;
  options.max_held_bytes = static_cast<int64_t>(parts_.config.max_held_bytes);
  for (const auto& [device, incarnation] : parts_.devices) {
    options.incarnations[device] = incarnation == 0 ? incarnation_ : incarnation;
  }
  for (int ordinal : data_plane_->device_ordinals()) {
    options.incarnations.emplace(absl::StrCat(parts_.worker, "/device:GPU:", ordinal),
                                 incarnation_);
  }
  options.step.gathers_into = data_plane_->allocator();
  options.step.has_devices = data_plane_->has_devices() || options.incarnations.size() > 1;
  auto steps = StepRegistry::Make(options, &alarms_, data_plane_->fetcher());
  if (!steps.ok()) return steps.status();
  steps_ = *std::move(steps);
  source_.Set(steps_.get());
  samples_ = std::make_unique<SampleSender>(parts_.worker, incarnation_, steps_.get(), &clock_);
  return absl::OkStatus();
}

void ServerCore::MakeInsight() {
  Insight::Parts parts;
  parts.worker = parts_.worker;
  parts.incarnation = incarnation_;
  parts.address = [this] { return address(); };
  parts.protocol = parts_.config.protocol;
  parts.encryption = EncryptionText(parts_.config);
  parts.encrypt_off = ClearDespiteProof(parts_.config);
  parts.clock = &clock_;
  parts.steps = steps_.get();
  parts.pools = data_plane_->pools();
  parts.members = &members_;
  parts.weights = &weight_views_;
  parts.grants = &grants_.taken;
  parts.connections = [this] { return listening_ ? listener_->counts() : ConnectionCounts(); };
  parts.traces = data_plane_->traces();
  parts.explain_devices = [this] { return data_plane_->ExplainDevices(); };
  parts.add_device_stats = [this](std::map<std::string, int64_t>* stats) {
    data_plane_->AddDeviceStats(stats);
  };
  if (!parts_.etcd.endpoints.empty()) {
    parts.look_at_membership = [this](bool json) -> std::string {
      MutexLock lock(&mu_);
      if (etcd_ == nullptr) return json ? "{}" : "";
      return json ? etcd_->Json() : etcd_->Text();
    };
  }
  insight_ = std::make_unique<Insight>(std::move(parts));
}

absl::Status ServerCore::ShowStatus() {
  if (parts_.status.listen.empty()) return absl::OkStatus();
  auto page = StatusPage::Start(parts_.status, insight_.get());
  if (!page.ok()) return page.status();
  TRYST_LOG(Info) << parts_.worker << " shows its status at "
                  << (parts_.status.speaks_tls() ? "https://" : "http://") << (*page)->address();
  MutexLock lock(&mu_);
  status_page_ = *std::move(page);
  return absl::OkStatus();
}

absl::StatusOr<Caller> ServerCore::Authenticate(const grpc::ServerContextBase& context,
                                                absl::string_view method,
                                                absl::string_view request) {
  absl::string_view statement;
  for (const auto& [name, said] : context.client_metadata()) {
    if (name == kCallerMetadata) statement = absl::string_view(said.data(), said.size());
  }
  absl::StatusOr<Caller> caller = verifier_.Verify(statement, method, request);
  if (!caller.ok()) return caller;
  absl::Status certified = security_.CheckCertificate(*context.auth_context(), caller->worker);
  if (!certified.ok()) return certified;
  // The caller is a member, whatever it may do here, so its connection is no stranger's.
  listener_->Authenticated(context.peer());
  // Only members may fetch and control steps; any worker of the cluster may send heartbeats.
  const bool controls = absl::EndsWith(method, "Step");
  if (controls && !parts_.control.empty()) {
    absl::Status allowed = parts_.control.Check(caller->worker);
    if (!allowed.ok()) return allowed;
  } else if ((controls || method == kFetchMethod || method == kConverseMethod ||
              method == kHelloMethod || method == kSamplesMethod) &&
             !members_.Admits(caller->worker)) {
    // It may have registered a moment ago, so it is told to ask again.
    if (members_.expects_more()) {
      return absl::UnavailableError(
          absl::StrCat("this worker does not know ", caller->worker,
                       " yet: let that worker announce itself (its setting join), and try again"));
    }
    return absl::PermissionDeniedError(absl::StrCat(
        caller->worker, " is not of this cluster, which is closed",
        controls ? ": name it in the setting control, if it may begin, abort and clean up steps"
                 : ""));
  }
  return caller;
}

TransportServiceParts ServerCore::ServiceParts() {
  TransportServiceParts parts;
  parts.self = signer_.self();
  parts.address = [this] { return address(); };
  parts.token = security_.token();
  parts.members = &members_;
  parts.hellos = data_plane_->pools();
  parts.authenticate = [this](const grpc::ServerContextBase& context, absl::string_view method,
                              absl::string_view request) {
    return Authenticate(context, method, request);
  };
  parts.begin_step = [this](int64_t step_id) {
    const absl::Status is_jobs = CheckIsJobs(step_id);
    return is_jobs.ok() ? steps_->BeginStep(step_id) : is_jobs;
  };
  parts.abort_step = [this](int64_t step_id, const absl::Status& why) {
    const absl::Status is_jobs = CheckIsJobs(step_id);
    if (is_jobs.ok()) steps_->AbortStep(step_id, why);
    return is_jobs;
  };
  parts.cleanup_step = [this](int64_t step_id) {
    const absl::Status is_jobs = CheckIsJobs(step_id);
    if (is_jobs.ok()) steps_->CleanupStep(step_id);
    return is_jobs;
  };
  parts.executor = control_executor_.get();
  parts.samples = samples_.get();
  parts.insight = insight_.get();
  return parts;
}

absl::Status ServerCore::Listen() {
  absl::StatusOr<std::unique_ptr<Listener>> listener =
      Listener::Open(parts_.listen, LimitsOf(parts_));
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  service_ = MakeTransportService(ServiceParts());
  grpc::ServerBuilder& builder = *builder_;
  SetServerArguments(&builder, parts_.inner.least_ping);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      security_.ForServer());
  builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  builder.SetOption(std::make_unique<NoReflection>());
  builder.RegisterService(&health_);
  builder.RegisterService(service_->service());
  for (grpc::Service* service : parts_.services) builder.RegisterService(service);
  grpc_ = builder.BuildAndStart();
  builder_.reset();
  if (grpc_ == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "gRPC did not start at ", parts_.listen,
        parts_.services.empty() ? ": see what it has logged"
                                : ": see whether a service that the program adds is there twice"));
  }
  port_ = listener_->port();
  // The advertised address must be known before the first peer is answered.
  const bool any_port = parts_.advertise.size() > 2 &&
                        parts_.advertise.compare(parts_.advertise.size() - 2, 2, ":0") == 0;
  address_ = any_port ? absl::StrCat(HostOf(parts_.advertise), ":", port_) : parts_.advertise;
  listening_.store(true, std::memory_order_release);
  members_.Set(parts_.worker, address_);
  absl::Status announced = members_.Announce({parts_.worker, address_, incarnation_});
  health_.Start(queue_);
  service_->Start(queue_);
  data_plane_->calls()->Start(queue_, service_->next_fetch());
  if (data_plane_->pipes() != nullptr)
    data_plane_->pipes()->Start(queue_, service_->next_converse());
  listener_->Start([acceptor = acceptor_.get()](int listener_fd, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_fd;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  });
  return announced;
}

// ---- Ending ----

void ServerCore::DrainFetches(std::chrono::steady_clock::time_point until) {
  FetchServer* const calls = data_plane_->calls();
  calls->Shutdown();
  const auto is_busy = [&] {
    const size_t lent = data_plane_->EndLending();  // Whatever else is under way.
    return calls->counts().sending > 0 || lent > 0;
  };
  while (is_busy() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void ServerCore::CloseDataPlane(std::chrono::steady_clock::time_point until) {
  const absl::Status drained = data_plane_->Stop(until);
  drained_ = drained.ok();
  if (drained_) return;
  TRYST_LOG(Error)
      << parts_.worker
      << " stops, but keeps the memory of its transfers, as a NIC may still write there: "
      << drained.message();
}

void ServerCore::StopListening() {
  if (listener_ != nullptr) listener_->Stop();
  GrpcPipes* const pipes = data_plane_->pipes();
  if (pipes != nullptr) pipes->Shutdown(kLastWords);
  if (grpc_ == nullptr) return;
  grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  grpc_->Wait();
  data_plane_->calls()->Join();
  if (pipes != nullptr) pipes->Join();
  service_->Join();
  health_.Join();
  grpc_.reset();
}

absl::Status ServerCore::End(absl::Duration deadline) {
  deadline = std::clamp(deadline, absl::ZeroDuration(), kLongestEnd);
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(deadline);
  absl::Status status;
  cluster_file_.reset();
  upkeep_.reset();
  // It is destroyed without the lock, because it waits for etcd.
  std::unique_ptr<EtcdMembers> etcd;
  {
    MutexLock lock(&mu_);
    etcd = std::move(etcd_);
  }
  etcd.reset();
  if (announcer_ != nullptr) announcer_->Leave(std::min(deadline, absl::Milliseconds(500)));
  if (grpc_ != nullptr) health_.SetNotServing();
  grants_.given.Stop();
  DrainFetches(until);
  const auto cut_off = [] {
    return absl::DeadlineExceededError(
        "the time for stopping was over before all tensors were sent, and the rest were cut off: "
        "raise stop_deadline");
  };
  if (data_plane_->calls()->counts().sending > 0) status = cut_off();
  if (const size_t lent = data_plane_->EndLending(); lent > 0) {
    status = absl::DeadlineExceededError(
        absl::StrCat(lent,
                     " tensors in GPU memory are lent, and other workers may still read them: "
                     "raise stop_deadline"));
  }
  steps_->Close(absl::AbortedError(absl::StrCat(parts_.worker, " is stopping")));
  grants_.taken.Close();
  // What was sent before that still goes. Tensors that nobody has asked for are gone. Farewells and
  // the drain need some of the time, too.
  const auto rest = std::min<std::chrono::nanoseconds>(
      (until - std::chrono::steady_clock::now()) / 4, kRestOfStop);
  const size_t cut = data_plane_->AwaitSends(until - rest);
  if (cut > 0 && status.ok()) status = cut_off();
  // Channels say farewell when they close. A peer that does not answer that must not look like one
  // that may still write our memory, so it has half of the time at most.
  const auto left = absl::FromChrono(until - std::chrono::steady_clock::now());
  bootstrap_->CancelAndLimit(std::clamp(left / 2, kShortestFarewell, kLongestFarewell));
  CloseDataPlane(until);
  if (!drained_)
    status = absl::DeadlineExceededError(
        "the time for stopping was over before all transfers had ended: raise stop_deadline");
  own_executor_->SetSources({});
  const bool idle =
      own_executor_->WaitIdle(std::max(until, std::chrono::steady_clock::now() + kCallbacksMost));
  if (!idle) {
    TRYST_LOG(Error) << parts_.worker
                     << " stops although one of the program's callbacks has not returned";
  }
  StopListening();
  // It is destroyed without the lock, because it may be answering.
  std::unique_ptr<StatusPage> page;
  {
    MutexLock lock(&mu_);
    page = std::move(status_page_);
  }
  page.reset();
  announcer_.reset();
  calls_.Close();
  // Our caller will free what the callbacks use, so they must have returned.
  if (!idle) (void)own_executor_->WaitIdle(std::chrono::steady_clock::time_point::max());
  return status;
}

}  // namespace tryst
