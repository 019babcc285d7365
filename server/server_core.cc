#include "server/server_core.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/thread_owner.h"
#include "channel/grpc/fetch_wire.h"
#include "channel/grpc/grpc_channel.h"
#include "server/grpc_arguments.h"
#include "server/loopback.h"
#include "server/open_nics.h"

namespace tryst {
namespace {

constexpr std::chrono::seconds kCallbacksMost(1);  // To run in, when the time to stop is over.
constexpr char kHelloMethod[] = "/tryst.rpc.TransportService/Hello";
constexpr char kSamplesMethod[] = "/tryst.rpc.TransportService/SendSamples";
constexpr size_t kMaxQueuedCallbacks = 65536;
constexpr size_t kMaxQueuedControls = 256;  // Calls of operators and of who drives the steps.
constexpr absl::Duration kClusterFilePeriod = absl::Seconds(1);
constexpr absl::Duration kLongestEnd = absl::Hours(24 * 365);  // "For ever", to be added to a time.

// gRPC keeps it for the whole process; asking twice does no harm.
void EnableReflection() {
  static std::once_flag once;
  std::call_once(once, grpc::reflection::InitProtoReflectionServerBuilderPlugin);
}

// What can be under way on the links to and from max_peers, as a sum: on each queue pair
// what we send and one part of each slot's tensor, and the peer's messages and ack.
uint32_t CompletionDepth(const ServerConfig& config, const LinkOptions& link) {
  const uint64_t of_link =
      uint64_t{link.queue_pairs} * (link.send_depth + link.slots) + link.ring_slots + 1;
  const uint64_t sum = 2 * static_cast<uint64_t>(config.max_peers) * of_link;
  return static_cast<uint32_t>(std::min<uint64_t>(sum, UINT32_MAX));
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
      signer_({parts_.config.cluster, parts_.worker, incarnation_}, security_.token(), UnixMs),
      verifier_(parts_.config.cluster, parts_.worker, security_.token(), UnixMs),
      source_(parts_.allow),
      calls_(&members_, &signer_) {
  for (const auto& [worker, address] : parts_.cluster.Workers()) members_.Set(worker, address);
  if (!parts_.etcd.endpoints.empty()) members_.ExpectMore();
  if (parts_.executor == nullptr) {
    own_executor_ = std::make_unique<ThreadPoolExecutor>(
        static_cast<int>(parts_.config.callback_threads), kMaxQueuedCallbacks);
  }
}

ServerCore::~ServerCore() {
  calls_.Close();  // What it has under way may be on our queue.
  service_.reset();
  control_executor_.reset();
  insight_.reset();
  fetches_.reset();
  samples_.reset();
  steps_.reset();
  events_.reset();
  if (poller_ != nullptr) poller_->Stop();
  devices_.reset();
  pool_.reset();
  poller_.reset();
  bootstrap_.reset();
  own_executor_.reset();  // Runs what is queued.
}

bool ServerCore::OnOwnThread() const {
  if (IsThreadOf(&alarms_) || IsThreadOf(own_executor_.get())) return true;
  return made() &&
         (poller_->OnThread() || IsThreadOf(events_.get()) || IsThreadOf(control_executor_.get()));
}

const std::string& ServerCore::address() const {
  static const auto* const none = new std::string;
  return listening() ? address_ : *none;
}

std::string ServerCore::status_address() const {
  MutexLock lock(&mu_);
  return status_page_ == nullptr ? "" : status_page_->address();
}

// ---- Opening ----

absl::Status ServerCore::Open() {
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
                  << absl::StrJoin(path_names_, ", ") << "), incarnation "
                  << absl::StrFormat("%016x", incarnation_);
  return absl::OkStatus();
}

// All that does not speak to anybody yet.
absl::Status ServerCore::Make() {
  absl::Status made = OpenDataPlane();
  if (!made.ok()) return made;
  made = MakeSteps();
  if (!made.ok()) {
    poller_->Start();
    CloseDataPlane(std::chrono::steady_clock::now());
    return made;
  }
  MakeFetches();
  MakeInsight();
  control_executor_ = std::make_unique<ThreadPoolExecutor>(1, kMaxQueuedControls);
  poller_->Start();
  // Not with GPUs, whose driver minds which thread it is called on.
  if (own_executor_ != nullptr && devices_ == nullptr && parts_.config.callback_threads > 1) {
    own_executor_->SetSource(poller_.get());
  }
  made_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

// What a server does from time to time.
void ServerCore::KeepUp() {
  announcer_ = std::make_unique<Announcer>(Member{parts_.worker, address_, incarnation_}, &members_,
                                           &calls_, queue_, &alarms_);
  announcer_->Start();
  upkeep_ = std::make_unique<Repeating>(parts_.config.grpc_idle, &alarms_, [this] {
    members_.DropIdleChannels();  // Most peers are called to open the data plane, and no more.
    samples_->Sweep();
  });
  if (parts_.config.resolver == "file") {
    cluster_file_ = std::make_unique<ClusterFileWatch>(parts_.config.cluster_file, parts_.worker,
                                                       parts_.cluster.Workers(), kClusterFilePeriod,
                                                       &members_, &alarms_);
  }
  if (parts_.etcd.endpoints.empty()) return;
  auto etcd = std::make_unique<EtcdMembers>(
      EtcdMembers::Options{parts_.etcd, parts_.config.cluster,
                           Member{parts_.worker, address_, incarnation_}, parts_.config.etcd_lease},
      &members_, &clock_);
  MutexLock lock(&mu_);
  etcd_ = std::move(etcd);
}

absl::Status ServerCore::OpenDataPlane() {
  const ServerConfig& config = parts_.config;
  absl::StatusOr<std::vector<NicPath>> paths = parts_.open_nics(
      config, {HostOf(parts_.listen), HostOf(parts_.advertise), parts_.environment});
  if (!paths.ok()) return paths.status();
  absl::StatusOr<LinkOptions> link = LinkFrom(config, parts_.environment);
  if (!link.ok()) return link.status();
  for (const NicPath& path : *paths) path_names_.push_back(path.path);
  if (UsesShm(config)) path_names_.insert(path_names_.begin(), "shm");
  path_names_.push_back("grpc");

  PollerOptions poller;
  poller.spin_us = config.spin_us;
  // GPUs' driver minds which thread it is called on.
  poller.keeps_its_thread = ServerDevices::Wanted(config, parts_.gpus);
  poller_ = std::make_unique<Poller>(&clock_, poller);
  builder_ = std::make_unique<grpc::ServerBuilder>();
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder_->AddCompletionQueue();
  queue_ = queue.get();
  events_ = std::make_unique<EventThread>(std::move(queue), poller_.get());
  bootstrap_ = std::make_unique<GrpcBootstrap>(&members_, &signer_, queue_, &clock_);
  TraceOptions trace;
  trace.records = static_cast<size_t>(config.trace_records);
  trace.sample_every = static_cast<uint32_t>(config.trace_sample_every);
  trace.slow_ns = absl::ToInt64Nanoseconds(config.trace_slow);
  poller_trace_ = std::make_unique<Trace>(trace);
  trace.name = "other grpc";
  grpc_trace_ = std::make_unique<Trace>(trace);
  ChannelPoolOptions options;
  options.self = parts_.worker;
  options.incarnation = incarnation_;
  options.link = *link;
  options.completion_depth = CompletionDepth(config, options.link);
  options.max_consumers = static_cast<uint32_t>(config.max_peers);
  options.eager_bytes = config.message_bytes;
  options.stripe_bytes = config.stripe_bytes;
  options.landing_bytes = config.offered_bytes;
  options.landing_cap_bytes = config.landing_bytes;
  options.retain_ms = absl::ToInt64Milliseconds(config.keep_for);
  options.patience_ms = absl::ToInt64Milliseconds(config.patience);
  options.max_waiting = static_cast<uint32_t>(config.max_waiting);
  options.seed = incarnation_;
  options.trace = poller_trace_.get();
  if (UsesShm(config)) {
    ArenaOptions arena;
    arena.cap_bytes = config.shm_bytes;
    arena.seed = incarnation_;
    arena_ = Arena::Make(arena);
    options.shm_arena = arena_;
    options.shm.digests = WantsDigests(config, /*unchecked_wire=*/false);
    options.shm.stage_bytes = config.shm_bytes / 2;
    options.shm.max_consumers = static_cast<uint32_t>(config.max_peers);
    options.shm.patience_ms = absl::ToInt64Milliseconds(config.patience);
    options.shm.max_waiting = static_cast<uint32_t>(config.max_waiting);
    options.shm.copy_helpers =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()) - 2, 0, 3);
  }
  absl::Status devices = OpenDevices(&*paths);
  if (!devices.ok()) return devices;
  GrpcChannelOptions fallback;
  fallback.max_tensor_bytes = config.max_tensor_bytes;
  fallback.max_asked = static_cast<size_t>(config.max_asked);
  fallback.patience = config.patience;
  fallback.max_waiting = static_cast<size_t>(config.max_waiting);
  fallback.trace = poller_trace_.get();
  fallback.digests = DigestsOverGrpc();
  pool_ = std::make_unique<ChannelPool>(
      poller_.get(), bootstrap_.get(), source(), *std::move(paths),
      [this, fallback](const std::string& peer) {
        return std::make_unique<GrpcChannel>(peer, &members_, &signer_, events_.get(),
                                             poller_.get(), fallback);
      },
      options);
  if (devices_ != nullptr) devices_->proxy()->SetChannels(pool_.get());
  return pool_->Open();
}

bool ServerCore::DigestsOverGrpc() const {
  return WantsDigests(parts_.config, !security_.is_tls() && !IsLoopback(parts_.listen));
}

absl::Status ServerCore::OpenDevices(std::vector<NicPath>* paths) {
  if (!ServerDevices::Wanted(parts_.config, parts_.gpus)) return absl::OkStatus();
  ServerDevices::Parts parts;
  parts.config = &parts_.config;
  parts.gpus = parts_.gpus;
  parts.poller = poller_.get();
  parts.source = &source_;
  parts.arena = arena_;
  parts.seed = incarnation_;
  parts.paths = paths;
  auto devices = ServerDevices::Open(parts);
  if (devices.ok()) devices_ = *std::move(devices);
  return devices.status();
}

absl::Status ServerCore::MakeSteps() {
  StepRegistry::Options options;
  options.worker = parts_.worker;
  options.max_held_bytes = static_cast<int64_t>(parts_.config.max_held_bytes);
  options.step.max_held_bytes = static_cast<int64_t>(parts_.config.max_held_bytes_per_step);
  for (const auto& [device, incarnation] : parts_.devices) {
    options.incarnations[device] = incarnation == 0 ? incarnation_ : incarnation;
  }
  if (devices_ != nullptr) {
    for (int ordinal : devices_->ordinals()) {
      options.incarnations.emplace(absl::StrCat(parts_.worker, "/device:GPU:", ordinal),
                                   incarnation_);
    }
  }
  auto steps = StepRegistry::Make(options, &alarms_, fetcher());
  if (!steps.ok()) return steps.status();
  steps_ = *std::move(steps);
  source_.Set(steps_.get());
  samples_ = std::make_unique<SampleSender>(parts_.worker, incarnation_, steps_.get(), &clock_);
  return absl::OkStatus();
}

void ServerCore::MakeFetches() {
  FetchServerOptions options;
  options.keep_for = parts_.config.keep_for;
  options.max_kept_bytes = parts_.config.max_kept_bytes;
  options.trace = grpc_trace_.get();
  options.digests = DigestsOverGrpc();
  fetches_ = std::make_unique<FetchServer>(
      source(), &alarms_, incarnation_,
      [this](const grpc::ServerContextBase& context, absl::string_view request) {
        return Authenticate(context, kFetchMethod, request);
      },
      [this](const Caller& caller, const TensorKey& key) {
        return source_.allow().Check(caller.worker, key);
      },
      options);
}

void ServerCore::MakeInsight() {
  Insight::Parts parts;
  parts.worker = parts_.worker;
  parts.incarnation = incarnation_;
  parts.address = [this] { return address(); };
  parts.protocol = parts_.config.protocol;
  parts.path_names = path_names_;
  parts.clock = &clock_;
  parts.steps = steps_.get();
  parts.pool = pool_.get();
  parts.fetches = fetches_.get();
  parts.members = &members_;
  parts.arena = arena_;
  parts.traces = {poller_trace_.get(), grpc_trace_.get()};
  if (devices_ != nullptr) {
    parts.explain_devices = [this] { return devices_->Explain(); };
    parts.add_device_stats = [this](std::map<std::string, int64_t>* stats) {
      devices_->AddStats(stats);
    };
  }
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
  const auto said = context.client_metadata().find(kCallerMetadata);
  if (said != context.client_metadata().end()) {
    statement = absl::string_view(said->second.data(), said->second.size());
  }
  absl::StatusOr<Caller> caller = verifier_.Verify(statement, method, request);
  if (!caller.ok()) return caller;
  absl::Status certified = security_.CheckCertificate(*context.auth_context(), caller->worker);
  if (!certified.ok()) return certified;
  // Tensors and steps are for members alone; anybody of the cluster may ask how we are.
  const bool controls = absl::EndsWith(method, "Step");
  if (controls && !parts_.control.empty()) {
    absl::Status allowed = parts_.control.Check(caller->worker);
    if (!allowed.ok()) return allowed;
  } else if ((controls || method == kFetchMethod || method == kHelloMethod ||
              method == kSamplesMethod) &&
             !members_.Admits(caller->worker)) {
    if (members_.expects_more()) {  // It may have registered a moment ago: it asks again.
      return absl::UnavailableError(
          absl::StrCat(caller->worker, " is not known here as a member yet"));
    }
    return absl::PermissionDeniedError(absl::StrCat(
        caller->worker, " is not of this cluster, which is closed",
        controls ? ": to let it begin, abort and clean up steps, name it in 'control'" : ""));
  }
  return caller;
}

TransportServiceParts ServerCore::ServiceParts() {
  TransportServiceParts parts;
  parts.self = signer_.self();
  parts.address = [this] { return address(); };
  parts.token = security_.token();
  parts.members = &members_;
  parts.hellos = pool_.get();
  parts.authenticate = [this](const grpc::ServerContextBase& context, absl::string_view method,
                              absl::string_view request) {
    return Authenticate(context, method, request);
  };
  parts.begin_step = [this](int64_t step_id) { return steps_->StartStep(step_id).status(); };
  parts.abort_step = [this](int64_t step_id, const absl::Status& why) {
    steps_->AbortStep(step_id, why);
    return absl::OkStatus();
  };
  parts.cleanup_step = [this](int64_t step_id) {
    steps_->CleanupStep(step_id);
    return absl::OkStatus();
  };
  parts.executor = control_executor_.get();
  parts.samples = samples_.get();
  parts.insight = insight_.get();
  return parts;
}

absl::Status ServerCore::Listen() {
  EnableReflection();
  service_ = MakeTransportService(ServiceParts());
  grpc::ServerBuilder& builder = *builder_;
  // Two servers must not share a port without knowing it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Peers' keepalives (security.cc) are welcome.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  SetTransportArguments(
      [&builder](const char* name, int value) { builder.AddChannelArgument(name, value); });
  builder.AddListeningPort(parts_.listen, security_.ForServer(), &port_);
  builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  builder.RegisterService(&health_);
  builder.RegisterService(service_->service());
  for (grpc::Service* service : parts_.services) builder.RegisterService(service);
  grpc_ = builder.BuildAndStart();
  builder_.reset();
  if (grpc_ == nullptr || port_ == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", parts_.listen));
  }
  // Before the first peer is answered.
  const bool any_port = parts_.advertise.size() > 2 &&
                        parts_.advertise.compare(parts_.advertise.size() - 2, 2, ":0") == 0;
  address_ = any_port ? absl::StrCat(HostOf(parts_.advertise), ":", port_) : parts_.advertise;
  listening_.store(true, std::memory_order_release);
  members_.Set(parts_.worker, address_);
  absl::Status announced = members_.Announce({parts_.worker, address_, incarnation_});
  health_.Start(queue_);
  service_->Start(queue_);
  fetches_->Start(queue_, service_->next_fetch());
  return announced;
}

// ---- Ending ----

void ServerCore::DrainFetches(std::chrono::steady_clock::time_point until) {
  fetches_->Shutdown();
  while (fetches_->counts().sending > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void ServerCore::CloseDataPlane(std::chrono::steady_clock::time_point until) {
  const auto left = absl::FromChrono(until - std::chrono::steady_clock::now());
  absl::Status drained = pool_->Stop(absl::UnavailableError("the server has stopped"),
                                     std::max(left, absl::Milliseconds(100)));
  if (drained.ok() && devices_ != nullptr) {
    drained = devices_->proxy()->Stop(std::max(
        absl::FromChrono(until - std::chrono::steady_clock::now()), absl::Milliseconds(100)));
  }
  drained_ = drained.ok();
  if (drained_) return;
  TRYST_LOG(Error) << parts_.worker << " leaves its data plane behind: " << drained.message();
}

void ServerCore::StopListening() {
  if (grpc_ == nullptr) return;
  grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  grpc_->Wait();
  fetches_->Join();
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
  std::unique_ptr<EtcdMembers> etcd;  // Ends without the lock: it waits for etcd.
  {
    MutexLock lock(&mu_);
    etcd = std::move(etcd_);
  }
  etcd.reset();
  if (announcer_ != nullptr) announcer_->Leave(std::min(deadline, absl::Milliseconds(500)));
  if (grpc_ != nullptr) health_.SetNotServing();
  DrainFetches(until);
  if (fetches_->counts().sending > 0) {
    status = absl::DeadlineExceededError("tensors on their way were cut off");
  }
  steps_->Close(absl::AbortedError(absl::StrCat(parts_.worker, " is stopping")));
  bootstrap_->Cancel();
  CloseDataPlane(until);
  if (!drained_) status = absl::DeadlineExceededError("the data plane has not drained");
  bool idle = true;
  if (own_executor_ != nullptr) {
    own_executor_->SetSource(nullptr);
    idle =
        own_executor_->WaitIdle(std::max(until, std::chrono::steady_clock::now() + kCallbacksMost));
    if (!idle) {
      TRYST_LOG(Error) << parts_.worker << " stops while a callback of its user's has not returned";
    }
  }
  StopListening();
  std::unique_ptr<StatusPage> page;  // Ends without the lock: it may be answering.
  {
    MutexLock lock(&mu_);
    page = std::move(status_page_);
  }
  page.reset();
  announcer_.reset();
  calls_.Close();
  // Whoever frees what the callbacks use waits for us.
  if (!idle) (void)own_executor_->WaitIdle(std::chrono::steady_clock::time_point::max());
  return status;
}

}  // namespace tryst
